"""The labelled dataset of one finetuning run, in the names of `vitplast.results.schema`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr

from vitplast.results import schema_of
from vitplast.training.loop import History
from vitplast.training.recipe import Recipe
from vitplast.training.step import OUTER, Stepper


def to_dataset(
    recipe: Recipe,
    history: History,
    stepper: Stepper,
    *,
    tested: tuple[float, float],
    images: Sequence[int],
    attrs: dict[str, str],
) -> xr.Dataset:
    """Curves over `step` and `evaluation` at their full length (missing after a divergence), scalars, and attributes.

    Of the steps those that the recipe logs.

    `tested`: accuracy and loss on the test images; `images`: how many there are in train, validation and test.
    """
    taken = len(history.steps) - (history.diverged_step >= 0)
    outer = [g for g in stepper.groups if g in OUTER]
    sizes = {group: sum(p.numel() for p in found) for group, found in stepper.groups.items()}
    accuracy, loss = zip(*history.validations, strict=True) if history.validations else ((), ())
    curves = {
        "train_loss": [log.loss for log in history.steps],
        "learning_rate": [recipe.rate(step) for step in range(len(history.steps))],
        "gradient_norm": [log.norm(stepper.component) for log in history.steps],
        "gradient_norm_total": [log.norm(stepper.groups) for log in history.steps],
        "gradient_norm_head": [log.norm(outer) if outer else math.nan for log in history.steps],
    }
    evaluations = {"validation_accuracy_curve": accuracy, "validation_loss": loss}
    scalars = {
        "test_accuracy": tested[0],
        "test_loss": tested[1],
        "validation_accuracy": history.best_accuracy,
        "best_step": history.best_step,
        "diverged_step": history.diverged_step,
        "trainable_parameters": sum(sizes.values()),
        "component_parameters": sum(sizes[group] for group in stepper.component),
        "seconds": history.seconds,
        "images_per_second": taken * recipe.batch_size / history.seconds if taken else math.nan,
        **dict(zip(("n_train", "n_validation", "n_test"), images, strict=True)),
    }
    points, logged = (np.array(p, dtype=np.int64) for p in (recipe.evaluation_steps(), recipe.logged_steps()))
    ds = xr.Dataset(
        {name: ("step", _padded(values[:: recipe.log_every], len(logged))) for name, values in curves.items()}
        | {name: ("evaluation", _padded(values, len(points))) for name, values in evaluations.items()}
        | {name: ((), np.int64(v) if type(v) is int else np.float64(v)) for name, v in scalars.items()},
        coords={
            "step": logged,
            "evaluation": points,
            "components": recipe.components,
            "lr": np.float64(recipe.lr),
            "seed": np.int64(recipe.seed),
        },
        attrs=_recipe_attrs(recipe) | {"trained_groups": " ".join(stepper.groups)} | attrs,
    )
    table = schema_of("finetune")
    for name, variable in (table.coords | table.variables).items():
        if name in ds.variables:
            ds[name].attrs = {"units": variable.units, "long_name": variable.meaning}
    return ds


def with_plasticity(ds: xr.Dataset, found: Mapping[str, xr.DataArray]) -> xr.Dataset:
    """`ds` with arrays (convention, layer, component) under the names of the schema; `ds` itself if there are none."""
    table = schema_of("finetune")
    for name, array in found.items():
        ds = ds.assign({name: array.astype(np.float64)})
        for label in (name, *array.dims):
            variable = (table.coords | table.variables)[label]
            ds[label].attrs = {"units": variable.units, "long_name": variable.meaning}
    return ds


def _padded(values: Iterable[float], length: int) -> np.ndarray:
    """Values, then NaN up to `length`; a value that is not finite counts as missing."""
    full = np.full(length, np.nan)
    found = np.array(list(values), dtype=np.float64)
    full[: len(found)] = np.where(np.isfinite(found), found, np.nan)
    return full


def _recipe_attrs(recipe: Recipe) -> dict[str, str | int | float]:
    """What the coordinates don't say, with yes and no for booleans, which NetCDF lacks."""
    found = {k: v for k, v in dataclasses.asdict(recipe).items() if k not in ("components", "lr", "seed")}
    return {k: ("yes" if v else "no") if isinstance(v, bool) else v for k, v in found.items()}
