"""Parameters of the notebooks landscape and depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitplast import images
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.fields import unique
from vitplast.parameters.base import ModelParameters, option

#: How a landscape is made: done right, or as the authors' figure was.
VARIANTS = ("corrected", "as_published")
#: How the training images of a probe over depth are seen: as test images, or as the authors' loader gives them (B3).
VIEWS = ("plain", "paper")


@dataclass(frozen=True)
class LandscapeParameters(ModelParameters):
    """Parameters of `notebooks/landscape.ipynb`."""

    kind: ClassVar[str] = "landscape"

    dataset: str = option("mnist5k", "downstream image set")
    components: list = option(["LN1", "MHA"], "components moved, each in all blocks", each=COMPONENTS)
    variants: list = option(["corrected", "as_published"], "corrected, as_published (B9), or both", each=VARIANTS)
    images: int = option(6, "training images in the loss (as_published: 4 test images)", low=2)
    head_images: int = option(400, "training images, others than these, that the head is fitted to", low=2)
    rate_images: int = option(2, "of the images, those at which the rate of change is taken", low=1)
    steps: int = option(20, "steps of gradient descent on all of the images", low=2)
    lr: float = option(
        0.0, "rate of the descent; 0: the largest power of 1/2 that lowers the loss and stays in sight", low=0.0
    )
    extent: float = option(0.5, "largest u and v, in the unit of weights or of embeddings", low=0.0)
    grid: int = option(20, "points along u and along v; an even number leaves out 0", low=2)
    layer: int = option(0, "block whose rate of change is shown", low=0)
    seed: int = option(0, "seed of the split and of random directions", low=0)

    def check(self) -> None:
        super().check()
        self._set("dataset", images.check_splits(self.dataset, "train", "test"))
        self._set("components", unique("components", self.components))
        self._set("variants", [v for v in VARIANTS if v in self.variants])
        if self.extent <= 0:
            raise InputError(f"extent must be above 0, got {self.extent!r}")
        if self.rate_images > self.images:
            raise InputError(f"rate_images must be at most images, {self.images}, got {self.rate_images}")


@dataclass(frozen=True)
class DepthParameters(ModelParameters):
    """Parameters of `notebooks/depth.ipynb`."""

    kind: ClassVar[str] = "depth"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed"}

    dataset: str = option("mnist5k", "downstream image set")
    seeds: list = option([0], "seeds of the split, one result each", low=0, of=int)
    features: str = option("mean", "mean over all tokens, or cls", choices=("mean", "cls"))
    c: float = option(1.0, "C of the logistic regression, the inverse strength of its penalty", low=0.0)
    max_iter: int = option(5000, "most iterations of its solver", low=1)
    batch_size: int = option(64, "images at a time", low=1, key=False)
    train_images: int = option(640, "training images used, 0 for all", low=0)
    test_images: int = option(400, "test images used, 0 for all", low=0)
    view: str = option(
        "plain",
        "training images as test images (plain), or as the authors' (paper): crops of whole batches",
        choices=VIEWS,
        added=True,
    )
    view_batch: int = option(512, "images in a batch of the view paper", low=1, added=True)

    def check(self) -> None:
        super().check()
        self._set("dataset", images.check_splits(self.dataset, "train", "test"))
        if self.c <= 0:
            raise InputError(f"c must be above 0, got {self.c!r}")
        if self.view == "plain":  # then there are no batches
            self._set("view_batch", 512)
