"""CIFAR-10 and CIFAR-100 as their authors' pickles hold them, and the published corrupted versions as `.npy` files.

Below the data folder: cifar10/cifar-10-batches-py, cifar100/cifar-100-python, cifar10_c/CORRUPTION.npy, cifar100_c.
Pickles are opened only after their MD5 was found right, and even then by a reader that makes arrays, lists, text and
numbers and nothing else. Arrays are opened without pickles and stay on the disk until an image is asked for.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.marker import facts_of
from vitplast.images.packaged import from_arrays
from vitplast.images.presence import require
from vitplast.images.problems import BadFilesError, raise_all
from vitplast.images.published import Facts
from vitplast.images.sets import Records
from vitplast.images.splits import authors_split

SIDE, SEVERITY_LEVELS = 32, 5
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: What a pickle of numpy arrays asks for, under the names of old and new releases.
_ARRAY_PARTS = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"): ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("_codecs", "encode"): ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    """A reader of pickles that imports nothing but what arrays need."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")
        return super().find_class(*_ARRAY_PARTS[module, name])


def load_cifar10(*, root: Path | None = None, download: bool = False) -> Records:
    """60,000 colour photos of 32 x 32 in 10 classes; official test split of 10,000."""
    parts = {"pool": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
    return _cifar("cifar10", parts, "labels", ("batches.meta", "label_names"), root, download)


def load_cifar100(*, root: Path | None = None, download: bool = False) -> Records:
    """60,000 colour photos of 32 x 32 in 100 classes; official test split of 10,000."""
    parts = {"pool": ["train"], "test": ["test"]}
    return _cifar("cifar100", parts, "fine_labels", ("meta", "fine_label_names"), root, download)


def _cifar(
    name: str, parts: dict[str, list[str]], labels_key: str, meta: tuple[str, str], root: Path | None, download: bool
) -> Records:
    data, base = require(name, root, download)
    facts = facts_of(name, data)
    check_md5({base / file: md5 for file, md5 in facts.md5.items()})
    classes = tuple(map(str, _entry(base / meta[0], meta[1])))
    pixels, labels, given, start = [], [], {}, 0
    for part, files in parts.items():
        for file in files:
            x, y = np.asarray(_entry(base / file, "data")), np.asarray(_entry(base / file, labels_key))
            if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * SIDE * SIDE or y.shape != (len(x),):
                raise IntegrityError(f"{base / file} holds {x.dtype} {x.shape} beside labels {y.shape}")
            pixels.append(x.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
            labels.append(y.astype(np.int64))
        stop = sum(map(len, labels))
        given[part], start = np.arange(start, stop), stop
    _check_labels(np.concatenate(labels), facts, base)
    _check_number({part: len(rows) for part, rows in given.items()}, facts, base)
    sources = tuple(base / file for file in facts.md5)
    return from_arrays(np.concatenate(pixels), np.concatenate(labels), classes, base, given, sources, facts.made_up)


def _entry(path: Path, key: str) -> Any:
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()[key]
    except Exception as error:  # a pickle may raise anything
        raise IntegrityError(f"{path} cannot be read: {error or type(error).__name__}") from error


def load_cifar10_c(*, corruption: str, severity: int, root: Path | None = None, download: bool = False) -> Records:
    """The 10,000 test images of CIFAR-10 under one corruption and severity; 80 % pool, 20 % test by the authors' rule.

    An image has the same id, and is in the same part, under every corruption and severity.
    """
    return _corrupted("cifar10_c", CIFAR10_CLASSES, corruption, severity, root, download)


def load_cifar100_c(*, corruption: str, severity: int, root: Path | None = None, download: bool = False) -> Records:
    """As `load_cifar10_c`, of CIFAR-100; its files hold no names of classes."""
    return _corrupted("cifar100_c", (), corruption, severity, root, download)


def _corrupted(
    name: str, classes: tuple[str, ...], corruption: str, severity: int, root: Path | None, download: bool
) -> Records:
    data, base = require(name, root, download)
    facts = facts_of(name, data)
    n = facts.images["severity"]
    found, bad = {}, []
    expected = {"labels": (SEVERITY_LEVELS * n,), corruption: (SEVERITY_LEVELS * n, SIDE, SIDE, 3)}
    for file, shape in expected.items():
        try:
            found[file] = open_array(base / f"{file}.npy", shape, np.integer if file == "labels" else np.uint8)
        except IntegrityError as error:
            bad.append(str(error))
    raise_all(bad, f"Expected the files of the published {name.upper().replace('_', '-')}")
    labels = np.array(found["labels"], dtype=np.int64)
    _check_labels(labels, facts, base / "labels.npy")
    if (labels.reshape(SEVERITY_LEVELS, n) != labels[:n]).any():
        raise IntegrityError(f"{base / 'labels.npy'} does not hold the same {n} labels {SEVERITY_LEVELS} times")
    rows = slice((severity - 1) * n, severity * n)
    names = classes[: facts.classes] or tuple(f"class {k}" for k in range(facts.classes))
    files = (base / "labels.npy", base / f"{corruption}.npy")
    return from_arrays(found[corruption][rows], labels[rows], names, files[1], authors_split(n), files, facts.made_up)


def open_array(path: Path, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """The array of a `.npy` file, left on the disk.

    Raises
    ------
    IntegrityError
        If it is missing, cut off, holds objects (which could run code) or has another shape or type; names it.
    """
    if not path.is_file():
        raise IntegrityError(f"{path} is missing")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # text, an archive, objects, a cut header or body
        raise IntegrityError(
            f"{path} cannot be read as an array of numbers: {error or type(error).__name__}"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise IntegrityError(f"{path} is an archive of arrays, expected one array")
    if array.shape != shape or not np.issubdtype(array.dtype, kind):
        raise IntegrityError(f"{path} holds {array.dtype} {array.shape}, expected {kind.__name__} {shape}")
    return array


def check_md5(expected: dict[Path, str]) -> None:
    """Compares files with their MD5.

    Raises
    ------
    BadFilesError
        Names every file that is missing or another one, all at once.
    """
    bad = bad_md5(expected)
    if bad:
        raise BadFilesError(bad, "Nothing was read; remove the folder and fetch it again")


def bad_md5(expected: dict[Path, str]) -> list[str]:
    """One line for every file that is missing or has another MD5."""
    from vitplast.images.download import file_hash

    bad = [f"{path} is missing" for path in expected if not path.is_file()]
    return bad + [
        f"{path} has another MD5 than {md5} ({path.stat().st_size} bytes)"
        for path, md5 in expected.items()
        if path.is_file() and file_hash(path, "md5") != md5
    ]


def _check_labels(labels: np.ndarray, facts: Facts, where: Path) -> None:
    if labels.size and not 0 <= labels.min() <= labels.max() < facts.classes:
        raise IntegrityError(
            f"the labels of {where} go from {labels.min()} to {labels.max()}, expected 0..{facts.classes - 1}"
        )


def _check_number(found: dict[str, int], facts: Facts, where: Path) -> None:
    if found != facts.images:
        raise IntegrityError(f"{where} holds {found} images, expected {facts.images}")
