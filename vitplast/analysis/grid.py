"""The finetuning runs as a grid: image set, configuration, learning rate, seed."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

import numpy as np
import xarray as xr

from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError, UnknownNameError
from vitplast.images import describe
from vitplast.parameters import FinetuneParameters

#: What the grid is over; every other parameter must be one and the same in all runs.
AXES = ("dataset", "components", "lr", "seed")
PARAMETERS = tuple(
    name
    for f in fields(FinetuneParameters)
    if f.metadata["key"] and (name := FinetuneParameters.swept.get(f.name, f.name)) not in AXES
)
#: What may depend on the image set, since no comparison within one is then one of several settings.
BY_SET = (
    "steps", "warmup", "evaluations", "validate_every", "log_every", "accumulation", "per_class", "train_images",
    "validation_images", "test_images",
)  # fmt: skip
CELL = ("dataset", "configuration", "rate", "seed")
#: How results keep yes and no.
WORDS = {True: "yes", False: "no"}
SCALARS = ("test_accuracy", "test_loss", "validation_accuracy")
BY_STEP = ("gradient_norm", "gradient_norm_head", "gradient_norm_total", "train_loss")
BY_EVALUATION = ("validation_loss", "validation_accuracy_curve")


def grid(gathered: xr.Dataset, **equal: Any) -> xr.Dataset:
    """`run -> (dataset, configuration, rate, seed)`: the runs as a grid, NaN where there is no run.

    `rate` is the index of a learning rate among the sorted ones of its image set and configuration, whose values are in
    `lr`. A run that diverged before it was ever validated has no checkpoint: it gets chance accuracy, one over the
    number of classes, as test and as validation accuracy, and is `failed`; a rate with such a run is never the best
    (`vitplast.analysis.tables.best_rate`). A run that diverged later counts with its best checkpoint, as it would
    in use.

    Parameters
    ----------
    gathered : Dataset
        Kind finetune along `run`, with coordinates dataset, components, lr, seed and the other parameters.
    equal
        Values of parameters by name, as `model="..."`, `steps=200`; runs with others are left out. A tuple or list
        allows each of its values. `chance`, a mapping from image set to accuracy, is no parameter but takes the place
        of 1 / classes, where the classes are read off the loss that a head of zeros starts with (`ln classes`); with
        another head those of the image set are taken.

    Returns
    -------
    Dataset with test_accuracy, test_loss, validation_accuracy, diverged and failed (False where no run), finished (is
    there a run), over the four dimensions; gradient_norm, gradient_norm_head, gradient_norm_total, train_loss (...,
    step); validation_loss, validation_accuracy_curve (..., evaluation); lr (dataset, configuration, rate), sorted, NaN
    where there are fewer; n_test and chance (dataset); component_parameters (configuration), the smallest where image
    sets differ (their heads do). Accuracies are fractions, losses in nat. Attributes: what all runs share, runs, and
    missing, the number of cells without a run among those that have a learning rate. Parameters of `BY_SET` that differ
    between image sets, and in no image set, are coordinates along dataset.

    Raises
    ------
    UnknownNameError
        If `equal` names no parameter.
    InputError
        If no run is left, parameters other than the axes still differ (those of `BY_SET` within an image set), a cell
        has two runs, an image set has several numbers of test images, or a failed run's chance accuracy is unknown.
    """
    chance = equal.pop("chance", None) or {}
    runs = _chosen(gathered, equal)
    columns = {name: runs[name].values.tolist() for name in AXES}
    datasets, seeds = list(dict.fromkeys(columns["dataset"])), sorted(set(columns["seed"]))
    found = list(dict.fromkeys(columns["components"]))
    configurations = [c for c in CONFIGURATIONS if c in found] + sorted(set(found) - set(CONFIGURATIONS))
    rates: dict[tuple[str, str], set[float]] = {}
    for d, c, lr in zip(columns["dataset"], columns["components"], columns["lr"], strict=True):
        rates.setdefault((d, c), set()).add(lr)
    shape = (len(datasets), len(configurations), max(map(len, rates.values())), len(seeds))
    lr = np.full(shape[:3], np.nan)
    for (d, c), values in rates.items():
        lr[datasets.index(d), configurations.index(c), : len(values)] = sorted(values)
    where = np.full(shape, -1)
    for i, (d, c, rate, seed) in enumerate(zip(*columns.values(), strict=True)):
        cell = (datasets.index(d), configurations.index(c), sorted(rates[d, c]).index(rate), seeds.index(seed))
        if where[cell] >= 0:
            raise InputError(f"two runs of {c} on {d} with rate {rate:g} and seed {seed}; remove one")
        where[cell] = i
    table = xr.Dataset(
        {n: _placed(runs[n], where) for n in (*SCALARS, *BY_STEP, *BY_EVALUATION) if n in runs},
        coords={"dataset": datasets, "configuration": configurations, "rate": np.arange(shape[2]), "seed": seeds},
    )
    table["lr"] = ("dataset", "configuration", "rate"), lr, {"units": "1", "long_name": "peak learning rate"}
    there = where >= 0
    table["finished"] = CELL, there, {"units": "1", "long_name": "whether the run is there"}
    stopped = runs["diverged_step"].values[where] >= 0 if "diverged_step" in runs else np.zeros(shape, dtype=bool)
    table["diverged"] = CELL, there & stopped, {"units": "1", "long_name": "whether the run diverged"}
    failed = table["finished"] & table["validation_accuracy"].isnull()
    table["failed"] = failed.assign_attrs(units="1", long_name="whether the run diverged before any validation")
    table["n_test"] = "dataset", _tested(runs, datasets), {"units": "1", "long_name": "test images"}
    table["chance"] = (
        "dataset",
        [_chance(runs, d, chance) for d in datasets],
        {"units": "1", "long_name": "1 / classes"},
    )
    unknown = table["dataset"].values[(failed.any(CELL[1:]) & table["chance"].isnull()).values].tolist()
    if unknown:
        raise InputError(f"runs on {', '.join(unknown)} failed; give chance={{'{unknown[0]}': 0.1}} (1 / classes)")
    for name in ("test_accuracy", "validation_accuracy"):
        table[name] = table[name].where(~failed, table["chance"]).transpose(*CELL).assign_attrs(table[name].attrs)
    if "component_parameters" in runs:
        least = runs["component_parameters"].groupby("components").min().sel(components=configurations)
        table["component_parameters"] = (
            "configuration",
            least.values.astype(float),
            {"units": "1", "long_name": "parameters"},
        )
    shared = [n for n in PARAMETERS if n in runs.coords]
    differing = {n: _of_sets(runs, n, datasets) for n in BY_SET if n in shared and len(np.unique(runs[n].values)) > 1}
    by_set = {n: values for n, values in differing.items() if None not in values}
    table = table.assign_coords({n: ("dataset", values) for n, values in by_set.items()})
    kept = {n: runs[n].values.tolist()[0] for n in shared if n not in by_set}
    missing = int((np.isfinite(lr)[..., None] & ~there).sum())
    return table.assign_attrs(gathered.attrs | kept | {"runs": int(there.sum()), "missing": missing})


def _chosen(gathered: xr.Dataset, equal: dict[str, Any]) -> xr.Dataset:
    """The runs with these parameters, all others alike."""
    gathered = _with_defaults(gathered)
    keep = np.ones(gathered.sizes["run"], dtype=bool)
    known = [n for n in (*AXES, *PARAMETERS) if n in gathered.coords]
    for name, value in equal.items():
        if name not in known:
            raise UnknownNameError("parameter", name, known)
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        keep &= np.isin(gathered[name].values, [WORDS[v] if isinstance(v, bool) else v for v in values])
        if not keep.any():
            there = ", ".join(sorted({str(v) for v in gathered[name].values.tolist()}))
            raise InputError(f"no run with {name} {value!r} and what was asked for before it; there are {there}")
    runs = gathered.isel(run=np.flatnonzero(keep)).load()
    several = []
    for name in [n for n in PARAMETERS if n in known and n not in equal]:
        sets = list(dict.fromkeys(runs["dataset"].values.tolist())) if name in BY_SET else []
        if name in BY_SET and None not in _of_sets(runs, name, sets):
            continue
        values = sorted({str(v) for v in runs[name].values.tolist()})
        several += [f"{name}={' or '.join(values)}"] if len(values) > 1 else []
    if several:
        raise InputError(
            f"the runs differ in more than image set, components, lr and seed; choose {', '.join(several)}"
        )
    return runs


def _of_sets(runs: xr.Dataset, name: str, datasets: list[str]) -> list[Any]:
    """The value of a parameter on each image set; None where runs on one differ in it."""
    found = [set(runs[name].values[runs["dataset"].values == d].tolist()) for d in datasets]
    return [values.pop() if len(values) == 1 else None for values in found]


def _with_defaults(gathered: xr.Dataset) -> xr.Dataset:
    """Options that came later, at their defaults for the runs made before there was such an option."""
    for f in fields(FinetuneParameters):
        if not f.metadata.get("added"):
            continue
        values = np.full(gathered.sizes["run"], f.default)
        if f.name in gathered.coords:
            there = gathered[f.name].values
            absent = there == "" if there.dtype.kind in "UOT" else ~(there >= 0)
            values = np.where(absent, values, there)
        gathered = gathered.assign_coords({f.name: ("run", values)})
    return gathered


def _placed(values: xr.DataArray, where: np.ndarray) -> xr.DataArray:
    """Values by run at their cells, NaN elsewhere; dimensions of the single run last."""
    values = values.transpose("run", ...)
    rest = values.dims[1:]
    at = np.where(where.reshape(where.shape + (1,) * len(rest)) >= 0, values.values.astype(float)[where], np.nan)
    coords = {d: values[d].values for d in rest if d in values.coords}
    return xr.DataArray(at, dims=(*CELL, *rest), coords=coords, attrs=values.attrs)


def _tested(runs: xr.Dataset, datasets: list[str]) -> list[int]:
    counts = []
    for d in datasets:
        found = sorted(set(runs["n_test"].values[runs["dataset"].values == d].tolist()))
        if len(found) != 1:
            raise InputError(
                f"the runs on {d} have {' and '.join(map(str, found))} test images; choose with test_images=..."
            )
        counts += found
    return counts


def _chance(runs: xr.Dataset, dataset: str, given: dict[str, float]) -> float:
    if dataset in given:
        return float(given[dataset])
    chosen = runs["dataset"].values == dataset
    first = np.array([])
    if "head_init" in runs.coords and "train_loss" in runs:
        chosen &= runs["head_init"].values == "zero"
        first = runs["train_loss"].transpose("run", "step").values[chosen, 0]
        first = first[np.isfinite(first)]
    if len(first):
        return 1.0 / round(float(np.exp(np.median(first))))
    with contextlib.suppress(InputError):  # no set of that name, or a folder that is not here
        return 1.0 / classes if (classes := describe(dataset)["classes"]) else np.nan
    return np.nan
