"""What a finetuning run needs besides its model: its images, and the pairs on which its plasticity is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from torch import nn

from vitplast import images
from vitplast.images import ImageSplit
from vitplast.measure import measure
from vitplast.pairs import pair_indices
from vitplast.parameters.training import SOURCE
from vitplast.training.low_data import first_of_each_class
from vitplast.training.origin import Origin

if TYPE_CHECKING:
    from vitplast.models import LoadedModel

Splits = tuple[ImageSplit, ImageSplit, ImageSplit]


def splits_of(run: dict[str, Any], size: int, origin: Origin) -> Splits:
    """Train, validation and test images of `run`, at `size` pixels, each cut to the number that the run asks for.

    Decoded images of the latest image set and seed are kept in `origin`, for the next learning rate.

    Errors as `images.open_images`, and as `low_data.first_of_each_class` where `per_class` is above 0.
    """
    per_class = run.get("per_class", 0)
    numbers = tuple(run[f"{name}_images"] for name in ("train", "validation", "test"))
    key = (run["dataset"], run["seed"], size, run["download"], per_class, numbers)
    if origin.kept.get("splits", (None,))[0] == key:
        return origin.kept["splits"][1]
    found = images.open_images(run["dataset"], size=size, seed=run["seed"], download=run["download"])
    train, validation, test = (
        first(split, number) for split, number in zip((found.train, found.validation, found.test), numbers, strict=True)
    )
    if per_class:
        train = train.subset(first_of_each_class(train.labels, per_class, found.classes))
    origin.kept["splits"] = key, (train, validation, test)
    return train, validation, test


def first(split: ImageSplit, number: int) -> ImageSplit:
    """The first `number` images of a split, as far as there are so many; all of them for 0."""
    return split.subset(range(min(number, len(split)))) if number else split


def counts_in_words(split: ImageSplit) -> str:
    """Images of each class, in the order of the labels, with a space between."""
    return " ".join(map(str, np.bincount(split.labels, minlength=len(split.counts()))))


class Plasticity:
    """P(f) of every component in both conventions, on the same pairs before and after training (Definitions 1 to 3).

    The pairs are those of kind "plasticity" with its default seed 0: images of `SOURCE` with test images of the run's
    set, which are the same for all seeds of finetuning, each used once; the precision is that of the weights.

    Parameters
    ----------
    run
        A single run, whose `plasticity_pairs` is above 0.
    loaded
        Prepares the images.
    origin
        Keeps the images and what the untrained model gave, for the next run on the same set.

    Raises
    ------
    InputError
        If there are fewer images than pairs; before anything is measured.
    """

    def __init__(self, run: dict[str, Any], loaded: LoadedModel, origin: Origin) -> None:
        key = (run["dataset"], run["plasticity_pairs"], loaded.img_size)
        if origin.kept.get("plasticity", {}).get("key") != key:
            options = {"size": loaded.img_size, "seed": 0, "download": run["download"]}
            source = images.open_images(SOURCE, **options).source
            target = images.open_images(run["dataset"], **options).test
            index = pair_indices(len(source), len(target), run["plasticity_pairs"])
            sides = [loaded.prepare(split.images(i)) for split, i in zip((source, target), index, strict=True)]
            origin.kept["plasticity"] = {"key": key, "sides": sides}
        self.kept = origin.kept["plasticity"]

    def __call__(self, model: nn.Module, trained: bool) -> xr.DataArray:
        """Mean rate over the pairs (convention, layer, component); of the untrained model as it was found first."""
        if not trained and "before" in self.kept:
            return self.kept["before"]
        dtype = next(model.parameters()).dtype
        rates = measure(model, *(side.to(dtype) for side in self.kept["sides"]))["rate"]
        found = rates.mean("pair").transpose("convention", "layer", "component")
        if not trained:
            self.kept["before"] = found
        return found
