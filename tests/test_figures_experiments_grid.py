"""Pages on accuracy, robustness and training: their tables and figures, on made-up grids with known answers."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from vitplast.analysis.at_rate import all_rates, at_rate, middle, shared_rates
from vitplast.analysis.best_rates import (
    best_rate_table,
    contrast,
    markdown,
    over_tasks,
    whole_tasks,
)
from vitplast.analysis.one_claim import one_claim
from vitplast.analysis.robustness import rate_ranges
from vitplast.analysis.tables import best_rate, selection_effect
from vitplast.components import COMPONENTS, CONFIGURATIONS
from vitplast.errors import InputError
from vitplast.figures import COLORS
from vitplast.figures_experiments import accuracy, robustness, training

TASKS = ["digits", "photocrops", "photocrops:snow:5"]
SEEDS = [0, 42, 3407]
RATES = {"LN1": [0.03, 0.1], "LN2": [0.03, 0.1]}
HEIGHT = {"all": 0.3, "emb": 0.2, "LN1": 0.4, "MHA": 0.8, "LN2": 0.5, "FC1": 0.7, "FC2": 0.6, "head": 0.45}


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def made_grid(configurations=CONFIGURATIONS):
    """Accuracy HEIGHT + task / 100 + 2 points at the second rate, and -1, 0, 1 point by seed."""
    shape = (len(TASKS), len(configurations), 2, len(SEEDS))
    level = np.array([HEIGHT[c] for c in configurations])[None, :, None, None]
    task = np.arange(len(TASKS))[:, None, None, None] / 100
    accuracy = level + task + np.array([0, 0.02])[:, None] + np.array([-0.01, 0, 0.01]) + np.zeros(shape)
    dims = ("dataset", "configuration", "rate", "seed")
    lr = np.array([RATES.get(c, [0.01, 0.03]) for c in configurations]) + np.zeros((len(TASKS), 1, 1))
    step, evaluation = np.arange(6), np.array([3, 6])
    norm = level[..., None] * np.r_[0, 0, 2, 2, 2, 2] * np.exp(np.array([-0.1, 0, 0.1]))[:, None]
    norm = norm + np.zeros((*shape, 6))
    loss = np.ones((*shape, 6))
    return xr.Dataset(
        {
            "test_accuracy": (dims, accuracy),
            "validation_accuracy": (dims, accuracy),
            "finished": (dims, np.ones(shape, bool)),
            "failed": (dims, np.zeros(shape, bool)),
            "diverged": (dims, np.zeros(shape, bool)),
            "lr": (dims[:3], lr),
            "gradient_norm": ((*dims, "step"), norm),
            "gradient_norm_total": ((*dims, "step"), norm + 1),
            "train_loss": ((*dims, "step"), loss),
            "validation_loss": ((*dims, "evaluation"), 2 * loss[..., :2]),
        },
        {
            "dataset": TASKS,
            "configuration": list(configurations),
            "rate": [0, 1],
            "seed": SEEDS,
            "step": step,
            "evaluation": evaluation,
        },
    )


GRID = made_grid()
BEST = best_rate(GRID)
WHOLE = xr.ones_like(BEST["accuracy"], dtype=bool)


def colors(ax):
    """Colours of all lines of an axes, as they were given."""
    return {line.get_color() for line in ax.lines}


def test_means_over_tasks_and_clusters():
    table = over_tasks(BEST)
    assert float(table["mean"].sel(configuration="MHA")) == pytest.approx(0.82 + 0.01)
    assert float(table["cluster_mean"].sel(configuration="MHA")) == pytest.approx(0.82 + 0.0075)  # (0 + 1.5) / 2 points
    assert float(table["error"].sel(configuration="MHA")) == pytest.approx(0.01 / np.sqrt(3))
    assert (table.attrs["datasets"], table.attrs["clusters"]) == (3, 2)
    with pytest.raises(InputError):
        over_tasks(BEST.isel(dataset=[]))


def test_contrast_of_matrices_and_norms():
    assert contrast(BEST["accuracy"]).values == pytest.approx([0.7 - 0.45] * 2)


def test_only_whole_tasks_are_compared():
    partial = WHOLE.copy()
    partial.loc["digits", "FC1"] = False
    assert whole_tasks(BEST, partial, CONFIGURATIONS).dataset.values.tolist() == TASKS[1:]
    assert whole_tasks(BEST, partial, ("MHA", "head")).sizes == {**BEST.sizes, "configuration": 2}
    assert (
        whole_tasks(BEST.sel(configuration=["MHA"]), WHOLE.sel(configuration=["MHA"]), COMPONENTS).sizes["dataset"] == 0
    )


def test_table_marks_best_edge_and_partial():
    partial = WHOLE.copy()
    partial.loc["digits", "MHA"] = False
    table = best_rate_table(BEST, partial)
    assert table.columns.tolist() == list(CONFIGURATIONS)
    assert table.loc["photocrops", "MHA"] == "**83.0 ± 1.0**<br>0.03*"
    assert table.loc["digits", "MHA"] == "82.0 ± 1.0<br>0.03*…"
    assert table.loc["digits", "FC1"].startswith("**72.0")
    text = markdown(table, "task").splitlines()
    assert text[0].startswith("| task | all | emb |")
    assert len(text) == 2 + len(TASKS)
    assert {line.count("|") for line in text} == {2 + len(CONFIGURATIONS)}


def test_mean_accuracy_has_a_point_and_error_a_configuration():
    (ax,) = accuracy.mean_accuracy({"made up": over_tasks(BEST)})
    assert [t.get_text() for t in ax.get_xticklabels()] == list(CONFIGURATIONS)
    assert colors(ax) == set(COLORS.values())
    heights = [line.get_ydata()[0] for line in ax.lines if line.get_marker() in ("o",)]
    assert heights == pytest.approx([83.0])
    assert "(%)" in ax.get_ylabel()


def test_clusters_are_drawn_around_their_mean():
    gain = BEST["accuracy"].drop_sel(configuration="head") - 0.5
    (ax,) = accuracy.by_cluster({"made up": gain}, "gain (%)")
    mha = [line for line in ax.lines if line.get_color() == COLORS["MHA"] and line.get_marker() == "o"]
    points, mean = sorted(mha, key=lambda line: -len(line.get_xdata()))
    assert points.get_ydata() == pytest.approx([32.0, 33.5])
    assert mean.get_ydata() == pytest.approx([32.75])
    assert ax.get_ylabel() == "gain (%)"


def test_selection_draws_every_task():
    grid = GRID.copy(deep=True)
    grid["validation_accuracy"] = grid["validation_accuracy"].isel(rate=[1, 0]).assign_coords(rate=[0, 1])
    effect = selection_effect(grid)["effect"]
    (ax,) = accuracy.selection({"made up": effect})
    assert all(len(line.get_xdata()) == len(TASKS) for line in ax.lines)
    assert ax.lines[0].get_ydata() == pytest.approx([2.0] * 3)  # the other rate is 2 points better on test images


def test_boxes_show_all_runs_and_full_finetuning():
    axes = robustness.boxes(GRID, columns=2)
    assert len(axes) == len(TASKS)
    ax = axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == list(COMPONENTS)
    dots = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert [len(line.get_ydata()) for line in dots] == [2 * len(SEEDS)] * 5
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == pytest.approx([31.0])
    assert not [line for line in robustness.boxes(made_grid(COMPONENTS))[0].lines if line.get_linestyle() == "--"]


def test_ranges_draw_clusters_median_and_floor():
    table = rate_ranges(GRID)
    (ax,) = robustness.ranges({"made up": table})
    assert ax.lines[0].get_ydata() == pytest.approx([2.0, 2.0])
    assert colors(ax) == {COLORS[c] for c in COMPONENTS}
    levels = sorted(seg[0][1] for c in ax.collections for seg in c.get_segments())
    assert levels == pytest.approx([0.0] * 5 + [2.0] * 5, abs=1e-9)  # no noise beyond rate and seed


def test_by_rate_has_its_own_rates():
    (ax,) = robustness.by_rate({"made up": GRID})
    lines = dict(zip([t.get_text() for t in ax.get_legend().get_texts()], ax.lines, strict=True))
    assert list(lines) == list(COMPONENTS)
    assert lines["LN1"].get_xdata() == pytest.approx([0.03, 0.1])
    assert lines["MHA"].get_ydata() == pytest.approx([-2.0, 0.0])


def test_rates_in_common():
    assert shared_rates(GRID) == [0.03]
    assert all_rates(GRID) == [0.01, 0.03, 0.1]
    assert middle([0.03, 0.1, 0.3]) == 0.1
    assert middle([0.01, 0.03, 0.1, 0.3]) == 0.03
    with pytest.raises(InputError):
        middle([])


def test_at_rate_takes_the_right_cell():
    one = at_rate(GRID, 0.03)
    assert "rate" not in one.dims
    found = one["test_accuracy"].sel(dataset="digits", seed=42)
    assert float(found.sel(configuration="MHA")) == pytest.approx(0.82)  # second of its rates
    assert float(found.sel(configuration="LN1")) == pytest.approx(0.40)  # first of its rates
    low = at_rate(GRID, 0.01)
    assert bool(low["gradient_norm"].sel(configuration="LN1").isnull().all())
    assert not bool(low["finished"].sel(configuration="LN1").any())
    with pytest.raises(InputError, match=r"0\.01, 0\.03, 0\.1"):
        at_rate(GRID, 7.0)


def test_evolution_has_a_column_a_rate():
    top, bottom = training.evolution(GRID, "digits")
    assert [ax.texts[0].get_text() for ax in top] == ["rate 0.01", "rate 0.03", "rate 0.1"]
    assert colors(top[0]) == {COLORS[c] for c in ("MHA", "FC1", "FC2")}
    assert colors(top[1]) == {COLORS[c] for c in COMPONENTS}
    alone = next(line for line in top[1].lines if line.get_label() == "MHA")
    assert np.isnan(alone.get_ydata()[:2]).all()  # no gradient, nothing on a logarithmic axis
    total = next(line for line in top[1].lines if line.get_linestyle() == ":" and line.get_color() == COLORS["MHA"])
    assert (total.get_ydata()[2:] > alone.get_ydata()[2:]).all()
    marks = [line for line in bottom[1].lines if line.get_marker() == "o"]
    assert marks[0].get_xdata() == pytest.approx([3, 6])
    assert marks[0].get_ydata() == pytest.approx([2.0, 2.0])


def test_norms_by_task_leave_out_tasks_without_runs():
    runs = at_rate(GRID, 0.03)
    runs["finished"] = runs["finished"].where(runs["dataset"] != "digits", False).astype(bool)
    axes = training.norms_by_task(runs, columns=2)
    assert [ax.texts[0].get_text() for ax in axes] == ["photocrops", "crops:snow:5"]
    assert len(axes[0].lines) == len(COMPONENTS)


def test_steps_that_only_another_task_logged_leave_no_gaps():
    sparse = GRID.copy()
    odd = (sparse["dataset"] == "digits") & (sparse["step"] % 2 == 1)
    for name in ("gradient_norm", "gradient_norm_total", "train_loss"):
        sparse[name] = sparse[name].where(~odd)
    sparse["validation_loss"] = sparse["validation_loss"].where(sparse["evaluation"] == 6)
    top, bottom = training.evolution(sparse, "digits")
    total = next(line for line in top[1].lines if line.get_linestyle() == ":")
    assert total.get_xdata().tolist() == [0, 2, 4]
    assert next(line for line in bottom[1].lines if line.get_marker() == "o").get_xdata() == pytest.approx([6])
    of_task = training.norms_by_task(at_rate(sparse, 0.03), columns=2)[0]
    assert of_task.lines[0].get_xdata().tolist() == [0, 2, 4]


def test_norm_against_plasticity_draws_tasks_and_their_mean():
    dims = ("dataset", "component")
    values = np.outer([1.0, 4.0], np.arange(1, 6))
    table = xr.Dataset({"norm": (dims, values), "plasticity": (dims, values / 10)}, {"component": list(COMPONENTS)})
    (ax,) = training.norm_against_plasticity({"made up": table})
    small, large = ax.lines[:2]
    assert small.get_ydata() == pytest.approx([1.0, 4.0])
    assert (large.get_xdata()[0], large.get_ydata()[0]) == pytest.approx((0.2, 2.0))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_claim_without_results_says_what_is_missing():
    verdict = one_claim({"finetune": None}, "vit_small_patch14_dinov2.packaged", "C6")
    assert verdict.verdict == "NOT RUN"
    assert "gap" in verdict.statistic
