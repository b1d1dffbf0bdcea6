"""Gathered results of kind criteria as a table by dataset, for `vitplast.analysis.scoring`."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.errors import InputError


def criteria_by_dataset(gathered: xr.Dataset) -> xr.Dataset:
    """`total (run, criterion, component) -> total (dataset, criterion, component)`: means over the runs of a dataset.

    Parameters
    ----------
    gathered
        Runs along `run`, whose dataset is in the coordinate `target` (or `dataset`), with `total` and, if they are
        there, `forward_passes` and `backward_passes` (criterion, or run too).

    Returns
    -------
    Dataset with `total`, and the passes as their mean over runs.

    Raises
    ------
    InputError
        If it says of no dataset, has no `total`, or holds several models.

    Examples
    --------
    >>> runs = xr.Dataset({"total": (("run", "criterion", "component"), [[[1.0, 2.0]], [[3.0, 4.0]]])},
    ...                   coords={"target": ("run", ["a", "a"]), "criterion": ["size"], "component": ["LN1", "MHA"]})
    >>> criteria_by_dataset(runs)["total"].values.tolist()
    [[[2.0, 3.0]]]
    """
    name = next((n for n in ("target", "dataset") if n in gathered.coords), None)
    if name is None or "total" not in gathered or "run" not in gathered.dims:
        raise InputError("gathered results of kind criteria are needed: total along run, with target or dataset")
    for parameter in ("model", "weights", "img_size"):
        known = np.unique(gathered[parameter].values.astype(str)) if parameter in gathered.coords else ()
        if len(known) > 1:
            raise InputError(f"the criteria have several values of {parameter}: {', '.join(known)}; choose one")
    labels = np.broadcast_to(gathered[name].values.astype(str), gathered.sizes["run"])
    names = list(dict.fromkeys(labels.tolist()))
    rows = [gathered["total"].isel(run=np.flatnonzero(labels == n)).mean("run").reset_coords(drop=True) for n in names]
    table = xr.concat(rows, xr.Variable("dataset", names)).transpose("dataset", "criterion", "component").to_dataset()
    for passes in ("forward_passes", "backward_passes"):
        if passes in gathered:
            one = gathered[passes].reset_coords(drop=True)
            table[passes] = one.mean("run") if "run" in one.dims else one
    return table
