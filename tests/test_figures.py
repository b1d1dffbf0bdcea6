"""Figures: one colour, marker and place per component, spread drawn, labels from the data."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import samples
import xarray as xr

from vitplast import figures
from vitplast.components import COMPONENTS, CONFIGURATIONS
from vitplast.figures_theory.measured import SHOWN_BOUND, ladder

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    matplotlib.pyplot.close("all")


def estimate(conventions=("common", "in_situ")):
    shape = (len(conventions), 3, 5)
    mean = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    dims = ("convention", "layer", "component")
    return xr.Dataset(
        {"mean": (dims, mean), "ci_low": (dims, mean * 0.9), "ci_high": (dims, mean * 1.1)},
        coords={"convention": list(conventions), "layer": [0, 1, 2], "component": list(COMPONENTS)},
    )


def runs():
    names = [(d, c) for d in ("one", "two") for c in CONFIGURATIONS]
    n = len(names)
    return xr.Dataset(
        {
            "test_accuracy": ("run", np.linspace(0.1, 0.9, n)),
            "n_test": ("run", np.full(n, 100)),
            "train_loss": (("run", "step"), np.ones((n, 4))),
            "gradient_norm": (("run", "step"), np.ones((n, 4))),
        },
        coords={
            "dataset": ("run", [d for d, _ in names]),
            "components": ("run", [c for _, c in names]),
            "step": np.arange(4),
        },
    )


def test_colours_and_markers_cover_everything_and_differ():
    for table in (figures.COLORS, figures.MARKERS):
        assert set(table) == {*COMPONENTS, *CONFIGURATIONS}
        assert len(set(table.values())) == len(table)


def test_depth_figure_draws_each_component_with_its_colour_and_band():
    axes = figures.plasticity_by_depth(estimate())
    assert len(axes) == 2
    for ax in axes:
        assert [line.get_color() for line in ax.lines] == [figures.COLORS[c] for c in COMPONENTS]
        assert len(ax.collections) == len(COMPONENTS)
        assert ax.get_title() == ""
    assert "rate of change" in axes[0].get_ylabel()
    np.testing.assert_array_equal(axes[0].lines[1].get_ydata(), estimate()["mean"].sel(convention="common")[:, 1])


def test_one_convention_gives_one_panel():
    assert len(figures.plasticity_by_depth(estimate(("in_situ",)))) == 1


def test_target_figure_has_a_row_for_each_name():
    one = estimate().mean("layer")
    ax = figures.plasticity_by_target({"a": one, "b": one}, "common")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    assert len(ax.get_legend().get_texts()) == len(COMPONENTS)


def test_bounds_figure_shows_only_variants_that_are_there():
    values = np.ones((2, 3, 5))
    values[0] = np.nan
    bounds = xr.DataArray(
        values,
        dims=("variant", "layer", "component"),
        coords={"variant": ["as_coded", "valid"], "layer": [0, 1, 2], "component": list(COMPONENTS)},
    )
    axes = figures.bounds_by_depth(bounds, bounds.sel(variant="valid") / 2)
    assert [len(ax.lines) for ax in axes] == [2] * 5


def test_accuracy_figure_has_a_panel_a_data_set_and_the_probe_line():
    axes = figures.accuracy_by_configuration(runs(), {"one": 0.5})
    assert [ax.get_xlabel() for ax in axes] == ["one", "two"]
    assert [t.get_text() for t in axes[0].get_xticklabels()] == list(CONFIGURATIONS)
    assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {50.0} for line in axes[0].lines)
    assert not any(line.get_linestyle() == "--" for line in axes[1].lines)


def test_training_curves_keep_to_one_data_set():
    axes = figures.training_curves(runs(), "one")
    assert [line.get_label() for line in axes[1].lines] == list(CONFIGURATIONS)


def test_ladder_shows_every_block_of_every_component():
    _, run = samples.one_run("theory")
    result = samples.dataset("theory", run)
    ax = ladder(result, "in_situ")
    rows = [line.get_ydata() for line in ax.lines]
    assert len(rows) == 3 * len(COMPONENTS)
    assert all(len(r) == samples.LAYERS for r in rows)
    assert [t.get_text() for t in ax.get_yticklabels()] == list(COMPONENTS)
    measured = result.measured_mean.sel(convention="in_situ", component="MHA").values
    assert any(np.array_equal(line.get_xdata(), measured) for line in ax.lines)
    bound = result.bound.sel(convention="in_situ", component="MHA", statement=SHOWN_BOUND["MHA"]).values
    assert any(np.array_equal(line.get_xdata(), bound) for line in ax.lines)
