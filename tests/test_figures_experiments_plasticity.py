"""Tables and figures of plasticity over tasks, the introduction's figure, and the counts and speeds of the design."""

from __future__ import annotations

import json

import matplotlib
import numpy as np
import pandas as pd
import pytest
import samples
import torch
import xarray as xr
from scipy import stats

from vitplast import bench_finetune, book, figures, results
from vitplast.analysis.design import PAPER_DESIGN, learning_rates, progress, training_speed
from vitplast.analysis.mean_gain import mean_gain
from vitplast.analysis.plasticity_table import orders, plasticity_table, rank_correlation, spreads
from vitplast.components import COMPONENTS, CONFIGURATIONS
from vitplast.errors import InputError
from vitplast.estimate import layer_mean, plasticity
from vitplast.figures_experiments.intro import PAPER_AXIS, drawn_heights, intro
from vitplast.figures_experiments.missing import not_run_yet
from vitplast.figures_experiments.plasticity import BY_RANK, boxes_by_task, depth_over_tasks, paper_layout

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    matplotlib.pyplot.close("all")


def means(tasks=("one", "two", "three"), layers=4):
    """Means (dataset, layer, component): 1 to 5 by component, times 1.1 a block and 2 a task."""
    size = np.arange(1.0, 6.0) * 1.1 ** np.arange(layers)[:, None] * (2.0 ** np.arange(len(tasks)))[:, None, None]
    coords = {"dataset": list(tasks), "layer": np.arange(layers), "component": list(COMPONENTS)}
    return xr.DataArray(size, dims=("dataset", "layer", "component"), coords=coords)


def table(**options):
    mean = xr.concat([means(**options), 3 * means(**options)], xr.Variable("convention", ["common", "in_situ"]))
    return xr.Dataset({
        "mean": mean, "low": 0.9 * mean, "high": 1.1 * mean, "total": mean.mean("layer"),
        "apart": (("component", "other"), np.ones((5, 5), dtype=bool)),
    }, coords={"other": list(COMPONENTS)})  # fmt: skip


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plasticity")
    for target in ("mnist5k", "photocrops"):
        key, run = samples.one_run("plasticity", targets=[target], pairs=40, img_size=56, weights="auto")
        results.write(samples.dataset("plasticity", run), folder / f"{key}.nc", kind="plasticity", run=run)
    return results.gather(folder)["plasticity"]


def test_table_holds_the_estimates_of_every_task(gathered):
    model = gathered.model.values[0]
    found = plasticity_table(gathered, model)
    assert found["mean"].dims == ("convention", "dataset", "layer", "component")
    assert found["dataset"].values.tolist() == ["mnist5k", "photocrops"]
    for one in results.singles(gathered):
        name = json.loads(one.attrs["params_json"])["target"]
        expected, total = plasticity(one), plasticity(layer_mean(one))
        for ours, theirs in (("mean", expected["mean"]), ("high", expected.ci_high), ("total_low", total.ci_low)):
            np.testing.assert_allclose(found[ours].sel(dataset=name), theirs.sel(component=list(COMPONENTS)))
    assert not found["apart"].sel(component="MHA", other="MHA").any()
    with pytest.raises(InputError, match="img_size=98"):
        plasticity_table(gathered, model, img_size=98)


def test_order_names_what_is_resolved():
    one = table()
    one["apart"].loc[{"component": "FC1", "other": "LN2"}] = False
    found = orders(one)
    assert len(found) == 6
    assert set(found["order"]) == {"FC2 > FC1 ~ LN2 > MHA > LN1"}
    assert found["names"][0] == ("FC2", "FC1", "LN2", "MHA", "LN1")


def test_rank_correlation_is_one_for_the_papers_order_and_minus_one_for_the_reverse():
    paper = xr.DataArray([1, 5, 2, 4, 3], dims="component", coords={"component": ["LN1", "MHA", "LN2", "FC1", "FC2"]})
    assert rank_correlation(paper) == pytest.approx(1)
    assert rank_correlation(-paper) == pytest.approx(-1)


def test_spreads_are_ratios_over_tasks_and_components():
    found = spreads(table())
    np.testing.assert_allclose(found["tasks"], 4)
    np.testing.assert_allclose(found["components"], 5)


