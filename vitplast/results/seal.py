"""A seal at the end of a result file: the SHA-256 of all bytes before it, looked at before the netCDF library is.

A changed bit in the inner tables of a netCDF file can end the process that opens it. Readers of netCDF look no further
than the size that the file states, so the seal does not disturb them.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from vitplast.errors import IntegrityError

MARK = b"\nvitplast sha256 "
LENGTH = len(MARK) + 64 + 1


def seal(path: Path) -> None:
    """Appends the seal to a file that is complete, and flushes it to the disk."""
    with path.open("rb+") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, os.SEEK_END)
        file.write(MARK + found.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def check_seal(path: Path) -> None:
    """Compares the bytes with the seal; files of releases that had none, or whose end is gone, have nothing to compare.

    Raises
    ------
    IntegrityError
        If the bytes are others than those that were sealed, or a part of the seal is missing.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LENGTH))
        end = file.read()
        given = re.fullmatch(re.escape(MARK) + rb"([0-9a-f]{64})\n", end)
        if not given:
            if MARK in end:
                raise IntegrityError(f"{path} is damaged or cut off at its end: its seal is not whole")
            return
        file.seek(0)
        digest, left = hashlib.sha256(), size - LENGTH
        while left and (some := file.read(min(left, 2**20))):
            digest.update(some)
            left -= len(some)
    if digest.hexdigest() != given[1].decode():
        raise IntegrityError(f"{path} was changed after it was written: its bytes are not those that were sealed")
