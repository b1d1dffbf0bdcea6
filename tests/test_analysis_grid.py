"""Grid, clusters, tables, curves and robustness on made-up runs with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vitplast.analysis.clusters import cluster_means, cluster_of, clusters
from vitplast.analysis.curves import curves, early_norm, over_sets
from vitplast.analysis.grid import grid
from vitplast.analysis.robustness import rate_ranges, robustness
from vitplast.analysis.studentized import range_quantile, range_tail
from vitplast.analysis.tables import (
    best_rate,
    expected_range,
    gap,
    gap_noise,
    probe_accuracy,
    relative_gain,
    selection_effect,
)
from vitplast.errors import InputError, UnknownNameError

SEEDS = (0, 42, 3407)


def num(values):
    """The one number in `values`."""
    return float(np.asarray(values).item())


def gathered(rows, steps=4, **parameters):
    """Runs from (dataset, components, lr, seed, validation, test); NaN validation: diverged at once. 10 classes."""
    names = ("dataset", "components", "lr", "seed", "validation_accuracy", "test_accuracy")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    count = len(rows)
    lost = np.isnan(columns["validation_accuracy"])
    loss = np.linspace(np.log(10), 1, steps) * np.ones((count, 1))
    loss[lost, 1:] = np.nan
    norm = np.arange(steps) * np.array(columns["lr"])[:, None]  # 0, lr, 2 lr, ...
    values = {"model": "m", "steps": steps, "optimizer": "sgd", "head_init": "zero"} | parameters
    values = {n: ("run", list(v) if isinstance(v, (list, tuple)) else [v] * count) for n, v in values.items()}
    return xr.Dataset(
        {
            **{n: ("run", columns[n]) for n in names[4:]},
            "diverged_step": ("run", np.where(lost, 1, -1)),
            "n_test": ("run", [200] * count),
            "component_parameters": ("run", [{"LN1": 8, "head": 30}.get(c, 64) for c in columns["components"]]),
            "train_loss": (("run", "step"), loss),
            "gradient_norm": (("run", "step"), norm),
            "validation_loss": (("run", "evaluation"), np.ones((count, 2)) * np.array(columns["seed"])[:, None]),
        },
        coords={
            **{n: ("run", columns[n]) for n in names[:4]},
            **values,
            "step": np.arange(steps),
            "evaluation": [2, 4],
        },
    )


def cell(dataset, components, tests, validations=None, rates=(0.01, 0.1)):
    """All runs of a configuration on a set; accuracies (rate, seed)."""
    validations = tests if validations is None else validations
    return [
        (dataset, components, lr, seed, validations[i][j], tests[i][j])
        for i, lr in enumerate(rates)
        for j, seed in enumerate(SEEDS[: len(tests[0])])
    ]


# Validation prefers the rate 0.1, test 0.01.
TESTS, VALIDATIONS = [[0.9, 0.8, 0.7], [0.7, 0.8, 0.75]], [[0.5, 0.5, 0.5], [0.6, 0.5, 0.5]]


def test_every_run_lands_in_its_cell_whatever_their_order():
    rows = cell("b", "MHA", TESTS) + cell("a", "LN1", [[0.1], [0.2], [0.3]], rates=(1.0, 0.3, 3.0))
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    for order in (rows, shuffled):
        g = grid(gathered(order))
        assert g.configuration.values.tolist() == ["LN1", "MHA"]
        assert g.sizes["rate"] == 3
        assert g.seed.values.tolist() == [0, 42, 3407]
        np.testing.assert_array_equal(g.lr.sel(dataset="a", configuration="LN1"), [0.3, 1.0, 3.0])
        np.testing.assert_array_equal(g.lr.sel(dataset="b", configuration="MHA"), [0.01, 0.1, np.nan])
        np.testing.assert_array_equal(g.test_accuracy.sel(dataset="a", configuration="LN1", seed=0), [0.2, 0.1, 0.3])
        assert num(g.test_accuracy.sel(dataset="b", configuration="MHA", rate=1, seed=3407)) == 0.75
        assert g.test_accuracy.sel(dataset="a", configuration="MHA").isnull().all()
        assert g.component_parameters.values.tolist() == [8, 64]
        assert (g.attrs["runs"], g.attrs["missing"]) == (9, 6)  # LN1 has one of three seeds at its three rates
        assert num(g.finished.sum()) == 9
        assert g.gradient_norm.dims == ("dataset", "configuration", "rate", "seed", "step")
        assert g.gradient_norm.sel(dataset="a", configuration="LN1", rate=2, seed=0).values.tolist() == [0, 3, 6, 9]
        assert g.n_test.values.tolist() == [200, 200]


def test_other_parameters_must_be_alike_or_chosen():
    rows = cell("a", "MHA", TESTS) + cell("a", "FC1", TESTS)
    mixed = gathered(rows, optimizer=["sgd"] * 6 + ["adamw"] * 6)
    with pytest.raises(InputError, match="optimizer=adamw or sgd"):
        grid(mixed)
    assert grid(mixed, optimizer="sgd").configuration.values.tolist() == ["MHA"]
    assert grid(mixed, optimizer=("sgd", "adamw")).sizes["configuration"] == 2
    assert grid(mixed, optimizer="adamw", components="FC1").attrs["optimizer"] == "adamw"
    with pytest.raises(InputError, match=r"optimizer 'lion'.*adamw, sgd"):
        grid(mixed, optimizer="lion")
    with pytest.raises(UnknownNameError, match="optimizer"):
        grid(mixed, optimiser="sgd")


def test_options_that_came_later_count_at_their_default():
    rows = cell("a", "MHA", [[0.5], [0.6]])
    runs = gathered(rows + rows, lora_rank=[-1, 0, 4, 4], rescale=[""] * 4)
    with pytest.raises(InputError, match="lora_rank=0 or 4"):
        grid(runs)
    assert grid(runs, lora_rank=0).attrs["runs"] == 2
    assert grid(gathered(rows), lora_rank=0, rescale="").attrs["runs"] == 2


def test_two_runs_in_one_cell_are_refused():
    with pytest.raises(InputError, match=r"two runs of MHA on a with rate 0.01 and seed 0"):
        grid(gathered(cell("a", "MHA", TESTS) * 2))


def test_different_numbers_of_test_images_are_refused():
    runs = gathered(cell("a", "MHA", TESTS))
    runs["n_test"][0] = 100
    with pytest.raises(InputError, match="100 and 200"):
        grid(runs)


def test_a_run_that_diverged_at_once_has_chance_accuracy_and_its_rate_is_never_best():
    tests = [[0.3, 0.3, 0.3], [0.9, 0.9, np.nan]]
    runs = gathered(cell("a", "MHA", tests))
    g = grid(runs)
    assert num(g.chance) == 0.1
    assert num(g.test_accuracy.isel(rate=1, seed=2)) == 0.1
    assert num(g.failed.sum()) == num(g.diverged.sum()) == 1
    best = best_rate(g)
    assert num(best.lr) == 0.01
    assert num(gap(g)) == pytest.approx((0.9 + 0.9 + 0.1) / 3 - 0.3)
    assert num(grid(runs, chance={"a": 0.4}).test_accuracy.isel(rate=1, seed=2)) == 0.4
    runs = runs.assign_coords(head_init=("run", ["default"] * 6))
    with pytest.raises(InputError, match="chance="):
        grid(runs)
    everywhere = grid(gathered(cell("a", "MHA", [[np.nan] * 3] * 2)))
    none = best_rate(everywhere)
    assert np.isnan(none.accuracy.item())
    assert (num(none["rate"]), num(none.at_edge), num(none.seeds)) == (-1, 0, 0)


def test_a_run_that_diverged_later_counts_with_its_checkpoint():
    runs = gathered(cell("a", "MHA", TESTS))
    runs["diverged_step"][0] = 3
    g = grid(runs)
    assert num(g.diverged.sum()) == 1
    assert not g.failed.any()
    assert num(g.test_accuracy.isel(rate=0, seed=0)) == 0.9


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("photocrops", "photocrops"), ("photocrops:contrast:5", "photocrops"), ("Gaussian noise", "Cifar10"),
     ("Cifar100", "Cifar100"), ("folder:cats:snow:1", "folder:cats")],
)  # fmt: skip
def test_corruptions_belong_to_their_set(name, cluster):
    assert cluster_of(name) == cluster


def test_cluster_means_weigh_sets_within_a_cluster_alike():
    names = ["x:snow:5", "y", "x", "x:contrast:5"]
    table = xr.DataArray(
        [[1.0, 1.0], [10.0, 10.0], [2.0, np.nan], [6.0, 3.0]],
        dims=("dataset", "configuration"),
        coords={"dataset": names, "configuration": ["MHA", "FC1"]},
    )
    means = cluster_means(table)
    assert means.cluster.values.tolist() == clusters(names) == ["x", "y"]
    np.testing.assert_array_equal(means, [[3.0, np.nan], [10.0, 10.0]])
    assert means.sets.values.tolist() == [3, 1]
    both = cluster_means(xr.Dataset({"a": table, "b": ("configuration", [1, 2])}))
    np.testing.assert_array_equal(both.a, means)
    assert both.b.values.tolist() == [1, 2]
    with pytest.raises(UnknownNameError, match="dataset"):
        cluster_means(table, "data_set")
    with pytest.raises(InputError):
        cluster_of("")


def test_best_rate_is_chosen_on_validation_images():
    g = grid(gathered(cell("a", "MHA", TESTS, VALIDATIONS)))
    honest, authors = best_rate(g), best_rate(g, "test")
    assert (num(honest.lr), num(honest["rate"]), num(honest.accuracy)) == (0.1, 1, pytest.approx(0.75))
    assert (num(authors.lr), num(authors.accuracy)) == (0.01, pytest.approx(0.8))
    assert num(honest["std"]) == pytest.approx(0.05)  # ddof 1 of 0.7, 0.8, 0.75
    assert num(authors["std"]) == pytest.approx(0.1)
    assert honest.seed_accuracy.values.ravel().tolist() == [0.7, 0.8, 0.75]
    effect = selection_effect(g)
    assert num(effect.effect) == pytest.approx(0.05)
    assert num(effect.changed) == 1
    assert num(effect.mean_effect) == pytest.approx(0.05)
    with pytest.raises(UnknownNameError, match="validation"):
        best_rate(g, "val")


def test_edges_are_those_of_the_rates_tried_and_ties_take_the_smallest():
    inner = cell("a", "MHA", [[0.1], [0.9], [0.1]], rates=(1, 2, 3)) + cell("a", "FC1", [[0.5], [0.5]], rates=(1, 2))
    inner += cell("a", "FC2", [[0.1], [0.5]], rates=(1, 2)) + cell("a", "LN1", [[0.1]], rates=(1,))
    best = best_rate(grid(gathered(inner))).isel(dataset=0)
    found = {
        c: (num(best.lr.sel(configuration=c)), bool(best.at_edge.sel(configuration=c)))
        for c in ("MHA", "FC1", "FC2", "LN1")
    }
    assert found == {"MHA": (2, False), "FC1": (1, True), "FC2": (2, True), "LN1": (1, True)}
    assert best["std"].isnull().all()  # one seed


def test_selection_on_test_accuracy_is_optimistic_without_any_true_difference():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(100):
        drawn = rng.binomial(200, 0.9, (2, 4, 3)) / 200
        rows += cell(f"set{i}", "MHA", drawn[0], drawn[1], rates=(1, 2, 3, 4))
    effect = selection_effect(grid(gathered(rows)))
    # expected maximum of 4 standard normal numbers is 1.029
    expected = 1.029 * np.sqrt(0.09 / 200 / 3)
    assert num(effect.mean_effect) == pytest.approx(expected, rel=0.15)
    assert (effect.effect >= 0).all()


def test_relative_gain():
    accuracy = xr.DataArray([[0.6], [0.9]], dims=("dataset", "configuration"), coords={"dataset": ["a", "b"]})
    probe = {"b": 0.6, "a": 0.5, "c": 0.1}
    np.testing.assert_allclose(relative_gain(accuracy, probe).values.ravel(), [0.2, 0.5])
    as_array = xr.DataArray([0.6, 0.5], dims="dataset", coords={"dataset": ["b", "a"]})
    np.testing.assert_allclose(relative_gain(xr.Dataset({"accuracy": accuracy}), as_array).values.ravel(), [0.2, 0.5])
    with pytest.raises(InputError, match="no linear probe on b"):
        relative_gain(accuracy, {"a": 0.5})
    with pytest.raises(InputError, match="above 0"):
        relative_gain(accuracy, {"a": 0.0, "b": 0.5})


def test_probe_accuracy_is_the_mean_over_seeds():
    runs = xr.Dataset(
        {"test_accuracy": ("run", [0.4, 0.9, 0.6])},
        coords={"dataset": ("run", ["b", "a", "b"]), "model": ("run", ["m", "m", "m"])},
    )
    found = probe_accuracy(runs)
    assert dict(zip(found.dataset.values, found.values, strict=True)) == {"b": 0.5, "a": 0.9}
    with pytest.raises(InputError, match="model: m, n"):
        probe_accuracy(runs.assign_coords(model=("run", ["m", "n", "m"])))


def test_gap_is_the_range_of_rate_means():
    g = grid(gathered(cell("a", "MHA", TESTS) + cell("a", "FC1", [[0.5, 0.6]], rates=(1,))))
    assert num(gap(g).sel(configuration="MHA")) == pytest.approx(0.05)
    assert np.isnan(gap(g).sel(configuration="FC1").item())


def test_expected_range():
    # Tippett's constants
    assert [round(expected_range(n), 4) for n in (2, 3, 4, 5)] == [1.1284, 1.6926, 2.0588, 2.3259]


@pytest.mark.parametrize(("q", "count", "free"), [(0.5, 2, 2), (3.0, 4, 6), (6.0, 4, 6), (9.0, 3, 2), (4.0, 8, 40)])
def test_studentized_range_is_that_of_scipy(q, count, free):
    assert range_tail(q, count, free) == pytest.approx(stats.studentized_range.sf(q, count, free), rel=1e-6)


def test_studentized_range_of_two_means_is_a_t_test():
    for q, free in ((0.1, 1), (2.0, 2), (5.0, 30)):
        assert range_tail(q, 2, free) == pytest.approx(2 * stats.t.sf(q / np.sqrt(2), free), rel=1e-6)
    assert range_tail(0.0, 2, 2) == 1
    assert range_quantile(0.95, 4, 6) == pytest.approx(4.896, abs=1e-3)  # Tukey's table
    for wrong in ((1.0, 1, 2), (1.0, 2, 0), (-1.0, 2, 2)):
        with pytest.raises(InputError):
            range_tail(*wrong)
    with pytest.raises(InputError, match="level"):
        range_quantile(1.0, 2, 2)


def test_gap_noise_by_hand():
    # residuals of the two-way table are +-0.025, 0: s^2 = 4 * 0.025^2 / 2
    g = grid(gathered(cell("a", "MHA", [[0.5, 0.6, 0.7], [0.55, 0.6, 0.65]])))
    noise = gap_noise(g)
    s = np.sqrt(4 * 0.025**2 / 2)
    assert num(noise.noise) == pytest.approx(s)
    assert num(noise.expected) == pytest.approx(1.1284 * s / np.sqrt(3), rel=1e-4)
    assert num(noise.p) == pytest.approx(1.0)  # equal means
    # with two rates it is the paired t-test: gaps 0.2, 0.3, 0.1 have t = 0.2 / (0.1 / sqrt 3)
    two = grid(gathered(cell("a", "MHA", [[0.5, 0.5, 0.5], [0.7, 0.8, 0.6]])))
    assert num(gap_noise(two).p) == pytest.approx(0.0742, abs=2e-4)
    same = grid(gathered(cell("a", "MHA", [[0.5, 0.6], [0.5, 0.6]]) + cell("a", "FC1", [[0.5, 0.6], [0.6, 0.7]])))
    assert gap_noise(same).p.sel(configuration=["MHA", "FC1"]).values.ravel().tolist() == [1.0, 0.0]
    assert np.isnan(gap_noise(grid(gathered(cell("a", "MHA", [[0.5], [0.6]])))).p.item())


def test_gap_noise_covers_gaps_of_equal_rates_and_ignores_what_seeds_share():
    rng = np.random.default_rng(1)
    rows = []
    for i in range(150):
        drawn = 0.8 + 0.01 * rng.standard_normal((4, 3)) + 0.05 * rng.standard_normal(3)
        rows += cell(f"set{i}", "MHA", drawn, rates=(1, 2, 3, 4))
    g = grid(gathered(rows))
    noise = gap_noise(g)
    assert num(gap(g).mean()) == pytest.approx(2.0588 * 0.01 / np.sqrt(3), rel=0.07)
    assert num(noise.expected.mean()) == pytest.approx(num(gap(g).mean()), rel=0.1)
    assert num((noise.p <= 0.05).mean()) == pytest.approx(0.05, abs=0.035)
    np.testing.assert_array_equal(noise.p <= 0.05, gap(g) >= noise.upper)


def test_curves_are_means_over_seeds():
    g = grid(gathered(cell("a", "MHA", TESTS, VALIDATIONS)))
    every = curves(g)
    assert every.validation_loss.dims == ("dataset", "configuration", "rate", "evaluation")
    assert num(every.validation_loss[0, 0, 0, 0]) == pytest.approx(np.mean(SEEDS))
    assert num(every.validation_loss_std[0, 0, 0, 0]) == pytest.approx(np.std(SEEDS, ddof=1))
    best = curves(g, ["gradient_norm"], "best")
    np.testing.assert_allclose(best.gradient_norm.squeeze(), [0, 0.1, 0.2, 0.3])  # rate 0.1 is best
    assert num(best.lr) == 0.1
    with pytest.raises(UnknownNameError, match="gradient_norm"):
        curves(g, ["gradient_nrm"])
    with pytest.raises(UnknownNameError, match="best"):
        curves(g, rates="bst")


def test_early_norm_starts_where_the_gradient_does():
    g = grid(gathered(cell("a", "MHA", TESTS)))
    early = early_norm(g, 3)
    np.testing.assert_allclose(early["first"].squeeze(), [0.01, 0.1])
    np.testing.assert_allclose(early["mean"].squeeze(), [0.015, 0.15])  # steps 1 and 2
    np.testing.assert_allclose(early.first_step.squeeze(), [1, 1])
    assert np.isnan(early_norm(g, 1)["mean"]).all()  # nothing but zeros yet
    with pytest.raises(InputError, match="at least 1"):
        early_norm(g, 0)
    with pytest.raises(UnknownNameError):
        early_norm(g, norm="norm")


def test_over_sets():
    curve = xr.DataArray([[1.0, 0.0], [100.0, 4.0]], dims=("dataset", "step"))
    np.testing.assert_allclose(over_sets(curve), [10.0, 4.0])
    np.testing.assert_allclose(over_sets(curve, "arithmetic"), [50.5, 2.0])
    with pytest.raises(UnknownNameError):
        over_sets(curve, "harmonic")


#: Range over the rates by component; the more plastic, the smaller.
RANGES = {"LN1": 0.5, "MHA": 0.1, "LN2": 0.4, "FC1": 0.2, "FC2": 0.3}
PLASTICITY = {"LN1": 1.0, "MHA": 5.0, "LN2": 2.0, "FC1": 4.0, "FC2": 3.0}


def ranged(ranges, names=("a", "b", "b:snow:5", "c", "d"), noise=0.001):
    rng = np.random.default_rng(0)
    rows = []
    for name in names:
        for component, size in ranges.items():
            values = np.array([[0.9], [0.9 - size / 2], [0.9 - size]]) + noise * rng.standard_normal((3, 3))
            rows += cell(name, component, values, rates=(0.01, 0.1, 10))
    return grid(gathered(rows))


def test_robustness_finds_the_planted_order():
    found = robustness(ranged(RANGES), PLASTICITY)
    assert found.cluster.values.tolist() == ["a", "b", "c", "d"]
    assert found.attrs["n_clusters"] == 4
    np.testing.assert_allclose(found.median_range.sel(configuration=list(RANGES)), list(RANGES.values()), atol=0.003)
    assert found.p.values == pytest.approx([120.0**-4] * 2)
    assert found.p_opposite.values == pytest.approx([1.0] * 2)
    assert found.mean_correlation.values == pytest.approx([1.0] * 2)
    assert found.page_l.values.tolist() == [4 * 55.0] * 2
    assert (found.resolved == 1).all()
    np.testing.assert_allclose(found.decades, 3)
    against = robustness(ranged(RANGES), {c: -v for c, v in PLASTICITY.items()})
    assert against.p_opposite.values == pytest.approx([120.0**-4] * 2)
    assert num(against.mean_correlation[0]) == pytest.approx(-1)


def test_each_cluster_is_ordered_by_its_own_plasticity():
    g = ranged(RANGES)
    names = list(RANGES)
    own = xr.DataArray(
        [[PLASTICITY[c] for c in names]] * 5,
        dims=("dataset", "component"),
        coords={"dataset": g.dataset.values, "component": names},
    )
    assert num(robustness(g, own).p[0]) == pytest.approx(120.0**-4)
    flipped = own.copy(data=own.values * np.array([[1], [-1], [-1], [1], [-1]]))
    assert num(robustness(g, flipped).mean_correlation[0]) == pytest.approx(0)
    with pytest.raises(InputError, match="no plasticity on d"):
        robustness(g, own.isel(dataset=slice(0, 4)))


def test_ranges_of_pure_noise_lie_at_the_floor():
    names = tuple(f"set{i}" for i in range(30))
    found = rate_ranges(ranged(dict.fromkeys(RANGES, 0.0), names, noise=0.01))
    assert num(found["range"].mean()) == pytest.approx(num(found["floor"].mean()), rel=0.08)
    assert num(found.resolved.mean()) == pytest.approx(0.05, abs=0.04)
    assert num(found.excess.mean()) < 0.35 * num(found["range"].mean())


def test_robustness_refuses_what_is_not_there():
    g = ranged(RANGES)
    with pytest.raises(InputError, match="no plasticity of FC2"):
        robustness(g, {c: v for c, v in PLASTICITY.items() if c != "FC2"})
    with pytest.raises(InputError, match="no runs of FC2"):
        robustness(g.drop_sel(configuration="FC2"), PLASTICITY)