def test_boxes_stand_at_the_theoretical_rank_and_hide_no_block():
    axes = boxes_by_task(means(), columns=2)
    assert [ax.texts[0].get_text() for ax in axes] == ["one", "two", "three"]
    assert BY_RANK == ["MHA", "FC1", "FC2", "LN2", "LN1"]
    assert [t.get_text() for t in axes[2].get_xticklabels()] == BY_RANK
    assert axes[1].xaxis.get_tick_params()["labelbottom"]  # no panel below
    assert axes[0].get_yscale() == "log"
    for ax, task in zip(axes, means(), strict=True):
        for place, component in enumerate(BY_RANK, 1):
            values = task.sel(component=component).values
            lines = [
                np.ravel(x.get_ydata())
                for x in ax.lines
                if len(x.get_xdata()) and abs(np.mean(x.get_xdata()) - place) < 0.1
            ]
            drawn = np.concatenate(lines)
            np.testing.assert_allclose((drawn.min(), drawn.max()), (values.min(), values.max()))
            assert any(np.allclose(line, np.median(values)) for line in lines)


def test_the_papers_layout_has_boxes_of_the_first_model_and_curves_of_each():
    first, second = table(), table(layers=3)
    axes = paper_layout({"A": first, "B": second}, "two", "in_situ")
    assert [ax.texts[0].get_text() for ax in axes] == ["(a) A, blocks", "(b) A", "(c) B"]
    assert axes[0].get_xlabel() == "theoretical plasticity rank"
    curve = axes[2].lines[list(COMPONENTS).index("MHA")]
    np.testing.assert_allclose(curve.get_xdata(), [0, 50, 100])
    expected = second["mean"].sel(dataset="two", convention="in_situ", component="MHA")
    np.testing.assert_allclose(curve.get_ydata(), expected)
    assert curve.get_color() == figures.COLORS["MHA"]
    assert len(axes[2].collections) == len(COMPONENTS)
    assert len(paper_layout({"A": first, "B": table(tasks=("other",))}, "two", "common")) == 2


def test_depth_curves_show_the_median_and_range_of_the_tasks():
    axes = depth_over_tasks({"A": table(), "B": table()})
    assert len(axes) == 4
    assert axes[0].texts[0].get_text() == "A, common input"
    one = table()["mean"].sel(convention="common", component="LN1")
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), one.median("dataset"))
    band = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose((band.min(), band.max()), (one.min(), one.max()))


def gains(values):
    return xr.DataArray(
        values,
        dims=("dataset", "configuration"),
        coords={"dataset": ["a", "b", "b:snow:5"][: len(values)], "configuration": list(COMPONENTS)},
    )


def test_mean_gain_counts_clusters_and_leaves_out_what_is_not_whole():
    table_ = gains([[0.1] * 5, [0.3] * 5, [0.5] * 5])
    found = mean_gain(table_)
    half = stats.t.ppf(0.975, 1) * np.std([0.1, 0.4], ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(found["mean"], 0.25)
    np.testing.assert_allclose(found["high"] - found["mean"], half)
    assert found.attrs["clusters"] == 2
    table_[2, 0] = np.nan
    found = mean_gain(table_)
    np.testing.assert_allclose(found["mean"], 0.2)
    assert found.attrs["left_out"] == "b:snow:5"
    single = mean_gain(table_[:1])
    assert np.isnan(single["low"]).all()
    with pytest.raises(InputError, match="no task has all"):
        mean_gain(table_[2:])


def test_introduction_draws_bars_from_zero_with_their_intervals():
    found = mean_gain(gains([[0.1, 0.5, 0.2, 0.4, 0.3], [0.2, 0.6, 0.3, 0.5, 0.4]]))
    axes = intro(means(), found)
    bars = axes[1].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([55, 45, 35, 25, 15])
    assert {bar.get_y() for bar in bars} == {0}
    assert axes[1].get_ylim()[0] <= 0
    assert len(axes[1].containers) >= 5
    assert len(axes[1].collections) == 5
    assert len(intro(means())) == 1
    flipped = (-found).rename(low="high", high="low")
    down = intro(means(), flipped)[1]
    assert down.get_ylim()[1] >= 0


def test_a_cut_axis_stretches_differences():
    values = xr.DataArray([45.8, 47.3, 48.8])
    np.testing.assert_allclose(drawn_heights(values), [0, 0.5, 1])
    assert PAPER_AXIS[0] < PAPER_AXIS[1]


def test_missing_results_are_named_and_not_replaced(monkeypatch, tmp_path):
    assert "kind landscape" in not_run_yet("landscape").texts[0].get_text()
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path))
    assert book.open_or_none("plasticity", "no such profile") is None
    assert "`depth`" in book.not_run("depth").data
    assert "PROFILE=laptop" in book.not_run("depth").data


