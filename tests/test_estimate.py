"""Intervals and standard errors: known answers, invariances, and coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from vitplast.errors import HypothesisError, InputError, UnknownNameError
from vitplast.estimate import layer_mean, plasticity, resampled_means, resampling
from vitplast.pairs import pair_indices


def rates(values, source, target, design, source_group=None, target_group=None):
    """A Dataset as of the measurement from rates (..., pair) and image numbers."""
    values = np.asarray(values, dtype=float)
    values = values.reshape((1,) * (3 - values.ndim) + values.shape)
    names = {
        "source_id": source,
        "target_id": target,
        "source_group": source if source_group is None else source_group,
        "target_group": target if target_group is None else target_group,
    }
    return xr.Dataset(
        {"rate": (("layer", "component", "pair"), values)},
        coords={
            "layer": np.arange(values.shape[0]),
            "component": ["LN1", "MHA", "LN2", "FC1", "FC2"][: values.shape[1]],
            "pair": np.arange(values.shape[2]),
            **{k: ("pair", np.array([f"{k[0]}{i}" for i in v])) for k, v in names.items()},
        },
        attrs={"design": design},
    )


def disjoint(values, **groups):
    count = np.shape(values)[-1]
    return rates(values, range(count), range(count), "disjoint", **groups)


def crossed(matrix, **groups):
    matrix = np.asarray(matrix, dtype=float)
    m, n = matrix.shape[-2:]
    i, j = np.repeat(range(m), n), np.tile(range(n), m)
    return rates(matrix.reshape(*matrix.shape[:-2], m * n), i, j, "crossed", **groups)


def test_disjoint_by_hand():
    p = plasticity(disjoint([1.0, 2.0, 3.0, 6.0])).squeeze()
    assert p["mean"] == 3.0
    assert p["std"] == pytest.approx(np.sqrt(14 / 3))
    assert p["se"] == pytest.approx(np.sqrt(14 / 3) / 2)
    assert p["rms"] == pytest.approx(np.sqrt(12.5))
    assert 1.0 <= p["ci_low"] < 3.0 < p["ci_high"] <= 6.0
    assert p.attrs["resampled"] == "pairs"
    assert p.attrs["pairs"] == 4


def test_crossed_by_hand():
    """Row means 2, 4 (variance 2), column means 1, 3, 5 (variance 4): SE^2 = 2/2 + 4/3."""
    p = plasticity(crossed([[0.0, 2.0, 4.0], [2.0, 4.0, 6.0]])).squeeze()
    assert p["mean"] == 3.0
    assert p["se"] == pytest.approx(np.sqrt(1 + 4 / 3))
    assert p.attrs["resampled"] == "both sides"


def test_crossed_with_a_dropped_pair():
    """Row and column means are over the pairs there are: rows 1, 4, columns 1, 3, 6."""
    whole = crossed([[0.0, 2.0, 100.0], [2.0, 4.0, 6.0]])
    p = plasticity(whole.isel(pair=[0, 1, 3, 4, 5])).squeeze()
    assert p["mean"] == pytest.approx(14 / 5)
    assert p["se"] == pytest.approx(np.sqrt(4.5 / 2 + np.var([1, 3, 6], ddof=1) / 3))


def test_resampled_means_by_hand():
    """Two pairs: the mean of a resample is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4."""
    means = resampled_means(disjoint([0.0, 1.0]), resamples=4000).squeeze().values
    values, counts = np.unique(means, return_counts=True)
    assert list(values) == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(counts / 4000, [0.25, 0.5, 0.25], atol=0.03)
    p = plasticity(disjoint([0.0, 1.0]), level=0.5)
    assert p["ci_low"].item() == pytest.approx(0.25, abs=0.25)
    assert p["ci_high"].item() >= 0.5


def test_pigeonhole_resamples_each_side():
    """With effects of rows only, resampling gives their variance (m - 1)/m s_a^2/m, whatever the columns."""
    effects = np.random.default_rng(0).normal(size=20)
    means = resampled_means(crossed(np.tile(effects[:, None], 15)), resamples=4000).squeeze()
    assert means.std().item() == pytest.approx(effects.std() / np.sqrt(20), rel=0.05)


def test_designs_and_groups_decide_what_is_resampled():
    values = np.random.default_rng(0).random(60)
    s, t = pair_indices(60, 20, 60, "cycled", 0)
    assert resampling(rates(values, s, t, "cycled"))[0] == "clusters"
    assert len(np.unique(resampling(rates(values, s, t, "cycled"))[1][0])) == 20
    s, t = pair_indices(60, 4, 60, "cycled", 0)
    assert resampling(rates(values, s, t, "cycled"))[0] == "both sides"
    assert resampling(disjoint(values))[0] == "pairs"
    crops = np.arange(60) // 3
    assert resampling(disjoint(values, source_group=crops))[0] == "clusters"
    chained = disjoint(values, source_group=np.arange(60) // 2, target_group=(np.arange(60) + 1) // 2)
    assert resampling(chained)[0] == "both sides"
    assert resampling(crossed(values.reshape(6, 10)))[0] == "both sides"


def test_repeats_count_once():
    """Each target used 4 times with the same rate: as uncertain as the 15 rates alone, not as 60."""
    g = np.random.default_rng(0)
    once = g.random(15)
    single = plasticity(disjoint(once), resamples=4000)
    s, t = np.arange(60), np.arange(60) % 15
    cycled = plasticity(rates(np.tile(once, 4), s, t, "cycled"), resamples=4000)
    cropped = plasticity(disjoint(np.repeat(once, 4), source_group=np.arange(60) // 4), resamples=4000)
    for p in (cycled, cropped):
        assert p["mean"].item() == pytest.approx(single["mean"].item())
        assert p["se"].item() == pytest.approx(single["se"].item(), rel=0.06)
        assert (p["ci_high"] - p["ci_low"]).item() == pytest.approx(
            (single["ci_high"] - single["ci_low"]).item(), rel=0.06
        )
    naive = plasticity(disjoint(np.repeat(once, 4)))
    assert naive["se"].item() < 0.6 * cycled["se"].item()


def test_crossed_with_groups_is_wider():
    """Rows that come in fours from one photo carry the information of a quarter as many."""
    effects = np.repeat(np.random.default_rng(0).normal(size=10), 4)
    matrix = np.tile(effects[:, None], 12)
    groups = np.repeat(np.arange(40) // 4, 12)
    grouped = plasticity(crossed(matrix, source_group=groups))
    plain = plasticity(crossed(matrix))
    assert grouped["se"].item() == pytest.approx(2 * plain["se"].item(), rel=0.12)


def coverage(simulate, repetitions, truth=0.0, **options):
    """Share of intervals that hold the truth, and of `mean +- 1.96 s / sqrt(N)`."""
    inside = naive = 0
    for k in range(repetitions):
        data = simulate(np.random.default_rng(k))
        p = plasticity(data, seed=k, **options)
        inside += int(p["ci_low"].item() <= truth <= p["ci_high"].item())
        error = 1.96 * p["std"].item() / np.sqrt(p.attrs["pairs"])
        naive += int(abs(p["mean"].item() - truth) <= error)
    return inside / repetitions, naive / repetitions


def test_coverage_crossed():
    """Nominal 95 % intervals of the crossed design hold; those that take all pairs as independent do not."""

    def simulate(g):
        return crossed(g.normal(size=(25, 1)) + g.normal(size=(1, 30)) + 0.5 * g.normal(size=(25, 30)))

    honest, naive = coverage(simulate, 200, resamples=400)
    assert 0.90 <= honest <= 0.99
    assert naive < 0.5


def test_coverage_cycled():
    """Targets used four times: resampling target clusters holds, all pairs as independent falls short."""
    s, t = np.arange(120), np.arange(120) % 30

    def simulate(g):
        return rates(g.normal(size=30)[t] + 0.5 * g.normal(size=120), s, t, "cycled")

    honest, naive = coverage(simulate, 200, resamples=400)
    assert 0.89 <= honest <= 0.99
    assert naive < 0.8


def test_coverage_disjoint():
    honest, naive = coverage(lambda g: disjoint(g.normal(size=40)), 200, resamples=400)
    assert 0.89 <= honest <= 0.99
    assert naive >= 0.89


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-3, 1e3), design=st.sampled_from(["disjoint", "crossed", "cycled"]), seed=st.integers(0, 99))
def test_scale_and_order(scale, design, seed):
    """All is homogeneous of degree 1 and blind to the order of dimensions; the interval holds the median mean."""
    g = np.random.default_rng(seed)
    s, t = pair_indices(36, 12 if design == "cycled" else 36, 6 if design == "crossed" else 36, design, seed)
    data = rates(g.random((2, 3, len(s))), s, t, design)
    p = plasticity(data, resamples=200, seed=seed)
    scaled = plasticity(data.assign(rate=scale * data.rate), resamples=200, seed=seed)
    for name in p.data_vars:
        np.testing.assert_allclose(scaled[name], scale * p[name], rtol=1e-9)
    turned = plasticity(data.transpose("pair", "component", "layer"), resamples=200, seed=seed)
    xr.testing.assert_allclose(turned.transpose("layer", "component"), p)
    middle = resampled_means(data, resamples=200, seed=seed).median("resample")
    assert ((p["ci_low"] <= middle) & (middle <= p["ci_high"])).all()
    assert (p["rms"] >= p["mean"]).all()


def test_layer_mean_keeps_the_resamples():
    """Interval of a component over layers: the mean of the layers' resampled means, one by one."""
    data = disjoint(np.random.default_rng(0).random((4, 3, 30)))
    over_layers = resampled_means(layer_mean(data), resamples=300)
    np.testing.assert_allclose(over_layers, resampled_means(data, resamples=300).mean("layer"), rtol=1e-12)
    p = plasticity(layer_mean(data))
    assert p["mean"].dims == ("component",)
    assert p.attrs["design"] == "disjoint"
    np.testing.assert_allclose(p["mean"], data.rate.mean(("layer", "pair")))


