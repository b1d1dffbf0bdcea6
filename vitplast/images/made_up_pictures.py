"""How much is written of a made-up set, and its pictures: a colour pattern for each class, under noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitplast.images.cifar import SIDE
from vitplast.images.published import FACTS


@dataclass(frozen=True)
class Amount:
    """How much is written: classes at most (None: all), training and test images of a class, side of pictures."""

    classes: int | None
    pool: int
    test: int
    side: int
    corruptions: tuple[str, ...]
    seed: int

    def of(self, name: str) -> int:
        """Classes of a set."""
        real = FACTS[name].classes
        return real if self.classes is None else min(real, self.classes)


class Painter:
    """Pictures of a set: a smooth pattern for each class, under noise."""

    def __init__(self, name: str, classes: int, seed: int) -> None:
        self.rng = np.random.default_rng([seed, *name.encode()])
        self.patterns = self.rng.integers(0, 256, (classes, 4, 4, 3)).astype(np.uint8)

    def __call__(self, label: int, height: int = SIDE, width: int = SIDE) -> np.ndarray:
        from PIL import Image

        smooth = np.asarray(Image.fromarray(self.patterns[label]).resize((width, height), Image.Resampling.BILINEAR))
        return np.clip(smooth + self.rng.normal(0, 30, smooth.shape), 0, 255).astype(np.uint8)

    def batch(self, labels: np.ndarray) -> np.ndarray:
        """uint8 (N, 32, 32, 3)."""
        return np.stack([self(label) for label in labels])

    def save(self, path: Path, label: int, side: int) -> None:
        """A JPEG of its own size and shape."""
        from PIL import Image

        height, width = (int(n) for n in self.rng.integers(max(8, side - side // 4), side + side // 4 + 1, 2))
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(self(label, height, width)).save(path, "JPEG", quality=90)
