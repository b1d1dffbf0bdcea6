"""Comparisons of sizes: like with like, and what the figures show."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from vitplast.analysis.size_table import common_cells
from vitplast.analysis.tables import best_rate
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.figures import COLORS
from vitplast.figures_experiments.sizes import accuracy_two_sizes, plasticity_against_width, relative_to_mean

DIMS = ("dataset", "configuration", "rate", "seed")


def grid(datasets, rates, seeds, accuracy):
    """`rates`: configuration to learning rates; accuracy is a function of (lr, seed)."""
    width = max(map(len, rates.values()))
    lr = np.full((len(datasets), len(rates), width), np.nan)
    values = np.full((*lr.shape, len(seeds)), np.nan)
    for i, own in enumerate(rates.values()):
        lr[:, i, : len(own)] = own
        values[:, i, : len(own)] = [[accuracy(r, s) for s in seeds] for r in own]
    return xr.Dataset(
        {
            "test_accuracy": (DIMS, values),
            "validation_accuracy": (DIMS, values),
            "failed": (DIMS, np.zeros(values.shape, bool)),
            "finished": (DIMS, np.isfinite(values)),
            "lr": (DIMS[:3], lr),
            "n_test": ("dataset", [400] * len(datasets)),
        },
        coords={"dataset": datasets, "configuration": list(rates), "rate": range(width), "seed": seeds},
    )


@pytest.fixture
def sides():
    small = grid(
        ["a", "b"], {"LN1": [0.1, 0.3, 1.0], "MHA": [0.03, 0.1]}, [0, 42], lambda lr, s: 0.5 + lr / 10 + s / 1e3
    )
    large = grid(["b"], {"MHA": [0.1], "LN1": [0.1, 0.3], "FC1": [0.1]}, [0], lambda lr, s: 0.9 - lr / 10)
    return small, large


def test_only_what_both_have_is_compared(sides):
    small, large = common_cells(*sides)
    for one in (small, large):
        assert one.dataset.values.tolist() == ["b"]
        assert one.configuration.values.tolist() == ["LN1", "MHA"]
        assert one.seed.values.tolist() == [0]
        np.testing.assert_allclose(one.lr.sel(dataset="b"), [[0.1, 0.3], [0.1, np.nan]])
        assert int(one.finished.sum()) == 3
    cell = {"dataset": "b", "configuration": "LN1", "seed": 0}
    np.testing.assert_allclose(small.test_accuracy.sel(cell), [0.51, 0.53])
    np.testing.assert_allclose(large.test_accuracy.sel(cell), [0.89, 0.87])
    # alone, the first would have taken the rate 1.0, which the second lacks
    assert float(best_rate(sides[0]).lr.sel(dataset="b", configuration="LN1")) == 1.0
    assert float(best_rate(small).lr.sel(dataset="b", configuration="LN1")) == pytest.approx(0.3)


def test_runs_that_one_side_has_not_finished_count_for_neither(sides):
    small, large = sides
    at = {"dataset": "b", "configuration": "LN1", "rate": 0, "seed": 0}
    large["finished"].loc[at] = False
    large["test_accuracy"].loc[at] = np.nan
    found, _ = common_cells(small, large)
    values = found.test_accuracy.sel(dataset="b", configuration="LN1", seed=0)
    assert np.isnan(values[0])
    assert int(found.finished.sum()) == 2
    with pytest.raises(InputError, match="in common"):
        common_cells(small, large.assign_coords(seed=[7]))


def test_the_first_size_is_open_and_the_second_filled(sides):
    tables = {
        n: best_rate(g).assign(n_test=g.n_test) for n, g in zip(("56 px", "98 px"), common_cells(*sides), strict=True)
    }
    (ax,) = accuracy_two_sizes(tables, {"98 px": {"b": 0.75}})
    marks = {
        (to_hex(line.get_color()), to_hex(line.get_markerfacecolor())): line
        for line in ax.lines
        if line.get_marker() not in ("None", "_", "|", None)
    }
    first, second = marks[COLORS["LN1"], "#ffffff"], marks[COLORS["LN1"], COLORS["LN1"]]
    assert first.get_ydata()[0] == pytest.approx(53)
    assert second.get_ydata()[0] == pytest.approx(89)
    assert first.get_xdata()[0] < second.get_xdata()[0]
    assert any(np.allclose(line.get_ydata(), 75) for line in ax.lines)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["LN1", "MHA"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["56 px", "98 px"]
    plt.close("all")


def test_models_are_compared_about_their_own_mean():
    values = 0.5 + np.arange(5) / 100 + np.array([[0.0], [0.2]])
    table = xr.DataArray(values, dims=("cluster", "configuration"), coords={"configuration": list(COMPONENTS)})
    axes = relative_to_mean({"one": table, "two": table + 0.3})
    for ax in axes:
        dots = [line for line in ax.lines if line.get_marker() == "."]
        assert len(dots) == len(COMPONENTS)
        np.testing.assert_allclose(dots[0].get_ydata(), [-2, -2])
        means = {to_hex(line.get_color()): line.get_ydata()[0] for line in ax.lines if len(line.get_ydata()) == 1}
        assert means[COLORS[COMPONENTS[-1]]] == pytest.approx(2)
    assert [ax.texts[0].get_text() for ax in axes] == ["one, 2 clusters", "two, 2 clusters"]
    plt.close("all")


def test_widths_are_in_order_with_their_intervals():
    def estimate(value):
        names = {"component": list(COMPONENTS)}
        level = xr.DataArray(np.full(5, value), dims="component", coords=names)
        return xr.Dataset({"mean": level, "ci_low": level / 2, "ci_high": level * 2})

    ax = plasticity_against_width({768: estimate(4.0), 192: estimate(1.0)})
    line = next(line for line in ax.lines if line.get_color() == COLORS["MHA"])
    assert line.get_xdata().tolist() == [192, 768]
    assert line.get_ydata().tolist() == [1.0, 4.0]
    assert len(ax.collections) == len(COMPONENTS)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    plt.close("all")
