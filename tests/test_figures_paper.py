"""The part "Reproduce the paper": counts, variants, layouts and pictures from known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vitplast.cost import subset
from vitplast.cost.plan import plan
from vitplast.errors import InputError, UnknownNameError, VitplastError
from vitplast.figures_paper import cost, data_sets, design, engine, families, hour, markdown, variants
from vitplast.images.presence import LAYOUTS
from vitplast.models import load_model
from vitplast.runs import load_profile

PROFILE = """
description: two variants
gpu: true
lists: {cut: [0], sets: [digits, mnist5k], rates: [0.1, 0.2]}
defaults:
  every: {model: vit_micro_patch14_56, weights: random, img_size: 28}
  finetune: {steps: 4, batch_size: 8, warmup: 1}
variants:
  good: {}
  bad:
    lists: {cut: [4], sets: [digits]}
    defaults:
      finetune: {last_batch: dropped}
units:
  - {kind: finetune, experiment: main, dataset: digits, components: [LN1, MHA], lrs: $rates}
  - {kind: plasticity, experiment: rates, source: photos, targets: [digits], drop_last: $cut}
  - {kind: bounds, experiment: bounds, source: photos, targets: {each: $sets}}
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "small.yaml"
    path.write_text(PROFILE)
    return load_profile(path), load_profile(f"{path}@bad")


def test_counts_of_a_small_profile(both):
    table = design.counts(both[0]).set_index("experiment")
    assert table.loc["main", ["models", "sets", "configurations", "rates", "results", "files"]].tolist() == [
        1,
        1,
        2,
        2,
        4,
        6,
    ]
    assert table.loc["bounds", ["sets", "results", "files"]].tolist() == [2, 2, 4]
    assert design.gathered(both[0]) == {"finetune": 4, "plasticity": 1, "bounds": 2}
    (row,) = design.training_of(both[0]).to_dict("records")
    assert (row["steps"], row["batch"], row["runs"], row["rates"]) == (4, 8, 4, "0.1, 0.2")


def test_what_differs_between_variants(both):
    table = variants.differences(*both)
    found = {
        (r["experiment"], r["option"]): (r["small"], r["small@bad"], r["results"], r["of"], r["erratum"])
        for r in table.to_dict("records")
    }
    assert found == {
        ("main", "last_batch"): ("used", "dropped", 4, 4, "B3"),
        ("rates", "drop_last"): ("0", "4", 1, 1, "A6"),
        ("bounds", "targets"): ("2 sets", "digits", 1, 2, "A4"),
    }
    short = variants.by_option(table).set_index("option")
    assert short.loc["targets", "in"] == "bounds (1 of 2)"
    assert short.loc["last_batch", "in"] == "main"
    assert variants.differences(both[0], both[0]).empty
    with pytest.raises(UnknownNameError, match="stepps"):
        variants.erratum_of("finetune", "stepps")


def test_every_difference_of_the_paper_is_sorted():
    table = variants.differences(load_profile("paper"), load_profile("paper@as-published"))
    per = {(r["experiment"], r["option"]): r["results"] for r in table.to_dict("records") if r["option"] != "drop_last"}
    assert per["main", "normalization"] == 924
    assert per["main", "validate_every"] == 420, "five corruptions of 84 runs each"
    assert per["low_data", "per_class"] == 6
    assert per["bounds", "targets"] == 30
    assert set(table["erratum"]) == {"A4", "A5", "A6", "A7", "B1", "B3", "B9", "C", ""}


def test_layouts_and_checks_of_sets():
    names = ["cifar10_c:snow:5", "cifar10_c:contrast:5", "pets", "imagenet_val", "ag_news"]
    assert data_sets.counts(names)["set"].tolist() == ["`cifar10_c`", "`pets`", "`imagenet_val`"]
    table = data_sets.checks(names).set_index("set")
    assert table.loc["`imagenet_val`", "fetched"].startswith("never")
    assert table.loc["`cifar10_c`", "files"] == "MD5 of 20"
    text = data_sets.tree(data_sets.bases(names), "DATA").splitlines()
    assert text[0] == "DATA/"
    assert [line.split()[0] for line in text[1:]] == sorted(
        ["ag_news/test.csv", *(f"{LAYOUTS[n].path}/" for n in ("cifar10_c", "pets", "imagenet_val"))]
    )


def test_markdown_cells():
    assert [markdown.cell(v) for v in (1234, 0.12345, "a|b", None, float("nan"), 250.4, True)] == [
        "1,234", "0.123", "a/b", "–", "–", "250", "True",
    ]  # fmt: skip


def test_cost_pictures_show_the_plan(both):
    plans = {name: plan(both[0].units, gpu=name) for name in ("H100", "40GB")}
    ax = cost.gpu_hours(plans)
    assert [line.get_label() for line in ax.lines[:2]] == ["H100", "40GB"]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), plans["H100"].table["GPU hours"])
    full, half = (cost.hours_at(plans["H100"], share) for share in (1.0, 0.5))
    start = 20 * len(plans["H100"].costs) / 3600
    assert half - start == pytest.approx(2 * (full - start))
    with pytest.raises(InputError, match="utilisation"):
        cost.hours_at(plans["H100"], 0.0)
    with pytest.raises(InputError, match="empty"):
        cost.utilisation(plans, [])
    assert len(cost.utilisation(plans, [0.1, 0.25, 0.5]).lines) == 4
    assert cost.micro_batches(plans)["H100"].tolist()[0].startswith("8 × 1")


def test_differences_and_decoding_are_where_the_tables_say():
    table = subset.argument(subset.Subset(8, 1, 5000))
    ax = hour.differences(table)
    assert [line.get_xdata()[0] for line in ax.lines[: len(table)]] == pytest.approx(table["difference"].tolist())
    speeds = pd.DataFrame(
        {"pictures": ["a"], "work": ["b"], "images_per_second": [10.0], "slowest": [8.0], "fastest": [11.0]}
    )
    ax = cost.decoding(speeds, {"a GPU": 100.0})
    assert ax.lines[-1].get_xdata()[0] == 100.0


def test_slots_are_shared_and_a_bad_job_is_told(tmp_path):
    table = engine.slots_trial(tmp_path, ["7"], 2, 0.2)
    assert table["gpu"].tolist() == ["7", "7"]
    assert engine.most_at_once(table) == {"7": 1}
    assert table["start"][1] >= table["end"][0]
    assert len(engine.timeline(table).patches) == 2
    with pytest.raises(InputError, match="jobs"):
        engine.slots_trial(tmp_path, ["7"], 0, 0.1)
    with pytest.raises(VitplastError, match="exit code"):
        engine.slots_trial(tmp_path, [], 1, 0.1)


def test_families_of_tiny_models():
    table = families.anatomy(["vit_small_patch16_dinov3.lvd1689m", "vit_base_patch16_224.mae"])
    assert table["family"].tolist() == ["eva", "plain"]
    assert table["blocks"].tolist() == [12, 12]
    assert table["width"].tolist() == [384, 768]
    assert table["beside the five"].tolist() == ["LayerScale", ""]
    tiny = load_model("tiny:vit_small_patch16_dinov3.lvd1689m", weights="random", img_size=32)
    found = families.tightness(tiny, *torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert 0 < float(found.ratio.max()) <= 1
    assert list(families.reasons(found)) == ["MHA"]
    assert len(families.closeness({"tiny": found})) == 2
