"""Making and writing the recording folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spyreprof.errors import EXIT_OUR_FAILURE, UserError
from spyreprof.recording import layout

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PARTS = (layout.SHARDS, layout.TRACES, layout.BENCH)


def create(
    out: Path | None, name: str, now_epoch_ns: int | None = None, parts: Sequence[str] = PARTS
) -> tuple[Path, bool]:
    """Make the recording folder; nothing that exists is ever overwritten.

    Args:
        out: the folder asked for, or None for `./<name>-<timestamp>.spyreprof`.
        name: what to call it when `out` is None.
        now_epoch_ns: wall-clock time of the timestamp; None for now.
        parts: folders to make inside.

    Returns:
        The absolute path, and whether the folder itself is new (an existing empty one is taken as it is).

    Raises:
        UserError: it exists and is not empty, or cannot be made.
    """
    if out is not None:
        path = Path(os.path.abspath(out))  # noqa: PTH100  resolve() would follow a link that the user chose
        is_new = _claim(path, out)
    else:
        path, is_new = _claim_default(name, now_epoch_ns), True
    try:
        path.chmod(FOLDER_MODE)
        for sub in parts:
            (path / sub).mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        if is_new:
            take_back(path, is_new, parts)
        raise _refused(out or path, error) from error
    return path, is_new


def remove(path: Path, keep_root: bool = False, parts: Sequence[str] = PARTS) -> None:
    """Take away a recording in which no program ever ran; `parts` are the folders in it, which hold files alone.

    Raises:
        OSError: something of it cannot be removed.
    """
    for sub in parts:
        folder = path / sub
        if folder.is_dir():
            for file in folder.iterdir():
                file.unlink(missing_ok=True)
            folder.rmdir()
    for file_name in (layout.MANIFEST, layout.CALIBRATION_BEFORE, layout.CALIBRATION_AFTER):
        (path / file_name).unlink(missing_ok=True)
    if not keep_root:
        path.rmdir()


def take_back(path: Path, is_new: bool, parts: Sequence[str] = PARTS) -> str | None:
    """`remove` what `create` made, as far as that can be had.

    Returns:
        What to tell when something of it stays; None when it is gone.
    """
    try:
        remove(path, keep_root=not is_new, parts=parts)
    except OSError as error:
        return f"what is left of {path} cannot be removed: {_reason(error)}"
    return None


def unwritable(shown: str, error: OSError) -> UserError:
    """Say that nothing can be written into a recording; `shown` is its path for a person to read."""
    return UserError(
        f"Cannot write into {shown}: {_reason(error)}.",
        "Free some space there, or name a folder elsewhere with --out.",
        exit_code=EXIT_OUR_FAILURE,
    )


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON document under a temporary name and rename it, so that readers never see half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(value, indent=1, allow_nan=False).encode("utf-8"))
            file.write(b"\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def tighten(path: Path) -> None:
    """Give every file of the recording mode 0600 and every folder 0700, whatever wrote them."""
    for root, _, files in os.walk(path):
        Path(root).chmod(FOLDER_MODE)
        for name in files:
            Path(root, name).chmod(FILE_MODE, follow_symlinks=True)


def _claim(path: Path, shown: Path) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=FOLDER_MODE)
    except FileExistsError as error:
        if not path.is_dir():
            raise _refused(shown, error) from error
        try:
            taken = any(path.iterdir())
        except OSError as unreadable:
            raise _refused(shown, unreadable) from unreadable
        if taken:
            what = "already holds a recording" if (path / layout.MANIFEST).exists() else "is not empty"
            raise UserError(f"{shown} {what}.", "Name another folder with --out; nothing is overwritten.") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise UserError(f"{shown} is not writable.", "Name a folder with --out that you may write to.") from error
        return False
    except OSError as error:
        raise _refused(shown, error) from error
    return True


def _claim_default(name: str, now_epoch_ns: int | None) -> Path:
    seconds = (time.time_ns() if now_epoch_ns is None else now_epoch_ns) // 1_000_000_000
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    for attempt in range(1, 1000):
        suffix = "" if attempt == 1 else f"-{attempt}"
        path = Path(f"{name}-{stamp}{suffix}{layout.SUFFIX}")
        try:
            path.mkdir(mode=FOLDER_MODE)
            path = path.absolute()
        except FileExistsError:
            continue
        except OSError as error:
            raise _refused(path, error) from error
        return path
    raise UserError(f"{path} and 998 more like it exist.", "Name a folder with --out.")


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"Cannot make the recording folder {path}: {_reason(error)}.", "Name another folder with --out.")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
