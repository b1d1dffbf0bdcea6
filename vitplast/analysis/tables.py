"""Tables from the grid: accuracy at the best learning rate, gain over the probe, and what the rates do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import xarray as xr
from scipy import stats
from scipy.integrate import quad

from vitplast.analysis.studentized import range_quantile, range_tail
from vitplast.analysis.tests import DIGITS
from vitplast.errors import InputError, UnknownNameError

SELECT = {"validation": "validation_accuracy", "test": "test_accuracy"}


def best_rate(grid: xr.Dataset, select: str = "validation") -> xr.Dataset:
    """`rate* = argmax_rate mean_seed a(rate, seed)`; mean and deviation over seeds of the test accuracy at `rate*`.

    One rate for all seeds of an image set and configuration, as the paper does it; `a` is the validation accuracy, or
    the test accuracy for the authors' own (optimistic) way. Rates with a failed run (see `vitplast.analysis.grid`)
    or without any run are no candidates; of equal ones the smallest is taken.

    Parameters
    ----------
    grid : Dataset
        From `vitplast.analysis.grid.grid`.
    select : str
        validation or test.

    Returns
    -------
    Dataset (dataset, configuration) with accuracy (mean, a fraction), std (ddof 1, NaN below two seeds), seeds (their
    number), lr and rate (chosen; NaN and -1 if there is none), at_edge (the chosen rate is the smallest or the largest
    tried, so a better one may lie outside), and seed_accuracy (dataset, configuration, seed).

    Raises
    ------
    UnknownNameError
        If `select` is neither.
    """
    if select not in SELECT:
        raise UnknownNameError("selection", select, SELECT)
    score = grid[SELECT[select]].mean("seed").round(DIGITS).where(~grid["failed"].any("seed"))
    there = score.notnull().any("rate")
    rate = score.fillna(-np.inf).argmax("rate")
    seeds = grid["test_accuracy"].isel(rate=rate).where(there)
    tried = grid["lr"].notnull()
    last = tried.sizes["rate"] - 1 - tried.isel(rate=slice(None, None, -1)).argmax("rate")
    values = {
        "accuracy": (seeds.mean("seed"), "test accuracy at the best rate, mean over seeds"),
        "std": (seeds.std("seed", ddof=1).where(seeds.count("seed") > 1), "deviation over seeds, ddof 1"),
        "seeds": (seeds.count("seed"), "number of seeds"),
        "lr": (grid["lr"].isel(rate=rate).where(there), "best learning rate"),
        "rate": (rate.where(there, -1), "index of the best rate"),
        "at_edge": (there & ((rate == 0) | (rate == last)), "whether the best rate is the smallest or largest tried"),
        "seed_accuracy": (seeds, "test accuracy at the best rate"),
    }
    table = xr.Dataset({n: v.drop_vars("rate", errors="ignore") for n, (v, _) in values.items()})
    for name, (_, text) in values.items():
        table[name].attrs = {"units": "1", "long_name": text}
    return table.assign_attrs(select=select)


def relative_gain(accuracy: xr.DataArray | xr.Dataset, probe: xr.DataArray | Mapping[str, float]) -> xr.DataArray:
    """`(accuracy - probe) / probe`, a fraction, per image set and configuration (section 4, Gain).

    Parameters
    ----------
    accuracy : DataArray or Dataset
        With a dimension dataset; a Dataset's variable accuracy, as `best_rate` returns it.
    probe : DataArray or mapping
        Accuracy of the linear probe of the frozen model by image set, in the same unit.

    Raises
    ------
    InputError
        If an image set has no probe, or one that is not above 0.
    """
    values = accuracy["accuracy"] if isinstance(accuracy, xr.Dataset) else accuracy
    if isinstance(probe, xr.DataArray):
        probe = dict(zip(probe["dataset"].values.tolist(), probe.values.tolist(), strict=True))
    names = values["dataset"].values.tolist()
    missing = [d for d in names if d not in probe]
    if missing:
        raise InputError(f"no linear probe on {', '.join(missing)}; there is one on {', '.join(map(str, probe))}")
    base = xr.DataArray([float(probe[d]) for d in names], dims="dataset", coords={"dataset": names})
    if not (base > 0).all():
        raise InputError(f"the probe's accuracy must be above 0, got {base.values.min()}")
    return (values / base - 1).rename("gain").assign_attrs(units="1", long_name="gain relative to the linear probe")


def probe_accuracy(gathered: xr.Dataset) -> xr.DataArray:
    """`mean over runs` of the probe's test accuracy by image set, a fraction; from gathered results of kind probe.

    Raises
    ------
    InputError
        If the runs are of several models, sizes or features.
    """
    for name in ("model", "img_size", "features", "weights"):
        several = sorted({str(v) for v in np.atleast_1d(gathered[name].values)}) if name in gathered.coords else []
        if len(several) > 1:
            raise InputError(f"the probes have several values of {name}: {', '.join(several)}; choose one")
    names = list(dict.fromkeys(gathered["dataset"].values.tolist()))
    means = [float(gathered["test_accuracy"].values[gathered["dataset"].values == d].mean()) for d in names]
    attrs = {"units": "1", "long_name": "accuracy of the linear probe"}
    return xr.DataArray(means, dims="dataset", coords={"dataset": names}, name="probe", attrs=attrs)


def selection_effect(grid: xr.Dataset) -> xr.Dataset:
    """`accuracy(rate by test) - accuracy(rate by validation) >= 0`: what choosing the rate on test images adds.

    Returns
    -------
    Dataset (dataset, configuration): validation and test (accuracies under each way of choosing), effect (their
    difference, a fraction), changed (whether another rate is chosen); mean_effect (configuration) over image sets.

    Source: errata, entry B2.
    """
    honest, optimistic = best_rate(grid, "validation"), best_rate(grid, "test")
    effect = optimistic["accuracy"] - honest["accuracy"]
    table = xr.Dataset({"validation": honest["accuracy"], "test": optimistic["accuracy"], "effect": effect})
    table["changed"] = honest["rate"] != optimistic["rate"]
    table["mean_effect"] = effect.mean("dataset")
    return table


def gap(grid: xr.Dataset) -> xr.DataArray:
    """`max_rate - min_rate` of the mean over seeds of the test accuracy: how much the learning rate matters.

    A fraction, (dataset, configuration). Failed runs count with chance accuracy. NaN with fewer than two rates.
    """
    means = grid["test_accuracy"].mean("seed")
    found = (means.max("rate") - means.min("rate")).where(means.count("rate") > 1)
    return found.rename("gap").assign_attrs(units="1", long_name="range of the accuracy over the learning rates")


def gap_noise(grid: xr.Dataset, level: float = 0.95) -> xr.Dataset:
    """`E gap = d_R s / sqrt(S)` if all R rates were equally good: the gap that S seeds alone would show.

    Accuracies are taken as rate + seed + normal noise, so what a seed does to all rates alike (its split) cancels;
    `s^2` is the residual mean square of that two-way table with (R - 1)(S - 1) degrees of freedom, and `d_R` the
    expected range of R standard normal numbers. Only seeds with a run at every rate are used. The quantile and the
    p-value are those of the studentized range, exact under the same assumption (Tukey's test).

    Returns
    -------
    Dataset (dataset, configuration): expected, upper (quantile `level` of the gap under equal rates), p (of the gap
    found), noise (s); fractions, NaN with fewer than two rates or two whole seeds.
    """
    table = grid["test_accuracy"].transpose("dataset", "configuration", "rate", "seed")
    tried = np.isfinite(grid["lr"].transpose("dataset", "configuration", "rate").values)
    shape = table.shape[:2]
    out = {n: np.full(shape, np.nan) for n in ("expected", "upper", "p", "noise")}
    for cell in np.ndindex(shape):
        values = table.values[cell][tried[cell]]
        values = values[:, np.isfinite(values).all(axis=0)]
        rates, seeds = values.shape
        if min(rates, seeds) < 2:
            continue
        rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
        free = (rates - 1) * (seeds - 1)
        noise = float(np.sqrt(np.square(rest).sum() / free))
        unit = noise / np.sqrt(seeds)
        found = float(np.ptp(values.mean(axis=1)))
        out["noise"][cell], out["expected"][cell] = noise, expected_range(rates) * unit
        out["upper"][cell] = range_quantile(level, rates, free) * unit
        tiny = unit <= 1e-12  # all equal but for rounding
        out["p"][cell] = float(found <= 1e-12) if tiny else range_tail(found / unit, rates, free)
    coords = {d: table[d].values for d in ("dataset", "configuration")}
    attrs = {"units": "1"}
    return xr.Dataset({n: (("dataset", "configuration"), v, attrs) for n, v in out.items()}, coords, {"level": level})


@lru_cache(maxsize=32)
def expected_range(count: int) -> float:
    """`d_R = integral of 1 - F(x)^R - (1 - F(x))^R`: expected range of R standard normal numbers.

    Examples
    --------
    >>> expected_range(2), expected_range(4)
    (1.12837..., 2.05875...)
    """
    return float(quad(lambda x: 1 - stats.norm.cdf(x) ** count - stats.norm.sf(x) ** count, -np.inf, np.inf)[0])
