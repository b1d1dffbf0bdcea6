"""Curves of training: gradient norms and losses, averaged over seeds, for each rate or for the best one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from vitplast.analysis.grid import BY_EVALUATION, BY_STEP
from vitplast.analysis.tables import best_rate
from vitplast.errors import InputError, UnknownNameError

CURVES = (*BY_STEP, *BY_EVALUATION)


def curves(grid: xr.Dataset, names: Sequence[str] | None = None, rates: str = "all") -> xr.Dataset:
    """`mean over seeds` of each curve, by image set, configuration and rate; with deviation over seeds (ddof 1).

    A value that a run lacks (it diverged) is left out of the mean, so late parts of a curve may stand on fewer seeds.

    Parameters
    ----------
    grid : Dataset
        From `vitplast.analysis.grid.grid`.
    names : sequence of str
        Of `CURVES`; by default all that the grid has.
    rates : str
        all, or best: the rate chosen on validation images, without dimension rate.

    Returns
    -------
    Dataset with NAME and NAME_std, dimensions dataset, configuration, [rate,] step or evaluation. Gradient norms have
    no unit, losses are in nat. For `best` also lr (dataset, configuration).

    Raises
    ------
    UnknownNameError
        If a name is not a curve of the grid, or `rates` is neither all nor best.
    """
    known = [n for n in CURVES if n in grid]
    names = known if names is None else list(names)
    for name in names:
        if name not in known:
            raise UnknownNameError("curve", name, known)
    if rates not in ("all", "best"):
        raise UnknownNameError("choice of rates", rates, ("all", "best"))
    chosen, table = grid[names], xr.Dataset()
    if rates == "best":
        best = best_rate(grid)
        chosen = chosen.isel(rate=best["rate"].clip(min=0)).where(best["rate"] >= 0).drop_vars("rate")
        table["lr"] = best["lr"]
    for name in names:
        values = chosen[name]
        table[name] = values.mean("seed").assign_attrs(values.attrs)
        table[f"{name}_std"] = values.std("seed", ddof=1).where(values.count("seed") > 1).assign_attrs(values.attrs)
    return table


def early_norm(grid: xr.Dataset, steps: int = 100, norm: str = "gradient_norm") -> xr.Dataset:
    """`n_first` and `mean of n_t, t < steps`: gradient norm before clipping, at first and over the first steps (C5).

    A head of zeros passes no gradient back, and with a warm-up the rate of step 0 is 0, so component norms start with
    zeros: first is the first norm above 0, and zeros before it do not enter the mean. Per run, then mean over seeds;
    fewer steps are used where a run has fewer, or logged fewer of them.

    Returns
    -------
    Dataset (dataset, configuration, rate) with first, mean (no unit), and first_step, the mean step of `first`.

    Raises
    ------
    InputError
        If `steps` is not above 0.
    UnknownNameError
        If the grid has no such norm.
    """
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if norm not in grid:
        raise UnknownNameError("gradient norm", norm, [n for n in BY_STEP if n in grid])
    values = first_steps(grid[norm].sortby("step"), steps)
    positive = values > 0
    begun = positive.cumsum("step") > 0
    at = positive.argmax("step")
    some = positive.any("step")
    first = values.isel(step=at).where(some).drop_vars("step")
    table = xr.Dataset(
        {
            "first": first.mean("seed"),
            "mean": values.where(begun).mean("step").where(some).mean("seed"),
            "first_step": at.where(some).mean("seed"),
        }
    )
    for name, text in (("first", "first gradient norm above 0"), ("mean", f"mean of the first {steps} steps")):
        table[name].attrs = {"units": "1", "long_name": text}
    return table


def first_steps(curve: xr.DataArray, steps: int) -> xr.DataArray:
    """`curve_t, t < steps`, of the steps that were logged; without labels of steps the first ones."""
    if "step" not in curve.coords:
        return curve.isel(step=slice(steps))
    return curve.isel(step=np.flatnonzero(curve["step"].values < steps))


def over_sets(curve: xr.DataArray, how: str = "geometric") -> xr.DataArray:
    """`exp(mean of log)` over image sets for norms and losses, whose sizes differ between sets; or the plain mean.

    Values that are not above 0 are left out of a geometric mean.

    Raises
    ------
    UnknownNameError
        If `how` is neither geometric nor arithmetic.
    """
    if how == "arithmetic":
        return curve.mean("dataset", keep_attrs=True)
    if how != "geometric":
        raise UnknownNameError("mean", how, ("geometric", "arithmetic"))
    return np.exp(np.log(curve.where(curve > 0)).mean("dataset")).assign_attrs(curve.attrs)
