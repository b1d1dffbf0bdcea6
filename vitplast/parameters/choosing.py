"""Parameters of the notebook that scores the components by every criterion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitplast import images
from vitplast.errors import InputError
from vitplast.parameters.base import ModelParameters, option


@dataclass(frozen=True)
class CriteriaParameters(ModelParameters):
    """Parameters of `notebooks/criteria.ipynb`."""

    kind: ClassVar[str] = "criteria"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed"}

    dataset: str = option("mnist5k", "downstream image set; only its training images are used")
    images: int = option(128, "training images whose gradients are taken; at most half of those there are", low=2)
    source: str = option("photos", "image set of the pretraining side of the pairs")
    pairs: int = option(64, "pairs of a photo and one of the images, for plasticity and bounds", low=2)
    head: str = option(
        "probe",
        "probe (logistic regression), steps (a few gradient steps) or random",
        choices=("probe", "steps", "random"),
    )
    head_images: int = option(256, "other training images on which the head is fitted, as far as there are", low=2)
    jacobian_images: int = option(4, "images at which norms of Jacobians are taken", low=1)
    batch_size: int = option(16, "images in the model at a time; gradients: always 16", low=1, key=False)
    seeds: list = option([0], "seeds of split, images and head, one result each", low=0, of=int)

    def check(self) -> None:
        super().check()
        self._set("dataset", images.check_splits(self.dataset, "train"))
        self._set("source", images.check_splits(self.source, "source"))
        if self.pairs > self.images:
            raise InputError(f"pairs must be at most images, {self.images}, got {self.pairs}")
        if self.jacobian_images > self.images:
            raise InputError(f"jacobian_images must be at most images, {self.images}, got {self.jacobian_images}")
        source, known = images.sizes(self.source), images.sizes(self.dataset)
        if source and self.pairs > source["source"]:
            raise InputError(f"{self.pairs} pairs need as many images, {self.source} has {source['source']}")
        if known and self.pairs > known["train"] // 2:
            raise InputError(
                f"pairs must be at most half of the {known['train']} training images of {self.dataset}, "
                f"got {self.pairs}"
            )
