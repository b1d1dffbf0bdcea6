"""Runs at one and the same learning rate: what configurations with rates of their own have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.errors import InputError

#: Relative difference below which two rates are the same.
CLOSE = 1e-9


def shared_rates(grid: xr.Dataset, configurations: Sequence[str] = COMPONENTS) -> list[float]:
    """Learning rates, ascending, that every one of `configurations` was run with on some image set.

    Those that are not in the grid at all are passed over.
    """
    there = [c for c in configurations if c in grid["configuration"].values]
    sets = [_rates(grid["lr"].sel(configuration=c).values) for c in there]
    return sorted(set.intersection(*sets)) if sets else []


def middle(rates: Sequence[float]) -> float:
    """The one of `rates` nearest to their geometric mean; of two as near the smaller.

    Raises
    ------
    InputError
        If there is none.

    Examples
    --------
    >>> middle([0.03, 0.1, 0.3])
    0.1
    """
    if not len(rates):
        raise InputError("there is no rate to choose from")
    logs = np.log(np.sort(np.asarray(rates, dtype=float)))
    return float(np.sort(rates)[np.argmin(np.round(np.abs(logs - logs.mean()), 9))])


def at_rate(grid: xr.Dataset, lr: float) -> xr.Dataset:
    """The runs with learning rate `lr`: the grid without dimension rate, NaN where a configuration lacks that rate.

    Parameters
    ----------
    grid : Dataset
        From `vitplast.analysis.grid.grid`.

    Raises
    ------
    InputError
        If no run has this rate.
    """
    match = np.abs(grid["lr"] / lr - 1) < CLOSE
    if not bool(match.any()):
        raise InputError(f"no run has learning rate {lr:g}; there are {', '.join(f'{v:g}' for v in all_rates(grid))}")
    chosen = grid.drop_vars("lr").isel(rate=match.argmax("rate")).drop_vars("rate", errors="ignore")
    found = match.any("rate")
    names = [n for n, v in chosen.data_vars.items() if {"dataset", "configuration"} <= set(v.dims)]
    kept = {n: chosen[n].where(found) if chosen[n].dtype.kind == "f" else chosen[n] & found for n in names}
    return chosen.assign(kept).assign_attrs(grid.attrs | {"lr": lr})


def all_rates(grid: xr.Dataset) -> list[float]:
    """Every learning rate of a grid, ascending."""
    return sorted(_rates(grid["lr"].values))


def _rates(values: np.ndarray) -> set[float]:
    return {float(f"{v:.9g}") for v in values.ravel() if np.isfinite(v)}
