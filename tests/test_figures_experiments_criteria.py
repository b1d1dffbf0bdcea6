"""The head to head on made-up criteria: perfect, reversed, tied, with missing components; its figures; the advice."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.colors import to_hex
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitplast.analysis.advice import points_behind, relative_rates, smallest_within, training_cost
from vitplast.analysis.contest import against_advice, contest_in_words
from vitplast.analysis.criteria_table import KEPT, component_accuracy, component_ranks, first_choices, head_to_head
from vitplast.components import COMPONENTS, parts
from vitplast.criteria.catalogue import CRITERIA
from vitplast.criteria.survey import criteria_survey
from vitplast.errors import InputError, ShapeError, UnknownNameError
from vitplast.figures import COLORS
from vitplast.figures_experiments.advice import behind_by_size, best_rates
from vitplast.figures_experiments.criteria import by_regret, component_orders, criteria_scores, in_words
from vitplast.rescale import rescale
from vitplast.rescalings import KINDS

NAMES = [*"abcdefgh", "photocrops", "photocrops:snow:5"]  # 9 clusters
SEEDS = [0, 42, 3407]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def accuracy():
    """MHA is never best: it is third of five everywhere; the best one differs."""
    rng = np.random.default_rng(0)
    rows = np.empty((len(NAMES), 5))
    for row in rows:
        others = rng.permutation([0.5, 0.6, 0.8, 0.9])
        row[:] = [others[0], 0.7, *others[1:]]
    seeds = np.stack([rows, rows + 0.01, rows - 0.01], axis=2)
    return xr.DataArray(
        seeds,
        dims=("dataset", "component", "seed"),
        coords={"dataset": NAMES, "component": list(COMPONENTS), "seed": SEEDS},
    )


@pytest.fixture(scope="module")
def criteria(accuracy):
    truth = accuracy.mean("seed")
    part = truth.where(~truth["component"].isin(["LN1", "LN2"]))
    flat = xr.ones_like(truth)
    rows = {"perfect": truth, "reversed": -truth, "tied": flat, "no_norms": part, "constant_FC1": flat}
    table = xr.concat(rows.values(), xr.Variable("criterion", list(rows))).to_dataset(name="total")
    table["forward_passes"] = "criterion", [1.0, 2.0, 0.0, 4.0, 0.0]
    return table


@pytest.fixture(scope="module")
def scores(criteria, accuracy):
    return head_to_head(criteria, accuracy, draws=500)


def test_a_perfect_criterion_wins_and_its_reverse_loses(scores):
    perfect, back = scores.sel(criterion="perfect"), scores.sel(criterion="reversed")
    np.testing.assert_allclose(perfect["mean"], [1, 0, 1], atol=1e-9)
    np.testing.assert_allclose(back["mean"], [-1, 40, 0], atol=1e-9)
    np.testing.assert_allclose(scores["ceiling"], [1, 0, 1], atol=1e-9)
    contest = against_advice(scores)
    assert contest.criterion.values.tolist() == ["perfect", "reversed", "tied", "no_norms"]
    assert float(contest["saved"].sel(criterion="perfect")) == pytest.approx(20)
    assert float(contest["p"].sel(criterion="perfect")) == 2.0**-9
    assert contest["beats"].values.tolist()[:3] == [True, False, False]
    assert float(contest["saved"].sel(criterion="tied")) == 0  # equal but for rounding
    assert float(contest["p"].sel(criterion="reversed")) == 1.0
    assert float(contest["floor"]) == 4 * 2.0**-9


def test_ties_are_shared_and_missing_components_never_chosen(scores, accuracy):
    truth = accuracy.mean("seed")
    tied = scores.sel(criterion="tied")
    assert float(tied["mean"].sel(measure="correlation")) == 0
    np.testing.assert_allclose(tied["regret"], 20, atol=1e-9)
    np.testing.assert_allclose(tied["hit"], 0.2)
    left = truth.sel(component=["MHA", "FC1", "FC2"])
    np.testing.assert_allclose(
        scores["regret"].sel(criterion="no_norms"), 100 * (0.9 - left.max("component")), atol=1e-9
    )
    np.testing.assert_allclose(scores["correlation"].sel(criterion="no_norms"), 1)


def test_constant_criteria_become_the_advice_and_every_image_set_can_count(scores, criteria, accuracy):
    assert "constant_FC1" not in scores.criterion.values
    assert {f"always {c}" for c in COMPONENTS} < set(scores.criterion.values)
    assert scores.sizes["cluster"] == 9
    assert head_to_head(criteria, accuracy, of=str, draws=10).sizes["cluster"] == 10
    assert float(scores["forward_passes"].sel(criterion="reversed")) == 2
    assert float(scores["forward_passes"].sel(criterion="always MHA")) == 0
    np.testing.assert_allclose(scores["seed_deviation"].sel(criterion="perfect"), 0, atol=1e-9)


def test_image_sets_without_all_components_are_left_out(criteria, accuracy):
    holes = accuracy.copy()
    holes.loc["a", "FC2"] = np.nan
    found = head_to_head(criteria, holes, draws=10)
    assert int(found["n_left_out"]) == 1
    assert "a" not in found.dataset.values
    with pytest.raises(InputError, match="every component"):
        head_to_head(criteria, holes.sel(dataset=["a"]), draws=10)


def grid(missing_rate=False):
    """Two sets, all components, two rates, two seeds; the second rate is better on validation."""
    shape = (2, 5, 2, 2)
    dims = ("dataset", "configuration", "rate", "seed")
    test = np.broadcast_to(np.array([0.3, 0.6])[None, None, :, None], shape) + np.arange(5)[None, :, None, None] / 100
    table = xr.Dataset(
        {"test_accuracy": (dims, test), "validation_accuracy": (dims, test), "failed": (dims, np.zeros(shape, bool))},
        coords={"dataset": ["a", "b"], "configuration": list(COMPONENTS), "rate": [0, 1], "seed": [0, 42]},
    )
    there = np.ones(shape, bool)
    there[1, 3, 1, 1] = not missing_rate
    table["finished"] = dims, there
    table["lr"] = dims[:3], np.broadcast_to([0.1, 1.0], shape[:3])
    return table


def test_accuracies_are_those_of_the_best_rate_and_of_whole_seeds():
    found = component_accuracy(grid())
    assert found.dims == ("dataset", "component", "seed")
    np.testing.assert_allclose(found.isel(dataset=0, seed=0), 0.6 + np.arange(5) / 100)
    holed = component_accuracy(grid(missing_rate=True))
    assert holed.sel(dataset="b", seed=42).isnull().all()
    assert holed.sel(dataset="b", seed=0).notnull().all()
    without = component_accuracy(grid().sel(configuration=["LN1", "MHA"]))
    assert without.sizes["component"] == 5
    assert bool(without.isnull().all())


def test_ranks_by_cluster(criteria):
    ranks = component_ranks(criteria["total"])
    assert ranks["mean"].sel(criterion="tied").values.tolist() == [3.0] * 5
    both = ranks["mean"].sel(criterion="perfect") + ranks["mean"].sel(criterion="reversed")
    np.testing.assert_allclose(both, 6)
    assert float(ranks["mean"].sel(criterion="perfect", component="MHA")) == 3
    no_norms = ranks.sel(criterion="no_norms")
    assert no_norms["mean"].isnull().values.tolist() == [True, False, True, False, False]
    np.testing.assert_allclose(no_norms["mean"].sum(), 6)
    assert bool((ranks["low"] <= ranks["mean"] + 1e-12).where(ranks["mean"].notnull(), True).all())
    with pytest.raises(ShapeError, match="dataset and component"):
        component_ranks(criteria["total"].isel(dataset=0))


def test_first_choices(criteria, accuracy):
    chosen = first_choices(criteria)
    best = [COMPONENTS[i] for i in accuracy.mean("seed").argmax("component").values]
    assert chosen.sel(criterion="perfect").values.tolist() == best
    assert set(chosen.sel(criterion="no_norms").values.tolist()) <= {"MHA", "FC1", "FC2"}
    assert chosen.sel(criterion="tied").values.tolist() == ["LN1"] * len(NAMES)


def test_the_verdict_in_words():
    assert contest_in_words({"m": "YES"}, "FC1") == "on m some criterion is shown to lose less than always FC1"
    assert "nothing" in contest_in_words({})


# Figures


def test_rows_by_regret_bars_ticks_and_ceiling(scores):
    other = scores.sel(criterion=[c for c in scores.criterion.values if c != "tied"])
    axes = criteria_scores({"first": scores, "second": other})
    rows = [t.get_text() for t in axes[0].get_yticklabels()]
    assert rows == [in_words(r) for r in by_regret({"first": scores, "second": other})]
    assert rows[0] == "perfect"
    assert rows[-1] == "reversed"
    assert axes[0].get_ylim()[0] > axes[0].get_ylim()[1]
    marks = {line.get_label(): line for line in axes[1].get_lines()}
    assert len(marks["first"].get_xdata()) == len(rows)
    assert len(marks["second"].get_xdata()) == len(rows) - 1
    order = by_regret({"first": scores, "second": other})
    np.testing.assert_allclose(marks["first"].get_xdata(), scores["mean"].sel(measure="regret", criterion=order))
    np.testing.assert_allclose(
        marks["first, single seeds"].get_xdata(), scores["seed_mean"].sel(measure="regret", criterion=order)
    )
    assert not {to_hex(line.get_color()) for line in axes[1].get_lines()} & set(COLORS.values())
    dashed = [line for line in axes[0].get_lines() if line.get_linestyle() == "--"]
    np.testing.assert_allclose([line.get_xdata()[0] for line in dashed], 1)
    italic = [t.get_text() for t in axes[0].get_yticklabels() if t.get_style() == "italic"]
    assert sorted(italic) == sorted(f"always {c}" for c in COMPONENTS)
    with pytest.raises(InputError, match="up to 2"):
        criteria_scores(dict.fromkeys("abc", scores))
    with pytest.raises(InputError, match="no scores"):
        criteria_scores({})


def test_one_seed_has_no_ceiling(criteria, accuracy):
    one = head_to_head(criteria, accuracy.sel(seed=[0]), draws=10)
    axes = criteria_scores({"only": one})
    assert not [line for line in axes[1].get_lines() if line.get_linestyle() == "--"]


def test_orders_have_the_colours_of_the_components(criteria, accuracy):
    ranks = component_ranks(criteria["total"])
    axes = component_orders({"m": ranks}, {"m": component_ranks(accuracy.mean("seed"))})
    rows = [t.get_text() for t in axes[0].get_yticklabels()]
    assert rows[:2] == ["finetuned accuracy", "perfect"]
    lines = {line.get_label(): line for line in axes[0].get_lines() if line.get_label() in COMPONENTS}
    assert {k: line.get_color() for k, line in lines.items()} == {k: COLORS[k] for k in COMPONENTS}
    assert len(lines["MHA"].get_xdata()) == 1 + criteria.sizes["criterion"]
    assert len(lines["LN1"].get_xdata()) == criteria.sizes["criterion"]  # one has no score for norms
    assert lines["MHA"].get_xdata()[0] == lines["MHA"].get_xdata()[1] == 3
    with pytest.raises(InputError, match="no ranks"):
        component_orders({})


# What a rescaling changes, against the table


@pytest.fixture(scope="module")
def surveyed():
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = VisionTransformer(**sizes).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    for part in parts(model):
        if part.component in ("LN1", "LN2"):
            nn.init.uniform_(part.module.weight, 0.5, 2.0)
    with torch.no_grad():  # a signal in every matrix, or there is no ratio of signal to noise to change
        for layer in (m for b in model.blocks for m in b.modules() if isinstance(m, nn.Linear)):
            for matrix in layer.weight.split(16):
                matrix += 0.3
    g = torch.Generator().manual_seed(1)
    images, source = (torch.randn(6, 3, 32, 32, generator=g) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 0, 1, 1])

    def survey(kind=None):
        one = model if kind is None else rescale(model, kind, 4.0)
        return criteria_survey(one, source[:2], images, labels, jacobian_images=1)["total"]

    return survey(), survey


def test_every_criterion_is_in_the_table():
    assert set(KEPT) == set(CRITERIA)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_table_of_what_a_rescaling_keeps(surveyed, kind):
    before, survey = surveyed
    after = survey(kind)
    for c in CRITERIA:
        ratio = (after.sel(criterion=c) / before.sel(criterion=c)).values
        ratio = ratio[np.isfinite(ratio)]
        if kind in KEPT[c]:
            np.testing.assert_allclose(ratio, 1, rtol=5e-3, err_msg=c)
        else:
            assert np.abs(np.log(np.maximum(ratio, 1e-9))).max() > 0.05, c


# The advice


def accuracies(**rows):
    """Fractions by image set and configuration."""
    table = np.array(list(rows.values()), dtype=float)
    names = [f"d{i}" for i in range(table.shape[1])]
    return xr.DataArray(table.T, dims=("dataset", "configuration"), coords={"dataset": names, "configuration": [*rows]})


BASE = np.linspace(0.5, 0.9, 8)


def test_points_behind_the_best():
    wobble = 0.01 * np.array([1, -1, 1, -1, 1, -1, 1, -1.1])
    found = points_behind(accuracies(LN1=BASE - 0.1 + wobble / 10, MHA=BASE - wobble, FC1=BASE + 0.001))
    assert found.attrs["best"] == "FC1"
    assert found.attrs["n_clusters"] == 8
    assert float(found["behind"].sel(configuration="LN1")) == pytest.approx(10.1, abs=0.05)
    assert found["tied"].values.tolist() == [False, True, True]
    assert float(found["p_holm"].sel(configuration="LN1")) == 2 * 2 * 2.0**-8
    assert float(found["low"].sel(configuration="MHA")) < 0.1 < float(found["high"].sel(configuration="MHA"))
    assert float(found["mean"].sel(configuration="FC1")) == pytest.approx(70.1)


def test_corruptions_are_one_cluster_and_holes_are_left_out():
    table = accuracies(LN1=BASE, MHA=BASE + 0.1)
    table = table.assign_coords(dataset=["a", "b", "c", "p", "p:snow:5", "p:contrast:5", "d", "e"])
    assert points_behind(table).attrs["n_clusters"] == 6
    table[0, 0] = np.nan
    found = points_behind(table)
    assert (found.attrs["n_clusters"], found.attrs["n_datasets"]) == (5, 7)
    with pytest.raises(InputError, match="two configurations"):
        points_behind(table, ["MHA"])
    with pytest.raises(InputError, match="two clusters"):
        points_behind(table.isel(dataset=[0, 1]))


def rates_and_edges():
    lr = np.array([[1.0, 0.1], [0.3, 0.03], [np.nan, 0.1], [0.1, 0.1]])
    edge = np.array([[True, False], [False, True], [False, False], [False, False]])
    return xr.Dataset(
        {"lr": (("dataset", "configuration"), lr), "at_edge": (("dataset", "configuration"), edge)},
        coords={"dataset": ["a", "p", "b", "p:snow:5"], "configuration": ["LN1", "MHA"]},
    )


def test_rates_in_units_of_that_of_attention():
    found = relative_rates(rates_and_edges())
    assert float(found["ratio"].sel(configuration="MHA")) == 1
    # a: 10; cluster p: geometric mean of 10 and 1
    assert float(found["ratio"].sel(configuration="LN1")) == pytest.approx(10**0.75)
    assert float(found["high"].sel(configuration="LN1")) == pytest.approx(10)
    np.testing.assert_allclose(found["edge"], [1 / 3, 1 / 4])
    with pytest.raises(UnknownNameError, match="FC1"):
        relative_rates(rates_and_edges(), "FC1")


def runs(models=("m",) * 4):
    return xr.Dataset(
        {
            "trainable_parameters": ("run", [100, 100, 10, 12]),
            "images_per_second": ("run", [5.0, 7.0, 9.0, 9.0]),
        },
        coords={"components": ("run", ["MHA", "MHA", "LN1", "LN1"]), "model": ("run", list(models))},
    )


def test_costs_and_the_smallest_configuration():
    cost = training_cost(runs())
    assert cost["configuration"].values.tolist() == ["LN1", "MHA"]
    assert cost["parameters"].values.tolist() == [11, 100]
    assert cost["bytes_sgd"].values.tolist() == [88, 800]
    assert cost["bytes_adamw"].values.tolist() == [132, 1200]
    assert cost["speed"].values.tolist() == [9, 6]
    with pytest.raises(InputError, match="several models"):
        training_cost(runs(("m", "m", "n", "n")))
    behind = points_behind(accuracies(LN1=BASE - 0.02, MHA=BASE))
    assert smallest_within(behind, cost, 1.0) == "MHA"
    assert smallest_within(behind, cost, 3.0) == "LN1"
    with pytest.raises(InputError, match="margin"):
        smallest_within(behind, cost, -1.0)


def test_loss_against_size_and_the_rates_chosen():
    cost = training_cost(runs())
    behind = points_behind(accuracies(LN1=BASE - 0.02 + 0.01 * BASE**2, MHA=BASE))
    ax = behind_by_size({"m": behind}, {"m": cost})[0]
    marks = {c.get_label(): c[0] for c in ax.containers}
    assert marks["LN1"].get_xdata().tolist() == [11]
    assert marks["LN1"].get_ydata()[0] == pytest.approx(float(behind["behind"].sel(configuration="LN1")))
    assert marks["MHA"].get_ydata().tolist() == [0]
    assert marks["LN1"].get_color() == COLORS["LN1"]
    assert ax.get_xscale() == "log"
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    ax = best_rates({"m": rates_and_edges()})[0]
    hollow = [line for line in ax.get_lines() if line.get_markerfacecolor() == "none"]
    assert sum(len(line.get_xdata()) for line in hollow) == 2
    assert sum(len(line.get_xdata()) for line in ax.get_lines()) == 7
    assert [t.get_text() for t in ax.get_xticklabels()] == ["LN1", "MHA"]
    with pytest.raises(InputError, match="no model"):
        best_rates({})
