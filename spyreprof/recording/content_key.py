"""What tells the content of one large file from another's, without reading all of it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from spyreprof.errors import UserError

_SAMPLES = 32
_SAMPLE_BYTES = 2**16


def content_key(path: Path) -> str:
    """A digest of a file's size, time of change, and samples of its content spread over all of it.

    Raises:
        UserError: it cannot be read, or is no regular file.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        # Opening a pipe would wait for somebody to write into it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path} is not a regular file.", "Copy what it holds into a file first.")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
            step = max(status.st_size // _SAMPLES, _SAMPLE_BYTES)
            for offset in range(0, status.st_size, step):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
            if status.st_size > _SAMPLE_BYTES:
                file.seek(-_SAMPLE_BYTES, os.SEEK_END)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
        ) from error
    return digest.hexdigest()
