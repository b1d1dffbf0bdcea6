"""Fetching the published archives of a set, only when asked: to a temporary name, compared with the hash, unpacked.

A download that breaks off is tried again a few times and goes on where it stopped. Nothing has its final name before
its hash was found right, and a set's folder appears only when its archive is unpacked whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from vitplast.errors import IntegrityError, VitplastError
from vitplast.images.archives import unpack
from vitplast.images.sources import MIRROR, PIECES, Piece
from vitplast.wheels import check_online

log = logging.getLogger(__name__)

#: Tries of one file; seconds without a byte; bytes a second at least, judged after so many seconds.
TRIES, TIMEOUT, SLOWEST, PATIENCE = 4, 30.0, 2000.0, 60.0
RECORD = "hashes.json"


def fetch(name: str, data: Path) -> None:
    """Brings the set `name` into the data folder; what is there already is kept, an archive that lies there is used.

    Raises
    ------
    IntegrityError
        If a file has another hash than the known one, or an archive is not safe to unpack.
    VitplastError
        If it can't be fetched or written, or VITPLAST_OFFLINE is set.
    """
    todo = [piece for piece in PIECES[name] if not piece.there(data)]
    if any(lying(piece, data) is None for piece in todo):
        check_online(f"image set {name!r}")
    waiting = data / ".downloads" / name
    try:
        waiting.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(waiting.with_name(f"{name}.lock")):
            waiting.mkdir(exist_ok=True)
            for piece in todo:
                if not piece.there(data):
                    _bring(name, piece, data, waiting)
            shutil.rmtree(waiting, ignore_errors=True)
    except OSError as error:
        raise VitplastError(f"image set {name!r} could not be written below {data}: {error}") from error


def lying(piece: Piece, data: Path) -> Path | None:
    """The archive of a piece where users leave it: beside what it becomes, in the set's folder, in the data folder."""
    if piece.inside is None:
        return None
    places = (data / piece.target).parent, data / piece.target.partition("/")[0], data
    return next((place / piece.file for place in places if (place / piece.file).is_file()), None)


def check_archive(piece: Piece, path: Path, data: Path) -> None:
    """Compares an archive with its published MD5, or with the SHA-256 that was recorded when it was first fetched.

    Raises
    ------
    IntegrityError
        If it is another file; says how large it is.
    """
    algorithm, _, expected = (known_hash(piece, data) or "").partition(":")
    if expected and file_hash(path, algorithm) != expected:
        raise IntegrityError(
            f"{path} is cut off or another file: its {algorithm.upper()} is not {expected} ({path.stat().st_size} "
            f"bytes, expected about {piece.megabytes} MB). Nothing was unpacked; remove it and fetch it again"
        )


def known_hash(piece: Piece, data: Path) -> str | None:
    """`md5:...`, `sha256:...` as recorded in the data folder, or None at the first download."""
    return f"md5:{piece.md5}" if piece.md5 else recorded(data).get(piece.url)


def recorded(data: Path) -> dict[str, str]:
    """Address to hash of files that were fetched into this data folder and have no published hash."""
    try:
        return json.loads((data / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise IntegrityError(f"{data / RECORD}, the hashes of earlier downloads, can't be read: {error}") from error


def file_hash(path: Path, algorithm: str) -> str:
    """Hash of a file in hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _bring(name: str, piece: Piece, data: Path, waiting: Path) -> None:
    """One piece to its place: from an archive that lies there, which stays, or from the net."""
    target, own = data / piece.target, lying(piece, data)
    if own is not None:
        check_archive(piece, own, data)
    path = own or retrieve(piece, piece.address(name), waiting, known_hash(piece, data))
    if piece.inside is None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    else:
        log.info("unpacking %s", path.name)
        unpack(path, target, inside=piece.inside, most_files=piece.most_files)
    final = target if piece.inside is None else path
    if own is None and not piece.md5 and piece.url not in recorded(data):
        text = json.dumps(recorded(data) | {piece.url: f"sha256:{file_hash(final, 'sha256')}"}, indent=1)
        (data / f"{RECORD}.tmp").write_text(text + "\n", encoding="utf-8")
        os.replace(data / f"{RECORD}.tmp", data / RECORD)
    if own is None and piece.inside is not None:
        path.unlink()


def retrieve(piece: Piece, address: str, folder: Path, known: str | None) -> Path:
    """The file at `address` in `folder`, with the hash `known`; tried `TRIES` times.

    Raises
    ------
    IntegrityError
        If what came has another hash each time.
    VitplastError
        If the server can't be reached, breaks off, is too slow, or the disk is full.
    """
    import pooch
    import requests

    log.info("fetching %s (about %d MB)", address, piece.megabytes)
    pooch.get_logger().setLevel("ERROR")
    files = pooch.create(
        path=folder, base_url="", registry={piece.file: known}, urls={piece.file: address}, retry_if_failed=TRIES - 1
    )
    try:
        return Path(files.fetch(piece.file, downloader=_Resuming(folder / f"{piece.file}.part", known is not None)))
    except ValueError as error:
        raise IntegrityError(
            f"{address} is not the expected file in {TRIES} tries: {error}. Nothing was kept"
        ) from error
    except (requests.exceptions.RequestException, OSError) as error:
        raise VitplastError(
            f"{address} could not be fetched into {folder} in {TRIES} tries: {error}. The same command goes on; "
            f"{MIRROR} names another server, or put the files there yourself"
        ) from error


class _Resuming:
    """A downloader for pooch: into `part`, going on after what is there if `resume`, then under the name pooch gave."""

    def __init__(self, part: Path, resume: bool) -> None:
        self.part, self.resume = part, resume

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        import requests

        have = self.part.stat().st_size if self.resume and self.part.is_file() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=(TIMEOUT, TIMEOUT)) as answer:
            if have and not _goes_on(answer, have):
                have = 0
                if answer.status_code != 200:  # nothing after that byte, or another range: from the start next time
                    self.part.unlink()
                    raise requests.exceptions.ConnectionError(f"the server can't go on after the bytes of {self.part}")
            answer.raise_for_status()
            length = answer.headers.get("Content-Length", "")
            self._write(answer, have)
            size = self.part.stat().st_size
            if length.isdecimal() and size != have + int(length):
                raise requests.exceptions.ConnectionError(f"cut off after {size} of {have + int(length)} bytes")
        os.replace(self.part, output_file)

    def _write(self, answer: Any, have: int) -> None:
        import requests

        start, came = time.monotonic(), 0
        with self.part.open("ab" if have else "wb") as file:
            for block in answer.iter_content(1 << 18):
                file.write(block)
                came, seconds = came + len(block), time.monotonic() - start
                if seconds > PATIENCE and came < SLOWEST * seconds:
                    raise requests.exceptions.Timeout(f"only {came} bytes in {seconds:.0f} s")


def _goes_on(answer: Any, have: int) -> bool:
    """Whether the server sends what comes after the bytes that are there."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