def test_labels_units_and_seed():
    data = disjoint(np.random.default_rng(0).random((2, 3, 30)))
    p = plasticity(data, level=0.9, seed=4)
    assert list(p.component.values) == ["LN1", "MHA", "LN2"]
    assert "pair" not in p.dims
    assert "source_id" not in p.coords
    for variable in p.data_vars.values():
        assert variable.attrs["units"] == "1"
        assert variable.attrs["long_name"]
        assert variable.dtype == np.float64
    assert (p.attrs["level"], p.attrs["bootstrap_seed"], p.attrs["resamples"]) == (0.9, 4, 2000)
    xr.testing.assert_identical(p, plasticity(data, level=0.9, seed=4))
    assert not plasticity(data, level=0.9, seed=5)["ci_low"].equals(p["ci_low"])
    wider = plasticity(data, level=0.99, seed=4)
    assert ((wider["ci_low"] < p["ci_low"]) & (wider["ci_high"] > p["ci_high"])).all()


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda d: d.isel(pair=[0]), {}, InputError, "at least 2"),
        (lambda d: d.assign(rate=d.rate.where(d.pair > 0)), {}, HypothesisError, "1 rates of change are not finite"),
        (lambda d: d.assign_attrs(design="cross"), {}, UnknownNameError, "crossed"),
        (lambda d: d, {"level": 95}, InputError, "between 0 and 1, got 95"),
        (lambda d: d, {"resamples": 5}, InputError, "at least 100, got 5"),
    ],
)
def test_wrong_input_is_refused(change, options, error, message):
    with pytest.raises(error, match=message):
        plasticity(change(disjoint([1.0, 2.0, 3.0])), **options)


def test_measured_rates_go_in(tiny_vit):
    import torch

    from vitplast.measure import measure

    images = torch.randn(2, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    p = plasticity(measure(tiny_vit, images[0], images[1], design="crossed"))
    assert p["mean"].dims == ("convention", "layer", "component")
    assert ((p["ci_low"] <= p["mean"]) & (p["mean"] <= p["ci_high"])).all()
    assert (p["se"] >= 0).all()