RUN = {"model": "A", "dataset": "a", "components": "MHA", "lr": 0.1, "seed": 0, "experiment": "main"}


def test_progress_counts_what_is_there():
    rows = [RUN | {"experiment": "budget"}, RUN, RUN | {"seed": 1}, RUN | {"model": "B"}, RUN | {"experiment": "mine"}]
    plan = pd.DataFrame([row | {"run_key": f"k{i}"} for i, row in enumerate(rows)])
    found = progress(plan, ["k1", "k3"])
    counts = found.set_index(["model", "part"])[["finished", "planned"]]
    assert counts.loc[("A", "main grid")].tolist() == [1, 2]
    assert counts.loc[("B", "main grid")].tolist() == [0, 1]
    assert counts.loc[("A", "more steps")].tolist() == [1, 1]
    assert found["part"].tolist() == ["main grid", "main grid", "more steps", "mine"]


def test_rates_are_those_of_each_configuration():
    plan = pd.DataFrame([RUN, RUN | {"lr": 0.01}, RUN | {"components": "LN1", "lr": 1.0}, RUN | {"seed": 1}])
    assert learning_rates(plan) == {("A", "MHA"): [0.01, 0.1], ("A", "LN1"): [1.0]}
    assert set(PAPER_DESIGN) >= {"model", "tasks", "runs", "rate chosen on"}


def test_speed_is_the_median_of_the_runs():
    coords = {"model": ("run", ["A"] * 4), "components": ("run", ["head", "MHA", "MHA", "MHA"])}
    coords["attr_encoded_once"] = ("run", ["yes", "no", "no", "no"])
    gathered = xr.Dataset({"images_per_second": ("run", [900.0, 10.0, 20.0, 90.0])}, coords)
    found = training_speed(gathered).set_index("configuration")
    assert found.index.tolist() == [c for c in CONFIGURATIONS if c in ("MHA", "head")]
    assert found.loc["MHA", "median"] == 20
    assert found.loc["MHA", "runs"] == 3
    assert found.loc["head", "encoded"] == 1


def test_both_sides_of_the_benchmark_train_the_same(tiny_vit):
    from copy import deepcopy

    tiny_vit.reset_classifier(5)
    torch.nn.init.trunc_normal_(tiny_vit.head.weight, std=0.02)
    sides = [tiny_vit, deepcopy(tiny_vit)]
    size = tiny_vit.patch_embed.img_size
    x, y = torch.randn(4, 3, *size, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 5
    for configuration in ("MHA", "head"):
        names = {n for group in bench_finetune.select(sides[0], configuration).values() for n in group}
        plain = bench_finetune.plain_step(sides[0], names, x, y)
        own = bench_finetune.own_step(sides[1], configuration, x, y, "float32")
        assert [own() for _ in range(3)] == pytest.approx([plain() for _ in range(3)], rel=1e-4)
        for (name, a), b in zip(sides[0].named_parameters(), sides[1].parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5), name


def test_benchmark_measures_a_row(monkeypatch):
    monkeypatch.setattr(bench_finetune, "machine", lambda: "here")
    row = bench_finetune.measured("vit_micro_patch14_56.fashion_mnist", "LN1", batch=2, repeats=3)
    assert tuple(row) == bench_finetune.COLUMNS
    assert row["smallest"] <= row["time_ratio"] <= row["largest"]
    assert row["images_per_second"] > 0
