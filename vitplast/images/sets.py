"""An image set and its splits: names, labels and units at once, pixels only when asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitplast.errors import InputError, IntegrityError
from vitplast.images.corruptions import corrupt, generator
from vitplast.images.decode import square_array, whole_array
from vitplast.images.pixel_cache import fetch

if TYPE_CHECKING:
    import torch
    from PIL import Image


@dataclass(frozen=True, eq=False)
class Records:
    """What a loader returns: every image of a set by row, not yet decoded.

    `read(row)` opens the picture, `where(row)` names its file for messages. `units`: what is independent (default: the
    image); with `together` images of one unit never stand on both sides of a division. `given`: rows of the official
    splits (`splits.divide`). `check_rows`: one row per file where several images come from one file. `stamp(row)`: text
    that differs when the picture's file does (OSError if it is missing); without it no pixels are kept on the disk.
    `sources`: files and folders that decide all but the pixels; without any, the records are not kept in memory.
    `picture_size`: height and width of every picture, where all have one. `reading`: rank of each row in the order in
    which the set's files list the images (default: the row). `made_up`: whether the set is invented.
    """

    ids: list[str]
    read: Callable[[int], Image.Image]
    where: Callable[[int], str]
    classes: tuple[str, ...] = ()
    labels: np.ndarray | None = None
    units: list[str] | None = None
    together: bool = False
    given: dict[str, np.ndarray] = field(default_factory=dict)
    check_rows: list[int] | None = None
    stamp: Callable[[int], str] | None = None
    sources: tuple[Path, ...] = ()
    picture_size: tuple[int, int] | None = None
    reading: np.ndarray | None = None
    made_up: bool = False


@dataclass(frozen=True)
class Corruption:
    """What was done to the images; `published`: the files hold the corrupted images, so nothing is done here."""

    name: str
    severity: int
    published: bool = False


class ImageSplit:
    """Images of one split, in a fixed shuffled order; `split[i]` is (uint8 tensor (3, size, size), int label or -1)."""

    def __init__(
        self, name: str, base: str, records: Records, rows: np.ndarray, size: int, corruption: Corruption | None
    ) -> None:
        self.name, self.size = name, size
        self._base, self._records, self._rows, self._corruption = base, records, rows, corruption
        self._all: tuple[torch.Tensor, torch.Tensor] | None = None
        self.ids: list[str] = [records.ids[r] for r in rows]
        self.groups: list[str] = [records.units[r] for r in rows] if records.units is not None else list(self.ids)
        self.labels: np.ndarray | None = None if records.labels is None else records.labels[rows].astype(np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        index = self._position(index)
        return self.images([index])[0], -1 if self.labels is None else int(self.labels[index])

    def images(self, indices: Iterable[int]) -> torch.Tensor:
        """Images at these positions of the split, uint8 (B, 3, size, size); what is kept on the disk is not decoded.

        Raises
        ------
        IndexError
            If a position is outside the split.
        IntegrityError
            If a picture cannot be read; names its file.
        """
        import torch

        rows = [int(self._rows[self._position(i)]) for i in indices]
        found = fetch(self._records, rows, self._pixels, base=self._base, size=self.size, corruption=self._corruption)
        return torch.from_numpy(np.ascontiguousarray(found.transpose(0, 3, 1, 2)))

    @property
    def pictures_size(self) -> tuple[int, int] | None:
        """Height and width of the pictures as they are stored, where all have one size; else None. Decodes nothing."""
        return self._records.picture_size

    def picture(self, index: int) -> np.ndarray:
        """The picture at a position of the split at its own size, uint8 (H, W, 3); not kept on the disk.

        A corruption that is made here is applied at that size, with the random numbers of `images`.

        Raises
        ------
        IndexError
            If the position is outside the split.
        IntegrityError
            If the picture cannot be read; names its file.
        """
        row = int(self._rows[self._position(index)])
        return self._corrupted(whole_array(lambda: self._records.read(row), self._records.where(row)), row)

    def file_order(self) -> np.ndarray:
        """Positions of the split, int64 (N,), in the order in which an unshuffled loader reads the files."""
        rank = self._rows if self._records.reading is None else self._records.reading[self._rows]
        return np.argsort(rank, kind="stable").astype(np.int64)

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All images (uint8 (N, 3, size, size)) and labels (int64 (N,), -1 where there are none); made once, kept."""
        import torch

        if self._all is None:
            labels = np.full(len(self), -1, dtype=np.int64) if self.labels is None else self.labels
            self._all = self.images(range(len(self))), torch.from_numpy(labels.copy())
        return self._all

    def subset(self, indices: Iterable[int]) -> ImageSplit:
        """The split restricted to these positions, in this order."""
        rows = self._rows[[self._position(i) for i in indices]]
        return ImageSplit(self.name, self._base, self._records, rows, self.size, self._corruption)

    def counts(self) -> dict[str, int]:
        """Images of each class; of each independent unit where there are no classes."""
        if self.labels is None:
            names, numbers = np.unique(self.groups, return_counts=True)
            return dict(zip(names.tolist(), numbers.tolist(), strict=True))
        numbers = np.bincount(self.labels, minlength=len(self._records.classes))
        return dict(zip(self._records.classes, numbers.tolist(), strict=True))

    def _position(self, index: int) -> int:
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"position {i} is outside the {self.name} split of {len(self)} images")
        return i % len(self)

    def _pixels(self, row: int) -> np.ndarray:
        return self._corrupted(square_array(lambda: self._records.read(row), self._records.where(row), self.size), row)

    def _corrupted(self, pixels: np.ndarray, row: int) -> np.ndarray:
        if (c := self._corruption) is None or c.published:
            return pixels
        return corrupt(pixels, c.name, c.severity, generator(self._base, self._records.ids[row], c.name, c.severity))

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} images of {self.size} x {self.size}>"


