"""Two grids made alike, so that a comparison of image sizes or models is one of nothing else."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.errors import InputError


def common_cells(first: xr.Dataset, second: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    """Both grids with the runs alone that the other has too: image set, configuration, learning rate and seed.

    What is left out is no candidate of `vitplast.analysis.tables.best_rate`, so neither side chooses its rate from
    more than the other. Runs that only one of them has finished are left out as well.

    Parameters
    ----------
    first, second : Dataset
        From `vitplast.analysis.selection.varied` or `vitplast.analysis.grid.grid`.

    Returns
    -------
    Two Datasets (dataset, configuration, rate, seed) with the image sets, configurations and seeds of both, `rate` the
    index among the learning rates of both; test_accuracy, validation_accuracy, failed, finished, lr, n_test.

    Raises
    ------
    InputError
        If the two have no finished run in common.
    """
    names = {d: [v for v in first[d].values.tolist() if v in second[d].values] for d in ("dataset", "configuration")}
    names["seed"] = [s for s in first["seed"].values.tolist() if s in second["seed"].values]
    sides = [one.sel(names) for one in (first, second)]
    shared = [np.intersect1d(*(_rates(one, d, c) for one in sides)) for d, c in _pairs(names)]
    width = max(map(len, shared), default=0)
    if not width or not names["seed"]:
        raise InputError("the two grids have no finished run in common")
    lr = np.full((len(names["dataset"]), len(names["configuration"]), width), np.nan)
    for cell, rates in zip(np.ndindex(lr.shape[:2]), shared, strict=True):
        lr[(*cell, slice(len(rates)))] = rates
    rates = xr.DataArray(lr, dims=("dataset", "configuration", "rate"), coords={"rate": np.arange(width)})
    made = [_reindexed(one, rates) for one in sides]
    both = made[0]["finished"] & made[1]["finished"]
    if not bool(both.any()):
        raise InputError("the two grids have no finished run in common")
    accuracies = ("test_accuracy", "validation_accuracy")
    return tuple(
        one.assign({n: one[n].where(both) for n in accuracies} | {n: one[n] & both for n in ("failed", "finished")})
        for one in made
    )


def _pairs(names: dict[str, list]) -> list[tuple[str, str]]:
    return [(d, c) for d in names["dataset"] for c in names["configuration"]]


def _rates(table: xr.Dataset, dataset: str, configuration: str) -> np.ndarray:
    values = table["lr"].sel(dataset=dataset, configuration=configuration).values
    return values[np.isfinite(values)]


def _reindexed(table: xr.Dataset, rates: xr.DataArray) -> xr.Dataset:
    """The cells of `table` at these learning rates."""
    own = table["lr"].transpose("dataset", "configuration", "rate").values
    hit = own[..., None, :] == rates.values[..., :, None]
    index = xr.DataArray(hit.argmax(axis=-1), dims=rates.dims)
    found = xr.DataArray(hit.any(axis=-1), dims=rates.dims)
    there = table[["test_accuracy", "validation_accuracy", "failed", "finished"]].drop_vars("rate").isel(rate=index)
    kept = {n: there[n].where(found) for n in ("test_accuracy", "validation_accuracy")}
    kept |= {n: there[n] & found for n in ("failed", "finished")}
    extra = {"lr": rates.drop_vars("rate"), "n_test": table["n_test"]}
    return xr.Dataset(kept | extra).assign_coords(rate=rates["rate"].values)
