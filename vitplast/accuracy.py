"""Accuracies of finetuning runs: which run of a configuration counts, and which differences are resolved."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.errors import InputError


def best_run(finetune: xr.Dataset, dataset: str, components: str) -> xr.Dataset | None:
    """Run with the best validation accuracy among the rates and seeds of a configuration; None if there is none.

    `finetune` has dimension run and coordinates dataset and components. Diverged runs without an accuracy are left
    out. Among equals the first is taken.
    """
    chosen = (
        (finetune.dataset == dataset) & (finetune.components == components) & finetune.validation_accuracy.notnull()
    )
    runs = finetune.isel(run=chosen.values)
    return runs.isel(run=int(runs.validation_accuracy.argmax("run"))) if runs.sizes["run"] else None


def standard_error(run: xr.Dataset) -> float:
    """`sqrt(p (1 - p) / n)`: binomial standard error of a run's test accuracy over its n test images."""
    p, n = float(run.test_accuracy), float(run.n_test)
    return float(np.sqrt(p * (1 - p) / n))


def difference(a: xr.Dataset, b: xr.Dataset) -> tuple[float, float]:
    """`p_a - p_b` and the two-sided p-value of `z = (p_a - p_b) / sqrt(se_a^2 + se_b^2)`.

    The runs see the same test images, whose shared difficulty this leaves unused: the test is cautious. It knows
    nothing of the spread between seeds.
    """
    found = float(a.test_accuracy) - float(b.test_accuracy)
    error = np.hypot(standard_error(a), standard_error(b))
    if error == 0:
        return found, 1.0 if found == 0 else 0.0
    return found, float(2 * stats.norm.sf(abs(found) / error))


def resolved_pairs(finetune: xr.Dataset, dataset: str, components: Iterable[str], alpha: float = 0.05) -> list[str]:
    """Pairs of configurations whose best runs differ, as `"A > B"`; Bonferroni over all pairs.

    Raises
    ------
    InputError
        If a configuration has no run on this data set.
    """
    runs = {c: best_run(finetune, dataset, c) for c in components}
    missing = [c for c, run in runs.items() if run is None]
    if missing:
        raise InputError(f"no finished run of {', '.join(missing)} on {dataset!r}")
    pairs = list(combinations(runs, 2))
    found = []
    for a, b in pairs:
        gap, p = difference(runs[a], runs[b])
        if p * len(pairs) <= alpha:
            found.append(f"{a} > {b}" if gap > 0 else f"{b} > {a}")
    return found
