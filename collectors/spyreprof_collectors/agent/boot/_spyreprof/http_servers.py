"""Where recognised HTTP servers of the program listen. No other socket is looked at."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .install import Agent


def install(agent: Agent) -> None:
    """Wait for the servers' modules."""
    agent.imports.when_imported("http.server", lambda module: _hook_http_server(agent, module))
    agent.imports.when_imported("uvicorn.server", lambda module: _hook_uvicorn(agent, module))


def _hook_http_server(agent: Agent, module: Any) -> None:
    """Cover `HTTPServer.server_activate`, where the socket begins to listen, for it and its subclasses."""
    server_class = module.HTTPServer
    if hasattr(server_class.server_activate, "_spyreprof"):
        return
    original = server_class.server_activate

    def server_activate(self: Any) -> None:
        original(self)
        _tell(agent, "http.server", [getattr(self, "socket", None)])

    _cover(server_class, "server_activate", server_activate, original)
    agent.process.hook("http.server", "ok")


def _hook_uvicorn(agent: Agent, module: Any) -> None:
    """Cover `Server.startup`, after which the server's sockets listen."""
    server_class = getattr(module, "Server", None)
    original = getattr(server_class, "startup", None)
    if original is None:
        agent.process.hook("uvicorn", "missing", "uvicorn.server.Server.startup is not there")
        return
    if hasattr(original, "_spyreprof"):
        return

    async def startup(self: Any, *arguments: Any, **keywords: Any) -> None:
        await original(self, *arguments, **keywords)
        listening = [socket for server in getattr(self, "servers", ()) for socket in server.sockets]
        _tell(agent, "uvicorn", listening)

    _cover(server_class, "startup", startup, original)
    agent.process.hook("uvicorn", "ok")


def _cover(owner: Any, name: str, function: Any, original: Any) -> None:
    function._spyreprof = True
    function.__wrapped__ = original
    function.__doc__ = original.__doc__
    function.__qualname__ = original.__qualname__
    function.__module__ = original.__module__
    setattr(owner, name, function)


def _tell(agent: Agent, server: str, sockets: Iterable[Any]) -> None:
    try:
        for socket in sockets:
            address = socket.getsockname()
            # A Unix socket has a path for an address, and no port to ask.
            if isinstance(address, tuple) and len(address) >= 2:
                agent.process.note("listen", server=server, host=str(address[0]), port=int(address[1]))
    except Exception as error:
        agent.process.hook_failed(server, error)
