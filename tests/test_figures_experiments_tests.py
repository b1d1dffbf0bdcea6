"""Figures of the pages on tests and verdicts, from made-up numbers: what is drawn where, with what marks and labels."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from vitplast.analysis.paired_gaps import seed_gaps
from vitplast.analysis.tests import paired_tests
from vitplast.components import COMPONENTS
from vitplast.errors import UnknownNameError
from vitplast.figures import COLORS
from vitplast.figures_experiments.tests import by_set, forest, reach
from vitplast.figures_experiments.verdicts import correlations, gain_by_cluster, gradients_by_plasticity, verdict_grid

OTHERS = ["FC1", "FC2", "LN2", "LN1"]


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def accuracies(lead, clusters=8):
    """MHA leads FC1 by `lead`, the rest by 0.1, with a little noise by cluster."""
    noise = np.random.default_rng(0).normal(scale=0.001, size=(clusters, len(COMPONENTS)))
    level = {"MHA": 0.8, "FC1": 0.8 - lead, "FC2": 0.7, "LN1": 0.7, "LN2": 0.7}
    values = np.array([level[c] for c in COMPONENTS]) + noise
    names = {"cluster": [f"c{i}" for i in range(clusters)], "configuration": list(COMPONENTS)}
    return xr.DataArray(values, dims=("cluster", "configuration"), coords=names)


def test_forest_fills_what_is_resolved():
    tables = {
        "eight": paired_tests(accuracies(0.0), others=OTHERS),
        "six": paired_tests(accuracies(0.1, 6), others=OTHERS),
    }
    axes = forest(tables)
    assert [t.get_text() for t in axes[0].get_yticklabels()] == [f"MHA − {o}" for o in OTHERS]
    fills = [[line.lines[0].get_fillstyle() for line in ax.containers] for ax in axes]
    assert fills == [["none", "full", "full", "full"], ["none"] * 4]  # six clusters cannot resolve anything
    marker = axes[0].containers[1].lines[0]
    assert marker.get_xdata()[0] == pytest.approx(100 * float(tables["eight"].difference.sel(other="FC2")))
    assert marker.get_color() == COLORS["FC2"]


def test_by_set_draws_two_errors():
    gap = xr.DataArray(
        [[0.01, 0.02], [0.03, -0.01]], dims=("dataset", "other"), coords={"dataset": ["a", "b"], "other": OTHERS[:2]}
    )
    axes = by_set(gap, xr.full_like(gap, 0.005))
    assert len(axes) == 2
    assert axes[1].containers[0].lines[0].get_xdata().tolist() == pytest.approx([2.0, -1.0])
    low, high = (line.get_xdata() for line in axes[0].containers[0].lines[1])
    assert (high - low).tolist() == pytest.approx([2.0, 2.0])
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["a", "b"]


def test_reach_marks_designs():
    ax = reach({"ours": 10, "theirs": 6})
    assert [line.get_fillstyle() for line in ax.lines[-2:]] == ["full", "none"]
    assert {"ours", "theirs"} <= {t.get_text() for t in ax.texts}
    assert ax.get_yscale() == "log"


def test_verdict_grid_says_what_it_is_given():
    rows = [
        ("steps", "40 steps", "C4", "PASS"),
        ("steps", "80 steps", "C4", "FAIL"),
        ("convention", "in_situ", "C6", "INCONCLUSIVE"),
    ]
    ax = verdict_grid(pd.DataFrame(rows, columns=["group", "variant", "claim", "verdict"]), ["C4", "C6"])
    letters = {(t.get_position()): t.get_text() for t in ax.texts}
    assert letters == {(0, 0): "P", (1, 0): "", (0, 1): "F", (1, 1): "", (0, 2): "", (1, 2): "?"}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["steps: 40 steps", "steps: 80 steps", "convention: in situ"]


def test_gain_by_cluster():
    names = {"cluster": ["a", "b"], "component": list(COMPONENTS)}
    rates = xr.DataArray(np.tile([1.0, 2, 3, 4, 5], (2, 1)), dims=tuple(names), coords=names)
    axes = gain_by_cluster(
        rates, rates / 10, xr.DataArray([1.0, -0.3], dims="cluster", coords={"cluster": ["a", "b"]}), rates * 0.01
    )
    assert [ax.get_title() for ax in axes] == ["a, ρ = +1.0", "b, ρ = -0.3"]
    assert [c.lines[0].get_ydata()[0] for c in axes[0].containers] == pytest.approx([10, 20, 30, 40, 50])
    assert [c.lines[0].get_color() for c in axes[0].containers] == [COLORS[c] for c in COMPONENTS]


def test_gradients_leave_unknown_measures_out():
    rates = xr.DataArray(
        np.ones((2, 3, 5)), dims=("convention", "dataset", "component"),
        coords={"convention": ["common", "in_situ"], "dataset": list("abc"), "component": list(COMPONENTS)},
    )  # fmt: skip
    names = {"measure": ["raw", "rms", "elasticity"], "dataset": ["a", "b"], "component": list(COMPONENTS)}
    norms = xr.DataArray(np.ones((3, 2, 5)), dims=tuple(names), coords=names)
    norms[2] = np.nan
    axes = gradients_by_plasticity(rates, norms)
    assert len(axes) == 4
    assert [ax.texts[0].get_text() for ax in axes[:2]] == ["gradient norm", "per parameter (RMS)"]
    assert len(axes[0].lines[0].get_xdata()) == 2
    assert [ax.get_ylabel() for ax in axes] == ["common input", "", "in situ", ""]


def test_correlations_show_clusters_and_thresholds():
    one = xr.Dataset({"mean": 0.3, "low": 0.1, "high": 0.6, "cluster_correlation": ("cluster", [0.1, 0.5])})
    ax = correlations({"model": one})
    assert ax.lines[0].get_xdata().tolist() == [0.1, 0.5]
    assert {0.0, 0.5} <= {float(line.get_xdata()[0]) for line in ax.lines if line.get_linestyle() in ("-", ":")}
    assert [t.get_text() for t in ax.get_yticklabels()] == ["model"]


def test_seed_gaps_pair_runs_of_one_seed():
    seeds = np.array([0.0, 0.1, -0.1])  # the same for both configurations, so it cancels
    values = np.stack([0.8 + seeds, 0.7 + seeds + np.array([0.0, 0.001, -0.001])])[None]
    best = xr.Dataset(
        {"seed_accuracy": (("dataset", "configuration", "seed"), values)},
        coords={"dataset": ["a"], "configuration": ["MHA", "FC1"], "seed": [0, 1, 2]},
    )
    found = seed_gaps(best)
    assert float(found.difference.item()) == pytest.approx(0.1)
    assert float(found.error.item()) == pytest.approx(0.001 / np.sqrt(3))
    assert (int(found.better.item()), int(found.worse.item())) == (1, 0)
    assert np.isnan(seed_gaps(best.isel(seed=[0])).p.item())
    with pytest.raises(UnknownNameError):
        seed_gaps(best, "LN1")
