"""The sample that the criteria see: training images only, some for the head and others for its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from vitplast.criteria.head import fit_head
from vitplast.criteria.survey import criteria_survey
from vitplast.errors import InputError
from vitplast.pairs import pair_indices
from vitplast.task_head import head_features

if TYPE_CHECKING:
    from vitplast.images import ImageSet
    from vitplast.models import LoadedModel


def divide(train: int, images: int, head_images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the images whose gradients are taken, and of those on which the head is fitted; disjoint.

    At most half of the training images are for gradients, and as many of the others as there are for the head.

    Raises
    ------
    InputError
        If there are fewer than 4 training images.

    Examples
    --------
    >>> [len(part) for part in divide(100, 64, 256, seed=0)]
    [50, 50]
    """
    if train < 4:
        raise InputError(f"{train} training images are too few: gradients and head take two each at least")
    chosen = np.random.default_rng([seed, 2]).permutation(train)
    count = min(images, train // 2)
    return chosen[:count], chosen[count : count + head_images]


def score_sample(
    loaded: LoadedModel,
    source: ImageSet,
    target: ImageSet,
    run: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """`criteria_survey` on training images of the target, with a head fitted on others of them; kind "criteria".

    Parameters
    ----------
    loaded
        With a new head for the classes of the target; the head is changed.
    source, target
        Image sets; the first `source` images of a seeded order are paired with the first images of the sample.
    run
        images, pairs, head, head_images, jacobian_images, batch_size and seed, as in `CriteriaParameters`.

    Raises
    ------
    InputError
        If a set lacks its split or is too small for the pairs.
    """
    if target.train is None or source.source is None:
        raise InputError("criteria need training images of the target, and a set with a source side")
    model, train, size = loaded.model, target.train, run["batch_size"]
    sample, others = divide(len(train), run["images"], run["head_images"], run["seed"])
    if run["pairs"] > len(sample):
        raise InputError(f"{run['pairs']} pairs need as many images, but half of the training images are {len(sample)}")
    batches = (others[i : i + size] for i in range(0, len(others), size))
    used = 0
    if run["head"] != "random":
        features = head_features(model, (loaded.prepare(train.images(b)) for b in batches))
        fit_head(model, features, torch.from_numpy(train.labels[others]), run["head"])
        used = len(others)
    photos, _ = pair_indices(len(source.source), len(sample), run["pairs"], "disjoint", run["seed"])
    images, labels = loaded.prepare(train.images(sample)), torch.from_numpy(train.labels[sample])
    with torch.no_grad():
        parts = images.split(size)
        right = torch.cat([model(part).argmax(1) for part in parts]).cpu() == labels
    found = criteria_survey(
        model, loaded.prepare(source.source.images(photos)), images, labels, head_images=used,
        jacobian_images=min(run["jacobian_images"], len(sample)), batch_size=size, seed=run["seed"], progress=progress,
    )  # fmt: skip
    return found.assign_attrs(
        pairs=run["pairs"], images=len(sample), head=run["head"], head_images=used,
        head_accuracy=float(right.double().mean()),
    )  # fmt: skip
