"""Recordings made of files that were only looked at, kept in the user's cache folder so that a second look is quick.

What lies there is a convenience: it is made again where it is missing, damaged, of another version, or not the user's
own, and the oldest of it goes when there is too much. Nothing that takes long to import is imported here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from spyreprof import __version__
from spyreprof.errors import UserError
from spyreprof.recording.content_key import content_key
from spyreprof.trace.version import COLUMNS_VERSION

# A trace's columns take about a fortieth of its text.
MAX_TOTAL_BYTES = 4 * 2**30
MAX_ENTRIES = 200

_FOLDER = "spyreprof"
_DONE = "complete"
_UNFINISHED = ".unfinished-"
_ABANDONED_S = 24 * 3600


class Entry:
    """The place of what was made of a set of files.

    Attributes:
        path: the recording; it need not be there yet.
    """

    def __init__(self, root: Path, key: str, temporary: tempfile.TemporaryDirectory[str] | None) -> None:
        self.path = root / key
        self._root = root
        # Gone with this object where nothing can be kept.
        self._temporary = temporary

    @property
    def complete(self) -> bool:
        """Whether the recording is there, whole, and nobody else's."""
        return _is_own_folder(self.path) and (self.path / _DONE).is_file()

    def fill(self, make: Callable[[Path], None]) -> None:
        """Have the recording made, under another name until it is whole.

        Raises:
            UserError: there is no room for it.
        """
        try:
            self._fill(make)
        except OSError as error:
            raise UserError(
                f"What was read cannot be kept in {self._root}: {error.strerror or error}.",
                "Make room there, or name another folder in XDG_CACHE_HOME or TMPDIR.",
            ) from error

    def _fill(self, make: Callable[[Path], None]) -> None:
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._root))
        try:
            made = unfinished / self.path.name
            make(made)
            (made / _DONE).touch(mode=0o600)
            if self.path.is_symlink():
                self.path.unlink()
            shutil.rmtree(self.path, ignore_errors=True)
            made.rename(self.path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        _make_room(self._root, keep=self.path)

    def touch(self) -> None:
        """Note that it was of use, so that others go first."""
        with suppress(OSError):
            os.utime(self.path)

    def stored(self, name: str) -> Path | None:
        """A file that was stored beside the recording; None where there is none of the user's own."""
        path = self.path / name
        return path if self.complete and path.is_file() and not path.is_symlink() else None

    def store(self, name: str, content: bytes) -> None:
        """Store a file beside the recording; where that fails, it is made anew next time."""
        with suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=self.path)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(self.path / name)


def entry_for(paths: Sequence[Path], *, keep: bool = True) -> Entry:
    """The entry of a set of files, by their content.

    Args:
        paths: the files.
        keep: let what is made outlast this process.

    Raises:
        UserError: one of the files cannot be read.
    """
    parts = [__version__, str(COLUMNS_VERSION), str(_newest_source_ns()), *map(content_key, paths)]
    key = hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
    root = _cache_folder() if keep else None
    if root is not None:
        return Entry(root, key, None)
    temporary = tempfile.TemporaryDirectory(prefix=f"{_FOLDER}-")
    return Entry(Path(temporary.name), key, temporary)


def _newest_source_ns() -> int:
    # An installed version never changes; in a checkout what was concluded yesterday may be wrong today.
    package = Path(__file__).resolve().parents[1]
    newest = 0
    for folder in (package, package.parent / "analyzers", package.parent / "spyreprof_analyzers"):
        for path in folder.rglob("*"):
            if path.suffix in (".py", ".toml", ".txt"):
                with suppress(OSError):
                    newest = max(newest, path.stat().st_mtime_ns)
    return newest


def _cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The standard says that a relative path there is to be ignored.
        root = (Path(base) if base.startswith("/") else Path.home() / ".cache") / _FOLDER
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return root if _is_own_folder(root) and os.access(root, os.W_OK | os.X_OK) else None


def _is_own_folder(path: Path) -> bool:
    """A folder that nobody else could have put there or write to."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _make_room(root: Path, keep: Path) -> None:
    """Remove what was of use longest ago, until the rest is small enough."""
    entries: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in root.iterdir():
            if path == keep or path.is_symlink() or not path.is_dir():
                continue
            age = path.stat().st_mtime
            if path.name.startswith(_UNFINISHED) and keep.stat().st_mtime - age < _ABANDONED_S:
                continue  # of a process that may still be at it
            entries.append((age, path))
    entries.sort(reverse=True)
    total_bytes = _size_bytes(keep)
    for number, (_, path) in enumerate(entries, start=1):
        total_bytes += _size_bytes(path)
        if total_bytes > MAX_TOTAL_BYTES or number >= MAX_ENTRIES or path.name.startswith(_UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        total = sum(path.lstat().st_size for path in folder.rglob("*"))
    return total
