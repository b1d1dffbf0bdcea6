"""Every prediction of one block, from half of the pairs: where the mean rate should lie, not what is never passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import xarray as xr

from vitplast.errors import NoBoundError
from vitplast.predictions.layernorm import inverse_scale
from vitplast.predictions.linear import isotropic, isotropic_gaussian, permuted_padded, second_moment_prediction
from vitplast.theory.limits import Block
from vitplast.theory.walk import Walk

#: Law, convention, component, and how to compute the prediction.
Entry = tuple[str, str, str, Callable[[], float]]


def forecasts(block: Block, layer: int, seen: xr.DataArray, walk: Walk) -> Iterator[Entry]:
    """What predicts the rates of the block at `layer`; nothing is computed yet.

    `seen` holds the rates (from `mapped_rates`) of the pairs that predictions may use: in situ every layer has inputs
    of its own, and the second-moment law there gives their root mean square. On common input `walk.moment` serves all
    layers.
    """
    for convention in seen["convention"].values.tolist():
        even = seen.sel(convention=convention, layer=layer)
        for component in ("FC1", "FC2"):
            yield from _linear(block, component, convention, even.sel(component=component).values, walk)
        for component in ("LN1", "LN2"):
            rms = float(np.sqrt(walk.mean("square", (convention, layer, component))))
            yield "P7", convention, component, lambda c=component, s=rms: inverse_scale(block.norm(c).weight, s)
        yield "pooling", convention, "MHA", lambda c=convention: _pooled(block, walk.mean("pooled", (c, layer, "MHA")))


def _linear(block: Block, component: str, convention: str, even: np.ndarray, walk: Walk) -> Iterator[Entry]:
    padded = convention == "common" and component == "FC2"

    def fed():  # the columns that act
        weight = block.linear(component)
        if convention == "common" and weight.shape[1] < block.width:
            raise NoBoundError(f"takes {weight.shape[1]} features, so it cannot be fed the {block.width} embedded")
        return weight[:, : block.width] if padded else weight

    def law() -> float:
        if convention == "common":
            return second_moment_prediction(fed(), walk.moment)
        return float(np.sqrt(np.mean(even**2)))

    yield "T4_second_moment", convention, component, law
    yield "T4_isotropic", convention, component, lambda: isotropic(fed())
    yield "T4_quadrature", convention, component, lambda: isotropic_gaussian(fed(), block.tokens)
    if padded:
        yield "T4_permuted", convention, component, lambda: permuted_padded(block.linear("FC2"), walk.moment)


def _pooled(block: Block, rate: float) -> float:
    block.attention()
    return rate
