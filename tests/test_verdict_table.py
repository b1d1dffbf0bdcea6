"""The table that the page on verdicts shows, from made-up results of two models: data alone decide what it says."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.verdict_table import evidence, of_model, verdict_table, whole_seeds, with_unmoved
from vitplast.verdict_variations import changed, comparable, groups, variations

#: In the order LN1, MHA, LN2, FC1, FC2: the paper's order of plasticity, and its reverse.
CLAIMED, REVERSED = [1.0, 8.0, 1.5, 3.0, 4.0], [8.0, 1.0, 6.0, 4.0, 3.0]
SETS = [f"set{i}" for i in range(8)]
VARIANTS = ("LN2/FC1:0.25", "LN2/FC1:4", "LN1/qkv:0.25", "LN1/qkv:4")


def rates(values, model="a", rescale="", img_size=56, weights="auto"):
    shape = (len(SETS), 2, 3, len(COMPONENTS), 12)
    noise = np.random.default_rng(0).normal(size=shape)
    base = np.array([values, values[::-1]])[None, :, None, :, None]
    groups = (("run", "pair"), np.tile([str(i) for i in range(12)], (len(SETS), 1)))
    ds = xr.Dataset(
        {"rate": (("run", "convention", "layer", "component", "pair"), base * np.exp(0.01 * noise))},
        coords={
            "convention": ["common", "in_situ"], "layer": range(3), "component": list(COMPONENTS), "pair": range(12),
            "source_group": groups, "target_group": groups, "target": ("run", SETS),
        },
    )  # fmt: skip
    names = {"design": "disjoint", "rescale": rescale, "model": model, "img_size": img_size, "weights": weights}
    return ds.assign_coords({n: ("run", [v] * len(SETS)) for n, v in names.items()})


def trained(best, model="a", components=COMPONENTS, sets=SETS, seeds=(0, 42), swap=False, **rest):
    """Two rates: at the second accuracy follows `best`; with `swap` the first looks better on test images only."""
    rows = [
        (d, c, 0.5 + rate / 2, s, 0.4 + top / 20 - 0.1 * (1 - rate) + 0.001 * np.sin(3 * i + COMPONENTS.index(c)), top)
        for i, d in enumerate(sets)
        for c, top in zip(COMPONENTS, best, strict=True)
        if c in components
        for rate in (0, 1)
        for s in seeds
    ]
    names, what, lr, seed, accuracy, top = map(list, zip(*rows, strict=True))
    test = np.array(accuracy)
    if swap:
        test = np.where(np.array(lr) == 0.5, 0.9 - np.array(top) / 20, test)
    same = {"model": model, "img_size": 56, "steps": 40, "optimizer": "sgd", "clipping": "joint", "rescale": ""}
    same |= {"experiment": "main", "train_images": 640, "per_class": 0} | rest
    coords = {"dataset": names, "components": what, "lr": lr, "seed": seed}
    coords |= {n: [v] * len(rows) for n, v in same.items()}
    return xr.Dataset(
        {
            "test_accuracy": ("run", test),
            "validation_accuracy": ("run", accuracy),
            "gradient_norm": (("run", "step"), np.repeat(np.array(top)[:, None], 6, axis=1)),
            "component_parameters": ("run", [16 if c.startswith("LN") else 256 for c in what]),
            "n_test": ("run", [100] * len(rows)),
        },
        coords={n: ("run", v) for n, v in coords.items()} | {"step": range(6)},
    )


def probes(model="a"):
    names = {"dataset": SETS, "model": [model] * len(SETS), "img_size": [56] * len(SETS)}
    return xr.Dataset({"test_accuracy": ("run", [0.4] * 8)}, coords={n: ("run", v) for n, v in names.items()})


def together(*several):
    return xr.concat(several, "run", join="outer", coords="minimal", compat="override")


def results(gains, other=REVERSED):
    """Model a gains as `gains` says, model b as `other`."""
    return {
        "plasticity": together(rates(CLAIMED), rates(CLAIMED, "b"), rates(REVERSED, weights="random")),
        "finetune": together(trained(gains), trained(other, "b")),
        "probe": together(probes(), probes("b")),
        "bounds": None,
    }


def verdict(table):
    return table.set_index("id")["verdict"].to_dict()


def test_changed_data_change_the_table():
    found = {
        name: verdict(verdict_table(results(g), "a", draws=200)) for name, g in (("up", CLAIMED), ("down", REVERSED))
    }
    assert found["up"] | {"C4": "PASS", "C7": "PASS"} == found["up"]
    assert found["down"] | {"C4": "FAIL", "C7": "FAIL"} == found["down"]
    assert found["up"]["C1"] == found["down"]["C1"] == "NOT RUN"  # no bounds were given
    other = verdict(verdict_table(results(CLAIMED), "b", draws=200))
    assert other["C4"] == "FAIL"  # the other model's runs do not decide
    one = results(CLAIMED)
    low = (one["finetune"]["model"] == "a") & (one["finetune"]["components"] == "MHA")
    one["finetune"]["test_accuracy"][low.values] = 0.3
    assert verdict(verdict_table(one, "a", draws=200))["C7"] == "FAIL"


def test_of_model_leaves_random_weights_and_other_sizes_out():
    own = of_model(results(CLAIMED), "a")
    assert own["plasticity"].sizes["run"] == 8
    assert set(own["plasticity"]["weights"].values) == {"auto"}
    assert own["theory"] is None
    assert of_model(results(CLAIMED), "a", img_size=98)["plasticity"] is None
    with pytest.raises(InputError, match="no rule reads results of kind depth"):
        of_model({"depth": None}, "a")


def test_whole_seeds_drop_what_is_not_finished():
    runs = trained(CLAIMED)
    gone = (runs["dataset"] == "set1") & (runs["seed"] == 42) & (runs["components"] == "FC2")
    left = whole_seeds(runs.isel(run=np.flatnonzero(~gone)))
    pairs = set(zip(left["dataset"].values, left["seed"].values, strict=True))
    assert ("set1", 42) not in pairs
    assert len(pairs) == 15
    assert whole_seeds(None) is None
    assert evidence(results(CLAIMED), "a").accuracy.sizes == {"dataset": 8, "component": 5}


def rescaled(gains):
    """LN2 and FC1, or LN1 and MHA, of the four rescaled models, on seed 0; plasticity of LN2 and FC1 rescaled."""
    runs, measured = [trained(CLAIMED)], [rates(CLAIMED)]
    for v in VARIANTS:
        pair = ("LN2", "FC1") if v.startswith("LN2") else ("LN1", "MHA")
        runs.append(trained(gains, components=pair, seeds=(0,), rescale=v, experiment="rescaling"))
        measured.append(rates(CLAIMED if v != VARIANTS[1] else REVERSED, rescale=v))
    return {"plasticity": together(*measured), "finetune": together(*runs), "probe": probes()}


def test_rescaled_models_borrow_runs_of_components_that_did_not_move():
    runs = with_unmoved(rescaled(CLAIMED)["finetune"])
    for v in ("", *VARIANTS):
        one = runs.isel(run=np.flatnonzero(runs["rescale"].values == v))
        assert set(one["components"].values) == set(COMPONENTS)
        assert set(one["seed"].values) == {0}
        assert one.sizes["run"] == 8 * 5 * 2
    assert with_unmoved(trained(CLAIMED)) is None


def test_c10_and_its_rows():
    found = rescaled(CLAIMED)
    assert verdict(verdict_table(found, "a", draws=200))["C10"] == "FAIL"  # plasticity reversed in one variant
    rows = variations(found, "a", draws=200)
    rows = rows[rows.group == "parametrisation"].set_index(["variant", "claim"])["verdict"]
    assert rows["as it is", "C4"] == "PASS"
    assert rows["LN2/FC1:4", "C4"] == "FAIL"
    assert rows["LN1/qkv:4", "C4"] == "PASS"


def test_variations_follow_their_own_runs():
    given = results(CLAIMED)
    short = {"sets": SETS[:2], "seeds": (0,)}
    given["finetune"] = together(
        trained(CLAIMED, swap=True),
        trained(REVERSED, steps=80, experiment="budget", **short),
        trained(CLAIMED, clipping="separate", experiment="clipping", **short),
    )
    rows = variations(given, "a", draws=200)
    table = rows.set_index(["group", "variant", "claim"])
    assert table.loc[("selection", "validation", "C7"), "verdict"] == "PASS"
    assert table.loc[("selection", "test", "C7"), "verdict"] == "FAIL"  # the rate that looks well on test images
    assert table.loc[("convention", "in_situ", "C2"), "verdict"] != table.loc[("convention", "common", "C2"), "verdict"]
    first, second = (table.loc[("steps", v, "C4")] for v in ("40 steps", "80 steps"))
    assert (first["number"], second["number"]) == pytest.approx((1.0, -1.0))
    assert first["datasets"] == second["datasets"] == 2  # cut down to what both have
    assert "160 steps" not in table.loc["steps"].index.get_level_values(0)
    assert table.loc[("clipping", "head apart", "C7"), "verdict"] == "INCONCLUSIVE"
    assert "optimizer" not in set(rows.group)
    summary = changed(rows).set_index(["group", "claim"])
    assert bool(summary.loc[("selection", "C7"), "changes"])
    assert summary.loc[("selection", "C7"), "verdicts"] == "PASS → FAIL"
    assert not bool(summary.loc[("clipping", "C7"), "changes"])


def test_comparable_runs_are_the_same_cells():
    runs = together(trained(CLAIMED), trained(CLAIMED, experiment="clipping", sets=SETS[:3]))
    cut = comparable(runs, next(g for g in groups(runs) if g.name == "clipping"))
    assert [c.sizes["run"] for c in cut.values()] == [3 * 5 * 2 * 2] * 2
    alone = trained(CLAIMED)
    assert all(comparable(alone, group) == {} for group in groups(alone))
    assert groups(None) == []


def test_variants_are_named_by_what_was_run():
    few = trained(CLAIMED, experiment="low_data", per_class=5, train_images=0)
    runs = together(trained(CLAIMED, train_images=100), few, trained(CLAIMED, experiment="budget", steps=99))
    named = {g.name: list(g.variants) for g in groups(runs)}
    assert named["steps"] == ["40 steps", "99 steps"]
    assert named["training images"] == ["100", "5 a class"]


def test_whole_seeds_allow_rates_of_their_own_on_a_set():
    runs = together(trained(CLAIMED), trained(CLAIMED, sets=["other"], seeds=(0,)))
    other = runs["dataset"].values == "other"
    runs = runs.assign_coords(lr=("run", np.where(other, runs["lr"].values * 3, runs["lr"].values)))
    assert "other" in whole_seeds(runs)["dataset"].values
