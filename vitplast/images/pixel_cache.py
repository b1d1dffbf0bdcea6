"""Pixels of image sets kept on the disk, so that no picture is decoded, resized or corrupted twice on one machine.

One file a set, size and corruption, below `pixels` of the cache folder. Row r of the set has record r: a digest, then
its pixels. The digest covers the pixels and what they were made from, so a record that was never written, was cut off
by a kill, was written by two processes at once, or belongs to a picture that has changed since, does not fit and is
made anew. Nothing has to be locked. The environment variable VITPLAST_PIXEL_CACHE is the most megabytes on the disk;
0 turns it off.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.cache import cache_folder
from vitplast.errors import InputError

if TYPE_CHECKING:
    from vitplast.images.sets import Corruption, Records

#: To be raised whenever the code gives other pixels than before: of any loader, of `decode`, of `corruptions`.
VERSION = 1
VARIABLE, DEFAULT_MEGABYTES = "VITPLAST_PIXEL_CACHE", 4096
DIGEST = 16
#: Pictures made between two writes, so that a kill loses little.
CHUNK = 128


def most_bytes() -> int:
    """Bytes that the files may take together; 0 means that nothing is kept.

    Raises
    ------
    InputError
        If VITPLAST_PIXEL_CACHE is not a whole number of megabytes.
    """
    text = os.environ.get(VARIABLE, "").strip() or str(DEFAULT_MEGABYTES)
    if not text.isdecimal():
        raise InputError(f"{VARIABLE} must be a whole number of megabytes, 0 for no cache, got {text!r}")
    return int(text) * 10**6


def file_stamp(path: Path) -> str:
    """Place, size and time of change of a file: it differs when the file does.

    Raises
    ------
    OSError
        If the file is missing.
    """
    about = path.stat()
    return f"{path}\x1f{about.st_size}\x1f{about.st_mtime_ns}"


def fetch(
    records: Records,
    rows: Sequence[int],
    make: Callable[[int], np.ndarray],
    *,
    base: str,
    size: int,
    corruption: Corruption | None,
) -> np.ndarray:
    """Pixels of these rows, uint8 (B, size, size, 3): from the disk where they are kept, else `make(row)`, then kept.

    The same with and without the cache. A disk that is full or cannot be written costs time, never a result.
    """
    limit = most_bytes() if records.stamp is not None else 0
    if not limit:
        return np.stack([make(row) for row in rows]) if rows else np.empty((0, size, size, 3), dtype=np.uint8)
    path = cache_folder() / "pixels" / _file_name(records, base, size, corruption)
    out = np.empty((len(rows), size, size, 3), dtype=np.uint8)
    marks = [_mark(records, row) for row in rows]
    missing = _read(path, rows, marks, out)
    for start in range(0, len(missing), CHUNK):
        some = missing[start : start + CHUNK]
        for k in some:
            out[k] = make(rows[k])
        _write(path, {rows[k]: (marks[k], out[k]) for k in some if marks[k] is not None}, limit)
    return out


def _mark(records: Records, row: int) -> bytes | None:
    """What the pixels of a row are made from; None if its file is missing."""
    try:
        return f"{records.ids[row]}\x1f{records.stamp(row)}\x1f".encode(errors="surrogateescape")
    except OSError:
        return None


def _digest(mark: bytes, pixels: bytes) -> bytes:
    return hashlib.blake2b(mark + pixels, digest_size=DIGEST).digest()


def _read(path: Path, rows: Sequence[int], marks: list[bytes | None], out: np.ndarray) -> list[int]:
    """Fills `out` from the file; returns the positions that it does not hold."""
    length = DIGEST + out[0].nbytes if len(rows) else 0
    missing = []
    try:
        with path.open("rb", buffering=0) as file:
            for k, (row, mark) in enumerate(zip(rows, marks, strict=True)):
                file.seek(row * length)
                data = file.read(length) if mark is not None else b""
                if len(data) == length and data[:DIGEST] == _digest(mark, data[DIGEST:]):
                    out[k] = np.frombuffer(data, dtype=np.uint8, offset=DIGEST).reshape(out.shape[1:])
                else:
                    missing.append(k)
    except OSError:
        return list(range(len(rows)))
    return missing


def _write(path: Path, made: dict[int, tuple[bytes, np.ndarray]], limit: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not made or not _room(path, sum(DIGEST + pixels.nbytes for _, pixels in made.values()), limit):
            return
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
            for row, (mark, pixels) in made.items():
                data = pixels.tobytes()
                file.seek(row * (DIGEST + len(data)))
                file.write(_digest(mark, data) + data)
    except OSError:
        return


def _room(path: Path, more: int, limit: int) -> bool:
    """Whether `more` bytes fit; other files, the longest unchanged first, make room for them."""
    about = {file: file.stat() for file in path.parent.glob("*.pixels")}
    used = {file: getattr(found, "st_blocks", 0) * 512 or found.st_size for file, found in about.items()}
    for file in sorted(about, key=lambda file: about[file].st_mtime_ns):
        if sum(used.values()) + more <= limit:
            break
        if file != path:
            file.unlink(missing_ok=True)
            del used[file]
    return sum(used.values()) + more <= limit


@lru_cache(maxsize=64)
def _file_name(records: Records, base: str, size: int, corruption: Corruption | None) -> str:
    """Set, size and corruption in words, and a hash of these, of all ids and of what decodes and changes pictures."""
    import PIL
    import scipy
    from PIL import features

    tools = [features.version(name) for name in ("freetype2", "raqm", "harfbuzz", "jpg", "libjpeg_turbo")]
    what = f"{corruption.name}-{corruption.severity}" if corruption else "clean"
    parts = (VERSION, base, size, what, PIL.__version__, np.__version__, scipy.__version__, *tools, *records.ids)
    key = hashlib.blake2b("\x1f".join(map(str, parts)).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return f"{base}-{size}-{what}-{key}.pixels"
