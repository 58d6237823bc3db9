"""Callbacks that run when the program has imported a module. Nothing is imported on its behalf."""

from __future__ import annotations

import sys

from .threads import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class PostImportFinder:
    """A meta-path finder that finds nothing itself: it lets the others find, and watches the loader they chose.

    The real loader stays in place, since programs look at it; only its `exec_module` is covered until it ran once.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._callbacks: dict[str, Callable[[ModuleType], None]] = {}
        self._searching: set[tuple[str, int]] = set()

    def install(self) -> None:
        """Go first in the search, once."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def when_imported(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Call back each time the module has been executed; at once if it already is."""
        self._callbacks[name] = callback
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            self._call(name, module)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find as the finders behind this one do."""
        if name not in self._callbacks:
            return None
        search = (name, get_ident())
        if search in self._searching:  # another watching finder asks everybody again
            return None
        self._searching.add(search)
        try:
            spec = _find_elsewhere(self, name, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None:
            try:
                self._watch(name, spec.loader)
            except Exception as error:
                self._failed(f"import {name}", error)
        return spec

    def _watch(self, name: str, loader: Any) -> None:
        while type(loader).__name__ == "LazyLoader":
            loader = loader.loader
        if loader is None or isinstance(loader, type):
            raise TypeError(f"loader {loader!r} cannot be watched")
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if getattr(module, "__name__", None) != name:  # a loader that serves several modules
                execute(module)
                return
            if loader.__dict__.get("exec_module") is exec_module:
                del loader.exec_module
            execute(module)
            self._call(name, module)

        loader.exec_module = exec_module

    def _call(self, name: str, module: ModuleType) -> None:
        try:
            self._callbacks[name](module)
        except Exception as error:
            self._failed(f"import {name}", error)


def _find_elsewhere(
    this: PostImportFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is this or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None
