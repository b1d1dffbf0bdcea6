"""Unpacking an archive so that nothing lands outside its folder, and the folder appears whole or not at all."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vitplast.errors import IntegrityError, VitplastError

#: Bytes that an archive may hold: this many times its own size, but any archive may hold a megabyte.
MOST_RATIO, ALWAYS_BYTES = 50, 10**6
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def unpack(archive: Path, target: Path, *, inside: str = "", most_files: int = 10_000) -> None:
    """Makes the folder `inside` of a tar (any compression) or zip archive the folder `target`; "": all of it.

    Every entry is looked at before the first is written. Then all are written into a hidden folder beside `target`,
    which is renamed at the end.

    Raises
    ------
    IntegrityError
        If an entry has an absolute path or goes up, is a link or a device, if there are more than `most_files` files or
        more than 50 times the archive's bytes, if it is cut off or damaged, or `inside` is not in it. Nothing of it
        stays on the disk.
    VitplastError
        If the disk is full or can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    most_bytes = max(ALWAYS_BYTES, MOST_RATIO * archive.stat().st_size)
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as folder:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as file:
                    _inspect(_zip_entries(file), archive, most_files, most_bytes)
                    file.extractall(folder)
            else:
                with tarfile.open(archive, "r:*") as file:
                    _inspect(_tar_entries(file), archive, most_files, most_bytes)
                    rule = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    file.extractall(folder, **rule)
            made = Path(folder) / inside if inside else Path(folder) / "."
            if not made.is_dir():
                tops = sorted(path.name for path in Path(folder).iterdir())
                raise IntegrityError(f"{archive} has no folder {inside!r}; it has {', '.join(tops[:5]) or 'nothing'}")
            if inside and not target.exists():
                os.replace(made, target)
            else:
                target.mkdir(exist_ok=True)
                for path in sorted(made.iterdir()):
                    os.replace(path, target / path.name)
    except BROKEN as error:
        raise IntegrityError(f"{archive} can't be unpacked: {error or type(error).__name__}") from error
    except OSError as error:
        raise VitplastError(f"{archive} could not be unpacked into {target}: {error}") from error


def _inspect(entries: Iterator[tuple[str, str, int]], archive: Path, most_files: int, most_bytes: int) -> None:
    """Refuses the archive at its first bad entry (name, what it is, bytes); reads headers only."""
    files = total = 0
    for name, what, size in entries:
        if what not in ("file", "folder"):
            raise IntegrityError(f"{archive} was not unpacked: {name!r} in it is a {what}, only files are expected")
        if goes_out(name):
            raise IntegrityError(f"{archive} was not unpacked: {name!r} in it would be written outside its folder")
        files, total = files + (what == "file"), total + size
        if files > most_files:
            raise IntegrityError(f"{archive} was not unpacked: it holds more than the {most_files} files expected")
        if total > most_bytes:
            raise IntegrityError(
                f"{archive} was not unpacked: it holds more than {most_bytes} bytes, more than {MOST_RATIO} times its "
                "own size"
            )


def goes_out(name: str) -> bool:
    """Whether a name in an archive is absolute, goes up, has a drive letter, a backslash or a null."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or bool(re.search(r"[\\\0]|^[A-Za-z]:", name))


def _tar_entries(file: tarfile.TarFile) -> Iterator[tuple[str, str, int]]:
    kinds = (("file", "isreg"), ("folder", "isdir"), ("symbolic link", "issym"), ("hard link", "islnk"))
    for entry in file:
        yield entry.name, next((word for word, is_kind in kinds if getattr(entry, is_kind)()), "device"), entry.size


def _zip_entries(file: zipfile.ZipFile) -> Iterator[tuple[str, str, int]]:
    for entry in file.infolist():
        mode = entry.external_attr >> 16
        what = "folder" if entry.is_dir() else "symbolic link" if stat.S_ISLNK(mode) else "file"
        yield entry.orig_filename, what, entry.file_size
