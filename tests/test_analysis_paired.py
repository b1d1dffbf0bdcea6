"""Paired tests, tests of all configurations at once, and the paper's own table: exact values and made-up cases."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from vitplast.analysis import paper
from vitplast.analysis.omnibus import friedman, page_trend
from vitplast.analysis.tests import holm, least_signed_rank, paired_tests, power_floor, signed_rank
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, UnknownNameError


def table(**columns):
    names = list(columns)
    count = len(columns[names[0]])
    return xr.DataArray(
        np.array([columns[n] for n in names], dtype=float).T,
        dims=("cluster", "configuration"),
        coords={"cluster": [f"c{i}" for i in range(count)], "configuration": names},
    )


def test_holm():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, 0.6]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.01, np.nan]), [0.02, np.nan])


@pytest.mark.parametrize("signs", [(1, 1, 1, 1), (1, -1, 1, 1), (-1, -1, 1, -1), (1, -1, -1, 1)])
def test_signed_rank_is_scipy_s_exact_test(signs):
    gaps = np.array(signs) * np.array([0.5, 1.0, 2.0, 4.0])
    above, two = signed_rank(gaps)
    assert above == pytest.approx(stats.wilcoxon(gaps, alternative="greater", method="exact").pvalue)
    assert two == pytest.approx(stats.wilcoxon(gaps, method="exact").pvalue)


def test_signed_rank_with_ties_by_enumeration():
    gaps = np.array([1.0, 1.0, -1.0, 2.0])  # ranks 2, 2, 2, 4: W+ = 8; sums of at least 8: 4 of 16
    assert signed_rank(gaps)[0] == pytest.approx(4 / 16)
    assert least_signed_rank(4) == 0.125


def test_paired_tests_by_hand():
    # differences 1..7 of seven clusters: all above 0
    found = paired_tests(table(MHA=range(11, 18), FC1=[10] * 7, FC2=range(21, 28), LN1=range(11, 18)))
    assert found.other.values.tolist() == ["LN1", "FC1", "FC2"]  # LN2 is not there
    one = found.sel(other="FC1")
    assert float(one.wilcoxon) == 2.0**-7
    assert float(one.difference) == 4
    half = 2.446912 * stats.tstd(range(7)) / np.sqrt(7)
    assert (float(one.low), float(one.high)) == (pytest.approx(4 - half), pytest.approx(4 + half))
    assert float(one.t) == pytest.approx(float(stats.t.sf(4 / (stats.tstd(range(7)) / np.sqrt(7)), 6)))
    assert (int(one.wins), int(one.ties), int(one.losses), float(one.rank_biserial)) == (7, 0, 0, 1.0)
    same = found.sel(other="LN1")
    assert (float(same.wilcoxon), float(same.t), float(same.rank_biserial), int(same.ties)) == (1.0, 1.0, 0.0, 7)
    constant = found.sel(other="FC2")  # -10 in every cluster
    assert (float(constant.wilcoxon), float(constant.t), float(constant.rank_biserial)) == (1.0, 1.0, -1.0)
    np.testing.assert_allclose(found.wilcoxon_holm, holm(found.wilcoxon))
    np.testing.assert_allclose(found.t_holm, holm(found.t))
    assert found.attrs["n_clusters"] == 7


def test_alternatives_mirror_each_other():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 8))
    up = paired_tests(table(MHA=a, FC1=b))
    down = paired_tests(table(MHA=b, FC1=a), alternative="less")
    both = paired_tests(table(MHA=a, FC1=b), alternative="two-sided")
    for name in ("wilcoxon", "t"):
        assert float(up[name][0]) == pytest.approx(float(down[name][0]))
        assert float(both[name][0]) == pytest.approx(
            2 * min(float(up[name][0]), float(paired_tests(table(MHA=b, FC1=a))[name][0]))
        )
    assert float(up.difference[0]) == pytest.approx(-float(down.difference[0]))
    assert float(up.rank_biserial[0]) == pytest.approx(-float(down.rank_biserial[0]))


def test_rank_biserial_by_hand():
    found = paired_tests(table(MHA=[1, 2, -3, 4], FC1=[0] * 4))  # W+ = 7, W- = 3
    assert float(found.rank_biserial[0]) == pytest.approx(0.4)


def test_rows_with_holes_are_left_out_of_all_comparisons():
    holed = table(MHA=[1, 2, 3, 4], FC1=[0, 0, 0, np.nan], FC2=[0, 0, 0, -100])
    found = paired_tests(holed)
    assert found.attrs["n_clusters"] == 3
    assert found.difference.values.tolist() == [2, 2]
    assert paired_tests(holed, others=["FC2"]).attrs["n_clusters"] == 4


def test_interval_covers_the_true_mean():
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(100):
        found = paired_tests(table(MHA=0.3 + rng.standard_normal(8), FC1=np.zeros(8)))
        hits.append(float(found.low[0]) <= 0.3 <= float(found.high[0]))
    assert np.mean(hits) == pytest.approx(0.95, abs=0.05)


def test_paired_tests_refuse():
    good = table(MHA=[1, 2], FC1=[0, 0])
    with pytest.raises(UnknownNameError, match="greater"):
        paired_tests(good, alternative="greatr")
    with pytest.raises(UnknownNameError, match="MHA"):
        paired_tests(good, "MHAA")
    with pytest.raises(InputError, match="two clusters"):
        paired_tests(good.isel(cluster=[0]))
    with pytest.raises(InputError, match="two dimensions"):
        paired_tests(good.expand_dims("seed"))


@pytest.mark.parametrize(("clusters", "reachable"), [(6, False), (7, True)])
def test_power_floor_is_the_best_possible_outcome(clusters, reachable):
    columns = {"MHA": np.arange(1, clusters + 1.0)} | {c: np.zeros(clusters) for c in ("LN1", "LN2", "FC1", "FC2")}
    found, floor = paired_tests(table(**columns)), power_floor(clusters)
    np.testing.assert_allclose(found.wilcoxon_holm, floor.adjusted)
    assert floor.p == 2.0**-clusters
    assert floor.needed == 7
    assert floor.reachable is reachable
    assert bool((found.wilcoxon_holm <= 0.05).all()) is reachable
    assert ("INCONCLUSIVE by design" in found.attrs["floor_text"]) is not reachable
    assert power_floor(7, alternative="two-sided").needed == 8
    assert power_floor(5, 1).needed == 5
    with pytest.raises(InputError):
        power_floor(0)


def test_friedman():
    columns = {c: [i, i + 10, i + 20] for i, c in enumerate(("LN1", "LN2", "FC2", "FC1", "MHA"))}
    found = friedman(table(**columns))
    assert found.statistic == pytest.approx(12)  # G (K - 1) at full agreement
    assert found.p == pytest.approx(stats.chi2.sf(12, 4))
    assert found.agreement == pytest.approx(1)
    assert found.mean_ranks == {"LN1": 5, "MHA": 1, "LN2": 4, "FC1": 2, "FC2": 3}
    assert friedman(table(**{c: [1, 2] for c in COMPONENTS}))[:2] == (0.0, 1.0)
    with pytest.raises(InputError, match="three"):
        friedman(table(MHA=[1, 2], FC1=[0, 0]), ["MHA", "FC1"])
    with pytest.raises(UnknownNameError, match="FC2"):
        friedman(table(MHA=[1, 2], FC1=[0, 0], LN1=[0, 1], LN2=[0, 3]))


def test_page_trend_is_scipy_s_without_ties():
    values = np.random.default_rng(3).random((6, 4))
    names = ["a", "b", "c", "d"]
    data = xr.DataArray(values, dims=("cluster", "configuration"), coords={"configuration": names})
    found, expected = page_trend(data, names), stats.page_trend_test(values, method="exact")
    assert found.statistic == expected.statistic
    assert found.p == pytest.approx(expected.pvalue)
    backwards = page_trend(data, names[::-1])
    assert backwards.p == pytest.approx(found.p_opposite)
    assert backwards.mean_correlation == pytest.approx(-found.mean_correlation)


def test_page_trend_with_ties_by_enumeration():
    values = np.array([[1.0, 1.0, 2.0], [1.0, 2.0, 3.0]])  # ranks 1.5 1.5 3 and 1 2 3: L = 13.5 + 14
    names = ["a", "b", "c"]
    data = xr.DataArray(values, dims=("cluster", "configuration"), coords={"configuration": names})
    found = page_trend(data, names)
    assert found.statistic == 27.5
    assert found.p == pytest.approx(1 / 3 * 1 / 6)
    assert found.p_opposite == 1
    assert page_trend(data * 0, names)[1:] == (1.0, 1.0, 0.0)


def test_page_trend_takes_a_prediction_for_each_cluster():
    rng = np.random.default_rng(4)
    data = xr.DataArray(
        rng.random((3, 5)), dims=("cluster", "configuration"), coords={"configuration": list(COMPONENTS)}
    )
    own = page_trend(data, data**3)  # predicts each cluster's own order
    assert own.p == pytest.approx(120.0**-3)
    assert own.mean_correlation == pytest.approx(1)
    holed = data.copy()
    holed[0, 0] = np.nan
    assert page_trend(holed, data).p == pytest.approx(120.0**-2)
    with pytest.raises(InputError, match="prediction"):
        page_trend(data, holed)
    with pytest.raises(InputError, match="sizes"):
        page_trend(data, data.isel(cluster=[0, 1]))
    named = data.assign_coords(cluster=["x", "y", "z"])
    assert page_trend(named, named.isel(cluster=[2, 0, 1])).p == pytest.approx(120.0**-3)  # by name, not by place
    with pytest.raises(InputError, match="2 to 7"):
        page_trend(data, ["MHA"])
    with pytest.raises(UnknownNameError, match="MHA"):
        page_trend(data, data, ["MHAA", "FC1"])


def test_page_trend_is_level_under_no_trend():
    rng = np.random.default_rng(5)
    found = [page_trend(table(a=x[0], b=x[1], c=x[2]), ["a", "b", "c"]).p <= 0.05 for x in rng.random((100, 3, 4))]
    assert np.mean(found) <= 0.12


def published(**columns):
    """A table in the paper's form from accuracies by set of `SETS`; deviations 0.001 (ddof 0)."""
    mean = np.array(list(columns.values()), dtype=float).T
    dims = ("dataset", "configuration")
    std = np.full(mean.shape, 0.001)
    data = {"mean": (dims, mean), "std": (dims, std * np.sqrt(1.5)), "std_printed": (dims, std)}
    return xr.Dataset(data, coords={"dataset": SETS[: len(mean)], "configuration": list(columns)})


