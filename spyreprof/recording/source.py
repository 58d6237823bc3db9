"""The files of a recording, whether it is a folder or one packed file.

A recording may come from a stranger's ticket: nothing in it is followed, executed or unpacked to disk, and
what a packed one may claim is limited before anything is read.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from spyreprof.errors import UserError
from spyreprof.recording import layout

# A recording of a day holds some hundred files, one of a program with many short-lived children two for each of them.
MAX_MEMBERS = 100_000
# Traces, its largest, are compressed already.
MAX_TOTAL_BYTES = 32 * 2**30
# JSON lines of equal steps compress about 30-fold; DEFLATE can reach 1032-fold on purpose-made input.
MAX_RATIO = 400
# Small members may compress well without harm.
RATIO_FREE_BYTES = 2**20

# Names that do not decode are a ValueError, features that zipfile lacks a RuntimeError.
_ZIP_ERRORS = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, struct.error)
READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one version of a file from the next."""

    name: str
    size_bytes: int
    mtime_ns: int


class Source(Protocol):
    """Read access to the files of one recording. Names are relative and use forward slashes."""

    path: Path
    left_out: int
    """Entries that were not regular files and are never opened."""

    def names(self) -> list[str]:
        """Every file, sorted."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file of `names()` for reading; the caller handles `READ_ERRORS`."""

    def stamp(self, name: str) -> FileStamp:
        """Size and modification time."""


class FolderSource:
    """A recording folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = 0
        self._names: list[str] = []
        for folder, folders, files in os.walk(path, followlinks=False):
            # Links among the folders are not walked into; links among the files are left out below.
            folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink()]
            for file in files:
                entry = Path(folder) / file
                if stat.S_ISREG(entry.lstat().st_mode):
                    self._names.append(entry.relative_to(path).as_posix())
                else:
                    self.left_out += 1
        self._names.sort()

    def names(self) -> list[str]:
        """Every file, sorted."""
        return self._names

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""
        return (self.path / name).open("rb")

    def stamp(self, name: str) -> FileStamp:
        """Size and modification time."""
        status = (self.path / name).stat()
        return FileStamp(name, status.st_size, status.st_mtime_ns)


class ZipSource:
    """A recording packed into one zip file, read in place; `within` is a folder of it, "" for all."""

    def __init__(self, path: Path, within: str = "") -> None:
        self.path = path
        self.left_out = 0
        try:
            self._zip = zipfile.ZipFile(path)
        except _ZIP_ERRORS as error:
            raise UserError(
                f"{path} cannot be read as a packed recording: {error}.",
                "Copy it again, or pack the recording anew with `spyreprof pack`.",
            ) from error
        members = [info for info in self._zip.infolist() if not info.is_dir()]
        _check_members(path, members)
        prefix = _manifest_prefix(members) + (f"{within}/" if within else "")
        self._members = {info.filename[len(prefix) :]: info for info in members if info.filename.startswith(prefix)}

    def names(self) -> list[str]:
        """Every file, sorted."""
        return sorted(self._members)

    def open(self, name: str) -> IO[bytes]:
        """Open a member for reading; its declared size, checked beforehand, bounds what comes."""
        try:
            return self._zip.open(self._members[name])
        except _ZIP_ERRORS as error:
            raise zipfile.BadZipFile(str(error)) from error

    def stamp(self, name: str) -> FileStamp:
        """Size of the content and its checksum in place of a time."""
        info = self._members[name]
        return FileStamp(name, info.file_size, info.CRC)


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    def refuse(what: str) -> UserError:
        return UserError(
            f"{path} is not a packed recording that is safe to open: {what}.",
            "Ask for a file made by `spyreprof pack`, or record anew.",
        )

    if len(members) > MAX_MEMBERS:
        raise refuse(f"it holds {len(members)} files, more than {MAX_MEMBERS}")
    total_bytes = sum(info.file_size for info in members)
    if total_bytes > MAX_TOTAL_BYTES:
        raise refuse(f"it would unpack to {total_bytes / 1e9:.0f} GB")
    seen: set[str] = set()
    for info in members:
        name = info.filename
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if not parts or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise refuse("a file name in it points outside the recording")
        if name in seen:
            raise refuse("it holds two files of one name")
        seen.add(name)
        mode = info.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise refuse("it holds a link or a device")
        if info.flag_bits & 0x1:
            raise refuse("it is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise refuse("it uses a compression other than deflate")
        if info.file_size > RATIO_FREE_BYTES and info.file_size > MAX_RATIO * max(info.compress_size, 1):
            raise refuse(f"a file in it expands more than {MAX_RATIO}-fold")


def _manifest_prefix(members: list[zipfile.ZipInfo]) -> str:
    """The folder within the zip that holds the recording: "" or "NAME.spyreprof/"."""
    found = [info.filename for info in members if PurePosixPath(info.filename).name == layout.MANIFEST]
    if not found:
        return ""
    shallowest = min(found, key=lambda name: (name.count("/"), name))
    return shallowest[: -len(layout.MANIFEST)]


def open_source(path: Path, within: str = "") -> Source:
    """Find out what `path` is.

    Args:
        path: a folder or a file.
        within: a folder inside it to read alone, with forward slashes; "" for all.

    Raises:
        UserError: nothing is there, or it is no recording at all.
    """
    if path.is_dir():
        for part in within.split("/") if within else ():
            path /= part
            if path.is_symlink():
                raise not_a_recording(path, "it is a link")
        return FolderSource(path)
    if not path.exists():
        raise UserError(f"There is no recording at {path}.", "Make one with `spyreprof record -- COMMAND`.")
    if not path.is_file():
        raise not_a_recording(path, "it is neither a folder nor a regular file")
    try:
        packed = zipfile.is_zipfile(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not packed:
        if path.stat().st_size == 0:
            raise not_a_recording(path, "the file is empty")
        raise not_a_recording(path, "it is neither a recording folder nor a packed recording")
    return ZipSource(path, within)


def not_a_recording(path: Path, why: str) -> UserError:
    """The sentence for input that is something else."""
    return UserError(
        f"{path} is not a spyreprof recording: {why}.",
        "Pass a folder made by `spyreprof record` or a file made by `spyreprof pack`.",
    )


def unreadable(path: Path, error: Exception) -> UserError:
    """The sentence for a file that the operating system or the archive refuses."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"{path} cannot be read: {reason}.", "Check its permissions, or copy it again.")
