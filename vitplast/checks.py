"""Checks that the results of a profile must pass before anybody reads more into them.

They test the machinery, not the paper: valid bounds hold, pretrained weights differ from random ones, matrices
finetune better than norms and head at equal steps. Each check gives its numbers; none of them is hidden when it fails.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.accuracy import best_run
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.estimate import layer_mean, plasticity
from vitplast.results import singles
from vitplast.rules import SLACK

MATRICES = ("MHA", "FC1", "FC2")
OTHERS = ("LN1", "LN2", "head")

Runs = dict[tuple[str, str], xr.Dataset]
Row = tuple[str, bool, str]


def checks(rates: xr.Dataset, bounds: xr.Dataset, finetune: xr.Dataset) -> pd.DataFrame:
    """Table with columns check, passed and found, from gathered results (along `run`) of the three kinds."""
    measured = _named(rates)
    rows = [
        *_bounds_hold(measured, _named(bounds)),
        *_fc1_above_fc2(measured),
        *_differs_from_random(measured),
        *_matrices_finetune_better(finetune),
    ]
    return pd.DataFrame(rows, columns=["check", "passed", "found"])


def _named(gathered: xr.Dataset) -> dict[tuple[str, str], xr.Dataset]:
    """Single runs by target and weights."""
    runs = {}
    for one in singles(gathered):
        given = json.loads(one.attrs["params_json"])
        name = given["target"], given["weights"]
        if name in runs:
            raise InputError(f"two runs are of {' and '.join(name)}; check one model, size and seed at a time")
        runs[name] = one
    return runs


def _words(values: dict[tuple[str, str], float], form: str) -> str:
    return ", ".join(f"{t}{', random weights' if w == 'random' else ''}: {v:{form}}" for (t, w), v in values.items())


def _bounds_hold(rates: Runs, bounds: Runs) -> list[Row]:
    worst = {
        name: float((run.rate.max("pair") / bounds[name].bound.sel(variant="valid")).max())
        for name, run in rates.items()
        if name in bounds
    }
    passed = bool(worst) and max(worst.values()) <= 1 + SLACK
    return [("no measured rate exceeds its valid bound (largest ratio)", passed, _words(worst, ".3f"))]


def _fc1_above_fc2(rates: Runs) -> list[Row]:
    rows = []
    for convention in ("common", "in_situ"):
        ratio = {}
        for (target, weights), run in rates.items():
            if weights != "random" and convention in run.convention:
                mean = run.rate.sel(convention=convention).mean(["layer", "pair"])
                ratio[target, weights] = float(mean.sel(component="FC1") / mean.sel(component="FC2"))
        passed = bool(ratio) and min(ratio.values()) > 1
        rows.append(
            (f"FC1 is more plastic than FC2, {convention.replace('_', ' ')} (ratio)", passed, _words(ratio, ".2f"))
        )
    return rows


def _differs_from_random(rates: Runs) -> list[Row]:
    apart = {}
    for (target, weights), run in rates.items():
        if weights == "random" or (target, "random") not in rates:
            continue
        both = [plasticity(layer_mean(r)).sel(convention="common") for r in (run, rates[target, "random"])]
        for component in COMPONENTS:
            a, b = (one.sel(component=component) for one in both)
            separate = bool(a.ci_low > b.ci_high or a.ci_high < b.ci_low)
            apart[component] = apart.get(component, True) and separate
    found = ", ".join(f"{c} {'apart' if yes else 'overlap'}" for c, yes in apart.items())
    passed = bool(apart) and all(apart.values())
    return [("pretrained weights differ from random ones (95% intervals, common input)", passed, found)]


def _matrices_finetune_better(finetune: xr.Dataset) -> list[Row]:
    gaps = {}
    for dataset in np.unique(finetune.dataset):
        runs = {c: best_run(finetune, str(dataset), c) for c in (*MATRICES, *OTHERS)}
        best = {c: float(run.test_accuracy) for c, run in runs.items() if run is not None}
        if set(best) == {*MATRICES, *OTHERS}:
            gaps[str(dataset)] = 100 * (min(best[c] for c in MATRICES) - max(best[c] for c in OTHERS))
    found = ", ".join(f"{name}: {value:+.1f} points" for name, value in gaps.items())
    passed = bool(gaps) and min(gaps.values()) > 0
    return [("MHA, FC1 and FC2 each finetune better than LN1, LN2 and the head (smallest gap)", passed, found)]
