"""Real threads and locks, taken at start-up: gevent and its like replace those of the standard library later."""

from __future__ import annotations

from _thread import RLock, allocate_lock, get_ident, get_native_id, start_new_thread

__all__ = ["RLock", "allocate_lock", "get_ident", "get_native_id", "start_new_thread"]
