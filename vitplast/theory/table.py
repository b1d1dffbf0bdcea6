"""The dataset of kind "theory", filled one number at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from vitplast.errors import NoBoundError
from vitplast.statements import BOUNDS, LAWS, MAPS
from vitplast.theory.walk import Walk

#: Statements that bound the mean rate, not that of every pair.
OF_THE_MEAN = ("T6_pair",)
_MEASURED = ("measured_mean", "measured_rms", "measured_max", "measured_test")
_LOCAL = ("local_norm", "local_mean", "local_bound")
#: Statistic of the tokens to the components whose bounds take it.
_TAKEN = {
    "radius_max": ("MHA",),
    "radius_rms": ("MHA",),
    "sigma_min": ("LN1", "LN2"),
}


class Table:
    """Arrays of all variables, filled one number at a time."""

    def __init__(self, conventions: list[str], layers: list[int]) -> None:
        place = {"convention": conventions, "layer": layers, "component": list(MAPS)}
        self.places = {
            "bound": {"statement": list(BOUNDS), **place},
            "prediction": {"law": list(LAWS), **place},
            **dict.fromkeys(_LOCAL, place),
        }
        self.values = {n: np.full([len(v) for v in p.values()], np.nan) for n, p in self.places.items()}
        self.reasons: dict[str, dict[str, list[int]]] = {}

    def put(self, name: str, layer: int, *rest: Any) -> None:
        """`rest`: statement or law if the variable has one, convention, component, value."""
        *labels, value = rest
        labels.insert(len(labels) - 1, layer)
        where = zip(self.places[name].values(), labels, strict=True)
        self.values[name][tuple(known.index(label) for known, label in where)] = value

    def compute(self, name: str, layer: int, label: str, convention: str, component: str, get: Callable) -> None:
        """Puts `get()`; where nothing is known the reason is kept, once a layer."""
        try:
            self.put(name, layer, label, convention, component, get())
        except NoBoundError as error:
            layers = self.reasons.setdefault(component, {}).setdefault(str(error), [])
            if layer not in layers:
                layers.append(layer)

    def dataset(self, rates: xr.DataArray, unseen: np.ndarray, statistics: xr.Dataset, found: Walk) -> xr.Dataset:
        ds = xr.Dataset(
            {n: (tuple(self.places[n]), v) for n, v in self.values.items()},
            coords={**self.places["bound"], "law": list(LAWS)},
        )
        ds["measured_mean"], ds["measured_max"] = rates.mean("pair"), rates.max("pair")
        ds["measured_rms"] = np.sqrt((rates**2).mean("pair"))
        ds["measured_test"] = rates[..., unseen].mean("pair")
        over = ds["measured_max"].expand_dims(statement=ds["statement"])
        over = xr.where(ds["statement"].isin(OF_THE_MEAN), ds["measured_mean"], over)
        # nothing that is bounded by 0 may move: 0/0 is tight nowhere, all else over 0 is infinite
        ratio = xr.where((over == 0) & (ds["bound"] == 0), 0.0, over / ds["bound"])
        ds["tightness"] = ratio.transpose(*ds["bound"].dims)
        for name, components in _TAKEN.items():
            taken = statistics[name].where(statistics["component"].isin(components))
            ds[name] = taken.reindex(component=list(MAPS)).transpose(*ds["measured_mean"].dims)
        attention = ds["component"] == "MHA"
        keys = [(c, int(layer)) for c in ds["convention"].values.tolist() for layer in ds["layer"].values]
        shape = (ds.sizes["convention"], ds.sizes["layer"])
        ds["entropy"] = (("convention", "layer"), np.reshape([found.mean("entropy", k) for k in keys], shape))
        reach = [found.reach[c, 0 if c == "common" else layer] for c, layer in keys]
        ds["radius_centred"] = (("convention", "layer"), np.reshape(reach, shape))
        ds["radius_centred"] = ds["radius_centred"].where(attention).transpose(*ds["measured_mean"].dims)
        squares = [[found.mean("square", (*k, m)) for m in MAPS] for k in keys]
        ds["sigma_rms"] = (ds["measured_mean"].dims, np.sqrt(np.reshape(squares, (*shape, len(MAPS)))))
        return ds
