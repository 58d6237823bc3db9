"""What of a Python file's path is worth keeping: the place in its package. Home folders and projects stay out."""

from __future__ import annotations

import os.path
import re
from functools import lru_cache

# The standard library is marked, so that a file of the user's called queue.py is never taken for it.
STDLIB = "<stdlib>/"
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(.+)")
_STANDARD = re.compile(r".*/lib(?:64)?/(?:python|pypy)3(?:\.\d+)?t?/(.+)")


@lru_cache(maxsize=8192)
def short_file(path: str) -> str:
    """Shorten a path: `<stdlib>/queue.py`, `torch/nn/functional.py`, `serve.py`.

    A file of a package that is no installed one keeps the packages around it, as long as they are there to be seen.
    """
    for pattern, prefix in ((_INSTALLED, ""), (_STANDARD, STDLIB)):
        found = pattern.fullmatch(path)
        if found is not None:
            return prefix + found.group(1)
    if not path.startswith("/"):
        # "<string>", "<frozen importlib._bootstrap>", or a path that was relative to begin with
        return path if path.startswith("<") else path.rpartition("/")[2]
    folder, name = os.path.split(path)
    while folder not in {"/", ""} and os.path.exists(os.path.join(folder, "__init__.py")):  # noqa: PTH110, PTH118
        folder, parent = os.path.split(folder)
        name = f"{parent}/{name}"
    return name
