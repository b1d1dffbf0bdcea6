"""Accuracies on made-up runs with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from vitplast.accuracy import best_run, difference, resolved_pairs, standard_error
from vitplast.errors import InputError


def runs(*rows, n_test=400):
    """Runs from (components, validation accuracy, test accuracy)."""
    components, validation, test = zip(*rows, strict=True)
    return xr.Dataset(
        {
            "validation_accuracy": ("run", list(validation)),
            "test_accuracy": ("run", list(test)),
            "n_test": ("run", [n_test] * len(rows)),
        },
        coords={"components": ("run", list(components)), "dataset": ("run", ["a"] * len(rows))},
    )


def test_the_run_is_chosen_on_validation_never_on_test_accuracy():
    table = runs(("MHA", 0.8, 0.95), ("MHA", 0.9, 0.7), ("MHA", 0.9, 0.99), ("MHA", np.nan, 1.0), ("FC1", 1.0, 1.0))
    assert float(best_run(table, "a", "MHA").test_accuracy) == 0.7
    assert best_run(table, "a", "LN1") is None
    assert best_run(table, "b", "MHA") is None


def test_standard_error_is_binomial():
    assert standard_error(runs(("MHA", 0.5, 0.9)).isel(run=0)) == pytest.approx(0.015)


def test_difference():
    table = runs(("MHA", 1, 0.95), ("FC2", 1, 0.90), ("FC1", 1, 0.95))
    gap, p = difference(table.isel(run=0), table.isel(run=1))
    assert gap == pytest.approx(0.05)
    assert p == pytest.approx(0.0070, rel=0.01)  # z = 0.05 / hypot(0.01090, 0.015) = 2.697
    assert difference(table.isel(run=0), table.isel(run=2)) == (0.0, 1.0)
    sure = runs(("MHA", 1, 1.0), ("FC1", 1, 0.0))
    assert difference(sure.isel(run=0), sure.isel(run=1)) == (1.0, 0.0)


def test_pairs_are_resolved_only_after_the_correction_for_their_number():
    table = runs(("MHA", 1, 0.95), ("FC1", 1, 0.915), ("FC2", 1, 0.90))
    assert resolved_pairs(table, "a", ["MHA", "FC1", "FC2"]) == ["MHA > FC2"]
    assert resolved_pairs(table, "a", ["FC1", "MHA"]) == ["MHA > FC1"]  # p = 0.049, one pair
    with pytest.raises(InputError, match="LN1"):
        resolved_pairs(table, "a", ["MHA", "LN1"])