SETS = ["Cifar10", "Contrast", "Snow", "A", "B", "C", "D", "E", "F", "G", "H"]
#: Distinct differences, so that there are no ties.
STEP = np.arange(1, 12) / 1000


def test_a_table_in_which_the_claim_is_true_supports_it():
    base = np.full(11, 0.5)
    good = published(
        MHA=base + 4 * STEP, FC1=base + 3 * STEP, FC2=base + 2 * STEP, LN2=base + STEP, LN1=base, LP=base / 2
    )
    rows = paper.supported(good).set_index(["unit", "statement"])
    assert (rows.decided == "yes").all()
    assert rows.reachable.all()
    assert set(rows.loc["clusters"].n) == {9}
    worse = good.assign(mean=1 - good["mean"])
    rows = paper.supported(worse).set_index(["unit", "statement"])
    assert (rows.decided.drop("components differ", level="statement") == "no").all()
    few = paper.supported(good.isel(dataset=slice(0, 8))).set_index(["unit", "statement"])  # six clusters
    assert (few.loc["clusters"].filter(like="MHA >", axis=0).decided == "open").all()
    assert not few.loc["clusters"].filter(like="MHA >", axis=0).reachable.any()
    assert (few.loc["sets"].decided == "yes").all()  # as if the corruptions were sets of their own


