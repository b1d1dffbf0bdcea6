"""Numbers of linear probing over depth: the point that the paper reports against the best one."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.errors import InputError, UnknownNameError

#: Point of the last block that the paper reports.
REPORTED = "ffn_res"
ACCURACY = ("test_accuracy", "end_test_accuracy")
#: What must be the same in all runs of a table.
SETTINGS = ("img_size", "features", "c", "max_iter", "train_images", "test_images", "weights")
PLACE = ("layer", "point")


def by_task(gathered: xr.Dataset, model: str) -> xr.Dataset:
    """`mean over seeds`: accuracies of a model by image set, layer and point, with the ends of the network beside.

    Parameters
    ----------
    gathered : Dataset
        Kind depth along `run`.
    model : str
        Layers beyond those of this model are left out.

    Returns
    -------
    Dataset with test_accuracy and standard_error (dataset, layer, point), end_test_accuracy and end_standard_error
    (dataset, end), fractions; n_test and seeds (dataset). The standard error is that of one run, the largest over
    seeds: seeds share test images.

    Raises
    ------
    UnknownNameError
        If no run is of this model.
    InputError
        If the runs of the model differ in anything but image set and seed.
    """
    models = np.atleast_1d(gathered["model"].values)
    if model not in models:
        raise UnknownNameError("model", model, sorted(set(models.tolist())))
    runs = gathered.isel(run=np.flatnonzero(models == model))
    for name in SETTINGS:
        several = sorted({str(v) for v in np.atleast_1d(runs[name].values)}) if name in runs.coords else []
        if len(several) > 1:
            raise InputError(f"the runs of {model} have several values of {name}: {', '.join(several)}; choose one")
    names = list(dict.fromkeys(runs["dataset"].values.tolist()))
    of = [runs.isel(run=np.flatnonzero(runs["dataset"].values == d)) for d in names]
    dim = xr.DataArray(names, dims="dataset", name="dataset")
    table = xr.Dataset(
        {n: xr.concat([one[n].mean("run") for one in of], dim) for n in ACCURACY}
        | {n: xr.concat([one[n].max("run") for one in of], dim) for n in ("standard_error", "end_standard_error")}
        | {"n_test": ("dataset", [int(one["n_test"].max()) for one in of])}
        | {"seeds": ("dataset", [one.sizes["run"] for one in of])}
    )
    there = table["test_accuracy"].notnull().any(("dataset", "point"))
    return table.isel(layer=np.flatnonzero(there.values)).assign_attrs(model=model)


def reported(table: xr.Dataset) -> xr.Dataset:
    """Accuracy and standard error (dataset) at the end of the last block, before the final norm (paper).

    Source: inventory of the authors' code, linear probing: block 11, `ffn_res`.
    """
    last = table[["test_accuracy", "standard_error"]].isel(layer=-1).sel(point=REPORTED)
    return last.rename(test_accuracy="accuracy").drop_vars(["layer", "point"])


def advantage(table: xr.Dataset) -> xr.DataArray:
    """`a(dataset, layer, point) - a(dataset, reported)`, a fraction."""
    return (table["test_accuracy"] - reported(table)["accuracy"]).rename("advantage")


def best_place(table: xr.Dataset) -> xr.Dataset:
    """`argmax over (layer, point)` of the test accuracy, for each image set on its own test images: optimistic.

    Returns
    -------
    Dataset (dataset): layer, point, accuracy, advantage over the reported point, and error, the standard error of that
    difference if the two counts were independent; on the same images it is smaller where they agree.
    """
    return _at(table, table["test_accuracy"])


def place_from_others(table: xr.Dataset) -> xr.Dataset:
    """The place with the largest mean accuracy over all *other* image sets, and what it gives on this one.

    No test image of an image set has a say in the choice for it, unlike in `best_place`, whose form the result has.

    Raises
    ------
    InputError
        If there is only one image set.
    """
    accuracy, count = table["test_accuracy"], table.sizes["dataset"]
    if count < 2:
        raise InputError("a place can be chosen on other image sets only if there are two or more, got 1")
    return _at(table, (accuracy.sum("dataset") - accuracy) / (count - 1))


def as_probes(gathered: xr.Dataset) -> xr.Dataset:
    """The probes at the reported place (`REPORTED` of the last block), in the form of gathered results of kind probe.

    Parameters
    ----------
    gathered : Dataset
        Kind depth along `run`; models may have different numbers of blocks.

    Returns
    -------
    Dataset along `run` with test_accuracy, a fraction, n_test and the coordinates of the runs.
    """
    one = gathered["test_accuracy"].sel(point=REPORTED, drop=True).transpose("run", "layer")
    last = one.sizes["layer"] - 1 - one.notnull().values[:, ::-1].argmax(axis=1)
    values = one.values[np.arange(one.sizes["run"]), last]
    kept = {n: c for n, c in gathered.coords.items() if c.dims in ((), ("run",)) and n != "point"}
    found = xr.Dataset({"test_accuracy": ("run", values), "n_test": gathered["n_test"]}).assign_coords(kept)
    return found.drop_vars("layer", errors="ignore").assign_attrs(gathered.attrs | {"kind": "probe"})


def _at(table: xr.Dataset, score: xr.DataArray) -> xr.Dataset:
    """Accuracy at the place with the largest score of each image set, and its difference to the reported one."""
    flat = score.transpose("dataset", *PLACE).values.reshape(table.sizes["dataset"], -1)
    layer, point = np.unravel_index(flat.argmax(axis=1), [table.sizes[d] for d in PLACE])
    where = {"layer": xr.DataArray(layer, dims="dataset"), "point": xr.DataArray(point, dims="dataset")}
    chosen = table[["test_accuracy", "standard_error"]].isel(where)
    base = reported(table)
    same = (layer == table.sizes["layer"] - 1) & (table["point"].values[point] == REPORTED)
    error = np.sqrt(chosen["standard_error"] ** 2 + base["standard_error"] ** 2)
    return xr.Dataset(
        {
            "layer": ("dataset", table["layer"].values[layer]),
            "point": ("dataset", table["point"].values[point]),
            "accuracy": ("dataset", chosen["test_accuracy"].values),
            "advantage": ("dataset", (chosen["test_accuracy"] - base["accuracy"]).values),
            "error": ("dataset", np.where(same, 0.0, error.values)),
        },
        coords={"dataset": table["dataset"].values},
    )
