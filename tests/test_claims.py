"""Verdicts on made-up results whose answer is known: a PASS, a FAIL and an INCONCLUSIVE of each rule."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import kendalltau

from vitplast.bounds import bounds, token_statistics
from vitplast.claims import CLAIMS, verdicts
from vitplast.components import COMPONENTS
from vitplast.errors import HypothesisError, InputError
from vitplast.measure import measure
from vitplast.rule_statistics import common_permutation, simultaneous_limits

#: Level of each component in the claimed order; LN1, MHA, LN2, FC1, FC2.
CLAIMED = {"LN1": 1.0, "MHA": 8.0, "LN2": 1.3, "FC1": 3.0, "FC2": 4.0}
REVERSED = {"LN1": 8.0, "MHA": 1.0, "LN2": 7.0, "FC1": 3.0, "FC2": 4.0}
MIXED = {"LN1": 1.0, "MHA": 8.0, "LN2": 3.4, "FC1": 3.0, "FC2": 4.0}
LAYERS, PAIRS = 4, 40


def rates(level, noise=0.05, seed=0, conventions=("common", "in_situ"), pairs=PAIRS, **attrs):
    rng = np.random.default_rng(seed)
    base = np.array([level[c] for c in COMPONENTS])[:, None]
    values = base * np.exp(noise * rng.standard_normal((len(conventions), LAYERS, len(COMPONENTS), pairs)))
    names = np.array([f"{i}" for i in range(pairs)])
    return xr.Dataset(
        {"rate": (("convention", "layer", "component", "pair"), values)},
        coords={
            "convention": list(conventions),
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
            "pair": np.arange(pairs),
            "source_group": ("pair", names),
            "target_group": ("pair", names),
        },
        attrs={"design": "disjoint", **attrs},
    )


def limits(levels, factor=10.0, conventions=("common", "in_situ"), **attrs):
    """Bounds with one order a variant; a list of orders as value gives one order a block."""
    table = np.empty((len(conventions), len(levels), LAYERS, len(COMPONENTS)))
    for v, level in enumerate(levels.values()):
        orders = level if isinstance(level, list) else [level] * LAYERS
        table[:, v] = factor * np.array([[order[c] for c in COMPONENTS] for order in orders])
    return xr.Dataset(
        {"bound": (("convention", "variant", "layer", "component"), table)},
        coords={
            "convention": list(conventions),
            "variant": list(levels),
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
        },
        attrs=attrs,
    )


def verdict(claim, *args, **kwargs):
    return verdicts(*args, **kwargs).set_index("id").loc[claim]


def test_every_claim_has_a_row_and_nothing_runs_without_results():
    table = verdicts()
    assert table["id"].tolist() == [c.id for c in CLAIMS]
    assert (table["verdict"] == "NOT RUN").all()
    assert table["number"].isna().all()
    for _, row in table.iterrows():
        assert row["needs"] in row["statistic"]


def test_claims_about_finetuning_are_not_run_whatever_is_given():
    table = verdicts(rates(CLAIMED), limits({"valid": CLAIMED})).set_index("id")
    assert (table.loc[["C3b", "C4", "C5", "C6", "C7", "C9", "C10"], "verdict"] == "NOT RUN").all()
    assert (table.loc[["C1", "C2", "C3", "C8"], "verdict"] != "NOT RUN").all()


# ---- C1 -------------------------------------------------------------------------------------------------------------


def test_c1_cannot_be_decided_without_the_new_bound():
    row = verdict("C1", bounds=limits({"valid": CLAIMED}))
    assert row["verdict"] == "INCONCLUSIVE"
    assert "new" in row["statistic"]
    assert row["number"] == 1.0
    assert verdict("C1", bounds=limits({"valid": REVERSED}))["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("valid", "new", "expected"),
    [
        (CLAIMED, CLAIMED, "PASS"),
        (CLAIMED, REVERSED, "FAIL"),
        (CLAIMED, [CLAIMED, CLAIMED, REVERSED, REVERSED], "FAIL"),
        (CLAIMED, [CLAIMED, CLAIMED, CLAIMED, REVERSED], "INCONCLUSIVE"),
        (REVERSED, CLAIMED, "INCONCLUSIVE"),
        (CLAIMED, {**CLAIMED, "FC2": 7.9, "FC1": 3.0}, "INCONCLUSIVE"),  # FC1 and FC2 not about the same
        (CLAIMED, {**CLAIMED, "LN2": 2.9}, "INCONCLUSIVE"),  # nor LN2 and LN1
    ],
)
def test_c1(valid, new, expected):
    assert verdict("C1", bounds=limits({"valid": valid, "new": new}))["verdict"] == expected


def test_c1_says_when_bounds_are_missing():
    ds = limits({"valid": CLAIMED})
    ds["bound"].loc[{"component": "MHA"}] = np.nan
    row = verdict("C1", bounds=ds)
    assert row["verdict"] == "INCONCLUSIVE"
    assert "no block" in row["statistic"]


# ---- C2 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "expected"), [(CLAIMED, "PASS"), (REVERSED, "FAIL")])
def test_c2(level, expected):
    row = verdict("C2", rates(level))
    assert row["verdict"] == expected
    assert row["number"] == float(expected == "PASS")


def test_c2_noise_is_inconclusive():
    assert verdict("C2", rates({**CLAIMED, "LN2": 3.0}, noise=0.5))["verdict"] == "INCONCLUSIVE"


def test_c2_counts_datasets():
    def mix(good, bad):
        return {f"t{i}": rates(CLAIMED if i < good else REVERSED, seed=i) for i in range(good + bad)}

    assert verdict("C2", mix(4, 1))["verdict"] == "PASS"
    assert verdict("C2", mix(3, 2))["verdict"] == "INCONCLUSIVE"
    assert verdict("C2", mix(2, 2))["verdict"] == "FAIL"
    assert verdict("C2", mix(3, 2))["number"] == pytest.approx(0.6)


def test_c2_decides_on_the_common_convention():
    one, other = rates(CLAIMED, conventions=["common"]), rates(REVERSED, conventions=["in_situ"])
    row = verdict("C2", xr.concat([one, other], "convention"))
    assert row["verdict"] == "PASS"
    assert "in situ: all six gaps above 0 in 0" in row["statistic"]
    assert verdict("C2", other)["verdict"] == "FAIL"


def test_limits_cover_all_gaps_at_once():
    rng, missed = np.random.default_rng(0), 0
    for _ in range(200):
        values = rng.standard_normal((60, 6))
        counts = rng.multinomial(60, np.full(60, 1 / 60), size=400)
        low, high = simultaneous_limits(values.mean(axis=0), counts @ values / 60)
        missed += not ((low < 0) & (high > 0)).all()
    # Nominal 5% (10 of 200); limits made one by one would miss about 26% (52).
    assert 2 <= missed <= 26


# ---- C3 -------------------------------------------------------------------------------------------------------------


def test_c3():
    row = verdict("C3", rates(CLAIMED), limits({"valid": CLAIMED}))
    assert (row["verdict"], row["number"]) == ("PASS", 1.0)
    assert "p = 0.0083" in row["statistic"]  # one of 120 orders
    assert verdict("C3", rates(CLAIMED), limits({"valid": REVERSED}))["verdict"] == "FAIL"
    swapped = {**CLAIMED, "LN1": 8.5}  # tau_b = 0.2
    row = verdict("C3", rates(CLAIMED), limits({"valid": swapped}))
    assert row["verdict"] == "INCONCLUSIVE"
    assert row["number"] == pytest.approx(0.2)


def test_mean_tau_is_that_of_scipy_with_ties():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, (30, 5)).astype(float), rng.integers(0, 4, (30, 5)).astype(float)
    expected = np.mean([kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)])
    tau, p = common_permutation(a, b)
    assert tau == pytest.approx(expected, abs=1e-12)
    assert 1 / 120 <= p <= 1
    assert common_permutation(np.ones((2, 5)), b[:2]) == (0.0, 1.0)


def test_relabelling_is_common_to_all_blocks():
    order = np.arange(5.0)
    # The same order in every block is no more evidence than in one.
    assert common_permutation(order[None], order[None])[1] == common_permutation(*[np.tile(order, (9, 1))] * 2)[1]


# ---- C8 -------------------------------------------------------------------------------------------------------------


def test_c8():
    measured = rates(CLAIMED, noise=0.0)
    row = verdict("C8", measured, limits({"valid": CLAIMED}, factor=2.0))
    assert (row["verdict"], row["number"]) == ("PASS", 0.5)
    assert verdict("C8", measured, limits({"valid": CLAIMED}, factor=1.0))["verdict"] == "PASS"
    assert verdict("C8", measured, limits({"valid": CLAIMED}, factor=1 - 1e-5))["verdict"] == "FAIL"
    one = measured.copy(deep=True)
    one["rate"][1, 2, 3, 4] = 50.0  # one rate of one pair
    row = verdict("C8", one, limits({"valid": CLAIMED}, factor=2.0))
    assert row["verdict"] == "FAIL"
    assert "in situ, block 2, FC1" in row["statistic"]


def test_c8_without_bounds():
    ds = limits({"valid": CLAIMED})
    ds["bound"].loc[{"component": "MHA"}] = np.nan
    row = verdict("C8", rates(CLAIMED), ds)
    assert row["verdict"] == "PASS"
    assert "without a bound: MHA" in row["statistic"]
    row = verdict("C8", rates(CLAIMED), ds * np.nan)
    assert (row["verdict"], np.isnan(row["number"])) == ("INCONCLUSIVE", True)


def test_c8_a_bound_of_zero_allows_a_rate_of_zero_only():
    flat = {**CLAIMED, "LN2": 0.0}
    assert verdict("C8", rates(flat), limits({"valid": flat}))["verdict"] == "PASS"
    assert verdict("C8", rates(CLAIMED), limits({"valid": flat}))["number"] == np.inf


# ---- which results belong together ----------------------------------------------------------------------------------


def gathered(kind, targets):
    runs = [kind(t).drop_attrs().assign_coords(target=t, seed=0, model="m", design="disjoint") for t in targets]
    return xr.concat(runs, "run", join="outer")


def test_gathered_results_are_matched_by_their_labels():
    levels = {"a": 2.0, "b": 0.9}
    measured = gathered(lambda t: rates(CLAIMED, noise=0.0, pairs=20 if t == "a" else 30), ["a", "b"])
    assert measured["rate"].isnull().any()  # padded
    limit = gathered(lambda t: limits({"valid": CLAIMED}, factor=levels[t]), ["b", "a"])
    row = verdict("C8", measured, limit)
    assert row["number"] == pytest.approx(1 / 0.9)
    alone = verdict("C8", measured.isel(run=[0]), limit)
    assert alone["number"] == pytest.approx(0.5)


def test_results_of_other_images_or_models_are_not_compared():
    def named(**names):
        return {"params_json": json.dumps(names)}

    measured = rates(CLAIMED, **named(model="m", seed=0))
    assert verdict("C8", {"a": measured}, {"a": limits({"valid": CLAIMED}, **named(seed=0))})["verdict"] == "PASS"
    with pytest.raises(HypothesisError, match="same model, source and target"):
        verdicts({"a": measured}, {"a": limits({"valid": CLAIMED}, **named(seed=1))})
    with pytest.raises(HypothesisError, match="same model, source and target"):
        verdicts({"a": measured}, {"b": limits({"valid": CLAIMED})})
    with pytest.raises(InputError, match="one model at a time, got model = m, other"):
        verdicts(measured, limits({"valid": CLAIMED}, **named(model="other")))
    with pytest.raises(InputError, match="weights = auto, random"):
        verdicts({w: rates(CLAIMED, **named(model="m", weights=w)) for w in ("auto", "random")})
    two = xr.concat([limits({"valid": CLAIMED})] * 2, "run", join="outer")
    with pytest.raises(InputError, match="2 bounds belong"):
        verdicts(measured, two)


def test_measured_rates_and_bounds_of_a_model_agree(tiny_vit):
    source, target = torch.randn(2, 6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    measured = measure(tiny_vit, source, target)
    limit = bounds(tiny_vit, token_statistics(tiny_vit, [source, target]))
    row = verdict("C8", measured, limit)
    assert row["verdict"] == "PASS"
    assert 0.01 < row["number"] <= 1


def test_rates_that_are_not_finite_are_refused():
    measured = rates(CLAIMED)
    measured["rate"][0, 0, 0, 0] = np.nan
    with pytest.raises(HypothesisError, match="not finite"):
        verdicts(measured)


# ---- C3b and C9 ------------------------------------------------------------------------------------------------------


def theory(predicted, bounded, conventions=("common", "in_situ")):
    """Measured rates of 1, predictions and bounds of the given factors above them."""
    shape, dims = (len(conventions), LAYERS, len(COMPONENTS)), ("convention", "layer", "component")
    laws, statements = ["P7", "T4_second_moment"], ["T3", "T6"]
    return xr.Dataset(
        {
            "measured_test": (dims, np.ones(shape)),
            "prediction": (("law", *dims), np.full((2, *shape), predicted)),
            "bound": (("statement", *dims), np.full((2, *shape), bounded)),
        },
        coords={
            "convention": list(conventions),
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
            "law": laws,
            "statement": statements,
        },
    )


@pytest.mark.parametrize(
    ("predicted", "bounded", "expected"),
    [(1.1, 3.0, "PASS"), (0.9, 3.0, "PASS"), (1.5, 3.0, "INCONCLUSIVE"), (0.2, 3.0, "FAIL"), (1.2, 1.1, "FAIL")],
)
def test_c3b(predicted, bounded, expected):
    row = verdict("C3b", theory=theory(predicted, bounded))
    assert row["verdict"] == expected
    assert row["number"] == pytest.approx(abs(np.log(predicted)))
    assert f"{np.log(bounded):.3f} for the bounds" in row["statistic"]


def test_c3b_without_any_prediction_is_inconclusive():
    row = verdict("C3b", theory=theory(np.nan, 3.0))
    assert row["verdict"] == "INCONCLUSIVE"
    assert "no block" in row["statistic"]


@pytest.mark.parametrize(
    ("statement", "expected", "number"), [("T14", "FAIL", 1.5), ("quoted", "PASS", 0.5), ("T6_pair", "PASS", 0.5)]
)
def test_c8_looks_at_every_bound_of_the_pairs(statement, expected, number):
    ds = theory(1.0, 2.0).reindex(statement=["T3", "T6", "T14", "quoted", "T6_pair"])
    ds["tightness"] = xr.full_like(ds["bound"], 0.5)
    ds["tightness"].loc[{"statement": statement, "convention": "in_situ", "layer": 1, "component": "FC1"}] = 1.5
    row = verdict("C8", rates(CLAIMED), limits({"valid": CLAIMED}, factor=100.0), theory=ds)
    assert row["verdict"] == expected
    assert row["number"] == number
    assert (f"in situ, block 1, FC1, {statement}" in row["statistic"]) == (expected == "FAIL")


@pytest.mark.parametrize(
    ("ratio", "key_bias", "expected"), [(0.5, 0.0, "PASS"), (1.1, 0.0, "FAIL"), (0.5, 0.1, "FAIL")]
)
def test_c9(ratio, key_bias, expected):
    ds = xr.Dataset(
        {"ratio": (("component", "part"), [[ratio]]), "key_bias": ("layer", [key_bias])},
        coords={"component": ["FC1"], "part": ["weight"]},
    )
    row = verdict("C9", gradients=ds)
    assert row["verdict"] == expected
    assert row["number"] == ratio


def test_c9_without_bounds_or_key_bias():
    ds = xr.Dataset(
        {"ratio": (("component", "part"), [[0.5]]), "key_bias": ("layer", [np.nan])},
        coords={"component": ["FC1"], "part": ["weight"]},
    )
    row = verdict("C9", gradients=ds)
    assert row["verdict"] == "PASS"
    assert row["statistic"].endswith("no key bias")
    table = verdicts(rates(CLAIMED), gradients={"a": ds, "b": ds * np.nan}).set_index("id")
    assert table.loc["C9", "verdict"] == "INCONCLUSIVE"
    assert table.loc["C2", "verdict"] == "PASS"
    assert "gradient of the key bias is 0" in next(c.rule for c in CLAIMS if c.id == "C9")


# ---- results of another kind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"plasticity": limits({"valid": CLAIMED}, kind="bounds")}, "plasticity: a result of kind 'bounds' was given"),
        ({"plasticity": rates(CLAIMED, kind="gradients")}, "plasticity: a result of kind 'gradients' was given"),
        ({"plasticity": limits({"valid": CLAIMED})}, "plasticity: the dataset lacks rate, pair"),
        ({"plasticity": rates(CLAIMED).drop_attrs()}, "the dataset lacks design"),
        ({"plasticity": rates(CLAIMED).isel(component=[0, 2])}, "lacks component MHA, component FC1, component FC2"),
        ({"bounds": {"a": rates(CLAIMED)}}, "bounds of run 'a': the dataset lacks bound, variant"),
        ({"theory": theory(1, 1).drop_vars("prediction")}, "theory: the dataset lacks prediction"),
        ({"theory": theory(1, 1).isel(law=[0])}, "lacks law T4_second_moment"),
        ({"gradients": xr.Dataset({"ratio": 0.5}, attrs={"kind": "LN2/FC1"})}, "the dataset lacks key_bias"),
        ({"gradients": [1]}, "gradients must be a dataset, or a dict from target to dataset, got list"),
        ({"plasticity": [rates(CLAIMED)]}, "got list"),
        ({"bounds": {"a": [1]}}, "bounds of run 'a' must be a dataset"),
        (
            {"plasticity": rates(CLAIMED), "bounds": limits({"new": CLAIMED})},
            "bounds of run 0 lack the variant 'valid'",
        ),
    ],
)
def test_results_of_another_kind_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        verdicts(**given)
