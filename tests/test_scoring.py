"""Criteria that choose known components on made-up accuracies: their regret, hits, intervals and the contest."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from vitplast.analysis.contest import advice_verdict, against_advice, sign_flip_p
from vitplast.analysis.criteria_table import criteria_by_dataset
from vitplast.analysis.scoring import noise_ceiling, score_criteria
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, ShapeError, UnknownNameError

LN1_BEST = [0.9, 0.8, 0.7, 0.6, 0.5]
MHA_BEST = [0.5, 0.9, 0.6, 0.7, 0.8]


def accuracies(rows, seeds=None):
    rows = np.array(rows, dtype=float)
    names = [f"d{i}" for i in range(len(rows))]
    table = xr.DataArray(rows, dims=("dataset", "component"), coords={"dataset": names, "component": list(COMPONENTS)})
    if seeds is None:
        return table
    return xr.concat([table + s for s in seeds], xr.Variable("seed", np.arange(len(seeds))))


def criteria(**scores):
    return xr.DataArray(
        np.array(list(scores.values()), dtype=float),
        dims=("criterion", "component"),
        coords={"criterion": list(scores), "component": list(COMPONENTS)},
    )


def oracle(table):
    return table.expand_dims(criterion=["oracle"])


def alone(table):
    return {str(d): str(d) for d in table["dataset"].values}


def test_regret_hits_and_correlation():
    acc = accuracies([LN1_BEST, MHA_BEST])
    found = score_criteria(criteria(falling=[5, 4, 3, 2, 1]), acc, alone(acc))
    one = found.sel(criterion="falling")
    np.testing.assert_allclose(one["regret"], [0.0, 40.0])
    assert one["hit"].values.tolist() == [1.0, 0.0]
    np.testing.assert_allclose(one["correlation"], [1.0, -0.4])
    assert float(one["mean"].sel(measure="regret")) == pytest.approx(20.0)
    advice = found.sel(criterion="always MHA")
    np.testing.assert_allclose(advice["regret"], [10.0, 0.0])
    assert float(advice["mean"].sel(measure="hit")) == 0.5
    assert [c for c in found["criterion"].values if c.startswith("always")] == [f"always {c}" for c in COMPONENTS]
    assert found["n_datasets"].values.tolist() == [2] * 6


def test_gain_and_accuracy_rank_alike():
    acc = accuracies([LN1_BEST, MHA_BEST])
    score = criteria(some=[3, 1, 4, 1.5, 5])
    a = score_criteria(score, acc, alone(acc))["correlation"]
    b = score_criteria(score, acc / 2 - 0.2, alone(acc))["correlation"]
    xr.testing.assert_allclose(a, b)


def test_equal_scores_share_the_first_choice():
    acc = accuracies([LN1_BEST])
    one = score_criteria(criteria(flat=[1] * 5, two=[1, 1, 0, 0, 0]), acc, alone(acc)).isel(dataset=0)
    assert float(one["regret"].sel(criterion="flat")) == pytest.approx(20.0)
    assert float(one["hit"].sel(criterion="flat")) == pytest.approx(0.2)
    assert float(one["correlation"].sel(criterion="flat")) == 0.0
    assert float(one["regret"].sel(criterion="two")) == pytest.approx(5.0)


def test_a_component_without_a_score_is_never_chosen():
    acc = accuracies([LN1_BEST])
    nan = np.nan
    one = score_criteria(criteria(part=[nan, 3, 2, 1, 0], none=[nan] * 5, two=[nan, nan, nan, 1, 2]), acc, alone(acc))
    one = one.isel(dataset=0)
    assert float(one["regret"].sel(criterion="part")) == pytest.approx(10.0)
    assert float(one["correlation"].sel(criterion="part")) == pytest.approx(1.0)
    assert np.isnan(one["regret"].sel(criterion="none"))
    assert np.isnan(one["correlation"].sel(criterion="two"))
    assert int(one["n_datasets"].sel(criterion="none")) == 0


def test_scores_of_their_own_for_each_dataset_and_clusters_that_count_once():
    acc = accuracies([LN1_BEST, MHA_BEST, MHA_BEST])
    found = score_criteria(oracle(acc), acc, {"d0": "a", "d1": "b", "d2": "b"})
    np.testing.assert_allclose(found["mean"].sel(criterion="oracle"), [1.0, 0.0, 1.0])
    assert float(found["mean"].sel(criterion="always MHA", measure="hit")) == 0.5  # not 2 of 3
    assert float(found["mean"].sel(criterion="always MHA", measure="regret")) == pytest.approx(5.0)


def test_intervals_and_deviation_over_seeds():
    acc = accuracies([LN1_BEST, MHA_BEST] * 4)
    found = score_criteria(oracle(acc), acc, alone(acc), seed=1)
    low, high = (float(found[n].sel(criterion="always MHA", measure="regret")) for n in ("low", "high"))
    assert 0 <= low < 5.0 < high <= 10.0
    assert found["seed_deviation"].isnull().all()
    same = score_criteria(oracle(acc), accuracies([LN1_BEST, MHA_BEST] * 4, [0.0, 0.01]), alone(acc))
    np.testing.assert_allclose(same["seed_deviation"], 0.0, atol=1e-9)
    other = xr.concat([acc, acc[::-1].assign_coords(dataset=acc["dataset"])], "seed")
    assert float(score_criteria(oracle(acc), other, alone(acc))["seed_deviation"].sel(criterion="oracle")[1]) > 1


def test_passes_are_kept():
    acc = accuracies([LN1_BEST])
    ds = xr.Dataset(
        {"total": criteria(a=[1, 2, 3, 4, 5]), "forward_passes": ("criterion", [2.0]), "score": ("x", [0.0])}
    )
    found = score_criteria(ds, acc, alone(acc))
    assert float(found["forward_passes"].sel(criterion="a")) == 2.0
    assert float(found["forward_passes"].sel(criterion="always MHA")) == 0.0


def test_noise_ceiling():
    stable = accuracies([LN1_BEST, MHA_BEST], [0.0, 0.05, 0.1])
    found = noise_ceiling(stable, alone(stable))
    np.testing.assert_allclose(found["mean"], [1.0, 0.0, 1.0], atol=1e-9)
    rng = np.random.default_rng(0)
    shape = (100, 5, 3)
    noise = xr.DataArray(
        0.5 + 0.1 * rng.random(shape),
        dims=("dataset", "component", "seed"),
        coords={"dataset": [f"d{i}" for i in range(100)], "component": list(COMPONENTS)},
    )
    mean = noise_ceiling(noise, alone(noise))["mean"]
    assert abs(float(mean.sel(measure="correlation"))) < 0.15
    assert float(mean.sel(measure="hit")) == pytest.approx(0.2, abs=0.08)
    assert float(mean.sel(measure="regret")) > 2
    one = noise_ceiling(stable.isel(seed=[0]), alone(stable))
    assert one["mean"].isnull().all()


# ---- does a criterion beat constant advice? --------------------------------------------------------------------------


def test_a_perfect_criterion_beats_the_advice_where_it_often_errs():
    acc = accuracies([LN1_BEST] * 6 + [MHA_BEST] * 2)
    scores = score_criteria(oracle(acc), acc, alone(acc))
    found = against_advice(scores)
    assert float(found["saved"].sel(criterion="oracle")) == pytest.approx(7.5)
    assert float(found["p"].sel(criterion="oracle")) == pytest.approx(2**-6)
    verdict, text = advice_verdict(scores)
    assert verdict == "YES"
    assert text.endswith("better than the advice: oracle")


def test_no_criterion_beats_advice_that_is_right():
    acc = accuracies([MHA_BEST] * 8)
    scores = score_criteria(xr.concat([oracle(acc), criteria(size=[1, 2, 3, 4, 5])], "criterion"), acc, alone(acc))
    verdict, text = advice_verdict(scores)
    assert verdict == "NO"
    assert "always MHA loses 0.00 points" in text
    assert float(against_advice(scores)["p"].sel(criterion="oracle")) == 1.0
    assert advice_verdict(scores, "LN1")[0] == "YES"


def test_the_contest_is_adjusted_for_the_number_of_criteria():
    acc = accuracies([LN1_BEST] * 6)
    many = xr.concat([oracle(acc).assign_coords(criterion=[f"c{i}"]) for i in range(4)], "criterion")
    found = against_advice(score_criteria(many, acc, alone(acc)))
    np.testing.assert_allclose(found["p"], 2**-6)
    np.testing.assert_allclose(found["p_holm"], 4 * 2**-6)
    verdict, text = advice_verdict(score_criteria(many, acc, alone(acc)))
    assert verdict == "INCONCLUSIVE by design"
    assert "no adjusted p below 0.062" in text


def test_sign_flips():
    assert sign_flip_p(np.array([1.0, -1.0])) == 0.75
    assert sign_flip_p(np.array([0.0, 0.0])) == 1.0
    assert (sign_flip_p(np.array([2.0])), sign_flip_p(np.array([-2.0]))) == (0.5, 1.0)


def test_what_cannot_be_scored_is_refused():
    acc = accuracies([LN1_BEST])
    score = criteria(a=[1, 2, 3, 4, 5])
    with pytest.raises(InputError, match="fractions between 0 and 1, got 90"):
        score_criteria(score, 100 * acc, alone(acc))
    with pytest.raises(InputError, match="'d0' is in no cluster"):
        score_criteria(score, acc, {})
    with pytest.raises(InputError, match="no dataset has the accuracy"):
        score_criteria(score, acc.where(acc < 0.85), alone(acc))
    with pytest.raises(ShapeError, match="the same components"):
        score_criteria(score.isel(component=[0, 1]), acc, alone(acc))
    with pytest.raises(ShapeError, match="dimensions criterion"):
        score_criteria(score.rename(criterion="c"), acc, alone(acc))
    with pytest.raises(ShapeError, match="dataset, component and seed"):
        noise_ceiling(acc, alone(acc))
    with pytest.raises(UnknownNameError, match="constant advice 'MLP'"):
        against_advice(score_criteria(score, acc, alone(acc)), "MLP")
    with pytest.raises(InputError, match="only constant advice"):
        against_advice(score_criteria(score, acc, alone(acc)).isel(criterion=slice(1, None)))


def test_gathered_criteria_become_a_table_by_dataset():
    runs = xr.concat([criteria(a=[1, 2, 3, 4, 5]), criteria(a=[3, 2, 1, 0, 5]), criteria(a=[9, 0, 0, 0, 0])], "run")
    ds = xr.Dataset({"total": runs, "forward_passes": (("run", "criterion"), [[2.0], [2.0], [2.0]])})
    ds = ds.assign_coords(target=("run", ["d0", "d0", "d1"]), model=("run", ["m"] * 3))
    found = criteria_by_dataset(ds)
    assert found["total"].sel(dataset="d0", criterion="a").values.tolist() == [2.0, 2.0, 2.0, 2.0, 5.0]
    assert float(found["forward_passes"].sel(criterion="a")) == 2.0
    acc = accuracies([MHA_BEST, LN1_BEST])
    np.testing.assert_allclose(score_criteria(found, acc, alone(acc)).sel(criterion="a")["regret"], [10.0, 0.0])
    with pytest.raises(InputError, match="several values of model: m, n"):
        criteria_by_dataset(ds.assign_coords(model=("run", ["m", "n", "m"])))
    with pytest.raises(InputError, match="target or dataset"):
        criteria_by_dataset(ds.drop_vars("target"))
