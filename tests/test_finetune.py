"""Finetuning: what trains, what stays, what is counted, what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import vitplast.finetune as module
from vitplast.components import CONFIGURATIONS, groups, select
from vitplast.errors import HypothesisError, InputError, PixelError, UnknownNameError, VitplastError
from vitplast.finetune import Origin, Recipe, finetune
from vitplast.parameters import make
from vitplast.results import SCHEMAS
from vitplast.training import precision as precisions
from vitplast.training.batches import Images, RandomCrop, generator, order
from vitplast.training.evaluate import evaluate
from vitplast.training.loop import History
from vitplast.training.origin import bit_equal, check_trained, initialise_head, tensors
from vitplast.training.precision import resolve_precision
from vitplast.training.recipe import multiplier
from vitplast.training.stages import Stages
from vitplast.training.step import Stepper

CPU = torch.device("cpu")


def prepare(images):
    return (images.float() / 255 - 0.5) / 0.5


def pictures(n: int, seed: int = 0, classes: int = 3):
    """Noise whose channel `label` is brighter: uint8 (n, 3, 32, 32), every class present."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    images = torch.randint(0, 120, (n, 3, 32, 32), generator=g)
    images[torch.arange(n), labels] += 100
    return images.to(torch.uint8), labels


SPLITS = pictures(24, 1), pictures(12, 2), pictures(15, 3)


def run(model, *, splits=SPLITS, progress=None, **changes):
    values = {"steps": 4, "batch_size": 8, "warmup": 1, "evaluations": 2, "precision": "float32", "lr": 0.05}
    return finetune(model, *splits, Recipe(**{**values, **changes}), prepare=prepare, progress=progress)


def same(a, b) -> bool:
    """Equal to the bit, but for what reads a clock."""
    timing = [name for name, v in SCHEMAS["finetune"].variables.items() if v.timing]
    return a.drop_vars(timing).identical(b.drop_vars(timing))


# What trains and what stays


@pytest.mark.parametrize("components", [*CONFIGURATIONS, "MHA+FC1", "norm"])
def test_frozen_is_bit_equal_and_trained_changes(tiny_vit, components):
    start = {name: t.clone() for name, t in tensors(tiny_vit)}
    ds = run(tiny_vit, components=components, weight_decay=0.1)
    named = {"head": [], "all": list(groups(tiny_vit))}.get(components, components.split("+"))
    trained = {name for g in {*named, "norm", "head"} for name in groups(tiny_vit)[g]}
    changed = {name for name, t in tensors(tiny_vit) if not bit_equal(t, start[name])}
    assert changed == trained
    parameters = dict(tiny_vit.named_parameters())
    assert int(ds.trainable_parameters) == sum(parameters[n].numel() for n in trained)
    assert ds.attrs["frozen_check"] == "bit-equal"
    assert ds.attrs["unmoved_groups"] == "none"


def test_head_and_norm_can_stay_frozen(tiny_vit):
    start = {name: t.clone() for name, t in tensors(tiny_vit)}
    ds = run(tiny_vit, components="FC1", train_head=False, train_norm=False)
    changed = {name for name, t in tensors(tiny_vit) if not bit_equal(t, start[name])}
    assert changed == set(groups(tiny_vit)["FC1"])
    assert np.isnan(ds.gradient_norm_head).all()
    np.testing.assert_array_equal(ds.gradient_norm, ds.gradient_norm_total)
    assert int(ds.component_parameters) == int(ds.trainable_parameters)


def test_parameter_that_drifts_is_found(tiny_vit):
    drift = lambda module, args: module.weight.data.add_(1e-6)  # noqa: E731
    tiny_vit.blocks[1].norm2.register_forward_pre_hook(drift)
    with pytest.raises(VitplastError, match=r"frozen tensors changed.*blocks\.1\.norm2\.weight"):
        run(tiny_vit, components="MHA")


def test_buffer_that_drifts_is_found(tiny_vit):
    tiny_vit.blocks[0].register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
    tiny_vit.blocks[0].register_forward_pre_hook(lambda module, args: module.seen.add_(1) and None)
    with pytest.raises(VitplastError, match=r"blocks\.0\.seen"):
        run(tiny_vit, components="MHA")


