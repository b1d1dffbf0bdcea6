"""Options of finetuning beside the paper's protocol: LoRA, rescaled models, few images a class, plasticity."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
import timm
import torch
import xarray as xr
from test_finetune import SPLITS, prepare, run, same
from torch import nn

from vitplast import results, units
from vitplast.components import COMPONENTS, groups, select
from vitplast.errors import InputError, IntegrityError, LayoutError, MissingDependencyError, UnknownNameError
from vitplast.finetune import Origin, Recipe
from vitplast.models import load_model
from vitplast.parameters import added_defaults, make
from vitplast.rescale import rescaled
from vitplast.rescalings import canonical, parse_rescaling
from vitplast.results.gathering import gather, singles
from vitplast.training import lora, material
from vitplast.training.low_data import first_of_each_class
from vitplast.training.origin import bit_equal, tensors
from vitplast.training.stages import Stages

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="LoRA is optional: pip install 'vitplast[lora]'"
)
SMALL = {
    "model": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "device": "cpu", "dataset": "digits",
    "components": "LN1", "lrs": [0.1], "steps": 3, "warmup": 1, "batch_size": 8, "train_images": 0,
    "validation_images": 20, "test_images": 20, "precision": "float32",
}  # fmt: skip


def single(**values):
    """Key and parameters of one small run."""
    return next(iter(make("finetune", {**SMALL, **values}).runs().items()))


# LoRA


@needs_peft
@pytest.mark.parametrize("components", ["MHA", "FC1", "MHA+FC2"])
def test_lora_trains_its_factors_and_gives_the_model_back(tiny_vit, components):
    origin = Origin(tiny_vit)
    kinds, names = [type(m) for m in tiny_vit.modules()], [n for n, _ in tensors(tiny_vit)]
    own = set(vars(tiny_vit))
    before = torch.get_rng_state()
    ds = run(origin, components=components, lora_rank=4, head_init="default")
    assert torch.equal(before, torch.get_rng_state())
    assert [type(m) for m in tiny_vit.modules()] == kinds
    assert [n for n, _ in tensors(tiny_vit)] == names
    assert set(vars(tiny_vit)) == own
    changed = {n for n, t in tensors(tiny_vit) if not bit_equal(t, origin.state[n])}
    assert changed == {n for g in ("norm", "head") for n in groups(tiny_vit)[g]}
    sides = {"MHA": [(32, 96), (32, 32)], "FC1": [(32, 128)], "FC2": [(128, 32)]}
    wanted = 2 * sum(4 * (a + b) for c in components.split("+") for a, b in sides[c])
    assert int(ds.component_parameters) == wanted
    assert int(ds.trainable_parameters) == wanted + 2 * 32 + 33 * 10
    assert (ds.lora_rank, ds.lora_alpha, ds.unmoved_groups, ds.frozen_check) == (4, 16.0, "none", "bit-equal")
    assert ds.adapter.startswith("LoRA of peft")
    assert (ds.gradient_norm > 0).all()
    np.testing.assert_allclose(ds.gradient_norm_total, np.hypot(ds.gradient_norm, ds.gradient_norm_head), rtol=1e-6)


@needs_peft
def test_lora_is_deterministic_and_leaves_other_runs_alone(tiny_vit):
    origin = Origin(tiny_vit)
    plain = run(origin)
    first, second = (run(origin, lora_rank=2) for _ in range(2))
    assert same(first, second)
    assert not np.array_equal(first.train_loss, run(origin, lora_rank=2, seed=1).train_loss)
    assert not np.array_equal(first.train_loss, run(origin, lora_rank=2, lora_alpha=64.0).train_loss)
    assert same(plain, run(origin))
    assert plain.adapter == "none"


@needs_peft
def test_lora_starts_at_the_models_function_and_merges_into_it(tiny_vit):
    x = prepare(SPLITS[0][0][:3])
    wanted, recipe = tiny_vit(x), Recipe(lora_rank=2, lora_alpha=6.0)
    with lora.adapted(tiny_vit, select(tiny_vit, "MHA"), recipe) as named:
        assert torch.equal(Stages(tiny_vit)(x), Stages(lora.merged(tiny_vit))(x))
        torch.testing.assert_close(tiny_vit(x), wanted, rtol=0, atol=1e-6)
        assert len(named["MHA"]) == 2 * 2 * 2
        assert {n for n, p in tiny_vit.named_parameters() if p.requires_grad} == {n for g in named.values() for n in g}
        parameters = dict(tiny_vit.named_parameters())
        base = tiny_vit.blocks[1].attn.proj.base_layer.weight.detach().clone()
        with torch.no_grad():
            for name in named["MHA"]:
                parameters[name].normal_()
        a, b = (parameters[f"blocks.1.attn.proj.lora_{k}.default.weight"].detach() for k in "AB")
        merged = lora.merged(tiny_vit)
        torch.testing.assert_close(merged.blocks[1].attn.proj.weight, base + 3.0 * b @ a)
        torch.testing.assert_close(merged(x), tiny_vit(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(merged(x), wanted, atol=1e-2)
    assert torch.equal(tiny_vit(x), wanted)


@needs_peft
def test_lora_is_taken_out_after_an_interrupt_and_a_divergence(tiny_vit):
    origin = Origin(tiny_vit)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(origin, lora_rank=2, progress=stop)
    assert not any(".lora_" in n for n, _ in tensors(tiny_vit))
    ds = run(origin, lora_rank=2, lr=1e30, steps=6, evaluations=1)
    assert int(ds.diverged_step) >= 0
    assert all(bit_equal(t, origin.state[n]) for n, t in tensors(tiny_vit))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"components": "LN1", "lora_rank": 8},
            "lora_rank=8 needs components of linear layers, MHA, FC1, FC2.*got LN1",
        ),
        ({"components": "MHA+LN2", "lora_rank": 8}, r"got MHA\+LN2"),
        ({"components": "all", "lora_rank": 8}, "got all"),
        ({"components": "MHA", "lora_rank": 8, "lora_alpha": 0.0}, "lora_alpha must be above 0"),
        ({"lora_rank": -1}, "lora_rank must be"),
    ],
)
def test_lora_that_is_refused(values, words):
    with pytest.raises(InputError, match=words):
        Recipe(**values)
    with pytest.raises(InputError, match=words):
        single(**values)


@needs_peft
def test_a_rank_that_is_too_large_is_refused_before_any_step(tiny_vit):
    with pytest.raises(InputError, match=r"lora_rank=33 is more than blocks\.0\.attn\.qkv \(96 x 32\)"):
        run(tiny_vit, lora_rank=33)
    assert not any(hasattr(m, "base_layer") for m in tiny_vit.modules())


def test_missing_peft_is_told_before_any_work(tiny_vit, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for work in (lambda: run(tiny_vit, lora_rank=2), lambda: units.load(single(components="MHA", lora_rank=2)[1])):
        with pytest.raises(MissingDependencyError, match="pip install"):
            work()


# Rescaling


def test_rescalings_by_name():
    assert parse_rescaling("LN1/qkv:0.25") == ("LN1/qkv", 0.25)
    assert canonical(" LN2/FC1:4.0 ") == "LN2/FC1:4"
    assert parse_rescaling("LN2/FC1:1") is None
    with pytest.raises(UnknownNameError, match="Did you mean 'LN2/FC1'"):
        parse_rescaling("LN2/FC:4")
    for text in ("LN2/FC1", "LN2/FC1:x", "LN2/FC1:0", "LN2/FC1:-4", "LN2/FC1:nan", "LN2/FC1:1e9"):
        with pytest.raises(InputError, match="needs a factor from 1e-06 to 1e"):
            parse_rescaling(text)


@pytest.mark.parametrize(("text", "close"), [("LN2/FC1:4", 0.0), ("LN1/qkv:0.25", 0.0), ("LN2/FC1:3", 1e-6)])
def test_a_rescaled_model_is_the_same_function_and_says_so(text, close):
    loaded = load_model("vit_tiny_patch16_224", weights="random", img_size=32, num_classes=10)
    start = {n: t.clone() for n, t in tensors(loaded.model)}
    other = rescaled(loaded, text)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(other.model(x), loaded.model(x), rtol=1e-4, atol=1e-5)
    assert other.rescale_difference <= close
    changed = {n for n, t in tensors(other.model) if not bit_equal(t, start[n])}
    norm, linear = {"LN2/FC1": ("norm2", "mlp.fc1"), "LN1/qkv": ("norm1", "attn.qkv")}[text.split(":")[0]]
    weights = {f"blocks.{i}.{part}.weight" for i in range(12) for part in (norm, linear)}
    assert weights <= changed <= weights | {f"blocks.{i}.{norm}.bias" for i in range(12)}
    assert all(bit_equal(t, start[n]) for n, t in tensors(loaded.model))
    assert other.provenance == {**loaded.provenance, "rescale": text, "rescale_difference": other.rescale_difference}
    assert rescaled(loaded, "") is loaded


def test_a_model_that_would_not_keep_its_function_is_refused():
    loaded = load_model("vit_tiny_patch16_224", weights="random", img_size=32)
    loaded.model.blocks[1].norm2 = nn.Identity()
    with pytest.raises(LayoutError, match="does not keep the function of block 1"):
        rescaled(loaded, "LN2/FC1:4")


def test_finetuning_and_measurement_start_from_the_rescaled_model():
    base = {"model": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "device": "cpu"}
    pairs = {**base, "source": "digits", "targets": ["digits"], "pairs": 4, "conventions": ["common"]}
    rates = {}
    for text in ("", "LN2/FC1:4"):
        (p,) = make("plasticity", {**pairs, "rescale": text}).runs().values()
        rates[text] = units.compute("plasticity", p)
    (p,) = make("bounds", {k: v for k, v in pairs.items() if k != "conventions"} | {"rescale": "V/O:2"}).runs().values()
    assert units.load(p).provenance["rescale"] == "V/O:2"
    mean = {k: v.rate.mean("pair").sel(convention="common") for k, v in rates.items()}
    for component, factor in {"LN1": 1.0, "MHA": 1.0, "LN2": 4.0, "FC1": 0.25, "FC2": 1.0}.items():
        np.testing.assert_allclose(
            mean["LN2/FC1:4"].sel(component=component), factor * mean[""].sel(component=component), rtol=1e-5
        )
    assert rates["LN2/FC1:4"].attrs["rescale"] == "LN2/FC1:4"
    assert "rescale" not in rates[""].attrs
    runs = [single(rescale=text)[1] for text in ("", "LN1/qkv:4")]
    models = [units.load(r) for r in runs]
    found = [units.finetune_run(r, m, Origin(m.model)) for r, m in zip(runs, models, strict=True)]
    assert [f.attrs["rescale"] for f in found] == ["none", "LN1/qkv:4"]
    # The same loss at the start, a quarter of the gradient of the norm that counts four times.
    assert float(found[1].train_loss[0]) == pytest.approx(float(found[0].train_loss[0]), rel=1e-5)
    at = int(np.flatnonzero(found[0].gradient_norm > 0)[0])
    assert float(found[1].gradient_norm[at]) == pytest.approx(float(found[0].gradient_norm[at]) / 4, rel=1e-3)


# Few images


def test_first_of_each_class():
    labels = np.array([2, 0, 2, 1, 2, 0, 0, 1])
    for number, wanted in ((1, [0, 1, 3]), (2, [0, 1, 2, 3, 5, 7]), (9, list(range(8)))):
        assert first_of_each_class(labels, number, ("a", "b", "c")).tolist() == wanted
    with pytest.raises(InputError, match=r"per_class=2 needs a training image of every class.*: d$"):
        first_of_each_class(labels, 2, ("a", "b", "c", "d"))
    with pytest.raises(InputError, match="at least 1"):
        first_of_each_class(labels, 0, ("a", "b", "c"))


def test_per_class_takes_the_first_of_the_split():
    run_ = single(per_class=3, seeds=[7])[1]
    origin = Origin(nn.Identity())
    train, validation, test = material.splits_of(run_, 32, origin)
    whole = units.open_set(run_, "digits", 32).train
    assert train.ids == [whole.ids[i] for i in first_of_each_class(whole.labels, 3, range(10))]
    assert material.counts_in_words(train) == " ".join(["3"] * 10)
    assert (len(validation), len(test)) == (20, 20)
    assert material.splits_of(run_, 32, origin)[0] is train
    assert material.splits_of(run_ | {"seed": 8}, 32, origin)[0].ids != train.ids


# Plasticity before and after


def test_plasticity_before_and_after_changes_nothing_else():
    key, plain = single(test_images=30, components="FC1")
    other, asked = single(test_images=30, components="FC1", plasticity_pairs=4)
    assert key != other
    loaded = units.load(plain)
    origin = Origin(loaded.model)
    without, with_, again = (units.finetune_run(r, loaded, origin) for r in (plain, asked, asked))
    names = ["plasticity_before", "plasticity_after"]
    assert not set(names) & set(without.data_vars)
    for found in (with_, again):
        rest = found.drop_vars([*names, "convention", "layer", "component"])
        assert same(without, rest.assign_attrs(plasticity_pairs=0))
    assert same(with_, again)
    before, after = (with_[n] for n in names)
    assert before.dims == ("convention", "layer", "component")
    assert before.component.values.tolist() == list(COMPONENTS)
    common = (after - before).sel(convention="common")
    assert float(abs(common.sel(component=["LN1", "MHA", "LN2", "FC2"])).max()) == 0
    assert (abs(common.sel(component="FC1")) > 0).all()
    (p,) = make("plasticity", {k: SMALL[k] for k in ("model", "weights", "img_size", "device")} | {
        "source": "photos", "targets": ["digits"], "pairs": 4}).runs().values()  # fmt: skip
    measured = units.plasticity_run(p, units.load(p)).rate.mean("pair").transpose(*before.dims)
    np.testing.assert_allclose(before, measured, rtol=1e-4)


@needs_peft
def test_plasticity_after_lora_is_that_of_the_merged_weights(tiny_vit):
    seen = {}

    def look(model, trained):
        seen[trained] = [type(m) for m in model.modules()], model.blocks[0].attn.qkv.weight.detach().clone()
        return xr.DataArray(np.ones((2, 2, 5)), dims=("convention", "layer", "component"), coords={
            "convention": ["common", "in_situ"], "layer": [0, 1], "component": list(COMPONENTS)})  # fmt: skip

    from vitplast.finetune import finetune

    recipe = Recipe(lora_rank=2, steps=4, batch_size=8, warmup=1, precision="float32", lr=0.05)
    ds = finetune(tiny_vit, *SPLITS, recipe, prepare=prepare, look=look)
    assert seen[True][0] == seen[False][0]
    assert not torch.equal(seen[True][1], seen[False][1])
    assert torch.equal(seen[False][1], tiny_vit.blocks[0].attn.qkv.weight)
    assert (ds.plasticity_after == 1).all()
    recipe = Recipe(steps=6, batch_size=8, warmup=1, precision="float32", lr=1e30, components="all")
    assert finetune(tiny_vit, *SPLITS, recipe, prepare=prepare, look=look).plasticity_after.isnull().all()


# What is refused, what is kept


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rescale": "LN3:4"}, "unknown kind of rescaling 'LN3'"),
        ({"rescale": 4}, "rescale must be str"),
        ({"per_class": -1}, "per_class must be at least 0"),
        ({"per_class": 2, "train_images": 5}, "per_class=2 and train_images=5 exclude each other"),
        ({"plasticity_pairs": 1}, "plasticity_pairs must be 0 or at least 2"),
        ({"plasticity_pairs": 10**6}, "plasticity_pairs=1000000: 1000000 pairs"),
    ],
)
def test_options_are_checked_before_any_work(values, words):
    with pytest.raises(InputError, match=words):
        single(**values)


def test_defaults_leave_the_key_and_what_decides_nothing_does_not_split_it():
    key = single()[0]
    assert set(added_defaults("finetune")) >= {"lora_rank", "lora_alpha", "rescale", "per_class", "plasticity_pairs"}
    for values in ({"lora_alpha": 3.0}, {"rescale": "LN2/FC1:1"}, added_defaults("finetune")):
        assert single(**values)[0] == key
    assert single(rescale="LN2/FC1:4")[0] == single(rescale="LN2/FC1: 4.0")[0] != key
    mha = [
        single(components="MHA", lora_rank=r, lora_alpha=a)[0] for r, a in ((0, 1.0), (8, 16.0), (8, 8.0), (4, 16.0))
    ]
    assert len(set(mha)) == 4
    for kind in ("plasticity", "bounds"):
        one, two = (next(iter(make(kind, {"rescale": text}).runs())) for text in ("", "LN2/FC1:4"))
        assert one == next(iter(make(kind, {}).runs())) != two


def test_results_with_and_without_the_options_are_gathered_together(tmp_path):
    loaded = units.load(single()[1])
    origin, written = Origin(loaded.model), {}
    for i, values in enumerate(({"test_images": 30}, {"test_images": 30, "plasticity_pairs": 4})):
        key, run_ = single(**values)
        ds = units.finetune_run(run_, loaded, origin)
        if i == 0:  # a result from before there were such options
            run_ = {k: v for k, v in run_.items() if k not in added_defaults("finetune")}
            ds.attrs = {k: v for k, v in ds.attrs.items() if k not in results.SCHEMAS["finetune"].later}
        path = results.write(ds, tmp_path / f"{key}.nc", kind="finetune", run=run_)
        written[key] = results.read(path)
        assert written[key].attrs["run_key"] == key
    gathered = gather(tmp_path)["finetune"]
    at = dict(zip(gathered.run_key.values.tolist(), range(2), strict=True))
    old, new = (at[k] for k in written)
    assert gathered.plasticity_pairs.values[[old, new]].tolist() == [0, 4]
    assert set(gathered.lora_rank.values.tolist()) == {0}
    assert gathered.plasticity_after.isel(run=old).isnull().all()
    assert gathered.plasticity_after.isel(run=new).notnull().all()
    path = results.write_gathered(gathered, tmp_path / "all.nc") if hasattr(results, "write_gathered") else None
    ones = singles(gathered if path is None else results.read(path))
    for one in ones:
        own = written[one.attrs["run_key"]]
        assert set(one.variables) == set(own.variables)
        assert json.loads(one.attrs["params_json"]) == json.loads(own.attrs["params_json"])
    broken = gathered.copy(deep=True)
    broken["plasticity_after"][:] = 1.0
    with pytest.raises(IntegrityError, match="does not match its checksum"):
        singles(broken)


def test_timm_still_builds_blocks_as_lora_expects():
    names = [n for n, m in timm.create_model("vit_tiny_patch16_224").named_modules() if type(m) is nn.Linear]
    assert {"blocks.0.attn.qkv", "blocks.0.attn.proj", "blocks.0.mlp.fc1", "blocks.0.mlp.fc2"} <= set(names)
