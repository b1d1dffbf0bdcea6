"""Plasticity of the components before and after finetuning."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.errors import InputError

MOMENTS = ("before", "after")
AXES = ("dataset", "configuration", "lr", "seed")


def plasticity_change(gathered: xr.Dataset, model: str) -> xr.Dataset:
    """`P_before`, `P_after` and `P_after / P_before` of every component, for every configuration that was trained.

    Before: the pretrained weights; after: the checkpoint that was tested. Runs of an image set and configuration are
    averaged over seeds.

    Parameters
    ----------
    gathered : Dataset
        Kind finetune along `run`; only runs with plasticity_pairs above 0 are used.

    Returns
    -------
    Dataset (dataset, configuration, convention, layer, component): before, after, change (the ratio); (dataset,
    configuration): lr, runs. Blocks that the model does not have are left out.

    Raises
    ------
    InputError
        If no run of the model measured plasticity, or runs of a configuration differ in their learning rate.
    """
    measured = "plasticity_after" in gathered and "plasticity_pairs" in gathered.coords
    keep = gathered["model"].values == model
    keep &= gathered["plasticity_pairs"].values > 0 if measured else False
    if not keep.any():
        raise InputError(f"no finetuning run of {model} measured plasticity; set plasticity_pairs to 64, say")
    runs = gathered[["plasticity_before", "plasticity_after"]].isel(run=np.flatnonzero(keep))
    names = list(dict.fromkeys(runs["dataset"].values.tolist()))
    found = set(runs["components"].values.tolist())
    trained = [c for c in COMPONENTS if c in found] + sorted(found - set(COMPONENTS))
    shape = (len(names), len(trained))
    rates, counts = np.full(shape, np.nan), np.zeros(shape, dtype=int)
    rows = []
    for i, d in enumerate(names):
        row = []
        for j, c in enumerate(trained):
            one = runs.isel(run=np.flatnonzero((runs["dataset"].values == d) & (runs["components"].values == c)))
            lrs = sorted(set(one["lr"].values.tolist()))
            if len(lrs) > 1:
                raise InputError(f"{c} on {d} was measured at the rates {', '.join(f'{v:g}' for v in lrs)}; choose one")
            if lrs:
                rates[i, j], counts[i, j] = lrs[0], one.sizes["run"]
            row.append(one.mean("run"))
        rows.append(xr.concat(row, "configuration"))
    table = xr.concat(rows, "dataset").assign_coords(dataset=names, configuration=trained)
    table = table.rename({f"plasticity_{m}": m for m in MOMENTS})
    rest = [d for d in table["before"].dims if d != "layer"]
    table = table.isel(layer=np.flatnonzero(table["before"].notnull().any(rest).values))
    table = table.sel(component=[c for c in COMPONENTS if c in table["component"].values])
    table["change"] = table["after"] / table["before"]
    table["lr"], table["runs"] = (AXES[:2], rates), (AXES[:2], counts)
    return table


def of_the_trained(change: xr.Dataset) -> xr.Dataset:
    """The rows of `plasticity_change` in which the component measured is the one trained: without `configuration`."""
    both = [c for c in change["component"].values.tolist() if c in change["configuration"].values]
    at = xr.DataArray(both, dims="component", coords={"component": both})
    return change.sel(configuration=at, component=at).drop_vars("configuration")


def summary(change: xr.Dataset) -> xr.Dataset:
    """`exp(mean_layer log(P_after / P_before))`, with the smallest and the largest block; no layer in it."""
    log = np.log(change["change"])
    return xr.Dataset(
        {"mean": np.exp(log.mean("layer")), "low": np.exp(log.min("layer")), "high": np.exp(log.max("layer"))}
    )
