"""Functions of ours that stand in front of those of the program's libraries."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# `co_qualname` is there from Python 3.11 on.
_CODE_NAMES = ("co_filename", "co_name", "co_qualname", "co_firstlineno")


def like(covering: Any, original: Any) -> Callable[..., Any]:
    """Let a function pass for the one that it covers, in the eyes of the program, of Dynamo and in tracebacks.

    Dynamo judges a function by its file. One of ours it would refuse to look into, and break the graph at another
    place than it does without us.
    """
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(covering, name, getattr(original, name))
    covering.__dict__.update(original.__dict__)
    covering.__wrapped__ = original
    code = getattr(original, "__code__", None)
    covering.__code__ = covering.__code__.replace(
        **{name: getattr(code, name) for name in _CODE_NAMES if hasattr(code, name)}
    )
    made: Callable[..., Any] = covering
    return made
