"""Where HTTP servers of the program listen, and that other sockets are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_program import run


def test_http_servers_of_the_standard_library_tell_their_address(tmp_path: Path) -> None:
    program = """
        from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
        from wsgiref.simple_server import make_server
        servers = [
            HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler),
            ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler),
            make_server("127.0.0.1", 0, None),
        ]
        print(*(server.server_port for server in servers))
        for server in servers:
            server.server_close()
    """
    ended = run(tmp_path, program)
    assert ended.code == 0, ended.stderr
    told = ended.process_rows("listen")
    assert [row["port"] for row in told] == [int(port) for port in ended.stdout.split()]
    assert {(row["server"], row["host"]) for row in told} == {("http.server", "127.0.0.1")}


def test_other_listeners_are_not_told(tmp_path: Path) -> None:
    program = """
        import socket, socketserver
        import http.server
        plain = socket.create_server(("127.0.0.1", 0))
        other = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        class NotStarted(http.server.HTTPServer):
            pass
        NotStarted(("127.0.0.1", 0), None, bind_and_activate=False).server_close()
        other.server_close()
    """
    ended = run(tmp_path, program)
    assert ended.code == 0, ended.stderr
    assert ended.process_rows("listen") == []
    assert ended.hooks() == {"http.server": "ok"}


def test_a_server_that_cannot_bind_fails_as_ever(tmp_path: Path) -> None:
    program = """
        import http.server, socket
        taken = socket.create_server(("127.0.0.1", 0))
        try:
            http.server.HTTPServer(taken.getsockname(), None)
        except OSError as error:
            print(type(error).__name__)
    """
    ended = run(tmp_path, program)
    assert ended.stdout == "OSError\n"
    assert ended.process_rows("listen") == []


STAND_IN = """
import asyncio

class Server:
    def __init__(self, sockets_to_bind):
        self.to_bind = sockets_to_bind
        self.servers = []

    async def startup(self, sockets=None):
        async def nothing(reader, writer):
            pass
        for address in self.to_bind:
            if isinstance(address, str):
                self.servers.append(await asyncio.start_unix_server(nothing, address))
            else:
                self.servers.append(await asyncio.start_server(nothing, *address))
        return None
"""


def test_uvicorn_tells_its_address_once_it_has_started(tmp_path: Path) -> None:
    # A stand-in with the two names that the hook looks at; the next test runs the real one where it is installed.
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "__init__.py").write_text("from uvicorn.server import Server")
    (tmp_path / "uvicorn" / "server.py").write_text(STAND_IN)
    program = """
        import asyncio
        import uvicorn
        server = uvicorn.Server([("127.0.0.1", 0), "socket.unix"])
        async def serve():
            await server.startup(sockets=None)
            print(server.servers[0].sockets[0].getsockname()[1])
        asyncio.run(serve())
    """
    ended = run(tmp_path, program)
    assert ended.code == 0, ended.stderr
    (told,) = ended.process_rows("listen")
    assert (told["server"], told["host"], told["port"]) == ("uvicorn", "127.0.0.1", int(ended.stdout))


def test_the_real_uvicorn_tells_its_address(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    program = """
        import asyncio
        import uvicorn
        async def application(scope, receive, send):
            pass
        server = uvicorn.Server(uvicorn.Config(application, port=0, lifespan="off", log_level="error"))
        async def serve():
            asyncio.get_running_loop().call_later(0.3, lambda: setattr(server, "should_exit", True))
            await server.serve()
        asyncio.run(serve())
    """
    ended = run(tmp_path, program)
    assert ended.code == 0, ended.stderr
    assert [row["server"] for row in ended.process_rows("listen")] == ["uvicorn"]


def test_a_uvicorn_of_another_shape_is_said_to_miss_the_hook(tmp_path: Path) -> None:
    (tmp_path / "uvicorn").mkdir()
    (tmp_path / "uvicorn" / "__init__.py").write_text("")
    (tmp_path / "uvicorn" / "server.py").write_text("class Server: pass")
    ended = run(tmp_path, "import uvicorn.server; print('ran')")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "ran\n", "")
    assert ended.hooks()["uvicorn"] == "missing"