def test_gains_by_set_and_cluster():
    table = published(MHA=[0.6, 0.7, 0.8, 0.9], LP=[0.5, 0.5, 0.5, 0.6])
    found = paper.gains(table)
    np.testing.assert_allclose(found.gain.sel(configuration="MHA"), [0.2, 0.4, 0.6, 0.5])
    np.testing.assert_allclose(found.mean_gain.sel(configuration="MHA"), [0.425, 0.45])
    assert found.unit.values.tolist() == ["sets", "clusters"]


def test_differences_that_seeds_explain():
    near, far = 0.5 + np.zeros(3), np.array([0.5, 0.4, 0.6])
    found = paper.seed_resolved(published(MHA=near, FC1=near, FC2=far, LN1=near, LN2=near))
    assert found.better.sel(other=["FC1", "FC2"]).values.tolist() == [0, 1]
    assert found.worse.sel(other=["FC1", "FC2"]).values.tolist() == [0, 1]
    # 0.1 / sqrt(2 * 1.5e-6 / 3), 4 degrees of freedom
    assert float(found.p.sel(dataset="Contrast", other="FC2")) == pytest.approx(2 * stats.t.sf(100, 4), rel=1e-6)


def test_one_cluster_left_out():
    table = published(MHA=[1, 1, 1, 4], FC1=[0] * 4, FC2=[0] * 4, LN1=[0] * 4, LN2=[0] * 4)
    left = paper.without_one(table).sel(other="FC1")
    assert dict(zip(left.left_out.values, left.values, strict=True)) == {"Cifar10": 4, "A": 1}


