"""Packing a recording into one file. Standard library only: it runs where the recorder runs."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import IO

from spyreprof.errors import UserError
from spyreprof.recording import layout
from spyreprof.recording.source import MAX_MEMBERS

_FILE_MODE = 0o600
# Zip cannot express an earlier time.
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def pack(recording: Path, out: Path | None = None) -> Path:
    """Write a recording folder into one zip file, without the tables that any reader makes again.

    Args:
        recording: the recording folder.
        out: the file to write; None for `NAME.spyreprof.zip` in the working folder.

    Returns:
        The file.

    Raises:
        UserError: the folder is no recording, or the file exists or cannot be written.
    """
    if not (recording / layout.MANIFEST).is_file():
        what = "is packed already" if recording.name.endswith(".zip") else "is not a recording folder"
        raise UserError(f"{recording} {what}.", "Name the folder that `spyreprof record` made.")
    name = recording.resolve().name
    target = out or Path((name if name.endswith(layout.SUFFIX) else name + layout.SUFFIX) + ".zip")
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists.", "Name another file with --out; nothing is overwritten.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _write(recording, file, skip=(target, temporary))
            _publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise UserError(f"{target} exists.", "Name another file with --out; nothing is overwritten.") from error
    except OSError as error:
        raise UserError(
            f"Cannot write {target}: {(error.strerror or str(error)).lower()}.", "Name another file with --out."
        ) from error
    return target


def members(recording: Path) -> list[Path]:
    """Files that belong to a recording, relative to it and sorted; links and tables are left out."""
    found: list[Path] = []
    for folder, folders, files in os.walk(recording, followlinks=False):
        here = Path(folder).relative_to(recording)
        folders[:] = sorted(
            name for name in folders if not _is_tables(here / name) and not Path(folder, name).is_symlink()
        )
        found += [here / name for name in files if Path(folder, name).is_file() and not Path(folder, name).is_symlink()]
    return sorted(path for path in found if path.name != layout.SUMMARY and not path.name.endswith(".tmp"))


def _is_tables(path: Path) -> bool:
    """Whether a relative path is the tables folder of a recording, or of a run of a repeated one."""
    parts = path.parts[2:] if path.parts[0] == layout.RUNS else path.parts
    return parts[:1] == (layout.TABLES,)


def _publish(temporary: Path, target: Path) -> None:
    try:
        # link, unlike rename, refuses to replace a file that came up meanwhile
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:
        # a file system without links
        temporary.rename(target)


def _write(recording: Path, file: IO[bytes], skip: tuple[Path, ...]) -> None:
    left_out = {path.resolve() for path in skip}
    packed = members(recording)
    if len(packed) > MAX_MEMBERS:
        raise UserError(
            f"{recording} holds {len(packed)} files, more than a packed recording may ({MAX_MEMBERS}).",
            "Take the folder itself along, with tar for instance.",
        )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for relative in packed:
            source = recording / relative
            if source.resolve() in left_out:
                continue
            member = zipfile.ZipInfo.from_file(source, relative.as_posix(), strict_timestamps=False)
            member.date_time = max(member.date_time, _EARLIEST)
            # what is compressed already only costs time to compress again
            member.compress_type = zipfile.ZIP_STORED if source.suffix == ".gz" else zipfile.ZIP_DEFLATED
            with source.open("rb") as content, archive.open(member, "w") as into:
                while chunk := content.read(1 << 20):
                    into.write(chunk)
