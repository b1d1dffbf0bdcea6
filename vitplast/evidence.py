"""The results that claims are decided on: single runs, checked for what the rules read, and matched to each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from vitplast import parameters
from vitplast.components import COMPONENTS
from vitplast.errors import HypothesisError, InputError
from vitplast.rules import PREDICTED

#: Parameters of a run that say which model it belongs to, and which images.
MODEL_NAMES = ("model", "weights", "img_size", "normalization", "init_seed")
RUN_NAMES = (*MODEL_NAMES, "rescale", "source", "target", "pairs", "design", "seed")

#: Variables and coordinates that the rules read, and labels that these must hold.
READ: dict[str, dict[str, tuple[str, ...]]] = {
    "plasticity": {
        "rate": (), "convention": (), "layer": (), "pair": (), "source_group": (), "target_group": (),
        "component": COMPONENTS,
    },
    "bounds": {"bound": (), "convention": (), "layer": (), "variant": (), "component": COMPONENTS},
    "theory": {
        "measured_test": (), "prediction": (), "bound": (), "convention": (), "component": tuple(PREDICTED),
        "law": tuple(sorted({law for law, _ in PREDICTED.values()})),
        "statement": tuple(sorted({statement for _, statement in PREDICTED.values()})),
    },
    "gradients": {"ratio": (), "key_bias": ()},
    "finetune": {
        "test_accuracy": (), "validation_accuracy": (), "gradient_norm": (), "component_parameters": (), "n_test": (),
        "dataset": (), "components": (), "lr": (), "seed": (),
    },
    "probe": {"test_accuracy": (), "dataset": ()},
}  # fmt: skip

Results = xr.Dataset | Mapping[str, xr.Dataset] | None


def runs(results: Results, name: str) -> dict[Any, xr.Dataset]:
    """Datasets of single runs, by target name or position along `run`, once they hold what the rules read."""
    if results is None:
        return {}
    if isinstance(results, Mapping) and not isinstance(results, xr.Dataset):
        for key, ds in results.items():
            _check(ds, name, f" of run {key!r}")
        return dict(results)
    _check(results, name)
    if "run" not in results.dims:
        return {0: results}
    return {i: _with_design(results.isel(run=i)) for i in range(results.sizes["run"])}


def gathered_runs(results: xr.Dataset | None, name: str) -> xr.Dataset | None:
    """Results of kind finetune or probe, which are read along `run`, once they hold what the rules read."""
    if results is None:
        return None
    if not isinstance(results, xr.Dataset) or "run" not in results.dims:
        found = f"dimensions {tuple(results.dims)}" if isinstance(results, xr.Dataset) else type(results).__name__
        raise InputError(f"{name} must be a gathered dataset, with the dimension run, got {found}")
    _check(results, name)
    return results


def one_model(results: Iterable[xr.Dataset]) -> None:
    """Refuses results, single or gathered, of several models."""
    results = list(results)
    for name in MODEL_NAMES:
        values = {str(labels(ds).get(name, "")) for ds in results}
        values |= {str(v) for ds in results if "run" in ds.dims and name in ds.coords for v in ds[name].values.ravel()}
        if len(values - {""}) > 1:
            raise InputError(f"verdicts are for one model at a time, got {name} = {', '.join(sorted(values - {''}))}")


def _check(ds: Any, name: str, where: str = "") -> None:
    if not isinstance(ds, xr.Dataset):
        raise InputError(f"{name}{where} must be a dataset, or a dict from target to dataset, got {type(ds).__name__}")
    kind = str(ds.attrs.get("kind", ""))
    if kind != name and kind in parameters.KINDS:
        raise InputError(f"{name}{where}: a result of kind {kind!r} was given")
    missing = [n for n in READ[name] if n not in ds.variables]
    if name == "plasticity" and "design" not in ds.attrs and "design" not in ds.coords:
        missing.append("design")
    for n, labels in READ[name].items():
        if labels and n not in missing:
            missing += [f"{n} {label}" for label in labels if label not in ds[n].values]
    if missing:
        raise InputError(f"{name}{where}: the dataset lacks {', '.join(missing)}")


def _with_design(run: xr.Dataset) -> xr.Dataset:
    """A run of a gathered dataset with the design of its pairs as an attribute again."""
    return run.assign_attrs({"design": run.coords["design"].item()}) if "design" in run.coords else run


def matched(
    plasticity: Results, bounds: Results, rates: dict[Any, xr.Dataset], limits: dict[Any, xr.Dataset]
) -> tuple[dict[Any, xr.Dataset], dict[Any, xr.Dataset]]:
    """Measurements and bounds of the same model and images, under the measurements' keys."""
    if not rates or not limits:
        return {}, {}
    by_key = not isinstance(plasticity, xr.Dataset) and not isinstance(bounds, xr.Dataset)
    found = {}
    for key, ds in rates.items():
        fitting = [k for k in limits if (k == key or not by_key) and _same_run(ds, limits[k])]
        if len(fitting) > 1:
            raise InputError(f"{len(fitting)} bounds belong to measurement {key!r}: label the runs or give dicts")
        if fitting:
            found[key] = limits[fitting[0]]
    if not found:
        raise HypothesisError("no measurement and bounds belong to the same model, source and target images")
    return {key: rates[key] for key in found}, found


def _same_run(a: xr.Dataset, b: xr.Dataset) -> bool:
    one, other = labels(a), labels(b)
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def labels(ds: xr.Dataset) -> dict[str, Any]:
    """Model and images of a run: coordinates of gathered results, parameters in the attributes of single ones."""
    given = json.loads(ds.attrs.get("params_json", "{}"))
    given |= {str(name): c.item() for name, c in ds.coords.items() if not c.dims}
    return {name: given[name] for name in RUN_NAMES if name in given}


def clean(ds: xr.Dataset) -> xr.Dataset:
    """Without the padding of gathered runs (labels with no value at all); what is left must be finite."""
    for dim in ds["rate"].dims:
        padding = ds["rate"].isnull().all([d for d in ds["rate"].dims if d != dim])
        ds = ds.isel({dim: np.nonzero(~padding.values)[0]})
    if not ds["rate"].size or not bool(np.isfinite(ds["rate"]).all()):
        raise HypothesisError("the rates of change hold values that are not finite")
    return ds
