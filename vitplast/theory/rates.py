"""Measured rates of the components, and of what they make together, from the same distances."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.statements import MAPS

#: Map to where its input and its output are seen: component, side, and how many blocks later.
_TOGETHER = {
    "MHA(LN1)": (("LN1", "in", 0), ("MHA", "out", 0)),
    "FC1(LN2)": (("LN2", "in", 0), ("FC1", "out", 0)),
    "MLP": (("FC1", "in", 0), ("FC2", "out", 0)),
    "MLP(LN2)": (("LN2", "in", 0), ("FC2", "out", 0)),
    "block": (("LN1", "in", 0), ("LN1", "in", 1)),
}


def mapped_rates(measured: xr.Dataset, prenorm: Collection[int]) -> xr.DataArray:
    """`||g(X) - g(Y)|| / ||X - Y||` for every map of `MAPS`: (convention, layer, component, pair).

    `measured` is what `vitplast.measure.measure` returns. In situ the output of a part is seen where the next one
    takes it in, so what is put together needs no further pass; on common input it is not there (NaN), nor is the last
    block in situ, nor is what the parts of a block make that is not among the layers `prenorm`.
    """
    shape = {**measured["rate"].sizes, "component": len(MAPS)}
    found = xr.DataArray(
        np.full([shape[d] for d in ("convention", "layer", "component", "pair")], np.nan),
        dims=("convention", "layer", "component", "pair"),
        coords={**{d: measured[d].values for d in ("convention", "layer", "pair")}, "component": list(MAPS)},
    )
    found.loc[{"component": list(COMPONENTS)}] = measured["rate"].transpose(*found.dims).sel(component=list(COMPONENTS))
    if "in_situ" in measured["convention"].values:
        seen = measured.sel(convention="in_situ")
        for name, (start, end) in _TOGETHER.items():
            before, after = (
                seen[f"distance_{side}"].sel(component=component).shift(layer=-later)
                for component, side, later in (start, end)
            )
            ratio = (after / before).where(after["layer"].isin(list(prenorm)))
            found.loc[{"component": name, "convention": "in_situ"}] = ratio.transpose("layer", "pair")
    return found
