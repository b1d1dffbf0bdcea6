"""Clip art of Debian's openclipart-png: `clipart`. `root` stands for the share folder, e.g. in tests."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.decode import on_white_square, open_picture
from vitplast.images.folders import system_files
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records
from vitplast.images.splits import rank

CLIPART_PACKAGES = ("openclipart-png",)
#: Most of `shapes` are stars that a program made; `special` and `unsorted` say nothing of what is drawn.
GROUPS_AWAY = ("shapes", "special", "unsorted")
#: Of the other folders, the twelve with the most drawings of their own.
CLIPART_GROUPS = ("animals", "buildings", "computer", "food", "geography", "office", "people", "plants", "recreation",
                  "signs_and_symbols", "tools", "transportation")  # fmt: skip
#: Drawings of one group at most, and the sizes that are taken: a few files have hundreds of millions of pixels.
MOST_IN_GROUP, SMALLEST_SIDE, MOST_PIXELS = 200, 32, 4_000_000


def load_clipart(*, root: Path | None = None, download: bool = False) -> Records:
    """Drawings on white squares by the folder of the collection, at most 200 a folder, chosen by the hash of the name.

    A drawing that is filed under two groups is left out; copies inside a group count once. Numbered versions of one
    drawing (`name_01.png`, `name_02.png`) are one unit and stay in one split.
    """
    (folder,) = system_files("clipart", CLIPART_PACKAGES, ("openclipart/png",), root)
    found = {path: path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.png")) if path.is_file()}
    found = {path: name for path, name in found.items() if name.partition("/")[0] not in GROUPS_AWAY}
    single = without_copies(found, {path: name.partition("/")[0] for path, name in found.items()})
    paths = []
    for group in CLIPART_GROUPS:
        own = [path for path in single if found[path].partition("/")[0] == group and takes(path)]
        paths += sorted(own, key=lambda path: (rank("clipart", found[path]), found[path]))[:MOST_IN_GROUP]
    if not paths:
        raise IntegrityError(f"{folder} holds no usable PNG below {', '.join(CLIPART_GROUPS)}")
    ids = [found[path] for path in paths]
    return Records(
        ids=ids,
        read=lambda row: on_white_square(open_picture(paths[row])),
        where=lambda row: str(paths[row]),
        classes=CLIPART_GROUPS,
        labels=np.array([CLIPART_GROUPS.index(i.partition("/")[0]) for i in ids], dtype=np.int64),
        units=[f"{i.partition('/')[0]}/{re.sub(r'[-_0-9]+$', '', Path(i).stem)}" for i in ids],
        together=True,
        stamp=lambda row: file_stamp(paths[row]),
        sources=tuple(sorted({path.parent for path in found})),
    )


def without_copies(paths: Iterable[Path], labels: dict[Path, str]) -> list[Path]:
    """The first of all files with the same bytes, in the given order; none of them where their labels differ.

    Only files of equal size are opened.
    """
    by_size: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        by_size[path.stat().st_size].append(path)
    away: set[Path] = set()
    for group in by_size.values():
        if len(group) == 1:
            continue
        by_hash: dict[bytes, list[Path]] = defaultdict(list)
        for path in group:
            by_hash[hashlib.sha256(path.read_bytes()).digest()].append(path)
        for copies in by_hash.values():
            away.update(copies if len({labels[path] for path in copies}) > 1 else copies[1:])
    return [path for path in paths if path not in away]


def takes(path: Path) -> bool:
    """Whether the size in the header of a PNG file is one that is taken; a file that is no PNG is taken, to be named
    when it is read."""
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:8] != b"\x89PNG\r\n\x1a\n":
        return True
    width, height = struct.unpack(">II", head[16:24])
    return min(width, height) >= SMALLEST_SIDE and width * height <= MOST_PIXELS
