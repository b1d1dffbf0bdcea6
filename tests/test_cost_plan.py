"""The cost plan: pairs, disk, GPUs, units, the table and its command, the one-hour subset, the committed comparison."""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch.utils import flop_counter

from vitplast.cli import main
from vitplast.components import COMPONENTS, CONFIGURATIONS
from vitplast.cost import check, disk, measuring
from vitplast.cost.devices import GPUS, RESERVED_GIB, UTILISATION, gpu_named
from vitplast.cost.flops import backward_flops, forward_flops, forward_parts, training_flops
from vitplast.cost.memory import GIB, activation_bytes
from vitplast.cost.plan import estimate, plan
from vitplast.cost.shapes import Shape
from vitplast.cost.subset import Subset, argument, chance, contrary_allowed, detectable, published_gaps
from vitplast.cost.throughput import (
    forward_images_per_second,
    plasticity_images_per_second,
    training_images_per_second,
)
from vitplast.cost.units import CPU_RATE, START_SECONDS, shape_of, split_sizes, unit_cost
from vitplast.errors import InputError, UnknownNameError
from vitplast.measure import rates_of_change
from vitplast.parameters import make
from vitplast.results import schema_of
from vitplast.runs import Unit, load_profile

ROOT = Path(__file__).parent.parent
VIT_BASE = Shape(768, 12, 12, 3072, 197, 1000, 768)
MICRO = {"model": "vit_micro_patch14_56", "weights": "random"}


def small(**options):
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
    return timm.models.vision_transformer.VisionTransformer(**{**sizes, **options}).eval()


# Measurements ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", ["common", "in_situ"])
def test_operations_of_a_pair_equal_those_counted(convention):
    model = small(num_classes=0)
    shape = Shape.of(model)
    for block in model.blocks:
        block.attn.fused_attn = convention == "common"
    x, y = torch.randn(2, 3, 32, 32), torch.randn(2, 3, 32, 32)
    with flop_counter.FlopCounterMode(display=False) as counter:
        rates_of_change(model, x, y, convention=convention, source_index=np.arange(2), target_index=np.arange(2))
    expected = 2 * measuring.pair_flops(replace(shape, last_tokens=0), [convention])
    if convention == "common":  # the Gram matrices once; the CPU's fused kernel is unknown to the counter
        expected += measuring.gram_flops(shape) - 2 * 2 * forward_parts(shape)["attention"]
    assert counter.get_total_flops() == expected
    with pytest.raises(UnknownNameError, match="in_situ"):
        measuring.pair_flops(shape, ["insitu"])


def test_disk_counts_the_arrays_of_the_schema():
    variables = schema_of("finetune").variables.values()
    assert sum(v.dims == ("step",) for v in variables) == disk.STEP_CURVES
    assert sum(v.dims == ("evaluation",) for v in variables) == disk.VALIDATION_CURVES
    pairs = [v for v in schema_of("plasticity").variables.values() if "pair" in v.dims and "layer" in v.dims]
    assert len(pairs) == disk.PAIR_ARRAYS
    run = {"pairs": 12_800, "conventions": ["common"]}
    assert disk.result_bytes("plasticity", run, VIT_BASE) > 12_800 * 61 * 4  # the authors' file of 61 float32 arrays
    assert disk.sets_gb(["pets", "mnist5k", "domainnet_sketch_official"]) == (3.3, 3.3, ["mnist5k"])


# GPUs -----------------------------------------------------------------------------------------------------------------


def test_gpus_by_name_and_by_memory():
    assert gpu_named("h100") is GPUS["H100"]
    assert gpu_named("40GB").memory_gib == 40
    assert gpu_named("40GB").bfloat16 == GPUS["A100-40GB"].bfloat16
    assert gpu_named("H200").budget_bytes == pytest.approx(141e9 - RESERVED_GIB * GIB, rel=1e-3)
    assert gpu_named("H100").rate("bfloat16") == pytest.approx(UTILISATION["bfloat16"] * 989e12)
    assert gpu_named("H100").rate("float32", 0.5) == pytest.approx(33.5e12)
    with pytest.raises(UnknownNameError, match=r"H100.*40GB"):
        gpu_named("H1000")
    for text in ("0GB", "5000GB"):
        with pytest.raises(InputError, match="between 1 and 1024"):
            gpu_named(text)
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            GPUS["H100"].rate("bfloat16", share)
    for gpu in GPUS.values():
        assert gpu.bfloat16 > gpu.float32 > 0
        assert gpu.source


def test_images_per_second_of_vit_base():
    gpu, shape = gpu_named("H100"), replace(VIT_BASE, classes=10)
    per_image = training_flops(shape, "all")
    assert per_image == pytest.approx(105e9, rel=0.03)  # three forward passes of 35 GFLOP
    assert training_images_per_second(shape, "all", gpu, utilisation=0.4) == pytest.approx(0.4 * 989e12 / per_image)
    assert training_images_per_second(shape, "LN1", gpu) > training_images_per_second(shape, "all", gpu)
    assert forward_images_per_second(shape, gpu, utilisation=1.0) == pytest.approx(989e12 / forward_flops(shape))
    both, one = (plasticity_images_per_second(shape, gpu, conventions=c) for c in (("common", "in_situ"), ("common",)))
    assert both < one


