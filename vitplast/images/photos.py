"""Crops of the pictures that scikit-image, scikit-learn and matplotlib ship: `photos` and `photocrops`.

The files are read by path, so nothing is ever downloaded, and compared with the SHA-256 listed here.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.folders import package_folder
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.sets import Records
from vitplast.images.splits import rank

if TYPE_CHECKING:
    from PIL import Image

SKIMAGE = ("skimage", "data")
SKLEARN = ("sklearn", "datasets", "images")
MATPLOTLIB = ("matplotlib", "mpl-data", "sample_data")

#: Crops of the source side, and of each class of `photocrops`.
SOURCE_CROPS, POOL_CROPS, TEST_CROPS = 4096, 100, 40


@dataclass(frozen=True)
class Picture:
    """One file: where it is, its hash, its licence as stated upstream, and whether it is a natural photo."""

    file: str
    folder: tuple[str, ...]
    licence: str
    natural: bool
    sha256: str

    @property
    def name(self) -> str:
        return Path(self.file).stem


_UNSTATED = "no licence stated for the file; scikit-image is BSD-3-Clause"
#: Twelve natural photos in colour or grey, then nine other pictures (microscopes, sky, scans).
PICTURES = (
    Picture("astronaut.png", SKIMAGE, "public domain (NASA)", True,
            "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5"),
    Picture("brick.png", SKIMAGE, "CC0", True,
            "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf"),
    Picture("camera.png", SKIMAGE, "CC0", True,
            "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a"),
    Picture("chelsea.png", SKIMAGE, "CC0", True,
            "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"),
    Picture("china.jpg", SKLEARN, "CC BY 2.0", True,
            "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29"),
    Picture("coffee.png", SKIMAGE, "CC0", True,
            "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"),
    Picture("flower.jpg", SKLEARN, "CC BY 2.0", True,
            "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638"),
    Picture("grace_hopper.jpg", MATPLOTLIB, "public domain", True,
            "a8ca6d734765703b09728ab47fe59f473d93ae3967fc24c7c0288c3c7adb7130"),
    Picture("grass.png", SKIMAGE, "CC0", True,
            "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89"),
    Picture("gravel.png", SKIMAGE, "CC0", True,
            "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12"),
    Picture("motorcycle_left.png", SKIMAGE, _UNSTATED, True,
            "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
    Picture("rocket.jpg", SKIMAGE, "public domain (SpaceX)", True,
            "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"),
    Picture("cell.png", SKIMAGE, "CC0", False,
            "8d23a7fb81f7cc877cd09f330357fc7f595651306e84e17252f6e0a1b3f61515"),
    Picture("clock_motion.png", SKIMAGE, "public domain", False,
            "f029226b28b642e80113d86622e9b215ee067a0966feaf5e60604a1e05733955"),
    Picture("coins.png", SKIMAGE, "no known restrictions", False,
            "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba"),
    Picture("hubble_deep_field.jpg", SKIMAGE, "public domain (NASA)", False,
            "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4"),
    Picture("ihc.png", SKIMAGE, "no known restrictions", False,
            "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef"),
    Picture("moon.png", SKIMAGE, _UNSTATED, False,
            "78739619d11f7eb9c165bb5d2efd4772cee557812ec847532dbb1d92ef71f577"),
    Picture("page.png", SKIMAGE, _UNSTATED, False,
            "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3"),
    Picture("retina.jpg", SKIMAGE, "CC0", False,
            "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6"),
    Picture("text.png", SKIMAGE, "public domain", False,
            "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1"),
)  # fmt: skip


class Album:
    """Decoded pictures, each read and compared with its hash when first asked for, then held (20 MB for all)."""

    def __init__(self, pictures: tuple[Picture, ...], image_set: str, root: Path | None = None) -> None:
        self.pictures = pictures
        if root is not None:
            self.paths = [Path(root) / p.file for p in pictures]
        else:
            self.paths = [package_folder(p.folder[0], image_set).joinpath(*p.folder[1:], p.file) for p in pictures]
        self._held: dict[int, Image.Image] = {}

    def get(self, k: int) -> Image.Image:
        """Picture k in RGB.

        Raises
        ------
        IntegrityError
            If the file is not the listed one.
        """
        from PIL import Image

        if k not in self._held:
            data = self.paths[k].read_bytes()
            if hashlib.sha256(data).hexdigest() != self.pictures[k].sha256:
                raise IntegrityError(f"{self.paths[k]} is not the expected picture: its SHA-256 is another")
            self._held[k] = Image.open(io.BytesIO(data)).convert("RGB")
        return self._held[k]

    def stamp(self, k: int) -> str:
        """The listed hash of picture k, and place, size and time of its file."""
        return f"{self.pictures[k].sha256} {file_stamp(self.paths[k])}"

    def crop(self, k: int, key: str, box: tuple[float, float], smallest: float, largest: float) -> Image.Image:
        """A random square of picture k inside the columns `box` (fractions of the width), drawn by `key` alone.

        Its side is uniform between `smallest` and `largest` of the shorter side of that part.
        """
        image = self.get(k)
        left, right = round(box[0] * image.width), round(box[1] * image.width)
        short = min(right - left, image.height)
        rng = np.random.Generator(np.random.PCG64(rank("crop", key)))
        side = max(1, round(rng.uniform(smallest, largest) * short))
        x = left + int(rng.integers(right - left - side + 1))
        y = int(rng.integers(image.height - side + 1))
        return image.crop((x, y, x + side, y + side))


def load_photos(*, root: Path | None = None, download: bool = False) -> Records:
    """4,096 squares of 0.3 to 1 times the shorter side from the 12 natural photos in turn; a `source` split only."""
    album = Album(tuple(p for p in PICTURES if p.natural), "photos", root)
    n = len(album.pictures)
    ids = [f"{album.pictures[i % n].name}-{i // n:03d}" for i in range(SOURCE_CROPS)]
    return Records(
        ids=ids,
        read=lambda row: album.crop(row % n, f"photos {ids[row]}", (0.0, 1.0), 0.3, 1.0),
        where=lambda row: str(album.paths[row % n]),
        units=[album.pictures[i % n].name for i in range(SOURCE_CROPS)],
        given={"source": np.arange(SOURCE_CROPS)},
        check_rows=list(range(n)),
        stamp=lambda row: album.stamp(row % n),
        sources=tuple(album.paths),
    )


def load_photocrops(*, root: Path | None = None, download: bool = False) -> Records:
    """Which of 21 pictures: 100 crops of its left half (pool) and 40 of its right half (test) a class.

    Squares of 0.25 to 0.6 times the shorter side of the half. Crops of the pool overlap, so validation images share
    pixels with training images; test images share none with either.
    """
    album = Album(PICTURES, "photocrops", root)
    each = POOL_CROPS + TEST_CROPS
    tags = [f"pool-{i:03d}" for i in range(POOL_CROPS)] + [f"test-{i:03d}" for i in range(TEST_CROPS)]
    ids = [f"{p.name}-{tag}" for p in PICTURES for tag in tags]
    rows = np.arange(len(ids))
    in_pool = rows % each < POOL_CROPS

    def read(row: int) -> Image.Image:
        half = (0.0, 0.5) if in_pool[row] else (0.5, 1.0)
        return album.crop(row // each, f"photocrops {ids[row]}", half, 0.25, 0.6)

    return Records(
        ids=ids,
        read=read,
        where=lambda row: str(album.paths[row // each]),
        classes=tuple(p.name for p in PICTURES),
        labels=rows // each,
        units=[PICTURES[row // each].name for row in rows],
        given={"pool": rows[in_pool], "test": rows[~in_pool]},
        check_rows=list(range(0, len(ids), each)),
        stamp=lambda row: album.stamp(row // each),
        sources=tuple(album.paths),
    )