def test_tied_weights_are_found(tiny_vit):
    tiny_vit.blocks[1].norm1.weight = nn.Parameter(tiny_vit.blocks[0].norm2.weight.data)
    with pytest.raises(VitplastError, match=r"blocks\.1\.norm1\.weight"):
        run(tiny_vit, components="LN2")


def test_batch_norm_statistics_stay(tiny_vit):
    tiny_vit.norm_pre = _Statistics()
    tiny_vit.train()
    run(tiny_vit, components="MHA")
    assert int(tiny_vit.norm_pre.norm.num_batches_tracked) == 0
    tiny_vit.train()(prepare(IMAGES))
    assert int(tiny_vit.norm_pre.norm.num_batches_tracked) == 1


class _Statistics(nn.Module):
    """Batch norm over all tokens and features."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1, affine=False)

    def forward(self, x):
        return self.norm(x.unsqueeze(1)).squeeze(1)


def test_update_that_does_nothing_is_found(tiny_vit, monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)
    with pytest.raises(VitplastError, match="should train but did not change"):
        run(tiny_vit, components="MHA")


def test_group_without_gradient_is_found(tiny_vit):
    start = dict(tensors(tiny_vit))
    with pytest.raises(VitplastError, match="LN1 should train but never received a gradient"):
        check_trained(tiny_vit, start, {"LN1": ["blocks.0.norm1.weight"]}, History())


def test_group_with_zero_gradients_is_found(tiny_vit):
    for block in tiny_vit.blocks:
        for parameter in block.attn.parameters():
            parameter.register_hook(lambda gradient: gradient * 0)
    # Weight decay moves it all the same.
    with pytest.raises(VitplastError, match="MHA should train but no step gave it a gradient that is finite and not"):
        run(tiny_vit, components="MHA", weight_decay=0.1)
    assert run(tiny_vit, components="LN2").attrs["unmoved_groups"] == "none"


def test_divergence_is_no_missing_gradient(tiny_vit):
    for parameter in tiny_vit.blocks.parameters():
        parameter.register_hook(lambda gradient: gradient * 0)
    ds = run(tiny_vit, components="MHA", lr=1e30, steps=6, evaluations=1)
    assert int(ds.diverged_step) > 0
    assert ds.attrs["trained_check"] == "diverged, not checked"


def test_rate_zero_is_told(tiny_vit):
    ds = run(tiny_vit, components="MHA", lr=0.0)
    assert ds.attrs["unmoved_groups"] == "MHA norm head"
    assert (ds.learning_rate == 0).all()
    assert int(ds.diverged_step) == -1


def test_zero_head_hides_the_component_in_the_first_step(tiny_vit):
    ds = run(tiny_vit, components="MHA", head_init="zero", steps=1, warmup=0, evaluations=1)
    assert ds.attrs["unmoved_groups"] == "MHA norm"
    assert float(ds.gradient_norm[0]) == 0
    assert float(ds.train_loss[0]) == pytest.approx(math.log(10), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "unmoved"),
    [
        ({"steps": 2, "warmup": 1}, "MHA norm"),
        ({"steps": 2, "warmup": 1, "weight_decay": 0.1}, "MHA norm"),
        ({"steps": 2, "warmup": 0, "schedule": "constant"}, "none"),
        ({"steps": 3, "warmup": 1}, "none"),
        ({"lr": 0.0}, "MHA norm head"),
    ],
)
def test_zero_head_lets_gradients_through_once_it_moved(tiny_vit, changes, unmoved):
    ds = run(tiny_vit, head_init="zero", evaluations=1, **{"warmup": 1, **changes})
    assert ds.attrs["unmoved_groups"] == unmoved


def test_zero_head_that_moved_hides_nothing(tiny_vit):
    for parameter in tiny_vit.blocks.parameters():
        parameter.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(VitplastError, match="MHA should train but no step gave it a gradient"):
        run(tiny_vit, components="MHA", head_init="zero")


def test_zero_head_that_stays_is_refused(tiny_vit):
    with torch.no_grad():
        tiny_vit.head.weight.zero_()
    with pytest.raises(InputError, match="a zero head that does not train passes no gradient back"):
        run(tiny_vit, components="MHA", train_head=False)
    assert run(tiny_vit, components="head", train_head=False).attrs["unmoved_groups"] == "none"
    assert run(tiny_vit, components="FC1", head_init="default", train_head=False).attrs["unmoved_groups"] == "none"


def test_optimizer_holds_trained_parameters_only(tiny_vit):
    stepper = Stepper(tiny_vit, tiny_vit, select(tiny_vit, "LN1"), Recipe(components="LN1"))
    held = {id(p) for options in stepper.optimizer.param_groups for p in options["params"]}
    wanted = {n for g in ("LN1", "norm", "head") for n in groups(tiny_vit)[g]}
    assert held == {id(p) for n, p in tiny_vit.named_parameters() if n in wanted}


# Numbers


def test_follows_the_schema(tiny_vit):
    ds, table = run(tiny_vit), SCHEMAS["finetune"]
    known = table.coords | table.variables
    assert set(ds.variables) == {n for n, v in known.items() if v.required} | {"components", "lr", "seed"}
    for name, array in ds.variables.items():
        assert array.dims == known[name].dims, name
        assert (array.dtype.kind == "U" and known[name].dtype == "str") or str(array.dtype) == known[name].dtype, name
        assert array.attrs == {"units": known[name].units, "long_name": known[name].meaning}
    assert set(table.attrs) <= set(ds.attrs) <= set(table.attrs | table.later)
    assert all(isinstance(v, (str, int, float)) and not isinstance(v, bool) for v in ds.attrs.values())
    assert ds.evaluation.values.tolist() == [2, 4]
    assert ds.step.values.tolist() == [0, 1, 2, 3]
    assert [int(ds[n]) for n in ("n_train", "n_validation", "n_test")] == [24, 12, 15]
    total = np.hypot(ds.gradient_norm, ds.gradient_norm_head)
    np.testing.assert_allclose(ds.gradient_norm_total, total, rtol=1e-6)


@pytest.mark.parametrize("components", ["MHA", "head"])
@pytest.mark.parametrize("augment", ["none", "paper"])
def test_same_seed_same_bits(tiny_vit, components, augment):
    origin = Origin(tiny_vit)
    first = run(origin, components=components, augment=augment)
    weights = {n: t.clone() for n, t in tensors(tiny_vit)}
    torch.manual_seed(99)
    run(origin, components="all", seed=5)
    second = run(origin, components=components, augment=augment)
    assert same(first, second)
    assert all(bit_equal(t, weights[n]) for n, t in tensors(tiny_vit))
    assert not same(first, run(origin, components=components, augment=augment, seed=1).assign_coords(seed=first.seed))


def test_two_threads_agree(tiny_vit):
    origin = Origin(tiny_vit)
    one = run(origin)
    torch.set_num_threads(2)
    two = run(origin)
    torch.set_num_threads(1)
    np.testing.assert_allclose(one.train_loss, two.train_loss, rtol=1e-5)


def test_global_random_state_is_left_alone(tiny_vit):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    run(tiny_vit, augment="paper", head_init="default")
    assert torch.equal(before, torch.get_rng_state())


def test_learns(tiny_vit):
    ds = run(tiny_vit, components="all", steps=12, warmup=2, batch_size=12, lr=0.1, evaluations=1)
    assert float(ds.test_accuracy) == 1.0
    assert float(ds.train_loss[-1]) < 0.5 * float(ds.train_loss[0])


@pytest.mark.parametrize("pool", ["token", "avg", "map", "avg-fc"])
def test_stages_give_the_models_logits(pool):
    model = small(pool)
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    stages = Stages(model)
    assert stages.splits
    assert stages.pooled == (pool in ("token", "avg-fc"))
    torch.testing.assert_close(stages(x), model(x), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(stages(x), torch.zeros(5, 4), atol=1e-2)


def test_unknown_last_block_is_run_as_a_whole():
    model = small("token")
    model.blocks[-1].__class__ = type("Own", (type(model.blocks[-1]),), {})
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert not Stages(model).short_last
    torch.testing.assert_close(Stages(model)(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["token", "avg", "map", "avg-fc"])
def test_encoding_once_changes_nothing(pool, monkeypatch):
    images = [(i[:, :, :16, :16], y) for i, y in SPLITS]
    origin = Origin(small(pool))
    cached = run(origin, splits=images, components="head")
    monkeypatch.setattr(module, "FEATURE_BYTES", 0)
    plain = run(origin, splits=images, components="head")
    assert (cached.encoded_once, plain.encoded_once) == ("yes", "no")
    for name in ("train_loss", "gradient_norm", "gradient_norm_total", "validation_loss", "test_loss"):
        np.testing.assert_allclose(cached[name], plain[name], rtol=1e-5, err_msg=name)
    assert float(cached.test_accuracy) == float(plain.test_accuracy)


def test_encoding_is_kept_for_the_next_rate(tiny_vit, monkeypatch):
    origin, calls, encode = Origin(tiny_vit), [], Stages.encode
    monkeypatch.setattr(Stages, "encode", lambda self, x: calls.append(len(x)) or encode(self, x))
    run(origin, components="head")
    first, calls[:] = list(calls), []
    assert sum(first) == 24 + 12 + 15
    run(origin, components="head", lr=0.5)
    assert calls == []
    run(origin, components="head", augment="paper")
    assert sum(calls) == 4 * 8 + 2 * 12 + 15


def small(pool: str):
    torch.manual_seed(1)
    options = {"global_pool": pool, "fc_norm": False}
    if pool == "avg-fc":
        options = {"global_pool": "avg", "fc_norm": True}
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=4, **options
    )
    nn.init.normal_(model.head.weight)
    return model.eval()


def test_model_with_a_forward_of_its_own_is_called_as_it_is(tiny_vit):
    class Twice(timm.models.vision_transformer.VisionTransformer):
        def forward_features(self, x, **rest):
            return super().forward_features(2 * x, **rest)

    tiny_vit.__class__ = Twice
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not Stages(tiny_vit).splits
    assert torch.equal(Stages(tiny_vit)(x), tiny_vit(x))
    assert run(tiny_vit, components="head").encoded_once == "no"


@given(st.integers(1, 12))
@settings(max_examples=12, deadline=None)
def test_accuracy_counts_images_whatever_the_batch(batch_size):
    logits = torch.zeros(12, 3)
    logits[:, 1] = 1
    logits[11, 2] = 2
    inputs = Images(logits.reshape(12, 3, 1, 1), None, CPU, torch.float32)
    labels = torch.full((12,), 2)
    accuracy, loss = evaluate(lambda x: x.flatten(1), inputs, labels, batch_size=batch_size)
    assert accuracy == 1 / 12
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits.double(), labels)), rel=1e-6)


@pytest.mark.parametrize("accumulation", [2, 8])
def test_accumulation_averages(tiny_vit, accumulation):
    origin = Origin(tiny_vit)
    whole, parts = run(origin), run(origin, accumulation=accumulation)
    for name in ("train_loss", "gradient_norm", "gradient_norm_head", "test_loss"):
        np.testing.assert_allclose(whole[name], parts[name], rtol=2e-5, err_msg=name)


def test_micro_batches_of_unequal_size(tiny_vit):
    images, labels = prepare(SPLITS[0][0][:7]), SPLITS[0][1][:7]
    trained = select(tiny_vit, "MHA")
    logs = []
    for accumulation in (1, 3):
        recipe = Recipe(batch_size=9, accumulation=accumulation)
        logs.append(Stepper(tiny_vit, tiny_vit, trained, recipe).step(images, labels, 0.0))
    assert logs[0].loss == pytest.approx(logs[1].loss, rel=1e-6)
    assert logs[0].norms == pytest.approx(logs[1].norms, rel=1e-5)


def test_clipping(tiny_vit):
    images, labels = prepare(SPLITS[0][0]), SPLITS[0][1]
    trained, start = select(tiny_vit, "LN1"), {n: t.detach().clone() for n, t in tensors(tiny_vit)}
    moved = {}
    for clipping in ("joint", "separate"):
        Origin.restore(SimpleNamespace(model=tiny_vit, state=start))
        recipe = Recipe(components="LN1", clip=0.01, clipping=clipping, momentum=0.0)
        stepper = Stepper(tiny_vit, tiny_vit, trained, recipe)
        log = stepper.step(images, labels, 1.0)
        assert log.norm(["LN1"]) > 0.01
        assert log.norm(["norm", "head"]) > 0.01
        steps = {n: p.detach() - start[n] for n, p in stepper.named.items()}
        moved[clipping] = [
            math.sqrt(sum(float(steps[n].square().sum()) for g in part for n in trained[g]))
            for part in (["LN1"], ["norm", "head"])
        ]
    assert moved["separate"] == pytest.approx([0.01, 0.01], rel=1e-3)
    assert math.hypot(*moved["joint"]) == pytest.approx(0.01, rel=1e-3)
    assert moved["joint"][0] < 0.9 * moved["joint"][1]


def test_no_clipping(tiny_vit):
    recipe = Recipe(clip=0.0, momentum=0.0)
    stepper = Stepper(tiny_vit, tiny_vit, select(tiny_vit, "MHA"), recipe)
    start = stepper.state()
    log = stepper.step(20 * prepare(SPLITS[0][0]), SPLITS[0][1], 1e-2)
    moved = math.sqrt(sum(float((p.detach() - start[n]).square().sum()) for n, p in stepper.named.items()))
    assert log.norm(stepper.groups) > 1
    assert moved == pytest.approx(1e-2 * log.norm(stepper.groups), rel=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimizers_follow_their_formulas(tiny_vit, optimizer):
    recipe = Recipe(components="LN1", optimizer=optimizer, weight_decay=0.1, clip=0.0)
    stepper = Stepper(tiny_vit, tiny_vit, select(tiny_vit, "LN1"), recipe)
    p = tiny_vit.blocks[0].norm1.weight
    w, m, v, rate = p.detach().double(), 0.0, 0.0, 0.01
    for t in (1, 2, 3):
        stepper.step(prepare(SPLITS[0][0]), SPLITS[0][1], rate)
        g = p.grad.double()
        if optimizer == "sgd":
            m = 0.9 * m + g + 0.1 * w
            w = w - rate * m
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - rate * 0.1 * w - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(p.detach().double(), w, rtol=1e-5, atol=1e-6)


# Checkpoints, divergence, interruption


def test_first_of_equal_checkpoints_is_tested(tiny_vit, monkeypatch):
    origin, states, given_back = Origin(tiny_vit), [], iter([0.5, 0.7, 0.7, 0.6, 0.25])

    def fake(forward, inputs, labels, **rest):
        states.append({n: t.detach().clone() for n, t in tensors(tiny_vit)})
        return next(given_back), 1.0

    monkeypatch.setattr(module, "evaluate", fake)
    ds = run(origin, evaluations=4)
    assert (int(ds.best_step), float(ds.validation_accuracy), float(ds.test_accuracy)) == (2, 0.7, 0.25)
    assert all(bit_equal(states[4][n], states[1][n]) for n in states[1])
    assert not all(bit_equal(states[4][n], states[2][n]) for n in states[1])


def test_divergence_before_any_validation(tiny_vit):
    origin = Origin(tiny_vit)
    ds = run(origin, lr=1e30, steps=6, evaluations=1, components="all")
    step = int(ds.diverged_step)
    assert 1 < step < 6
    assert int(ds.best_step) == -1
    assert np.isfinite(ds.learning_rate[: step + 1]).all()
    assert np.isnan(ds.learning_rate[step + 1 :]).all()
    for name in ("test_accuracy", "test_loss", "validation_accuracy"):
        assert math.isnan(float(ds[name]))
    assert ds.attrs["tested"].startswith("nothing")
    assert all(bit_equal(t, origin.state[n]) for n, t in tensors(tiny_vit))
    assert same(run(origin), run(origin))
    assert int(run(origin).diverged_step) == -1


def test_gradient_that_is_not_finite_changes_nothing(tiny_vit):
    tiny_vit.blocks[0].attn.qkv.weight.register_hook(lambda gradient: gradient * math.inf)
    ds = run(tiny_vit, components="MHA", warmup=0)
    assert int(ds.diverged_step) == 0
    assert np.isfinite(ds.train_loss[0])
    assert all(torch.isfinite(t).all() for _, t in tensors(tiny_vit))


def test_divergence_after_a_checkpoint(tiny_vit):
    ds = run(tiny_vit, lr=1e30, steps=6, evaluations=6, components="all")
    assert int(ds.diverged_step) > 1
    assert int(ds.best_step) >= 1
    assert 0 <= float(ds.test_accuracy) <= 1
    assert np.isnan(ds.validation_accuracy_curve[-1])
    assert ds.attrs["trained_check"] == "diverged, not checked"


def test_progress_and_interrupt(tiny_vit):
    calls = []
    run(tiny_vit, progress=lambda *args: calls.append(args))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_vit, progress=stop)


# Order, crops, schedule, precision, head


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_order_uses_every_image_equally_often(n, batch_size, steps, seed):
    indices = order(n, batch_size=batch_size, steps=steps, seed=seed)
    assert indices.shape == (steps, batch_size)
    counts = torch.bincount(indices.flatten(), minlength=n)
    assert int(counts.max()) - int(counts.min()) <= 1
    for start in range(0, indices.numel() - n + 1, n):
        assert sorted(indices.flatten()[start : start + n].tolist()) == list(range(n))
    assert torch.equal(indices, order(n, batch_size=batch_size, steps=steps, seed=seed))


def test_passes_and_uses_have_their_own_order():
    first, second = order(100, batch_size=100, steps=2, seed=0)
    assert not torch.equal(first, second)
    assert not torch.equal(first, order(100, batch_size=100, steps=1, seed=1)[0])
    assert generator(0, "order").initial_seed() != generator(0, "augment").initial_seed()


@given(st.integers(4, 60), st.integers(4, 60))
@settings(max_examples=30, deadline=None)
def test_crops_are_the_papers(height, width):
    crop = RandomCrop(0)
    for _ in range(10):
        top, left, h, w, _ = crop.draw(height, width)
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        assert h > 0
        assert w > 0
        # The sides are rounded to whole pixels.
        assert (w - 1) / (h + 1) < 4 / 3
        assert (h - 1) / (w + 1) < 4 / 3


def test_crop_areas_and_mirrors():
    crop = RandomCrop(3)
    draws = [crop.draw(200, 200) for _ in range(2000)]
    areas = np.array([h * w / 40000 for _, _, h, w, _ in draws])
    assert 0.075 < areas.min() < 0.12
    assert areas.max() > 0.85
    assert abs(np.mean([mirror for *_, mirror in draws]) - 0.5) < 0.05


def test_crop_keeps_shape_and_type():
    images = SPLITS[0][0]
    a, b = RandomCrop(1)(images), RandomCrop(1)(images)
    assert a.shape == images.shape
    assert a.dtype == torch.uint8
    assert torch.equal(a, b)
    assert not torch.equal(a, images)
    constant = torch.full((4, 3, 32, 32), 77, dtype=torch.uint8)
    assert torch.equal(RandomCrop(0)(constant), constant)


@given(st.integers(1, 60), st.integers(0, 59), st.sampled_from(["cosine", "constant"]))
def test_schedule(steps, warmup, schedule):
    if warmup >= steps:
        return
    values = [multiplier(s, steps=steps, warmup=warmup, schedule=schedule) for s in range(steps)]
    assert values[warmup] == 1.0
    assert min(values) >= 0
    assert max(values) <= 1
    assert values[:warmup] == [s / warmup for s in range(warmup)]
    tail = values[warmup:]
    assert tail == sorted(tail, reverse=True)
    if schedule == "cosine":
        assert multiplier(steps, steps=steps, warmup=warmup) == pytest.approx(0, abs=1e-15)


def test_evaluations_are_equally_spaced():
    assert Recipe(steps=10, evaluations=3).evaluation_steps() == [3, 6, 10]
    assert Recipe(steps=6, warmup=0, evaluations=6).evaluation_steps() == [1, 2, 3, 4, 5, 6]


def test_precision_names(monkeypatch):
    monkeypatch.delenv("VITPLAST_PRECISION", raising=False)
    assert resolve_precision("auto", "cpu", width=32) in ("float32", "bfloat16")
    assert resolve_precision("bfloat16", "cpu") == "bfloat16"
    with pytest.raises(UnknownNameError, match="float32"):
        resolve_precision("float23", "cpu")


@pytest.mark.parametrize(
    ("capability", "bf16", "amx", "wanted"),
    [
        ("AVX2", True, True, "float32"),
        ("AVX512", False, False, "float32"),
        ("AVX512", True, False, "bfloat16"),
        ("AVX512", False, True, "bfloat16"),
    ],
)
def test_precision_by_flags_reads_no_clock(monkeypatch, capability, bf16, amx, wanted):
    flags(monkeypatch, capability, bf16, amx)
    monkeypatch.setattr(precisions, "_bfloat16_gain", lambda *args: pytest.fail("timed"))
    assert resolve_precision("auto", "cpu") == wanted


@pytest.mark.parametrize(("gain", "wanted"), [(1.4, "float32"), (1.6, "bfloat16")])
@pytest.mark.parametrize("unknown", ["DEFAULT", "SVE256", "no function", "no list"])
def test_precision_is_timed_where_flags_are_unknown(monkeypatch, gain, wanted, unknown):
    flags(monkeypatch, "AVX512" if unknown.startswith("no") else unknown, False, False)
    if unknown == "no function":
        monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    if unknown == "no list":
        monkeypatch.delattr(torch.backends.cpu, "get_cpu_capability")
    monkeypatch.setattr(precisions, "_bfloat16_gain", lambda *args: gain)
    assert resolve_precision("auto", "cpu") == wanted


def test_precision_of_a_sweep(monkeypatch, tiny_vit):
    flags(monkeypatch, "AVX2", False, False)
    monkeypatch.setenv("VITPLAST_PRECISION", "bfloat16")
    assert resolve_precision("auto", "cpu") == resolve_precision("auto", "cuda") == "bfloat16"
    assert resolve_precision("float32", "cpu") == "float32"
    found = run(tiny_vit, precision="auto").attrs
    assert (found["precision"], found["precision_resolved"]) == ("auto", "bfloat16")
    monkeypatch.setenv("VITPLAST_PRECISION", "bf16")
    with pytest.raises(UnknownNameError, match="VITPLAST_PRECISION 'bf16'"):
        resolve_precision("auto", "cpu")
    monkeypatch.setenv("VITPLAST_PRECISION", "")
    assert resolve_precision("auto", "cpu") == "float32"


def flags(monkeypatch, capability: str, bf16: bool, amx: bool) -> None:
    """A processor with these abilities, and no word from the environment."""
    monkeypatch.delenv("VITPLAST_PRECISION", raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("components", ["LN2", "head"])
def test_mixed_precision_trains(tiny_vit, precision, components):
    origin = Origin(tiny_vit)
    exact, mixed = (run(origin, components=components, precision=p) for p in ("float32", precision))
    assert mixed.attrs["precision_resolved"] == precision
    assert int(mixed.diverged_step) == -1
    assert tiny_vit.head.weight.dtype == torch.float32
    assert float(mixed.train_loss[0]) == pytest.approx(float(exact.train_loss[0]), rel=0.02)
    assert not np.array_equal(mixed.train_loss, exact.train_loss)


def test_double_precision_is_recorded(tiny_vit):
    assert run(tiny_vit.double()).attrs["precision_resolved"] == "float64"


def test_heads(tiny_vit):
    initialise_head(tiny_vit, "default", 0)
    first = tiny_vit.head.weight.detach().clone()
    limit = 1 / math.sqrt(32)
    assert 0.9 * limit < float(first.abs().max()) <= limit
    assert abs(float(first.mean())) < 0.02
    assert 0 < float(tiny_vit.head.bias.detach().abs().max()) <= limit
    initialise_head(tiny_vit, "default", 1)
    assert not torch.equal(first, tiny_vit.head.weight)
    initialise_head(tiny_vit, "zero", 0)
    assert not tiny_vit.head.weight.any()
    assert not tiny_vit.head.bias.any()


# What is refused, what is told


def test_recipe_from_a_notebooks_run():
    chosen = {"components": "FC1+MHA", "lrs": [0.1, 0.2], "seeds": [3], "weights": "random"}
    runs = list(make("finetune", chosen).runs().values())
    recipes = [Recipe.from_run(values) for values in runs]
    assert [(r.components, r.lr, r.seed, r.head_init) for r in recipes] == [
        ("MHA+FC1", 0.1, 3, "zero"),
        ("MHA+FC1", 0.2, 3, "zero"),
    ]
    with pytest.raises(InputError, match="lack lr, seed"):
        Recipe.from_run({k: v for k, v in runs[0].items() if k not in ("lr", "seed")})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"components": "MLP"}, "component"),
        ({"optimizer": "adam"}, "adamw"),
        ({"lr": math.nan}, "lr must be finite"),
        ({"lr": -1.0}, "lr must be finite and at least 0"),
        ({"steps": 0}, "steps"),
        ({"steps": 5, "warmup": 5}, "warmup must be smaller"),
        ({"steps": 6, "evaluations": 7}, "evaluations=7"),
        ({"batch_size": 8, "accumulation": 3}, "does not divide"),
        ({"batch_size": 8.0}, "whole number"),
        ({"augment": "crop"}, "paper"),
        *(
            ({"components": c, "head_init": "zero", "train_head": False}, "use head_init=default or train the head")
            for c in (*CONFIGURATIONS[:-1], "MHA+FC1", "norm")
        ),
    ],
)
def test_recipes_that_are_refused(values, words):
    with pytest.raises(InputError, match=words):
        Recipe(**values)


def test_heads_that_pass_gradients_are_not_refused():
    for values in ({"train_head": True}, {"head_init": "default"}, {"head_init": "keep"}, {"components": "head"}):
        assert Recipe(**{"components": "MHA", "head_init": "zero", "train_head": False, **values})


IMAGES, LABELS = SPLITS[0]
FLOATS = prepare(IMAGES)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (None, "there are no (train|validation|test) images"),
        ((IMAGES[:0], LABELS[:0]), "has no images"),
        ((IMAGES, LABELS[:-1]), r"labels \(N,\)"),
        ((IMAGES[0], LABELS[:3]), r"must be \(N, C, H, W\)"),
        ((IMAGES, LABELS + 8), r"labels must be in 0\.\.9"),
        ((IMAGES, LABELS - 1), r"got -1\.\.1"),
        ((IMAGES, LABELS.float()), "whole numbers"),
        ((FLOATS.index_fill(0, torch.tensor([3]), math.nan), LABELS), "not finite"),
        ((FLOATS.index_fill(0, torch.tensor([3]), math.inf), LABELS), "not finite"),
        ((IMAGES.float(), LABELS), "not normalised"),
        ((IMAGES.int(), LABELS), "uint8 or normalised floats"),
        ((IMAGES.permute(0, 2, 3, 1), LABELS), "32 channels"),
        ((IMAGES[:, :1], LABELS), "1 channels, the model takes 3"),
        ((IMAGES[..., :24], LABELS), r"the model takes \(32, 32\)"),
    ],
)
def test_splits_that_are_refused(tiny_vit, which, bad, words):
    splits = [bad if i == which else split for i, split in enumerate(SPLITS)]
    with pytest.raises(InputError, match=words):
        run(tiny_vit, splits=splits)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_pixels_that_are_not_finite_are_bad_input(tiny_vit, value):
    images = FLOATS.clone()
    images[3, 1, 2, 5] = value
    with pytest.raises(PixelError, match="validation images hold values that are not finite") as caught:
        run(tiny_vit, splits=[SPLITS[0], (images, LABELS), SPLITS[2]])
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, HypothesisError)
    assert isinstance(caught.value, InputError)


def test_uint8_needs_prepare_and_constant_labels_are_refused(tiny_vit):
    with pytest.raises(InputError, match="pass `prepare`"):
        finetune(tiny_vit, *SPLITS, Recipe())
    with pytest.raises(InputError, match="all 24 train labels are 2"):
        run(tiny_vit, splits=[(IMAGES, torch.full_like(LABELS, 2)), *SPLITS[1:]])


def test_model_without_head_is_refused(tiny_vit):
    tiny_vit.reset_classifier(0)
    with pytest.raises(InputError, match="no linear head"):
        run(tiny_vit)


def test_class_missing_in_train_is_told(tiny_vit):
    keep = LABELS != 1
    ds = run(tiny_vit, splits=[(IMAGES[keep], LABELS[keep]), *SPLITS[1:]])
    assert ds.attrs["classes_missing_in_train"] == "1"
    assert run(tiny_vit).attrs["classes_missing_in_train"] == "none"


def test_splits_may_be_objects_arrays_or_floats(tiny_vit):
    origin = Origin(tiny_vit)
    wanted = run(origin)
    objects = [SimpleNamespace(all=lambda pair=pair: pair) for pair in SPLITS]
    arrays = [(images.numpy(), labels.numpy()) for images, labels in SPLITS]
    floats = [(prepare(images), labels) for images, labels in SPLITS]
    assert all(same(wanted, run(origin, splits=splits)) for splits in (objects, arrays, floats))
