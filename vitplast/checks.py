"""Checks that the results of a profile must pass before anybody reads more into them.

They test the machinery, not the paper: valid bounds hold, pretrained weights differ from random ones, matrices
finetune better than norms and head at equal steps. Each check gives its numbers; none of them is hidden when it fails.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.estimate import layer_mean

MATRICES = ("MHA", "FC1", "FC2")
OTHERS = ("LN1", "LN2", "head")


def checks(plasticity: xr.Dataset, bounds: xr.Dataset, finetune: xr.Dataset) -> pd.DataFrame:
    """Table with columns check, passed and found, from gathered results (along `run`) of the three kinds."""
    rows = [
        *_bounds_hold(plasticity, bounds),
        *_fc1_above_fc2(plasticity),
        *_differs_from_random(plasticity),
        *_matrices_finetune_better(finetune),
    ]
    return pd.DataFrame(rows, columns=["check", "passed", "found"])


def _runs(gathered: xr.Dataset) -> list[xr.Dataset]:
    return [gathered.isel(run=i) for i in range(gathered.sizes["run"])]


def _name(run: xr.Dataset) -> str:
    return f"{run.target.item()}{', random weights' if run.weights.item() == 'random' else ''}"


def _bounds_hold(plasticity: xr.Dataset, bounds: xr.Dataset) -> list[tuple[str, bool, str]]:
    by_name = {_name(run): run for run in _runs(bounds)}
    worst = {}
    for run in _runs(plasticity):
        if _name(run) in by_name:
            ratio = run.rate.max("pair") / by_name[_name(run)].bound.sel(variant="valid")
            worst[_name(run)] = float(ratio.max())
    found = ", ".join(f"{name}: {value:.3f}" for name, value in worst.items())
    passed = bool(worst) and max(worst.values()) <= 1 + 1e-6
    return [("no measured rate exceeds its valid bound (largest ratio)", passed, found)]


def _fc1_above_fc2(plasticity: xr.Dataset) -> list[tuple[str, bool, str]]:
    rows = []
    for convention in plasticity.convention.values:
        ratio = {}
        for run in _runs(plasticity):
            if run.weights.item() != "random":
                mean = layer_mean(run)["mean"].sel(convention=convention)
                ratio[_name(run)] = float(mean.sel(component="FC1") / mean.sel(component="FC2"))
        found = ", ".join(f"{name}: {value:.2f}" for name, value in ratio.items())
        passed = bool(ratio) and min(ratio.values()) > 1
        rows.append((f"FC1 is more plastic than FC2, {convention.replace('_', ' ')} (ratio)", passed, found))
    return rows


def _differs_from_random(plasticity: xr.Dataset) -> list[tuple[str, bool, str]]:
    random = {run.target.item(): run for run in _runs(plasticity) if run.weights.item() == "random"}
    apart = {}
    for run in _runs(plasticity):
        if run.weights.item() == "random" or run.target.item() not in random:
            continue
        ours, other = (layer_mean(r).sel(convention="common") for r in (run, random[run.target.item()]))
        for component in COMPONENTS:
            a, b = ours.sel(component=component), other.sel(component=component)
            apart[component] = bool(a.ci_low > b.ci_high or a.ci_high < b.ci_low)
    found = ", ".join(f"{c} {'apart' if yes else 'overlap'}" for c, yes in apart.items())
    passed = bool(apart) and all(apart.values())
    return [("pretrained weights differ from random ones (95% intervals, common input)", passed, found)]


def _matrices_finetune_better(finetune: xr.Dataset) -> list[tuple[str, bool, str]]:
    gaps = {}
    for dataset in np.unique(finetune.dataset):
        best = {}
        for component in (*MATRICES, *OTHERS):
            chosen = ((finetune.dataset == dataset) & (finetune.components == component)).values
            runs = finetune.isel(run=chosen)
            if runs.sizes["run"]:
                best[component] = float(runs.test_accuracy[int(runs.validation_accuracy.argmax())])
        if set(best) == {*MATRICES, *OTHERS}:
            gaps[str(dataset)] = 100 * (min(best[c] for c in MATRICES) - max(best[c] for c in OTHERS))
    found = ", ".join(f"{name}: {value:+.1f} points" for name, value in gaps.items())
    passed = bool(gaps) and min(gaps.values()) > 0
    return [("MHA, FC1 and FC2 each finetune better than LN1, LN2 and the head (smallest gap)", passed, found)]
