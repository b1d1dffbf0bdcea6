"""`folder:PATH`: pictures in a folder of one's own, class/picture, as in torchvision's ImageFolder.

Either PATH has the subfolders train and test (and validation or val), each with the class folders, or PATH has the
class folders themselves and the splits are made by the rule of `splits`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitplast.errors import LayoutError
from vitplast.images.sets import Records
from vitplast.images.torchvision_sets import from_files

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
#: Names of the folders of official splits, and what the splits are called here.
SPLIT_FOLDERS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


def load_folder(*, root: Path, download: bool = False) -> Records:
    """The pictures below `root`; classes are the folder names in alphabetical order.

    Raises
    ------
    LayoutError
        If there are no class folders, one of them holds no pictures or further folders, or validation is given twice.
    """
    root = Path(root)
    tops = _tops(root)
    found = [(split, path) for split, top in sorted(tops.items()) for path in class_pictures(top)]
    classes = tuple(sorted({path.parent.name for _, path in found}))
    labels = np.array([classes.index(path.parent.name) for _, path in found], dtype=np.int64)
    given: dict[str, np.ndarray] = {}
    if "" not in tops:
        splits = np.array([split for split, _ in found])
        given = {split: np.flatnonzero(splits == split) for split in tops}
        if "validation" not in given:
            given["pool"] = given.pop("train")
    # pictures of one's own are not copied into the cache
    return replace(from_files([path for _, path in found], root, classes, labels, given), stamp=None)


def listing_hash(root: Path) -> str:
    """Sixteen hex digits that depend on the relative names and the sizes of the pictures below `root`."""
    found = [path for _, top in sorted(_tops(root).items()) for path in class_pictures(top)]
    text = "\n".join(f"{path.relative_to(root).as_posix()}\t{path.stat().st_size}" for path in found)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _tops(root: Path) -> dict[str, Path]:
    """Official split, or "" if there are none, to the folder with its class folders."""
    subfolders = _subfolders(root)
    official = {"train", "test"} <= set(subfolders) <= set(SPLIT_FOLDERS)
    if official and {"validation", "val"} <= set(subfolders):
        raise LayoutError(f"{root} has both 'validation' and 'val'; keep one")
    return {SPLIT_FOLDERS[name]: root / name for name in subfolders} if official else {"": root}


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def class_pictures(top: Path) -> list[Path]:
    """All pictures `top/CLASS/picture` in the order of torchvision's ImageFolder; hidden files are left out.

    Raises
    ------
    LayoutError
        If there are no class folders, or one of them holds folders or no pictures.
    """
    classes = _subfolders(top)
    if not classes:
        raise LayoutError(f"{top} has no class folders; expected {top / 'CLASS' / 'picture.jpg'}")
    pictures, empty = [], []
    for name in classes:
        deeper = _subfolders(top / name)
        if deeper:
            raise LayoutError(
                f"{top / name} has folders in it ({', '.join(deeper[:3])}): it can't be a class. "
                f"Expected {top / 'CLASS' / 'picture.jpg'}; perhaps a level deeper, as in folder:{top / name}"
            )
        own = sorted(n for n in os.listdir(top / name) if n.lower().endswith(SUFFIXES) and not n.startswith("."))
        pictures += [top / name / file for file in own]
        if not own:
            empty.append(name)
    if empty:
        raise LayoutError(f"no pictures ({', '.join(SUFFIXES)}) in the class folders {', '.join(empty)} of {top}")
    return pictures