def test_the_published_table():
    table = paper.paper_table()
    assert table.sizes == {"dataset": 11, "configuration": 7}
    assert float(table["mean"].sel(dataset="Pet", configuration="LN1")) == pytest.approx(0.9446)
    assert float(table["std_printed"].sel(dataset="Snow", configuration="FC2")) == pytest.approx(0.0029)
    assert float(table["std"].sel(dataset="Snow", configuration="FC2")) == pytest.approx(0.0029 * 1.2247449)
    assert table["std"].sel(configuration="LP").isnull().all()
    gain = paper.gains(table).mean_gain.sel(unit="sets")
    np.testing.assert_allclose(gain.sel(configuration=["MHA", "FC1", "FC2"]), [0.5344, 0.5327, 0.5270], atol=5e-5)
    tests = paper.comparisons(table)
    one = tests.sel(unit="sets", other=["FC1", "FC2", "LN2", "LN1"])
    np.testing.assert_allclose(one.t.sel(alternative="two-sided"), [0.435, 0.0037, 0.0746, 0.0242], atol=5e-4)
    np.testing.assert_allclose(one.wilcoxon.sel(alternative="greater"), [0.375, 0.0049, 0.0210, 0.0015], atol=5e-5)
    np.testing.assert_allclose(
        one.wilcoxon_holm.sel(alternative="two-sided"), [0.75, 0.0293, 0.0840, 0.0117], atol=5e-5
    )
    clusters = tests.sel(unit="clusters", alternative="greater")
    assert int(clusters.n) == 6
    assert float(clusters.floor) == 0.0625
    assert "INCONCLUSIVE by design" in str(clusters.floor_text.values)
    everything = paper.omnibus(table)
    assert float(everything.friedman_p.sel(unit="sets")) == pytest.approx(0.0081, abs=5e-5)
    ranks = everything.mean_rank.sel(unit="sets", configuration=["FC1", "MHA", "LN2", "FC2", "LN1"])
    np.testing.assert_allclose(ranks, [2.00, 2.14, 3.27, 3.68, 3.91], atol=0.005)


def test_a_table_without_its_columns_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("dataset,configuration,mean\na,MHA,50\n")
    with pytest.raises(InputError, match="std"):
        paper.paper_table(path)


def test_every_order_of_signs_has_its_place_in_the_exact_law():
    found = sorted(signed_rank(np.array(s) * np.array([1.0, 2.0, 3.0]))[0] for s in product((-1, 1), repeat=3))
    # W+ takes 0, 1, 2, 3, 3, 4, 5, 6
    np.testing.assert_allclose(found, np.array([1, 2, 3, 5, 5, 6, 7, 8]) / 8)
