"""Plasticity as a criterion: the paper's advice is to finetune the components that change their output the most."""

from __future__ import annotations

from typing import Any

import xarray as xr
from torch import Tensor

from vitplast.criteria.scores import scored
from vitplast.measure import rates_of_change


def plasticity_score(
    model: Any, source: Tensor, target: Tensor, *, convention: str = "common", batch_size: int = 16
) -> xr.Dataset:
    """`P = mean over pairs of ||f(X) - f(Y)|| / ||X - Y||` (Definition 1); the total is the mean over blocks (C4).

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode, or a `LoadedModel`.
    source, target
        Normalised images (pairs, C, H, W): image k of one with image k of the other.
    convention
        common (the paper's) or in_situ (Definition 2).

    Returns
    -------
    See `scored`. Common input applies every component once to every image, in situ makes one forward pass an image:
    both count as one pass.

    Raises
    ------
    As `vitplast.measure.rates_of_change`.
    """
    rates = rates_of_change(model, source, target, convention=convention, batch_size=batch_size)
    return scored(rates["rate"].mean("pair").values, "mean", forward=2 * len(source))
