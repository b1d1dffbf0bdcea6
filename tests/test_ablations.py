"""Settings, their differences, orders, signs, updates and plasticity before and after, on made-up runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from torch import nn

from vitplast.analysis import ablation_text as words
from vitplast.analysis.ablations import (
    agreement,
    as_configuration,
    by_setting,
    differences,
    over_rates,
    ranks,
    seed_noise,
    setting,
)
from vitplast.analysis.claim_signs import claim_signs, same_sign
from vitplast.analysis.plasticity_change import of_the_trained, plasticity_change, summary
from vitplast.analysis.updates import GROUPS, gradient_shares, group_sizes, step_sizes
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, UnknownNameError

FIVE = dict(zip(COMPONENTS, (0.5, 0.9, 0.6, 0.8, 0.7), strict=True))  # LN1 MHA LN2 FC1 FC2


def num(values):
    """The one number in `values`."""
    return float(np.asarray(values).item())


def grid(cells, seeds=(0,), n_test=400):
    """A grid from (dataset, configuration) to {rate: accuracy or one a seed}; validation is the test accuracy."""
    names = list(dict.fromkeys(d for d, _ in cells))
    configurations = list(dict.fromkeys(c for _, c in cells))
    size = max(len(v) for v in cells.values())
    shape = (len(names), len(configurations), size, len(seeds))
    accuracy, lr = np.full(shape, np.nan), np.full(shape[:3], np.nan)
    for (d, c), by_rate in cells.items():
        for r, (rate, values) in enumerate(sorted(by_rate.items())):
            at = names.index(d), configurations.index(c), r
            lr[at], accuracy[at] = rate, values
    dims = ("dataset", "configuration", "rate", "seed")
    data = {n: (dims, accuracy.copy()) for n in ("test_accuracy", "validation_accuracy")}
    table = xr.Dataset(
        data | {"lr": (dims[:3], lr), "n_test": ("dataset", [n_test] * len(names))},
        coords={"dataset": names, "configuration": configurations, "rate": np.arange(size), "seed": list(seeds)},
    )
    table["failed"] = dims, np.zeros(shape, dtype=bool)
    return table


def five(shift=0.0, **other):
    """The five components on one set at two rates, `shift` more accurate; `other` accuracies by component."""
    return grid({("a", c): {0.1: v - 0.2, 0.3: v + shift} for c, v in (FIVE | other).items()})


def gathered(rows, **parameters):
    """Gathered runs from (dataset, components, lr, seed, accuracy), with the parameters of the main grid."""
    names = ("dataset", "components", "lr", "seed", "test_accuracy")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    count = len(rows)
    fixed = {"model": "m", "head_init": "zero", "experiment": "main", "steps": 40, "optimizer": "sgd"} | parameters
    fixed = {n: ("run", v if isinstance(v, list) else [v] * count) for n, v in fixed.items()}
    return xr.Dataset(
        {
            "test_accuracy": ("run", columns["test_accuracy"]),
            "validation_accuracy": ("run", columns["test_accuracy"]),
            "diverged_step": ("run", [-1] * count),
            "n_test": ("run", [400] * count),
            "train_loss": (("run", "step"), np.full((count, 2), np.log(10))),
            "validation_loss": (("run", "evaluation"), np.ones((count, 1))),
        },
        coords={n: ("run", columns[n]) for n in names[:4]} | fixed | {"step": [0, 1], "evaluation": [2]},
    )


def test_setting_finds_the_runs_of_a_change_and_is_none_where_there_are_none():
    rows = [("a", "MHA", 0.1, 0, 0.8), ("a", "MHA", 0.1, 0, 0.9)]
    runs = gathered(rows, steps=[40, 80], experiment=["main", "budget"])
    assert num(setting(runs, "m")["test_accuracy"]) == 0.8
    assert num(setting(runs, "m", "budget", steps=80)["test_accuracy"]) == 0.9
    assert setting(runs, "m", "budget", steps=160) is None
    assert setting(runs, "m", "adamw") is None
    assert setting(runs, "other") is None
    assert setting(None, "m") is None


def test_as_configuration_renames_the_one_and_is_none_without_it():
    table = grid({("a", "MHA+FC1"): {0.1: 0.9}, ("a", "LN1"): {0.1: 0.4}})
    found = as_configuration(table, "MHA+FC1", "MHA")
    assert found["configuration"].values.tolist() == ["MHA"]
    assert num(found["test_accuracy"]) == 0.9
    assert as_configuration(table, "FC1", "MHA") is None
    assert as_configuration(None, "FC1", "MHA") is None


def test_by_setting_compares_at_the_rates_that_all_settings_tried():
    base = grid({("a", "MHA"): {0.01: 0.95, 0.1: 0.5, 0.3: 0.6}})
    changed = grid({("a", "MHA"): {0.1: 0.7, 0.3: 0.65, 1.0: 0.99}})
    shared = by_setting({40: base, 80: changed})
    assert shared["accuracy"].values.ravel().tolist() == [0.6, 0.7]
    assert shared["lr"].values.ravel().tolist() == [0.3, 0.1]
    assert shared["rates"].values.ravel().tolist() == [2, 2]
    np.testing.assert_allclose(shared["range"].values.ravel(), [0.1, 0.05])
    own = by_setting({40: base, 80: changed}, "own")
    assert own["accuracy"].values.ravel().tolist() == [0.95, 0.99]


def test_by_setting_keeps_what_one_setting_alone_has_as_missing():
    base = grid({("a", "MHA"): {0.1: 0.5}, ("b", "MHA"): {0.1: 0.6}, ("a", "emb"): {0.1: 0.3}})
    found = by_setting({"joint": base, "separate": grid({("a", "MHA"): {0.1: 0.7}}), "later": None})
    assert found["setting"].values.tolist() == ["joint", "separate"]
    assert found["configuration"].values.tolist() == ["emb", "MHA"]
    assert num(found["accuracy"].sel(setting="joint", dataset="b", configuration="MHA")) == 0.6
    assert found["accuracy"].sel(setting="separate", dataset="b").isnull().all()


def test_by_setting_refuses_unknown_rates_no_runs_and_no_common_seed():
    one = grid({("a", "MHA"): {0.1: 0.5}})
    with pytest.raises(UnknownNameError, match="shared"):
        by_setting({"x": one}, "all")
    with pytest.raises(InputError, match="has a run"):
        by_setting({"x": None})
    with pytest.raises(InputError, match="seed"):
        by_setting({"x": one, "y": one.assign_coords(seed=[42])})


def test_error_adds_test_images_and_seeds():
    table = grid({("a", "MHA"): {0.1: 0.8}}, n_test=100)
    alone = by_setting({"x": table})
    assert num(alone["error"]) == pytest.approx(0.04)
    noise = xr.DataArray([0.03], dims="dataset", coords={"dataset": ["a"]})
    assert num(by_setting({"x": table}, noise=noise)["error"]) == pytest.approx(0.05)


def test_seed_noise_pools_the_variances_of_the_configurations():
    table = grid({("a", "MHA"): {0.1: [0.8, 0.9]}, ("a", "LN1"): {0.1: [0.5, 0.5]}}, seeds=(0, 42))
    assert num(seed_noise(table)) == pytest.approx(np.sqrt((0.005 + 0.0) / 2))
    assert seed_noise(grid({("a", "MHA"): {0.1: 0.8}})).isnull().all()


def test_differences_are_changed_minus_base_and_resolved_only_beyond_noise():
    table = by_setting({"x": five(), "y": five(0.0, MHA=0.92, LN1=0.8)})
    found = differences(table, "x", "y").sel(dataset="a")
    assert num(found["difference"].sel(configuration="LN1")) == pytest.approx(0.3)
    assert num(found["difference"].sel(configuration="MHA")) == pytest.approx(0.02)
    assert num(found["p_holm"].sel(configuration="LN1")) < 1e-6
    assert num(found["p_holm"].sel(configuration="MHA")) > 0.5
    expected = np.hypot(np.sqrt(0.25 / 400), np.sqrt(0.16 / 400))
    assert num(found["error"].sel(configuration="LN1")) == pytest.approx(expected)
    text = words.resolved_text(differences(table, "x", "y"))
    assert text == "1 of 5 differences are beyond noise: LN1 on a +30.0 points"
    with pytest.raises(UnknownNameError, match="z"):
        differences(table, "x", "z")


def test_ranks_start_at_the_most_accurate_and_need_all():
    table = by_setting({"x": five()})["accuracy"].sel(setting="x", dataset="a")
    found = ranks(table, COMPONENTS)
    assert found.sel(configuration=["MHA", "FC1", "FC2", "LN2", "LN1"]).values.tolist() == [1, 2, 3, 4, 5]
    assert ranks(table.drop_sel(configuration="LN1"), COMPONENTS).isnull().all()
    assert words.order_text(table) == "MHA > FC1 > FC2 > LN2 > LN1"
    tied = table.where(table["configuration"] != "FC1", 0.9)
    assert words.order_text(tied) == "MHA = FC1 > FC2 > LN2 > LN1"
    assert words.order_text(table.drop_sel(configuration="LN1")) == "not complete"


def test_agreement_counts_the_pairs_that_turn_round():
    swapped = by_setting({"x": five(), "y": five(0.0, MHA=0.8, FC1=0.9)})
    found = agreement(swapped, "x", COMPONENTS).sel(dataset="a")
    assert found["tau"].values.tolist() == pytest.approx([1.0, 0.8])
    assert found["reversed"].values.tolist() == [0, 1]
    assert found["resolved"].values.tolist() == [0, 1]  # 0.9 and 0.8 are 4 errors apart
    near = by_setting({"x": five(0.0, FC1=0.89), "y": five(0.0, MHA=0.89, FC1=0.9)})
    found = agreement(near, "x", COMPONENTS).sel(dataset="a", setting="y")
    assert (int(found["reversed"]), int(found["resolved"])) == (1, 0)
    partly = by_setting({"x": five().drop_sel(configuration="LN1"), "y": five()})
    assert agreement(partly, "x", COMPONENTS)["tau"].isnull().all()


def test_over_rates_is_the_authors_table():
    found = over_rates(grid({("a", "MHA"): {0.1: [0.6, 0.1], 0.3: [0.8, 0.1]}}, seeds=(0, 42)))
    assert (num(found["mean"]), num(found["std"]), num(found["rates"])) == pytest.approx((0.7, 0.1, 2))
    with pytest.raises(InputError, match="no seed 7"):
        over_rates(grid({("a", "MHA"): {0.1: 0.6}}), seed=7)


def rates_of(values):
    return xr.DataArray(
        [[values]],
        dims=("convention", "dataset", "component"),
        coords={"convention": ["common"], "dataset": ["a"], "component": list(COMPONENTS)},
    )


def test_claim_signs_and_their_stability():
    table = by_setting({"x": five(), "y": five(0.0, MHA=0.75)})
    signs = claim_signs(table, rates_of([FIVE[c] for c in COMPONENTS])).sel(dataset=["a"])
    assert num(signs["lead"].sel(setting="x", other="FC1")) == pytest.approx(0.1)
    assert signs["worst"].values.ravel() == pytest.approx([0.1, -0.05])
    assert num(signs["gain"].sel(setting="x")) == pytest.approx(1.0)
    assert num(signs["gain"].sel(setting="y")) == pytest.approx(0.9)
    held = words.stability(signs)
    assert held["C7: MHA minus FC1 (points)"] == "changes"
    assert held["C7: MHA minus LN1 (points)"] == "same"
    assert "| C7: MHA minus FC1 (points) | x: +10.00; y: -5.00 | changes | changes |" in words.sign_rows({"m": signs})
    assert not same_sign(xr.DataArray([np.nan]))
    assert "gain" not in claim_signs(table)


def test_robust_is_the_correlation_with_minus_the_range():
    cells = {("a", c): {0.1: 0.5, 0.3: 0.5 + 0.1 * i} for i, c in enumerate(COMPONENTS)}  # LN1 has no range
    signs = claim_signs(by_setting({"x": grid(cells)}), rates_of([5.0, 4.0, 3.0, 2.0, 1.0]))
    assert num(signs["robust"]) == pytest.approx(1.0)


def test_progress_counts_runs_there_of_those_planned():
    plan = pd.DataFrame({"steps": [80, 80], "run_key": ["k1", "k2"]})
    runs = gathered([("a", "MHA", 0.1, 0, 0.8), ("a", "MHA", 0.1, 0, 0.8)], run_key=["k1", "k0"])
    assert words.progress(runs, plan) == "1 of 2"
    assert words.progress(None, plan) == "0 of 2"


def trained(norms, head=3.0, steps=4):
    """A grid with gradient norms: zero for two steps, then `norms` by configuration times the learning rate."""
    table = grid({("a", c): {0.1: 0.5, 0.2: 0.5} for c in norms})
    shape = (*table["test_accuracy"].shape, steps)
    own = np.zeros(shape)
    own[..., 2:] = (np.array(list(norms.values()))[None, :, None] * table["lr"].values)[..., None, None]
    dims = (*table["test_accuracy"].dims, "step")
    data = {"gradient_norm": own, "gradient_norm_head": np.full(shape, head)}
    data["gradient_norm_total"] = np.hypot(own, head)
    return table.assign({n: (dims, v) for n, v in data.items()}).assign_coords(step=np.arange(steps))


def test_gradient_shares_divide_the_learning_rate_out():
    norms = dict.fromkeys(GROUPS, 1.0) | {"emb": 5.0, "all": np.sqrt(30.0)}
    found = gradient_shares(trained(norms)).sel(dataset="a")
    assert num(found["share"].sel(group="emb")) == pytest.approx(25 / 30)
    assert num(found["share"].sum()) == pytest.approx(1)
    assert num(found["joint"]) == pytest.approx(num(found["whole"]))
    without = gradient_shares(trained({"MHA": 1.0}))
    assert without["share"].isnull().all()
    assert without.attrs["missing"] == "emb, LN1, LN2, FC1, FC2"


def test_step_sizes_clip_jointly_or_apart_and_relate_to_the_parameters():
    table = trained({"MHA": 40.0})  # norms 4 and 8 at the rates 0.1 and 0.2, totals 5 and hypot(8, 3)
    sizes = xr.Dataset({"norm": ("group", [10.0, 6.0])}, coords={"group": ["MHA", "head"]})
    joint = step_sizes(table, sizes).isel(dataset=0, configuration=0)
    assert num(joint["factor"].isel(rate=0)) == pytest.approx(0.2)
    assert num(joint["head_share"].isel(rate=0)) == pytest.approx(9 / 25)
    assert num(joint["moved"].isel(rate=0)) == pytest.approx(0.1 * 4 / 5)
    assert num(joint["relative"].isel(rate=0)) == pytest.approx(0.008)
    apart = step_sizes(table, joint=False).isel(dataset=0, configuration=0)
    assert num(apart["moved"].isel(rate=1)) == pytest.approx(0.2)
    assert "relative" not in apart
    with pytest.raises(InputError, match="gradient_norm"):
        step_sizes(five())


def test_group_sizes_are_norms_and_counts():
    model = nn.Module()
    model.head = nn.Linear(2, 3)
    nn.init.constant_(model.head.weight, 2.0)
    nn.init.zeros_(model.head.bias)
    found = group_sizes(model)
    assert found["group"].values.tolist() == ["head"]
    assert (num(found["norm"]), num(found["count"])) == pytest.approx((np.sqrt(24), 9))


def measured(factors, layers=2, padded=1):
    """Runs that measured plasticity: after = before times the factor of the trained component; padded by blocks."""
    names = list(factors)
    before = np.ones((len(names), 1, layers + padded, len(COMPONENTS)))
    before[:, :, layers:] = np.nan
    after = before.copy()
    for i, c in enumerate(names):
        after[i, :, :, COMPONENTS.index(c)] *= factors[c]
    dims = ("run", "convention", "layer", "component")
    runs = gathered([("a", c, 0.1, 0, 0.8) for c in names], plasticity_pairs=64)
    coords = {"convention": ["common"], "layer": np.arange(layers + padded), "component": list(COMPONENTS)}
    return runs.assign(plasticity_before=(dims, before), plasticity_after=(dims, after)).assign_coords(coords)


def test_plasticity_change_of_the_trained_component():
    change = plasticity_change(measured({"MHA": 2.0, "LN1": 0.5}), "m")
    assert change["configuration"].values.tolist() == ["LN1", "MHA"]
    assert change.sizes["layer"] == 2
    own = of_the_trained(change).isel(dataset=0, convention=0)
    assert own["change"].sel(component="MHA").values.tolist() == [2.0, 2.0]
    assert own["change"].sel(component="LN1").values.tolist() == [0.5, 0.5]
    brief = summary(change).isel(dataset=0, convention=0)
    assert num(brief["mean"].sel(configuration="MHA", component="FC1")) == pytest.approx(1.0)
    assert num(brief["high"].sel(configuration="MHA", component="MHA")) == pytest.approx(2.0)


def test_plasticity_change_says_what_is_missing_or_ambiguous():
    with pytest.raises(InputError, match="plasticity_pairs"):
        plasticity_change(gathered([("a", "MHA", 0.1, 0, 0.8)]), "m")
    one = measured({"MHA": 2.0})
    two = xr.concat([one, one.assign_coords(lr=("run", [0.3]))], "run", data_vars="minimal")
    with pytest.raises(InputError, match=r"0\.1, 0\.3"):
        plasticity_change(two, "m")


def test_tables_keep_bars_out_of_cells_and_missing_values_are_dashes():
    assert words.markdown_table(["a", "b"], [["x|y", "z"]]) == "| a | b |\n| --- | --- |\n| x\\|y | z |"
    assert words.percent(np.nan) == words.DASH
    assert words.percent(0.5, 0.01) == "50.0 ± 1.0"
    tables = {"m": by_setting({40: five(), 80: five(0.0, MHA=0.75)})}
    rows = words.accuracy_rows(tables).splitlines()
    assert rows[0].endswith("| order of the components |")
    assert rows[2].startswith("| m | a | 40 | 50.0 ± 2.5 | 90.0 ± 1.5 |")
    assert rows[3].endswith("| FC1 > MHA > FC2 > LN2 > LN1 |")
    assert words.agreement_rows(tables, 40).splitlines()[2] == "| m | a | 80 | +0.80 | 1 of 10 | 0 |"
