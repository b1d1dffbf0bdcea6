"""The table of distances and rates of change that a measurement fills, as a labelled array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from vitplast.components import COMPONENTS
from vitplast.errors import HypothesisError
from vitplast.measure.sides import Side

#: Largest share of pairs that may coincide.
MAX_DROPPED = 0.01


class RateTable:
    """The distances of all pairs of one target, filled as they are measured."""

    def __init__(self, convention: str, shape: tuple[int, int], pairs: int) -> None:
        self.convention = convention
        shape = (*shape, pairs)
        self.distance_in, self.distance_out = (np.full(shape, np.nan) for _ in range(2))
        self.dropped = np.zeros(pairs, dtype=bool)

    def put(self, places: np.ndarray, d_in: Tensor, d_out: Tensor, same: Tensor) -> None:
        """Takes over the distances in and out (layer, component, places), and which pairs coincide.

        Raises
        ------
        HypothesisError
            If a distance is not finite, or more than 1 % of all pairs coincide.
        """
        for what, d in (("distance of the inputs", d_in), ("distance of the outputs", d_out)):
            if not torch.isfinite(d).all():
                at = (~torch.isfinite(d.expand(d_out.shape))).nonzero()[0].tolist()
                raise HypothesisError(
                    f"{what} of {COMPONENTS[at[1]]} in layer {at[0]} is not finite ({self.convention} inputs); "
                    "are the weights finite, and does the precision hold the activations?"
                )
        self.distance_in[..., places] = d_in.cpu().numpy()
        self.distance_out[..., places] = d_out.cpu().numpy()
        self.dropped[places] = same.cpu().numpy()
        check_dropped(int(self.dropped.sum()), len(self.dropped))

    def dataset(self, x: Side, y: Side, index: tuple[np.ndarray, np.ndarray], attrs: dict[str, Any]) -> xr.Dataset:
        """Rates and distances of the pairs that do not coincide, labelled with the images `index` of both sides."""
        keep = np.flatnonzero(~self.dropped)
        d_in, d_out = self.distance_in[..., keep], self.distance_out[..., keep]
        dims = ("layer", "component", "pair")
        source, target = (side[keep] for side in index)
        return xr.Dataset(
            {
                "rate": (dims, d_out / d_in, {"units": "1", "long_name": "rate of change"}),
                "distance_in": (dims, d_in, {"units": "1", "long_name": "distance of the inputs"}),
                "distance_out": (dims, d_out, {"units": "1", "long_name": "distance of the outputs"}),
            },
            coords={
                "layer": ("layer", np.arange(len(d_in)), {"units": "1", "long_name": "block, counted from 0"}),
                "component": ("component", list(COMPONENTS), {"long_name": "component"}),
                "pair": ("pair", keep.astype(np.int64), {"units": "1", "long_name": "pair"}),
                **{
                    f"{side}_{what}": ("pair", np.array(values, dtype=str)[at], {"long_name": f"{side} {words}"})
                    for side, images, at in (("source", x, source), ("target", y, target))
                    for what, values, words in (("id", images.ids, "image"), ("group", images.groups, "image group"))
                },
            },
            attrs={**attrs, "dropped_pairs": int(self.dropped.sum())},
        )


def joined(conventions: Sequence[str], parts: list[xr.Dataset], source: str, target: str) -> xr.Dataset:
    """One Dataset from those of several conventions on the same pairs; only pairs that are in all of them stay."""
    asked = parts[0].sizes["pair"] + parts[0].attrs["dropped_pairs"]
    parts = list(xr.align(*parts, join="inner"))
    axis = xr.Variable("convention", list(conventions), {"long_name": "input convention"})
    whole = xr.concat(
        parts, axis, data_vars="all", coords="minimal", compat="equals", join="exact", combine_attrs="override"
    )
    dropped = asked - whole.sizes["pair"]
    check_dropped(dropped, asked)
    del whole.attrs["convention"]
    return whole.assign_attrs(source=source, target=target, dropped_pairs=dropped)


def check_dropped(dropped: int, pairs: int) -> None:
    """Refuses to go on when more than 1 % of the pairs coincide (`HypothesisError`)."""
    if dropped > MAX_DROPPED * pairs:
        raise HypothesisError(
            f"{dropped} of {pairs} pairs coincide, more than {MAX_DROPPED:.0%}: do source and target share images?"
        )
