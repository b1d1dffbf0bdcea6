"""The same task and configuration under several settings: accuracies, paired differences, orders, and their noise.

A setting is a grid of runs that differs from the main one in one thing: steps, clipping, optimizer, number of images.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from vitplast.analysis.selection import of_experiment, varied
from vitplast.analysis.study import MAIN
from vitplast.analysis.tables import best_rate, gap
from vitplast.analysis.tests import DIGITS, holm
from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError, UnknownNameError

#: shared: the best of the learning rates that every setting tried; own: of those that each tried.
RATES = ("shared", "own")


def setting(gathered: xr.Dataset | None, model: str, experiment: str = MAIN, **equal: Any) -> xr.Dataset | None:
    """`vitplast.analysis.selection.varied`, or None where the experiment has no run with these parameters yet.

    Raises
    ------
    InputError
        As `varied`, if the runs found differ in a further parameter.
    UnknownNameError
        If `equal` names no parameter.
    """
    runs = of_experiment(gathered, experiment, model=model, **equal)
    return None if runs is None else varied(runs, model, experiment, **equal)


def as_configuration(grid: xr.Dataset | None, configuration: str, name: str) -> xr.Dataset | None:
    """One configuration of a grid under another name, to be compared with the one of that name; None if not there."""
    if grid is None or configuration not in grid["configuration"].values:
        return None
    return grid.sel(configuration=[configuration]).assign_coords(configuration=[name])


def seed_noise(grid: xr.Dataset, configurations: tuple[str, ...] = CONFIGURATIONS) -> xr.DataArray:
    """`s_g = sqrt(mean_k s_gk^2)`, by image set g: deviation of the test accuracy over seeds at the best rate, pooled.

    `s_gk` (ddof 1) of configuration k; the test images are the same for all seeds, so their noise is not in it. A
    fraction; NaN where no configuration has two seeds.
    """
    known = [c for c in grid["configuration"].values if c in configurations]
    variance = best_rate(grid)["std"].sel(configuration=known) ** 2
    return np.sqrt(variance.mean("configuration")).rename("noise").assign_attrs(units="1")


def by_setting(
    grids: Mapping[Hashable, xr.Dataset | None], rates: str = "shared", noise: xr.DataArray | None = None
) -> xr.Dataset:
    """Test accuracy at the best rate (by validation) of every setting, on the seeds that all settings have.

    Parameters
    ----------
    grids : mapping
        Name of the setting to its grid; None (not run yet) is left out.
    rates : str
        shared or own, see `RATES`; shared ones are found for each image set and configuration.
    noise : DataArray (dataset)
        From `seed_noise`; without it `error` is that of the test images alone.

    Returns
    -------
    Dataset (setting, dataset, configuration): accuracy; error, `sqrt(a (1 - a) / n + s^2 / S)` with n test images and
    S seeds; lr; rates, how many were compared; range over them; seeds. Fractions, NaN where there is no run.

    Raises
    ------
    UnknownNameError
        If `rates` is neither.
    InputError
        If there is no setting with runs, or they have no seed in common.
    """
    if rates not in RATES:
        raise UnknownNameError("choice of rates", rates, RATES)
    there = {name: g for name, g in grids.items() if g is not None}
    if not there:
        raise InputError(f"none of the settings {', '.join(map(str, grids))} has a run")
    seeds = sorted(set.intersection(*(set(g["seed"].values.tolist()) for g in there.values())))
    if not seeds:
        raise InputError(f"the settings {', '.join(map(str, there))} have no seed in common")
    there = {name: g.sel(seed=seeds) for name, g in there.items()}
    there = _sharing(there) if rates == "shared" else there
    names = list(dict.fromkeys(d for g in there.values() for d in g["dataset"].values.tolist()))
    found = list(dict.fromkeys(c for g in there.values() for c in g["configuration"].values.tolist()))
    order = [c for c in CONFIGURATIONS if c in found] + [c for c in found if c not in CONFIGURATIONS]
    tables = []
    for g in there.values():
        table = best_rate(g)[["accuracy", "lr", "seeds"]]
        table["rates"] = g["test_accuracy"].notnull().any("seed").sum("rate")
        table["range"] = gap(g)
        table["n_test"] = g["n_test"].astype(float)
        tables.append(table.reset_coords(drop=True).reindex(dataset=names, configuration=order))
    table = xr.concat(tables, pd.Index(list(there), name="setting"), join="exact")
    variance = table["accuracy"] * (1 - table["accuracy"]) / table["n_test"]
    if noise is not None:
        of_seed = noise.reset_coords(drop=True).reindex(dataset=names) ** 2
        variance = variance + (of_seed / table["seeds"].where(table["seeds"] > 0)).fillna(0.0)
    table["error"] = np.sqrt(variance).assign_attrs(units="1", long_name="standard error")
    return table.assign_attrs(rates=rates)


def differences(table: xr.Dataset, base: Hashable, changed: Hashable) -> xr.Dataset:
    """`d = a_changed - a_base` by image set and configuration, with `sqrt(e_changed^2 + e_base^2)` and a normal test.

    Both settings are tested on the same images, and mostly agree on them: the error, which takes the two for
    independent, is rather too large, and a difference that it resolves is one.

    Returns
    -------
    Dataset (dataset, configuration): difference, error, p (two-sided), p_holm (over all cells). Fractions.

    Raises
    ------
    UnknownNameError
        If the table of `by_setting` has no such setting.
    """
    for name in (base, changed):
        if name not in table["setting"].values:
            raise UnknownNameError("setting", name, map(str, table["setting"].values))
    a, b = (table.sel(setting=name, drop=True) for name in (base, changed))
    found = xr.Dataset({"difference": b["accuracy"] - a["accuracy"], "error": np.hypot(a["error"], b["error"])})
    p = 2 * stats.norm.sf(np.abs(found["difference"]) / found["error"].where(found["error"] > 0))
    dims = found["difference"].dims
    adjusted = np.full(p.shape, np.nan)
    adjusted[np.isfinite(p)] = holm(p[np.isfinite(p)])
    found["p"], found["p_holm"] = (dims, p), (dims, adjusted)
    return found.assign_attrs(base=str(base), changed=str(changed))


def ranks(accuracy: xr.DataArray, configurations: tuple[str, ...]) -> xr.DataArray:
    """Rank of each of the configurations, 1 the most accurate, ties shared; NaN where one of them has no accuracy."""
    table = _of(accuracy, configurations).round(DIGITS)
    axis = table.dims.index("configuration")
    found = table.copy(data=stats.rankdata(-table.values, axis=axis, nan_policy="omit"))
    return found.where(table.notnull().all("configuration")).rename("rank")


def agreement(table: xr.Dataset, base: Hashable, configurations: tuple[str, ...]) -> xr.Dataset:
    """Kendall's `tau_b` between the order of the configurations under each setting and that under `base`.

    Returns
    -------
    Dataset (setting, dataset): tau (NaN where a configuration is missing), pairs, reversed (pairs whose order turns
    round), resolved (of these, pairs more than 1.96 errors apart in both settings).
    """
    dims = ("setting", "dataset")
    values, error = (_of(table[n], configurations).transpose(*dims, ...) for n in ("accuracy", "error"))
    one, two = np.triu_indices(len(configurations), 1)
    gaps = values.values[..., one] - values.values[..., two]
    wide = np.abs(gaps) > 1.96 * np.hypot(error.values[..., one], error.values[..., two])
    at = table["setting"].values.tolist().index(base)
    turned = gaps.round(DIGITS) * gaps[at].round(DIGITS) < 0
    tau = [
        [_tau(values.values[at, d], values.values[s, d]) for d in range(values.sizes["dataset"])]
        for s in range(values.sizes["setting"])
    ]
    return xr.Dataset(
        {
            "tau": (dims, tau),
            "pairs": (dims, np.isfinite(gaps).sum(-1)),
            "reversed": (dims, turned.sum(-1)),
            "resolved": (dims, (turned & wide & wide[at]).sum(-1)),
        },
        coords={n: values[n] for n in dims},
    )


def over_rates(grid: xr.Dataset, seed: int = 0) -> xr.Dataset:
    """Mean and deviation (ddof 0) of the test accuracy over the learning rates of one seed, as the authors' ablations.

    Returns
    -------
    Dataset (dataset, configuration): mean, std (fractions), rates (their number). A failed run counts with chance.
    """
    if seed not in grid["seed"].values:
        raise InputError(f"the runs have no seed {seed}, only {', '.join(map(str, grid['seed'].values))}")
    values = grid["test_accuracy"].sel(seed=seed, drop=True)
    return xr.Dataset({"mean": values.mean("rate"), "std": values.std("rate"), "rates": values.count("rate")})


def _of(table: xr.DataArray, configurations: tuple[str, ...]) -> xr.DataArray:
    return table.reindex(configuration=list(configurations))


def _tau(a: np.ndarray, b: np.ndarray) -> float:
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    return float(stats.kendalltau(a.round(DIGITS), b.round(DIGITS)).statistic)


def _sharing(grids: dict[Hashable, xr.Dataset]) -> dict[Hashable, xr.Dataset]:
    """The grids without the rates of an image set and configuration that another grid with runs of it did not try."""
    tried: dict[tuple[str, str], list[set[float]]] = {}
    for g in grids.values():
        for cell, rates in _tried(g).items():
            tried.setdefault(cell, []).append(rates)
    common = {cell: set.intersection(*found) for cell, found in tried.items()}
    return {name: _only(g, common) for name, g in grids.items()}


def _tried(g: xr.Dataset) -> dict[tuple[str, str], set[float]]:
    lr = g["lr"].where(g["test_accuracy"].notnull().any("seed")).transpose("dataset", "configuration", "rate")
    cells = {
        (d, c): {float(v) for v in lr.values[i, j] if np.isfinite(v)}
        for i, d in enumerate(lr["dataset"].values.tolist())
        for j, c in enumerate(lr["configuration"].values.tolist())
    }
    return {cell: rates for cell, rates in cells.items() if rates}


def _only(g: xr.Dataset, common: dict[tuple[str, str], set[float]]) -> xr.Dataset:
    lr = g["lr"].transpose("dataset", "configuration", "rate")
    keep = np.zeros(lr.shape, dtype=bool)
    for i, d in enumerate(lr["dataset"].values.tolist()):
        for j, c in enumerate(lr["configuration"].values.tolist()):
            keep[i, j] = np.isin(lr.values[i, j], list(common.get((d, c), ())))
    kept = xr.DataArray(keep, dims=lr.dims)
    return g.assign({n: g[n].where(kept) for n in ("test_accuracy", "validation_accuracy", "lr")})
