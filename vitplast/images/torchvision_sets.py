"""Sets of single photos in the layout of torchvision: `flowers102`, `pets`.

Below the data folder: flowers102/flowers-102 and pet/oxford-iiit-pet, as in the authors' code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.cifar import check_md5
from vitplast.images.decode import open_picture
from vitplast.images.marker import facts_of
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.presence import require
from vitplast.images.problems import raise_all
from vitplast.images.published import Facts
from vitplast.images.sets import Records


def load_flowers102(*, root: Path | None = None, download: bool = False) -> Records:
    """8,189 photos of 102 flowers; the official splits: 1,020 train, 1,020 validation, 6,149 test."""
    data, base = require("flowers102", root, download)
    facts = facts_of("flowers102", data)
    check_md5({base / file: md5 for file, md5 in facts.md5.items()})
    from scipy.io import loadmat
    from torchvision.datasets import Flowers102

    try:
        labels = loadmat(base / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
        parts = loadmat(base / "setid.mat")
        given = {split: parts[key].ravel().astype(np.int64) - 1
                 for split, key in (("train", "trnid"), ("validation", "valid"), ("test", "tstid"))}  # fmt: skip
    except Exception as error:  # a damaged file may raise anything
        raise IntegrityError(f"the lists of {base} cannot be read: {error or type(error).__name__}") from error
    _check_numbers(given, labels, facts, base)
    names = getattr(Flowers102, "classes", ())[: facts.classes]
    names = tuple(names) if len(names) == facts.classes else tuple(f"flower {k + 1}" for k in range(facts.classes))
    paths = [base / "jpg" / f"image_{k + 1:05d}.jpg" for k in range(len(labels))]
    reading = np.arange(len(labels), 2 * len(labels))
    listed = np.concatenate(list(given.values()))
    reading[listed] = np.arange(len(listed))  # torchvision reads in the order of setid.mat
    sources = (*(base / file for file in facts.md5), base / "jpg")
    return from_files(paths, base / "jpg", names, labels, given, sources, facts.made_up, reading)


def load_pets(*, root: Path | None = None, download: bool = False) -> Records:
    """7,349 photos of 37 breeds of cats and dogs; official test split of 3,669."""
    data, base = require("pets", root, download)
    facts = facts_of("pets", data)
    names, numbers = [], []
    given, bad = {}, []
    for split, file in (("pool", "trainval.txt"), ("test", "test.txt")):
        path, start = base / "annotations" / file, len(names)
        try:
            rows = [line.split() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
            found = [(row[0], int(row[1]) - 1) for row in rows]
        except (OSError, ValueError, IndexError) as error:
            bad.append(f"{path} is not a list of 'image class species breed': {error}")
            continue
        names += [name for name, _ in found]
        numbers += [number for _, number in found]
        given[split] = np.arange(start, len(names))
    raise_all(bad)
    labels = np.array(numbers, dtype=np.int64)
    _check_numbers(given, labels, facts, base / "annotations")
    breeds = {number: name.rpartition("_")[0].replace("_", " ") for name, number in zip(names, numbers, strict=True)}
    if sorted(breeds) != list(range(facts.classes)):
        raise IntegrityError(
            f"{base / 'annotations'} lists classes {sorted(n + 1 for n in breeds)}, expected 1..{facts.classes}"
        )
    paths = [base / "images" / f"{name}.jpg" for name in names]
    classes = tuple(breeds[k] for k in sorted(breeds))
    sources = (base / "images", *(base / "annotations" / file for file in ("trainval.txt", "test.txt")))
    return from_files(paths, base / "images", classes, labels, given, sources, facts.made_up)


def _check_numbers(given: dict[str, np.ndarray], labels: np.ndarray, facts: Facts, where: Path) -> None:
    """Refuses other numbers of images or classes than are known of the set."""
    found = {split: len(rows) for split, rows in given.items()}
    if found != facts.images:
        raise IntegrityError(f"{where} lists {found} images, expected {facts.images}")
    if not 0 <= labels.min() <= labels.max() < facts.classes:
        raise IntegrityError(
            f"{where} lists classes {labels.min() + 1} to {labels.max() + 1}, expected 1..{facts.classes}"
        )


def from_files(
    paths: list[Path],
    folder: Path,
    classes: tuple[str, ...],
    labels: np.ndarray,
    given: dict[str, np.ndarray],
    sources: tuple[Path, ...] = (),
    made_up: bool = False,
    reading: np.ndarray | None = None,
) -> Records:
    """Records of one file an image; ids are the paths relative to `folder`."""
    return Records(
        ids=[path.relative_to(folder).as_posix() for path in paths],
        read=lambda row: open_picture(paths[row]),
        where=lambda row: str(paths[row]),
        classes=classes,
        labels=labels,
        given=given,
        stamp=lambda row: file_stamp(paths[row]),
        sources=sources,
        reading=reading,
        made_up=made_up,
    )
