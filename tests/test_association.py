"""Rank correlation over clusters on made-up tables whose answer is known, and against scipy."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import xarray as xr
from scipy.stats import pearsonr, rankdata, spearmanr

from vitplast.analysis.association import bootstrap_interval, rank_association
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, ShapeError

UP = [1.0, 2.0, 3.0, 4.0, 5.0]
DOWN = UP[::-1]


def table(rows, names=None, **extra):
    names = [f"d{i}" for i in range(len(rows))] if names is None else names
    return xr.DataArray(
        np.array(rows, dtype=float),
        dims=("dataset", "component"),
        coords={"dataset": names, "component": list(COMPONENTS)},
    )


def alone(found):
    return {str(d): str(d) for d in found["dataset"].values}


def test_the_same_order_everywhere():
    gains = table([UP] * 4)
    found = rank_association(table([UP])[0].drop_vars("dataset"), gains, alone(gains))
    assert float(found["mean"]) == 1.0
    assert float(found["p"]) == pytest.approx(1 / 120)
    assert (float(found["low"]), float(found["high"])) == (1.0, 1.0)
    assert int(found["n_clusters"]) == int(found["n_datasets"]) == 4


def test_the_opposite_order_and_none():
    gains = table([UP] * 4)
    opposite = rank_association(table([DOWN] * 4), gains, alone(gains))
    assert (float(opposite["mean"]), float(opposite["p"])) == (-1.0, 1.0)
    constant = rank_association(table([[2.0] * 5] * 4), gains, alone(gains))
    assert (float(constant["mean"]), float(constant["p"])) == (0.0, 1.0)


def test_correlations_and_p_are_those_of_scipy():
    rng = np.random.default_rng(1)
    x, y = table(rng.integers(0, 4, (3, 5))), table(rng.normal(size=(3, 5)))
    found = rank_association(x, y, {"d0": "a", "d1": "a", "d2": "b"})
    each = [spearmanr(a, b).statistic for a, b in zip(x.values, y.values, strict=True)]
    np.testing.assert_allclose(found["correlation"], each)
    np.testing.assert_allclose(found["cluster_correlation"], [np.mean(each[:2]), each[2]])
    expected = np.mean([np.mean(each[:2]), each[2]])
    assert float(found["mean"]) == pytest.approx(expected)
    means = []
    for order in permutations(range(5)):  # one relabelling for all datasets
        r = [spearmanr(a, b[list(order)]).statistic for a, b in zip(x.values, y.values, strict=True)]
        means.append((np.mean(r[:2]) + r[2]) / 2)
    assert float(found["p"]) == pytest.approx(np.mean(np.array(means) >= expected - 1e-9))


def test_a_cluster_counts_once():
    gains = table([UP, DOWN, DOWN, DOWN])
    split = rank_association(table([UP] * 4), gains, alone(gains))
    together = rank_association(table([UP] * 4), gains, {"d0": "a", "d1": "b", "d2": "b", "d3": "b"})
    assert float(split["mean"]) == -0.5
    assert float(together["mean"]) == 0.0
    assert together["cluster"].values.tolist() == ["a", "b"]


def test_components_are_matched_by_name_and_datasets_too():
    gains = table([UP, DOWN], ["a", "b"])
    rates = table([DOWN, UP], ["b", "a"]).isel(component=[4, 2, 0, 1, 3])
    assert float(rank_association(rates, gains, alone(gains))["mean"]) == 1.0


def test_datasets_without_all_components_are_left_out():
    gains = table([UP, DOWN])
    gains[1, 2] = np.nan
    found = rank_association(table([UP] * 2), gains, alone(gains))
    assert (float(found["mean"]), int(found["n_left_out"]), int(found["n_datasets"])) == (1.0, 1, 1)
    assert np.isnan(found["low"])  # one cluster has no interval
    nothing = rank_association(table([UP] * 2), gains * np.nan, alone(gains))
    assert np.isnan(nothing["mean"])
    assert np.isnan(nothing["p"])


def test_interval_covers_the_mean_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0
    for i in range(200):
        low, high = bootstrap_interval(rng.normal(0.3, 1.0, size=20), draws=500, seed=i)
        hits += low <= 0.3 <= high
    assert 174 <= hits <= 198  # the percentile interval of 20 values covers a little less than 95%
    assert bootstrap_interval(np.arange(9.0), seed=3) == bootstrap_interval(np.arange(9.0), seed=3)


def test_partial_takes_the_size_out():
    size = xr.DataArray([2.0, 4.0, 2.0, 8.0, 16.0], dims="component", coords={"component": list(COMPONENTS)})
    rng = np.random.default_rng(5)
    x, y = table(rng.normal(size=(1, 5))), table(rng.normal(size=(1, 5)))
    found = rank_association(x, y, alone(y), parameters=size)
    design = np.column_stack([np.ones(5), np.log(size.values)])
    left = [r - design @ np.linalg.lstsq(design, r, rcond=None)[0] for r in map(rankdata, (x.values[0], y.values[0]))]
    assert float(found["partial"]) == pytest.approx(pearsonr(*left).statistic)
    assert np.isnan(rank_association(x, y, alone(y))["partial"])


def test_nothing_is_left_where_size_explains_the_ranks():
    size = xr.DataArray(np.exp(UP), dims="component", coords={"component": list(COMPONENTS)})
    found = rank_association(table([UP] * 2), table([UP] * 2), {"d0": "a", "d1": "b"}, parameters=size)
    assert np.isnan(found["partial"])
    assert float(found["mean"]) == 1.0


def test_thirds_of_depth():
    gains = table([UP] * 2)
    layers = xr.concat([table([UP] * 2), table([DOWN] * 2) * 10, table([UP] * 2)], xr.Variable("layer", [0, 1, 2]))
    found = rank_association(layers, gains, alone(gains))
    assert found["tercile_mean"].values.tolist() == [1.0, -1.0, 1.0]
    assert float(found["mean"]) == -1.0  # the mean over blocks decides
    assert "tercile_mean" not in rank_association(layers.isel(layer=[0, 1]), gains, alone(gains))


def test_what_cannot_be_correlated_is_refused():
    gains = table([UP] * 2)
    with pytest.raises(InputError, match="'d0' is in no cluster"):
        rank_association(gains, gains, {"d1": "a"})
    with pytest.raises(InputError, match="no dataset is in both"):
        rank_association(table([UP], ["x"]), gains, alone(gains))
    with pytest.raises(ShapeError, match="the same 3 to 8 components"):
        rank_association(gains.isel(component=[0, 1, 2]), gains, alone(gains))
    with pytest.raises(ShapeError, match="by dataset and"):
        rank_association(gains, gains.expand_dims("seed"), alone(gains))