# The plan -------------------------------------------------------------------------------------------------------------


def finetune_unit(**values):
    options = {"dataset": "digits", "img_size": 56, "precision": "float32", "lrs": [0.1, 0.3], **MICRO, **values}
    return Unit("finetune", make("finetune", options))


def test_a_unit_of_finetuning_costs_what_its_images_cost():
    unit = finetune_unit(components="MHA", steps=40, batch_size=16, evaluations=2, train_images=100)
    cost, run = unit_cost(unit, GPUS["H100"]), next(iter(unit.runs.values()))
    shape = shape_of(run, 10)
    assert split_sizes(run) == (100, 200, 359)  # 500 test images are asked for, digits has 359
    expected = 2 * (40 * 16 * training_flops(shape, "MHA") + (2 * 200 + 359) * forward_flops(shape))
    assert cost.flops == {"float32": expected}
    assert (cost.results, cost.images) == (2, 2 * (640 + 759))
    assert (cost.micro_batch, cost.parts, cost.fits) == (16, 1, True)
    assert cost.gpu_seconds(GPUS["H100"]) == pytest.approx(START_SECONDS + expected / (0.6 * 67e12))
    head = unit_cost(finetune_unit(components="head", train_images=100), GPUS["H100"])
    assert head.flops == {"float32": (100 + 200 + 359) * forward_flops(shape)}  # encoded once for both rates


def test_micro_batches_follow_from_the_memory():
    values = {"model": "vit_base_patch16_224", "img_size": 224, "components": "all", "batch_size": 512, "steps": 10}
    unit = finetune_unit(**values)
    for name in ("8GB", "24GB", "A100-80GB"):
        gpu = gpu_named(name)
        cost = unit_cost(unit, gpu)
        assert cost.memory_bytes <= gpu.budget_bytes
        assert cost.micro_batch * cost.parts >= 512
    assert unit_cost(unit, gpu_named("A100-80GB")).parts == 1
    assert unit_cost(unit, gpu_named("8GB")).parts > 8
    assert unit_cost(finetune_unit(**values, accumulation=8), gpu_named("A100-80GB")).micro_batch == 64
    tight = unit_cost(unit, gpu_named("3GB"))
    assert not tight.fits
    assert "needs" in tight.why
    assert unit_cost(finetune_unit(**{**values, "precision": "auto"}), GPUS["T4"]).flops.keys() == {"float32"}
    assert unit_cost(finetune_unit(**{**values, "precision": "auto"}), GPUS["L4"]).flops.keys() == {"bfloat16"}


def test_the_table_adds_up():
    units = [
        finetune_unit(components=["LN1"][0]),
        finetune_unit(components="FC1", lora_rank=2),
        Unit("plasticity", make("plasticity", {**MICRO, "source": "digits", "targets": ["mnist5k"], "pairs": 32})),
        Unit("bounds", make("bounds", {**MICRO, "source": "digits", "targets": ["mnist5k"], "pairs": 32})),
        Unit("probe", make("probe", {**MICRO, "dataset": "digits"})),
        Unit("depth", make("depth", {**MICRO, "dataset": "digits"})),
        Unit("landscape", make("landscape", {**MICRO, "dataset": "digits"})),
        Unit("search", make("search", {})),
    ]
    found = plan(units, gpu="L4")
    table = found.table.set_index("kind")
    whole = table.loc["all"]
    assert whole["units"] == 8
    for column in ("units", "results", "GPU hours", "CPU hours", "disk GB"):
        assert table.drop("all")[column].sum() == pytest.approx(whole[column], abs=0.01)
    assert whole["GiB"] == table["GiB"].max()
    assert found.hours_with(1) == pytest.approx(whole["GPU hours"] + whole["CPU hours"], abs=0.01)
    longest = max(found.seconds(i) for i in range(8)) / 3600
    assert max(longest, found.hours_with(1) / 3) <= found.hours_with(3) + 1e-12 < found.hours_with(1)
    assert found.hours_with(100) == pytest.approx(longest)
    with pytest.raises(InputError, match="gpus"):
        found.hours_with(0)
    with pytest.raises(InputError, match="no units"):
        estimate([])
    half = estimate(units[:2], gpu="L4", utilisation=0.3)
    assert float(half["GPU hours"].iloc[-1]) >= 2 * START_SECONDS / 3600 - 1e-3
    depth = unit_cost(units[5], GPUS["L4"])
    assert depth.cpu_seconds == depth.cpu_flops / CPU_RATE > 0


def test_the_plan_of_two_thousand_units_takes_seconds():
    one = finetune_unit(components="MHA")
    unit_cost(one, GPUS["H100"])  # imports, and the model's outline
    rates = [[round(0.001 * i, 6)] for i in range(1, 1001)]
    units = [finetune_unit(components=c, lrs=lr) for c in ("MHA", "LN1") for lr in rates]
    start = time.process_time()
    estimate(units)
    assert time.process_time() - start < 5


