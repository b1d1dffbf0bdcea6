"""C4, C5, C6, C7 and C10 on made-up runs whose verdict is known, through `verdicts`, so that data alone decide."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from vitplast.claims import verdicts
from vitplast.components import COMPONENTS
from vitplast.errors import InputError

LAYERS, PAIRS, STEPS = 3, 12, 6
#: In the order LN1, MHA, LN2, FC1, FC2: the paper's order of plasticity, and its reverse.
CLAIMED = [1.0, 8.0, 1.5, 3.0, 4.0]
REVERSED = [8.0, 1.0, 6.0, 4.0, 3.0]
#: Spearman 0.3 with CLAIMED.
LOOSE = [3.0, 4.0, 1.0, 5.0, 2.0]
#: An LN has 2E parameters, attention and MLP matrices have many more.
COUNTS = {"LN1": 16, "MHA": 256, "LN2": 16, "FC1": 256, "FC2": 256}
SETS = [f"set{i}" for i in range(8)]


def level(values):
    return dict(zip(COMPONENTS, values, strict=True))


def plasticity(values, sets=SETS, conventions=("common",), rescale="", noise=0.01):
    rng = np.random.default_rng(0)
    values = values if isinstance(values, dict) else dict.fromkeys(conventions, values)
    base = np.array([values[c] for c in conventions])[None, :, None, :, None]
    shape = (len(sets), len(conventions), LAYERS, len(COMPONENTS), PAIRS)
    names = np.array([[str(i) for i in range(PAIRS)]] * len(sets))
    return xr.Dataset(
        {"rate": (("run", "convention", "layer", "component", "pair"), base * np.exp(noise * rng.normal(size=shape)))},
        coords={
            "convention": list(conventions),
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
            "pair": np.arange(PAIRS),
            "source_group": (("run", "pair"), names),
            "target_group": (("run", "pair"), names),
            "target": ("run", list(sets)),
            "design": ("run", ["disjoint"] * len(sets)),
            "rescale": ("run", [rescale] * len(sets)),
            "model": ("run", ["m"] * len(sets)),
        },
    )


def finetune(
    best, sets=SETS, spread=None, norms=CLAIMED, rescale="", zero_steps=0, lr=None, model="m", components=COMPONENTS
):
    """Runs at two rates and two seeds: the second rate has accuracy `best` (list, or dict by set), in 1/20 plus 0.4.

    At the first rate the accuracy is less by `spread`; gradients have `norms` after `zero_steps` steps without any.
    """
    spread = level([0.1] * 5) if spread is None else level(spread)
    lr = level([1.0] * 5) if lr is None else level(lr)
    rows = []
    for s, name in enumerate(sets):
        top, norm = level(best[name] if isinstance(best, dict) else best), level(norms)
        for c in components:
            for rate in (0, 1):
                for seed in (0, 42):
                    acc = 0.4 + top[c] / 20 - spread[c] * (1 - rate) + 0.001 * np.sin(s + 3 * COMPONENTS.index(c))
                    rows.append((name, c, lr[c] * (0.5 + rate / 2), seed, acc, norm[c]))
    columns = list(zip(*rows, strict=True))
    count = len(rows)
    gradient = np.repeat(np.array(columns[5])[:, None], STEPS, axis=1)
    gradient[:, :zero_steps] = 0.0
    return xr.Dataset(
        {
            "test_accuracy": ("run", np.array(columns[4])),
            "validation_accuracy": ("run", np.array(columns[4])),
            "gradient_norm": (("run", "step"), gradient),
            "component_parameters": ("run", [COUNTS[c] for c in columns[1]]),
            "n_test": ("run", [100] * count),
        },
        coords={
            "dataset": ("run", list(columns[0])),
            "components": ("run", list(columns[1])),
            "lr": ("run", list(columns[2])),
            "seed": ("run", list(columns[3])),
            "rescale": ("run", [rescale] * count),
            "model": ("run", [model] * count),
            "step": np.arange(STEPS),
        },
    )


def probe(sets=SETS):
    return xr.Dataset(
        {"test_accuracy": ("run", [0.4] * len(sets))},
        coords={"dataset": ("run", list(sets)), "model": ("run", ["m"] * len(sets))},
    )


def row(claim, rates=None, runs=None, probes=None, **rest):
    return verdicts(rates, finetune=runs, probe=probes, draws=200, **rest).set_index("id").loc[claim]


# ---- C4 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gains", "expected"), [(CLAIMED, "PASS"), (REVERSED, "FAIL"), (LOOSE, "INCONCLUSIVE")])
def test_c4(gains, expected):
    found = row("C4", plasticity(CLAIMED), finetune(gains), probe())
    assert found["verdict"] == expected
    assert found["number"] == pytest.approx({"PASS": 1.0, "FAIL": -1.0, "INCONCLUSIVE": 0.3}[expected])
    assert "8 clusters, 8 datasets" in found["statistic"]
    assert "by thirds of depth" in found["statistic"]


def test_c4_needs_a_lower_limit_above_0():
    some = {s: CLAIMED if i < 7 else REVERSED for i, s in enumerate(SETS)}
    found = row("C4", plasticity(CLAIMED), finetune(some), probe())
    assert (found["verdict"], found["p"] <= 0.05) == ("PASS", True)
    one = row("C4", plasticity(CLAIMED, SETS[:1]), finetune(CLAIMED, SETS[:1]), probe())
    assert one["verdict"] == "INCONCLUSIVE"  # one cluster has no interval
    few = {s: CLAIMED if i < 3 else REVERSED for i, s in enumerate(SETS[:4])}
    few = row("C4", plasticity(CLAIMED, SETS[:4]), finetune(few, SETS[:4]), probe())
    assert few["verdict"] == "INCONCLUSIVE"  # mean 0.5, but four clusters say too little
    assert few["number"] == pytest.approx(0.5)


def test_c4_decides_on_the_common_convention_and_counts_corruptions_once():
    both = plasticity({"common": CLAIMED, "in_situ": REVERSED}, conventions=("common", "in_situ"))
    found = row("C4", both, finetune(CLAIMED), probe())
    assert found["verdict"] == "PASS"
    assert "in situ: mean Spearman -1.00" in found["statistic"]
    assert row("C4", both.sel(convention=["in_situ"]), finetune(CLAIMED), probe())["verdict"] == "FAIL"
    sets = ["a", "b:snow:5", "b:contrast:5", "b"]
    found = row("C4", plasticity(CLAIMED, sets), finetune(CLAIMED, sets), probe(sets))
    assert "2 clusters, 4 datasets" in found["statistic"]


def test_rates_chosen_on_validation_decide():
    runs = finetune(CLAIMED)
    shifted = runs.copy(deep=True)
    first = (runs["lr"] == 0.5).values
    shifted["validation_accuracy"][first] = 1.0  # the rate that is worse on test images
    shifted["test_accuracy"][first] = finetune(REVERSED)["test_accuracy"].values[first]
    assert row("C4", plasticity(CLAIMED), shifted, probe())["verdict"] == "FAIL"


def test_partial_grids_leave_datasets_out_and_say_so():
    runs = finetune(CLAIMED)
    gone = (runs["dataset"] == "set0") & (runs["components"] == "FC2")
    found = row("C4", plasticity(CLAIMED), runs.isel(run=np.flatnonzero(~gone)), probe())
    assert found["verdict"] == "PASS"
    assert "7 clusters, 7 datasets), 1 left out" in found["statistic"]
    assert "not all components and rates were run on set0" in found["statistic"]
    late = (runs["dataset"] == "set1") & (runs["components"] == "MHA") & (runs["lr"] == 1.0)
    found = row("C4", plasticity(CLAIMED), runs.isel(run=np.flatnonzero(~late)), probe())
    assert "7 clusters" in found["statistic"]
    assert "on set1" in found["statistic"]


# ---- C5 -------------------------------------------------------------------------------------------------------------


def gradients(sizes):
    norm = np.zeros((1, 1, LAYERS, 5, 1))
    norm[...] = np.array(sizes)[:, None]
    return xr.Dataset(
        {
            "part_parameter_norm": (("kind", "factor", "layer", "component", "part"), norm),
            "ratio": (("component", "part"), np.full((5, 1), 0.5)),
            "key_bias": ("layer", np.zeros(LAYERS)),
        },
        coords={"kind": ["LN2/FC1"], "factor": [1.0], "component": list(COMPONENTS), "part": ["weight"]},
    )


STEEP = [1.0, 800.0, 1.5, 300.0, 400.0]  # still in order per parameter


@pytest.mark.parametrize(
    ("norms", "expected"),
    [(STEEP, "PASS"), (REVERSED, "FAIL"), (LOOSE, "INCONCLUSIVE"), ([1.0, 1.7, 1.4, 1.5, 1.6], "INCONCLUSIVE")],
)
def test_c5(norms, expected):
    found = row("C5", plasticity(CLAIMED), finetune(CLAIMED, norms=norms))
    assert found["verdict"] == expected
    assert "elasticity not known" in found["statistic"]
    assert "divided by the learning rate" not in found["statistic"]


def test_c5_elasticity_can_take_the_place_of_the_norm_per_parameter():
    flat = [1.0, 1.7, 1.4, 1.5, 1.6]  # in order, but no longer per parameter
    runs = finetune(CLAIMED, norms=flat)
    assert row("C5", plasticity(CLAIMED), runs, gradients=gradients([1.0] * 5))["verdict"] == "PASS"
    assert row("C5", plasticity(CLAIMED), runs, gradients=gradients([9, 1, 9, 1, 1]))["verdict"] == "INCONCLUSIVE"
    found = row("C5", plasticity(CLAIMED), runs, gradients=gradients([1.0] * 5))
    assert "elasticity, first steps: 1.00" in found["statistic"]


def test_c5_with_a_head_of_zeros_takes_the_first_gradient_over_its_rate():
    lr = [30.0, 1.0, 30.0, 1.0, 1.0]
    late = np.array(STEEP) * np.array(lr)  # proportional to the rate, as from a head one update old
    found = row("C5", plasticity(CLAIMED), finetune(CLAIMED, norms=late, lr=lr, zero_steps=2))
    assert "first step: 1.00" in found["statistic"]
    assert "divided by the learning rate (undivided: 1.00)" in found["statistic"]
    near = np.array([1.0, 9.0, 1.5, 3.0, 4.0]) * np.array(lr)
    found = row("C5", plasticity(CLAIMED), finetune(CLAIMED, norms=near, lr=lr, zero_steps=1))
    assert "gradient norm, first step: 1.00" in found["statistic"]
    assert "(undivided: -0.50)" in found["statistic"]
    assert found["verdict"] == "INCONCLUSIVE"  # the mean of the first steps is as it was measured


def test_c5_first_steps_are_those_of_the_mean():
    runs = finetune(CLAIMED, norms=STEEP)
    runs["gradient_norm"][:, 1:] = finetune(CLAIMED, norms=REVERSED)["gradient_norm"].values[:, 1:] * 1e4
    found = row("C5", plasticity(CLAIMED), runs)
    assert (found["verdict"], found["number"]) == ("INCONCLUSIVE", pytest.approx(-1.0))


# ---- C6 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        ([0.25, 0.01, 0.2, 0.1, 0.05], "PASS"),
        ([0.01, 0.25, 0.05, 0.1, 0.2], "FAIL"),
        ([0.1] * 5, "INCONCLUSIVE"),
        ([0.25, 0.12, 0.11, 0.10, 0.05], "INCONCLUSIVE"),  # the trend is there, but MHA varies more than LN2
    ],
)
def test_c6(spread, expected):
    found = row("C6", plasticity(CLAIMED), finetune(CLAIMED, spread=spread))
    assert found["verdict"] == expected
    assert "common input (MHA > FC2 > FC1 > LN2 > LN1)" in found["statistic"]
    assert f"LN1 {100 * spread[0]:.1f}" in found["statistic"]
    if expected == "PASS":
        assert found["number"] == pytest.approx(1.0)
        assert found["p"] < 1e-6


def test_c6_of_one_cluster_says_nothing():
    found = row("C6", plasticity(CLAIMED, SETS[:1]), finetune(CLAIMED, SETS[:1]))
    assert found["verdict"] == "INCONCLUSIVE"
    assert "two clusters or more" in found["statistic"]


# ---- C7 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "expected"),
    [(CLAIMED, "PASS"), ([9.0, 8.0, 1.0, 3.0, 4.0], "FAIL"), ([8.0, 8.0, 1.0, 3.0, 4.0], "INCONCLUSIVE")],
)
def test_c7(best, expected):
    if expected == "INCONCLUSIVE":
        best = {s: [best[0] + (-1) ** i, *best[1:]] for i, s in enumerate(SETS)}
    found = row("C7", runs=finetune(best))
    assert found["verdict"] == expected
    assert "by design" not in found["statistic"]


def test_c7_six_clusters_cannot_decide():
    found = row("C7", plasticity(CLAIMED), finetune(CLAIMED, SETS[:6]))
    assert found["verdict"] == "INCONCLUSIVE"
    assert "INCONCLUSIVE by design: the smallest p of 6 clusters is 0.0156" in found["statistic"]
    assert "Friedman over the five components: p = 0.000" in found["statistic"]
    assert "Page in the order of plasticity: p = 0.0000" in found["statistic"]
    alone = row("C7", runs=finetune(CLAIMED, SETS[:6]))
    assert "Page" not in alone["statistic"]
    corrupted = [f"a:{c}:5" for c in ("snow", "contrast", "motion_blur")] + SETS[:5]
    assert "of 6 clusters" in row("C7", runs=finetune(CLAIMED, corrupted))["statistic"]
    assert row("C7", runs=finetune(CLAIMED, SETS[:7]))["verdict"] == "PASS"


def test_c7_number_is_the_smallest_lead_in_points():
    found = row("C7", runs=finetune(CLAIMED))
    assert found["number"] == pytest.approx(100 * (8 - 4) / 20, abs=0.2)


# ---- C10 ------------------------------------------------------------------------------------------------------------

VARIANTS = ("LN2/FC1:0.25", "LN2/FC1:4", "LN1/qkv:0.25", "LN1/qkv:4")


def rescaled(levels, gains=CLAIMED, norms=STEEP, variants=VARIANTS):
    """The model itself, in the claimed order, and its rescaled versions with plasticity `levels`."""
    rates = [plasticity(CLAIMED, SETS[:4]), *(plasticity(levels, SETS[:3], rescale=v) for v in variants)]
    runs = [finetune(CLAIMED, SETS[:4], norms=STEEP)]
    runs += [finetune(gains, SETS[:3], norms=norms, rescale=v) for v in variants]
    return xr.concat(rates, "run"), xr.concat(runs, "run"), probe()


def test_c10_pass():
    found = row("C10", *rescaled(CLAIMED))
    assert (found["verdict"], found["number"]) == ("PASS", 1.0)
    assert found["statistic"] == "12 of 12 verdicts stay"


def test_c10_fail_when_a_pass_becomes_fail():
    found = row("C10", *rescaled(REVERSED))
    assert (found["verdict"], found["number"]) == ("FAIL", 0.0)
    assert "C4 PASS becomes FAIL under LN1/qkv:4" in found["statistic"]


def test_c10_inconclusive():
    found = row("C10", *rescaled(CLAIMED, gains=LOOSE))
    assert found["verdict"] == "INCONCLUSIVE"
    assert "C4 PASS becomes INCONCLUSIVE under LN2/FC1:4" in found["statistic"]
    found = row("C10", *rescaled(CLAIMED, variants=VARIANTS[:3]))
    assert found["verdict"] == "INCONCLUSIVE"
    assert (
        found["statistic"]
        == "9 of 9 verdicts stay; missing: C2 under LN1/qkv:4, C4 under LN1/qkv:4, C5 under LN1/qkv:4"
    )


def test_rescaled_runs_change_no_other_verdict():
    few = SETS[:4]
    plain = verdicts(plasticity(CLAIMED, few), finetune=finetune(CLAIMED, few, norms=STEEP), probe=probe(), draws=200)
    rates, runs, probes = rescaled(REVERSED, variants=VARIANTS[:1])
    both = verdicts(rates, finetune=runs, probe=probes, draws=200)
    chosen = plain["id"] != "C10"
    assert plain[chosen].equals(both[chosen])


# ---- what is missing, and p-values ----------------------------------------------------------------------------------


def test_not_run_says_what_is_missing():
    table = verdicts(plasticity(CLAIMED), draws=200).set_index("id")
    assert table.loc["C4", "statistic"] == "needs plasticity, finetune, probe; missing: finetune, probe"
    assert table.loc["C6", "statistic"].endswith("missing: finetune")
    assert "rescale = LN2/FC1:0.25, LN2/FC1:4" in table.loc["C10", "statistic"]
    table = verdicts(plasticity(CLAIMED), finetune=finetune(CLAIMED, components=COMPONENTS[:4]), draws=200)
    table = table.set_index("id")
    assert (table.loc[["C5", "C6", "C7"], "verdict"] == "NOT RUN").all()
    assert table.loc["C7", "statistic"].endswith("missing: finetune lacks FC2")
    found = row("C4", plasticity(CLAIMED, ["x"]), finetune(CLAIMED), probe())
    assert found["verdict"] == "NOT RUN"
    assert "rates of x; gain of set0" in found["statistic"]
    assert row("C4", plasticity(CLAIMED), finetune(CLAIMED), probe(["x"]))["verdict"] == "NOT RUN"


def test_p_values_are_reported_raw_and_adjusted():
    runs = finetune(CLAIMED, norms=STEEP, spread=[0.25, 0.01, 0.2, 0.1, 0.05])
    table = verdicts(plasticity(CLAIMED), finetune=runs, probe=probe(), draws=200).set_index("id")
    known = table["p"].notna()
    assert table.index[known].tolist() == ["C4", "C5", "C6", "C7"]
    assert (table["p_holm"][known] >= table["p"][known]).all()
    assert table.loc["C6", "p_holm"] == pytest.approx(4 * table.loc["C6", "p"])
    assert table.loc["C4", "p"] == pytest.approx(1 / 120)
    assert "by Holm over C4, C5, C6, C7" in table.loc["C4", "statistic"]


def test_runs_that_differ_in_more_are_refused_unless_chosen():
    two = xr.concat([finetune(CLAIMED).assign_coords(steps=("run", [n] * 160)) for n in (50, 100)], "run")
    with pytest.raises(InputError, match="choose steps=100 or 50"):
        verdicts(finetune=two)
    assert row("C7", runs=two, equal={"steps": 100})["verdict"] == "PASS"
    with pytest.raises(InputError, match="one model at a time, got model = m, other"):
        verdicts(plasticity(CLAIMED), finetune=finetune(CLAIMED, model="other"))
    with pytest.raises(InputError, match="finetune must be a gathered dataset"):
        verdicts(finetune=finetune(CLAIMED).isel(run=0))
    with pytest.raises(InputError, match="probe: the dataset lacks test_accuracy"):
        verdicts(probe=probe().drop_vars("test_accuracy"))
