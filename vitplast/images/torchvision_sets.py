"""Sets that torchvision can download: `cifar10`, `cifar100`, `flowers102`, `pets`, in the layout of the authors' code.

Below the data folder: cifar10/cifar-10-batches-py, cifar100/cifar-100-python, flowers102/flowers-102,
pet/oxford-iiit-pet. CIFAR files are pickles: they are opened only after their MD5 was found right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vitplast.errors import IntegrityError, VitplastError
from vitplast.images.decode import open_picture
from vitplast.images.folders import data_folder, not_found
from vitplast.images.packaged import from_arrays
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records
from vitplast.wheels import check_online

#: MD5 of the label and split files of Flowers102.
FLOWERS_MD5 = {"imagelabels.mat": "e0620be6f572b9609742df49c70aed4d", "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c"}


def load_cifar10(*, root: Path | None = None, download: bool = False) -> Records:
    """60,000 colour photos of 32 x 32 in 10 classes; official test split of 10,000."""
    return _cifar("CIFAR10", "cifar10", "cifar-10-batches-py", root, download)


def load_cifar100(*, root: Path | None = None, download: bool = False) -> Records:
    """60,000 colour photos of 32 x 32 in 100 classes; official test split of 10,000."""
    return _cifar("CIFAR100", "cifar100", "cifar-100-python", root, download)


def _cifar(class_name: str, name: str, inside: str, root: Path | None, download: bool) -> Records:
    folder = (Path(root) if root is not None else data_folder()) / name
    base = folder / inside
    _refuse_absent(name, base, 170, download)
    from torchvision import datasets

    kind = getattr(datasets, class_name)
    if not base.is_dir():
        _download(name, lambda: kind(str(folder), train=True, download=True))
    files = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    _check_md5({base / file: md5 for file, md5 in files})
    try:
        train, test = (kind(str(folder), train=part, download=False) for part in (True, False))
    except Exception as error:
        raise IntegrityError(f"{base} has the right hashes but cannot be read: {error}") from error
    pixels = np.concatenate([train.data, test.data])
    labels = np.concatenate([train.targets, test.targets]).astype(np.int64)
    given = {"pool": np.arange(len(train.data)), "test": np.arange(len(train.data), len(pixels))}
    return from_arrays(pixels, labels, tuple(train.classes), base, given, tuple(base / file for file, _ in files))


def load_flowers102(*, root: Path | None = None, download: bool = False) -> Records:
    """8,189 photos of 102 flowers; the official splits: 1,020 train, 1,020 validation, 6,149 test."""
    folder = (Path(root) if root is not None else data_folder()) / "flowers102"
    base = folder / "flowers-102"
    _refuse_absent("flowers102", base, 350, download)
    from scipy.io import loadmat
    from torchvision import datasets

    if not base.is_dir():
        _download("flowers102", lambda: datasets.Flowers102(str(folder), download=True))
    _check_md5({base / file: md5 for file, md5 in FLOWERS_MD5.items()})
    labels = loadmat(base / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
    parts = loadmat(base / "setid.mat")
    given = {split: parts[key].ravel().astype(np.int64) - 1
             for split, key in (("train", "trnid"), ("validation", "valid"), ("test", "tstid"))}  # fmt: skip
    names = getattr(datasets.Flowers102, "classes", None) or [f"flower {k + 1}" for k in range(102)]
    paths = [base / "jpg" / f"image_{k + 1:05d}.jpg" for k in range(len(labels))]
    sources = (*(base / file for file in FLOWERS_MD5), base / "jpg")
    return from_files(paths, base / "jpg", tuple(names), labels, given, sources)


def load_pets(*, root: Path | None = None, download: bool = False) -> Records:
    """7,349 photos of 37 breeds of cats and dogs; official test split of 3,669."""
    folder = (Path(root) if root is not None else data_folder()) / "pet"
    base = folder / "oxford-iiit-pet"
    _refuse_absent("pets", base, 800, download)
    if not base.is_dir():
        from torchvision import datasets

        _download("pets", lambda: datasets.OxfordIIITPet(str(folder), download=True))
    names, numbers = [], []
    given, start = {}, 0
    for split, file in (("pool", "trainval.txt"), ("test", "test.txt")):
        path = base / "annotations" / file
        try:
            rows = [line.split() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
            names += [row[0] for row in rows]
            numbers += [int(row[1]) - 1 for row in rows]
        except (OSError, ValueError, IndexError) as error:
            raise IntegrityError(f"{path} is not a list of 'image class species breed': {error}") from error
        given[split] = np.arange(start, start := len(names))
    breeds = {number: name.rpartition("_")[0].replace("_", " ") for name, number in zip(names, numbers, strict=True)}
    if sorted(breeds) != list(range(len(breeds))):
        raise IntegrityError(f"{base / 'annotations'} lists classes {sorted(n + 1 for n in breeds)}, some are missing")
    paths = [base / "images" / f"{name}.jpg" for name in names]
    classes = tuple(breeds[k] for k in sorted(breeds))
    sources = tuple(base / "annotations" / file for file in ("trainval.txt", "test.txt"))
    return from_files(paths, base / "images", classes, np.array(numbers, dtype=np.int64), given, sources)


def from_files(
    paths: list[Path],
    folder: Path,
    classes: tuple[str, ...],
    labels: np.ndarray,
    given: dict[str, np.ndarray],
    sources: tuple[Path, ...] = (),
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
    )


def _refuse_absent(name: str, base: Path, megabytes: int, download: bool) -> None:
    """Before torchvision, which is slow to import, is needed."""
    if not download and not base.is_dir():
        raise not_found(name, [base], f"torchvision would download it (about {megabytes} MB).")


def _check_md5(expected: dict[Path, str]) -> None:
    """Names every file that is missing or has another MD5, all at once."""
    bad = []
    for path, md5 in expected.items():
        if not path.is_file():
            bad.append(f"{path} is missing")
        else:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != md5:
                    bad.append(f"{path} has another MD5 than {md5}")
    if bad:
        raise IntegrityError("; ".join(bad) + ". Nothing was read; remove the folder and fetch it again")


def _download(name: str, fetch: Callable[[], Any]) -> None:
    check_online(f"image set {name!r}")
    try:
        fetch()
    except (OSError, RuntimeError) as error:
        raise VitplastError(f"image set {name!r} could not be downloaded: {error}") from error