# Command line, the hour, committed numbers ----------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_the_command_prints_rows_and_a_summary(capsys):
    code, out, err = run(capsys, "cost", "--profile", "quick", "--gpu", "24GB", "--gpus", "2")
    assert code == 0
    assert "GPU hours" in out
    assert "hours with 2 x 24GB" in err
    code, out, _ = run(capsys, "cost", "--profile", "quick", "--json", "--utilisation", "0.1")
    found = json.loads(out)
    assert code == 0
    assert found["rows"][-1]["units"] == len(load_profile("quick").units)
    assert found["summary"]["utilisation"]["bfloat16"] == 0.1


def test_the_command_refuses_before_it_works(capsys):
    for options in (["--gpu", "H1000"], ["--utilisation", "2"], ["--profile", "papr"], ["--gpus", "0"]):
        code, out, err = run(capsys, "cost", *options)
        assert (code, out) == (2, "")
        assert err


def test_the_hour_takes_an_hour_and_says_what_it_decides():
    hour = load_profile("paper_hour")
    found = plan(hour.units, gpu="H100")
    assert 0.5 < found.hours_with(1) <= 1.0
    counts = found.table.set_index("kind")["results"]
    assert (counts["finetune"], counts["plasticity"], counts["probe"]) == (160, 8, 8)
    sets = {u.parameters.dataset for u in hour.units if u.kind == "finetune"}
    from vitplast.analysis.clusters import clusters

    assert len(clusters(sorted(sets))) == 8
    assert set(COMPONENTS) == {u.parameters.components for u in hour.units if u.kind == "finetune"}
    # the numbers in its comments
    table = argument(Subset(8, 1, 5000)).set_index("other")
    assert [round(10 * table.loc[c, "chance"]) for c in ("LN1", "LN2")] == [4, 3]
    assert [round(table.loc[c, "detectable"], 1) for c in ("LN1", "LN2", "FC1", "FC2")] == [2.0, 2.4, 0.8, 0.8]
    assert [round(table.loc[c, "difference"], 1) for c in ("FC1", "FC2")] == [0.1, 0.3]
    assert [round(table.loc[c, "between"], 1) for c in ("LN1", "LN2")] == [1.4, 1.7]
    assert 10_000 * 512 / (320 * 128) == 125
    text = " ".join(line.strip("# ") for line in hour.text.splitlines() if line.startswith("#"))
    for words in ("a chance of 4 in 10 and 3 in 10", "of 2.0 and 2.4 points", "published 0.1 and 0.3 points apart",
                  "1 image in 125", "by 1.4 to 1.7 points (LN1, LN2)", "less than the 0.8 that it finds"):  # fmt: skip
        assert words in text


def test_what_signed_ranks_can_decide():
    assert [contrary_allowed(n) for n in (6, 7, 8)] == [-1, 0, 1]
    assert contrary_allowed(6, comparisons=2) == 0
    assert contrary_allowed(4, comparisons=1) == -1
    assert chance(0.0, 1.0, 8) == pytest.approx(0.05 / 4)
    assert chance(1.0, 1.0, 8) < chance(1.0, 1.0, 12) < chance(2.0, 1.0, 12)
    assert chance(detectable(1.3, 9), 1.3, 9) == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(InputError, match="two clusters"):
        chance(1.0, 1.0, 1)
    with pytest.raises(InputError, match="seeds"):
        Subset(8, 0, 100)


def test_published_gaps_by_cluster():
    found = published_gaps()
    assert list(found["cluster"].values) == ["Cifar10", "Cifar100", "Clipart", "Sketch", "Flowers102", "Pet"]
    assert 100 * float(found["gap"].sel(cluster="Pet", other="LN1")) == pytest.approx(-0.09)
    # six sets in the first cluster: differences 0.24, 0.2, 0.42, 1.47, 0.32, 0.33 of MHA from LN1
    assert 100 * float(found["gap"].sel(cluster="Cifar10", other="LN1")) == pytest.approx(2.98 / 6)


def test_the_committed_comparison_is_that_of_these_formulas():
    with (ROOT / "data" / "cost_check.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(check.COLUMNS)
    assert len(rows) == len(check.MODELS) * (len(CONFIGURATIONS) + len(check.LORA)) * 4
    for row in rows:
        shape = Shape.named(row["model"], int(row["img_size"]), classes=10)
        components, rank = row["configuration"], int(row["lora_rank"])
        fused = row["attention"] == "fused"
        kept = activation_bytes(
            shape, components=components, images=int(row["images"]), precision=row["precision"],
            fused_attention=fused, lora_rank=rank,
        )  # fmt: skip
        assert int(row["kept_formula"]) == kept
        assert kept == pytest.approx(int(row["kept_measured"]), rel=0.05)
        assert int(row["forward_formula"]) == forward_flops(shape, rank, components)
        assert int(row["backward_formula"]) == backward_flops(shape, components, lora_rank=rank, fused_attention=fused)
        if not fused:
            assert row["forward_measured"] == row["forward_formula"]
            assert row["backward_measured"] == row["backward_formula"]
