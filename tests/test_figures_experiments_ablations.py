"""Figures of the ablation pages: what is drawn where, on made-up tables."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from vitplast.analysis.ablations import by_setting, differences
from vitplast.analysis.plasticity_change import summary
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.figures import COLORS
from vitplast.figures_experiments import ablations as draw
from vitplast.figures_experiments import updates

mpl.use("Agg")
DIMS = ("dataset", "configuration", "rate", "seed")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def grid(values, datasets=("a",), rates=(0.1, 0.3)):
    """All configurations of `values` (to their accuracies by rate) on every set."""
    accuracy = np.array([[[[v] for v in values[c]] for c in values] for _ in datasets], dtype=float)
    lr = np.broadcast_to(rates, accuracy.shape[:3])
    return xr.Dataset(
        {"test_accuracy": (DIMS, accuracy), "validation_accuracy": (DIMS, accuracy.copy()), "lr": (DIMS[:3], lr),
         "n_test": ("dataset", [400] * len(datasets)), "failed": (DIMS, np.zeros(accuracy.shape, dtype=bool))},
        coords={"dataset": list(datasets), "configuration": list(values), "rate": [0, 1], "seed": [0]},
    )  # fmt: skip


FIVE = dict(zip(COMPONENTS, ((0.4, 0.5), (0.8, 0.9), (0.5, 0.6), (0.7, 0.8), (0.6, 0.7)), strict=True))


def table(datasets=("a",)):
    return by_setting({40: grid(FIVE, datasets), 80: grid(FIVE | {"MHA": (0.5, 0.75)}, datasets)})


def lines_by_label(ax):
    return {c.get_label(): c for c in ax.containers}


def test_accuracy_by_setting_draws_a_line_a_configuration_with_errors():
    axes = draw.accuracy_by_setting({"m": table()}, "steps", log=True)
    found = lines_by_label(axes[0])
    assert list(found) == list(COMPONENTS)
    line, caps, bars = found["MHA"].lines
    assert list(line.get_ydata()) == pytest.approx([90, 75])
    assert line.get_color() == COLORS["MHA"]
    low, high = bars[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 100 * np.sqrt(0.09 / 400))
    assert len(caps) == 2
    assert (axes[0].get_xscale(), axes[0].get_xlabel(), axes[0].get_ylabel()) == ("log", "steps", "test accuracy (%)")
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["40", "80"]


def test_panels_say_where_a_model_has_no_results():
    axes = draw.accuracy_by_setting({"m": table(("a", "b")), "n": table(("a",))}, "steps")
    assert len(axes) == 3
    texts = [t.get_text() for ax in axes[0].figure.axes for t in ax.texts]
    assert texts.count("not run yet") == 1
    assert {"m, a", "m, b", "n, a", "n, b"} <= set(texts)
    with pytest.raises(InputError, match="no model"):
        draw.panels({})


def test_rank_lines_have_the_best_on_top_and_bars_over_what_noise_allows():
    ax = draw.rank_lines({"m": table()}, "steps")[0]
    found = lines_by_label(ax)
    assert found["MHA"].lines[0].get_ydata().tolist() == [1, 2]
    assert found["FC1"].lines[0].get_ydata().tolist() == [2, 1]
    top, bottom = ax.get_ylim()[::-1]
    assert top < bottom
    first, second = (s[:, 1] for s in found["MHA"].lines[2][0].get_segments())
    assert np.ptp(first) == 0  # 0.9 is alone
    assert sorted(second) == [1, 3]  # 0.75 is near 0.8 and 0.7


def test_paired_differences_fill_what_is_resolved():
    found = differences(table(("a", "b")), 40, 80)
    axes = draw.paired_differences({"m": found}, "difference (points)")
    drawn = lines_by_label(axes[0])
    assert drawn["MHA"].lines[0].get_xdata() == pytest.approx([-15])
    assert drawn["MHA"].lines[0].get_markerfacecolor() == COLORS["MHA"]
    assert drawn["FC1"].lines[0].get_markerfacecolor() == "white"
    assert [t.get_text() for t in axes[0].get_yticklabels()] == list(COMPONENTS)
    assert not any(t.get_text() for t in axes[1].get_yticklabels())


def test_spread_over_rates_draws_a_pair_of_boxes_and_all_runs():
    adam = grid({"MHA": (0.2, 0.6), "LN1": (0.3, 0.3)})
    ax = draw.spread_over_rates({"m": {"SGD": grid(FIVE), "AdamW": adam}})[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["LN1", "MHA"]
    faces = [to_hex(p.get_facecolor()) for p in ax.patches]
    assert faces.count("#ffffff") == 2
    assert len(faces) == 4
    dots = sorted(float(y) for line in ax.lines if line.get_marker() == "." for y in line.get_ydata())
    assert dots == pytest.approx([20, 30, 30, 40, 50, 60, 80, 90])
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["SGD", "AdamW"]


def test_a_combination_of_components_has_no_component_colour():
    assert draw.style_of("MHA+FC1")["color"] not in COLORS.values()
    assert draw.style_of("MHA")["color"] == COLORS["MHA"]


def test_relative_steps_are_in_percent_with_bars_over_the_sets():
    relative = xr.Dataset(
        {"relative": (DIMS[:3], [[[0.01, 0.02]], [[0.04, 0.08]]]), "lr": (DIMS[:3], [[[0.1, 0.3]], [[0.1, 0.3]]])},
        coords={"dataset": ["a", "b"], "configuration": ["MHA"], "rate": [0, 1]},
    )
    ax = updates.relative_steps({"m": relative})[0]
    line, _, bars = lines_by_label(ax)["MHA"].lines
    assert list(line.get_xdata()) == pytest.approx([0.1, 0.3])
    assert list(line.get_ydata()) == pytest.approx([2, 4])
    assert list(bars[0].get_segments()[0][:, 1]) == pytest.approx([1, 4])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def change():
    dims = ("dataset", "configuration", "convention", "layer", "component")
    before = np.ones((2, 2, 1, 3, 2))
    before[1] = 4.0
    after = before.copy()
    after[:, 0, :, :, 0] *= 1.5  # LN1 trained, LN1 measured
    coords = {"dataset": ["a", "b"], "configuration": ["LN1", "MHA"], "convention": ["common"], "layer": [0, 1, 2]}
    coords |= {"component": ["LN1", "MHA"]}
    found = xr.Dataset(
        {"before": (dims, before), "after": (dims, after)}, coords=coords | {"component": ["LN1", "MHA"]}
    )
    found["change"] = found["after"] / found["before"]
    return found


def test_before_and_after_shows_the_trained_component_with_bands_over_sets():
    axes = updates.before_and_after(change())
    assert len(axes) == 2
    lines = {line.get_label(): line for line in axes[0].lines}
    np.testing.assert_allclose(lines["before"].get_ydata(), 2)  # geometric mean of 1 and 4
    np.testing.assert_allclose(lines["after"].get_ydata(), 3)
    assert lines["after"].get_color() == COLORS["LN1"]
    assert axes[0].collections[0].get_datalim(axes[0].transData).y0 == pytest.approx(1)
    np.testing.assert_allclose(axes[1].lines[1].get_ydata(), 2)
    assert axes[0].get_ylabel() == "plasticity, common input"


def test_change_by_trained_rings_what_was_trained():
    ax = updates.change_by_trained({"m": summary(change()).sel(convention="common")})[0]
    found = lines_by_label(ax)
    assert list(found["LN1"].lines[0].get_ydata()) == pytest.approx([50, 0], abs=1e-9)
    rings = [line for line in ax.lines if line.get_markersize() == 10]
    assert [float(r.get_ydata()[0]) for r in rings] == pytest.approx([50, 0], abs=1e-9)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["LN1", "MHA"]