class ImageSet:
    """A named set: `splits` maps source, train, validation, test to `ImageSplit`; a set may lack some."""

    def __init__(
        self,
        name: str,
        base: str,
        records: Records,
        rows: dict[str, np.ndarray],
        *,
        size: int,
        corruption: Corruption | None = None,
        title: str = "",
        licence: str = "",
        origin: str = "",
        unit: str = "image",
    ) -> None:
        self.name, self.title, self.licence, self.origin, self.unit = name, title, licence, origin, unit
        self.classes, self.size = records.classes, size
        self._records, self._rows = records, rows
        self.made_up = records.made_up
        self.splits = {split: ImageSplit(split, base, records, r, size, corruption) for split, r in rows.items()}

    @property
    def source(self) -> ImageSplit:
        return self._split("source")

    @property
    def train(self) -> ImageSplit:
        return self._split("train")

    @property
    def validation(self) -> ImageSplit:
        return self._split("validation")

    @property
    def test(self) -> ImageSplit:
        return self._split("test")

    def check(self, progress: Callable[[int, int], None] | None = None, jobs: int = 1) -> dict[str, Any]:
        """Reads every picture once, `jobs` at a time; lists all that cannot be read, counts images per split and class.

        Returns `bad` (a line a bad file), `splits` (a row a split: split, images, classes, fewest and most images of a
        class, classes without any) and `counts` (split to class to images). `progress(done, total)`: after each one.
        """
        rows: Sequence[int] = self._records.check_rows or sorted({int(r) for part in self._rows.values() for r in part})
        bad = []
        with ThreadPoolExecutor(jobs) as pool:
            for done, fault in enumerate(pool.map(self._fault, rows), start=1):
                bad += [fault] if fault else []
                if progress is not None:
                    progress(done, len(rows))
        splits, counts = self.summary()
        return {"bad": bad, "splits": splits, "counts": counts}

    def _fault(self, row: int) -> str:
        """Why a picture cannot be read; empty if it can."""
        try:
            square_array(lambda: self._records.read(row), self._records.where(row), self.size)
        except IntegrityError as error:
            return str(error)
        return ""

    def summary(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
        """`splits` and `counts` of `check`, without reading a picture."""
        counts = {name: split.counts() for name, split in self.splits.items()}
        splits = [
            {
                "split": name,
                "images": sum(found.values()),
                "classes": len(found) if self.splits[name].labels is not None else 0,
                "fewest": min(found.values(), default=0),
                "most": max(found.values(), default=0),
                "empty": ", ".join(c for c, n in found.items() if n == 0),
            }
            for name, found in counts.items()
        ]
        return splits, counts

    def _split(self, name: str) -> ImageSplit:
        if name not in self.splits:
            raise InputError(f"image set {self.name!r} has no {name} split; it has: {', '.join(self.splits)}")
        return self.splits[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {len(s)}" for split, s in self.splits.items())
        return f"<ImageSet {self.name}: {sizes}; {len(self.classes)} classes, {self.size} pixels>"
