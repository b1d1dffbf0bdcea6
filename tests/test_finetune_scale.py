"""Training at the paper's scale: crops of pictures at their own size, micro-batches, the authors' options, memory."""

from __future__ import annotations

import csv
import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_finetune import SPLITS, prepare, run, same
from torchvision.transforms.v2 import functional as F

from vitplast import bench_decoding, results, units
from vitplast.components import select
from vitplast.depth import depth_probe
from vitplast.errata.evaluation import batch_means, last_batch
from vitplast.errors import InputError, IntegrityError, UnknownNameError
from vitplast.finetune import Origin, Recipe, finetune
from vitplast.parameters import added_defaults, key_for, make
from vitplast.parameters.training import FinetuneParameters
from vitplast.results.gathering import gather, singles
from vitplast.results.schema import schema_of
from vitplast.training import crops, memory
from vitplast.training.batches import Images, order
from vitplast.training.evaluate import evaluate
from vitplast.training.pictures import Pictures
from vitplast.training.precision import exact_products
from vitplast.training.step import Stepper
from vitplast.training.views import PaperView

CPU = torch.device("cpu")


class Stored:
    """A split with pictures of its own: noise whose channel `label` is brighter; `bad` ones cannot be read."""

    def __init__(self, n: int, shapes=((20, 20),), classes: int = 3, bad: int = -1) -> None:
        g, self.bad, self.read = np.random.default_rng(n), bad, 0
        self.labels = np.arange(n) % classes
        self.stored = []
        for i, label in enumerate(self.labels):
            picture = g.integers(0, 120, (*shapes[i % len(shapes)], 3), dtype=np.uint8)
            picture[..., label % 3] += 100
            picture.setflags(write=False)
            self.stored.append(picture)
        self.pictures_size = shapes[0] if len(shapes) == 1 else None

    def __len__(self):
        return len(self.labels)

    def picture(self, index):
        if index == self.bad:
            raise IntegrityError("picture 3 cannot be read")
        self.read += 1
        return self.stored[index]


SMALL, MIXED = Stored(24), Stored(24, shapes=((50, 41), (37, 64), (20, 90)))


def pictures(split, size=32, seed=0, workers=0, **rest):
    options = {"prepare": prepare, "device": CPU, "dtype": torch.float32, **rest}
    return Pictures(split, size=size, seed=seed, workers=workers, **options)


# Crops


@given(st.integers(0, 2**31), st.integers(0, 30_000), st.integers(1, 600), st.integers(1, 600))
@settings(max_examples=60, deadline=None)
def test_crops_lie_inside_and_have_an_allowed_ratio(seed, step, height, width):
    u = crops.uniforms(seed, step, 8)
    top, left, h, w, mirror = crops.boxes(u, np.full(8, height), np.full(8, width)).T
    assert min(top.min(), left.min()) >= 0
    assert (top + h).max() <= height
    assert (left + w).max() <= width
    assert min(h.min(), w.min()) >= 1
    # The sides are rounded to whole pixels.
    assert ((w - 1) / (h + 1)).max() < 4 / 3
    assert ((h - 1) / (w + 1)).max() < 4 / 3
    assert set(mirror.tolist()) <= {0, 1}


def test_draws_depend_on_seed_step_and_place_alone():
    few, many = crops.uniforms(1, 7, 3), crops.uniforms(1, 7, 512)
    assert np.array_equal(few, many[:3])
    assert not np.array_equal(few, crops.uniforms(1, 8, 3))
    assert not np.array_equal(few, crops.uniforms(2, 7, 3))
    assert len(np.unique(many)) == many.size


def test_crops_have_the_distribution_of_torchvision():
    """Two-sample Kolmogorov-Smirnov tests of every number of 3,000 crops."""
    from scipy.stats import ks_2samp
    from torchvision.transforms.v2 import RandomResizedCrop

    height, width, n = 375, 500, 3000
    image, theirs = torch.empty(3, height, width), RandomResizedCrop(224)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wanted = [theirs.make_params([image]) for _ in range(n)]
    ours = crops.boxes(crops.uniforms(0, 0, n), np.full(n, height), np.full(n, width))
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(ours[:, column], [one[name] for one in wanted]).pvalue > 1e-3, name
    assert abs(ours[:, 4].mean() - 0.5) < 0.04


def test_a_crop_is_torchvisions():
    picture = MIXED.picture(1)
    box = crops.boxes(crops.uniforms(3, 0, 1), np.array([37]), np.array([64]))[0]
    top, left, height, width, _ = box.tolist()
    wanted = F.resized_crop(torch.from_numpy(picture.copy()).permute(2, 0, 1), top, left, height, width, [32, 32])
    for mirror in (0, 1):
        box[4] = mirror
        assert torch.equal(crops.crop_one(picture, box, 32), F.horizontal_flip(wanted) if mirror else wanted)


@pytest.mark.parametrize(("side", "size"), [((32, 32), 224), ((20, 31), 31), ((32, 32), 32), ((7, 5), 56)])
def test_crops_made_together_equal_single_ones(side, size):
    stored = Stored(16, shapes=(side,))
    box = crops.boxes(crops.uniforms(5, 2, 16), *(np.full(16, n) for n in side))
    wanted = torch.stack([crops.crop_one(p, b, size) for p, b in zip(stored.stored, box, strict=True)])
    images = torch.from_numpy(np.stack(stored.stored)).permute(0, 3, 1, 2)
    found = crops.crop_together(images, box, size)
    assert found.dtype == torch.uint8
    assert found.shape == (16, 3, size, size)
    assert int((found.int() - wanted.int()).abs().max()) <= 1
    assert box[:, 4].min() == 0
    assert box[:, 4].max() == 1


# Feeding


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_do_not_depend_on_the_number_of_workers(workers):
    batches = order(24, batch_size=10, steps=4, seed=0)
    before = torch.get_rng_state()
    found = list(pictures(MIXED, workers=workers).feed(batches))
    assert torch.equal(before, torch.get_rng_state())
    assert len(found) == 4
    assert all(batch.shape == (10, 3, 32, 32) for batch in found)
    u = crops.uniforms(0, 2, 10)
    for place, index in enumerate(batches[2].tolist()):
        picture = MIXED.picture(index)
        box = crops.boxes(u[place : place + 1], *(np.array([n]) for n in picture.shape[:2]))[0]
        assert torch.equal(found[2][place], prepare(crops.crop_one(picture, box, 32)))


def test_small_pictures_are_kept_and_large_ones_are_not():
    kept, split = {}, Stored(24)
    one = pictures(split, kept=kept)
    assert split.read == 24
    assert one.nbytes == 24 * 3 * 20 * 20
    assert "20 x 20" in one.description
    list(one.feed(order(24, batch_size=8, steps=3, seed=0)))
    assert pictures(split, kept=kept, seed=1).small is not None
    assert split.read == 24
    for other in (Stored(24, shapes=((33, 20),)), Stored(4, shapes=((20, 20), (20, 21)))):
        found = pictures(other)
        assert (other.read, found.nbytes, found.small) == (0, 0, None)
    near = np.stack([b.numpy() for b in pictures(split).feed(torch.arange(8)[None])])
    split.pictures_size = None
    far = np.stack([b.numpy() for b in pictures(split).feed(torch.arange(8)[None])])
    assert np.abs(near - far).max() <= 2 / 255 + 1e-6  # normalised with deviation 0.5
    assert not np.array_equal(near, near.mean() + 0 * near)


def test_a_picture_that_cannot_be_read_stops_the_run_with_its_name():
    for workers in (0, 2):
        with pytest.raises(IntegrityError, match="picture 3 cannot be read"):
            list(pictures(Stored(8, shapes=((20, 20), (20, 21)), bad=3), workers=workers).feed(torch.arange(8)[None]))


@pytest.mark.parametrize("split", [SMALL, MIXED], ids=["small", "streamed"])
def test_training_on_original_pictures(tiny_vit, split):
    origin, splits = Origin(tiny_vit), (split, *SPLITS[1:])
    one, two = (run(origin, splits=splits, augment="original", components="head") for _ in range(2))
    assert same(one, two)
    assert one.encoded_once == "no"
    assert int(one.n_train) == 24
    assert one.pictures == (
        "kept at their own size, 20 x 20" if split is SMALL else "read at their own size in each step"
    )
    other = run(origin, splits=splits, augment="original", components="head", seed=1)
    assert not np.array_equal(one.train_loss, other.train_loss)
    learnt = run(origin, splits=splits, augment="original", components="all", steps=40, warmup=2, lr=0.1, evaluations=1)
    assert float(learnt.test_accuracy) > 0.9


def test_what_has_no_pictures_is_refused(tiny_vit):
    with pytest.raises(InputError, match="augment=original takes crops from train pictures at their own size"):
        run(tiny_vit, augment="original")
    with pytest.raises(InputError, match="there are no train images"):
        run(tiny_vit, augment="original", splits=(None, *SPLITS[1:]))
    with pytest.raises(InputError, match=r"labels must be in 0\.\.9"):
        run(tiny_vit, augment="original", splits=(Stored(12, classes=12), *SPLITS[1:]))
    with pytest.raises(InputError, match="pass `prepare`"):
        finetune(tiny_vit, SMALL, *SPLITS[1:], Recipe(augment="original"))


# The authors' options


def test_mean_of_batch_means_is_the_authors():
    """B1: 12 images in batches of 5, 5 and 2 with one right, in the last: 16.7 % against 8.3 %."""
    logits, labels = torch.zeros(12, 3), torch.full((12,), 2)
    logits[:, 1] = 1
    logits[11, 2] = 2
    inputs = Images(logits.reshape(12, 3, 1, 1), None, CPU, torch.float32)
    read = functools.partial(evaluate, lambda x: x.flatten(1), inputs, labels, batch_size=4)
    (accuracy, loss), (theirs, same_loss) = read(), read(accuracy_batch=5)
    assert round(100 * accuracy, 1) == 8.3
    assert round(100 * theirs, 1) == 16.7
    assert loss == same_loss
    assert read(accuracy_batch=12)[0] == pytest.approx(accuracy)


def test_one_error_among_the_last_five_of_flowers102():
    """B1: 6,149 images in batches of 512, the last of 5: one error there costs 1.538 points, 94.6 times its share."""
    n, batch = 6149, 512
    logits, labels = torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64)
    logits[:, 0] = 1
    logits[-1] = torch.tensor([0.0, 1.0])
    inputs = Images(logits.reshape(n, 2, 1, 1), None, CPU, torch.float32)
    read = functools.partial(evaluate, lambda x: x.flatten(1), inputs, labels, batch_size=1000)
    lost = 1 - read(accuracy_batch=batch)[0]
    assert round(100 * lost, 3) == 1.538
    assert round(lost / (1 - read()[0]), 1) == 94.6
    assert last_batch(n, batch).cost == pytest.approx(lost)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_batch_means_whatever_the_batch_of_the_model(hits, batch_size, accuracy_batch):
    logits = torch.tensor([[0.0, 1.0] if hit else [1.0, 0.0] for hit in hits]).reshape(-1, 2, 1, 1)
    inputs, labels = Images(logits, None, CPU, torch.float32), torch.ones(len(hits), dtype=torch.int64)
    options = {"batch_size": batch_size, "accuracy_batch": accuracy_batch}
    found, _ = evaluate(lambda x: x.flatten(1), inputs, labels, **options)
    assert found == pytest.approx(batch_means(np.array(hits, dtype=float), accuracy_batch))


def test_accuracies_of_a_run_are_means_of_batch_means(tiny_vit):
    origin = Origin(tiny_vit)
    counted, theirs = run(origin), run(origin, accuracy_batch=7)
    assert float(counted.test_accuracy) * 15 == pytest.approx(round(float(counted.test_accuracy) * 15))
    # batches of 7, 7 and 1: sevenths and one whole, over 3
    assert float(theirs.test_accuracy) * 21 == pytest.approx(round(float(theirs.test_accuracy) * 21))
    np.testing.assert_array_equal(counted.train_loss, theirs.train_loss)
    np.testing.assert_array_equal(counted.validation_loss, theirs.validation_loss)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_dropping_the_last_batch_cuts_each_pass(n, accumulation, micro, steps):
    recipe = Recipe(batch_size=micro * accumulation, accumulation=accumulation, last_batch="dropped", warmup=0)
    assert recipe.drop == micro
    if n < micro:
        with pytest.raises(InputError, match=f"{n} training images make no batch of {micro}"):
            order(n, batch_size=recipe.batch_size, steps=steps, seed=0, drop=micro)
        return
    found = order(n, batch_size=recipe.batch_size, steps=steps, seed=0, drop=micro)
    assert found.shape == (steps, recipe.batch_size)
    used = n // micro * micro
    flat = found.flatten().tolist()
    whole = [flat[i : i + used] for i in range(0, len(flat) - used + 1, used)]
    assert all(len(set(one)) == used for one in whole)


def test_dropping_on_flowers102_loses_half_of_a_pass():
    found = order(1020, batch_size=512, steps=3, seed=0, drop=512)
    assert [len(set(row)) for row in found.tolist()] == [512, 512, 512]
    assert set(found[0].tolist()) != set(found[1].tolist())
    assert torch.equal(order(40, batch_size=8, steps=9, seed=0, drop=8), order(40, batch_size=8, steps=9, seed=0))


def test_dropped_last_batch_in_a_run(tiny_vit):
    origin = Origin(tiny_vit)
    kept, cut = run(origin, batch_size=9, steps=6), run(origin, batch_size=9, steps=6, last_batch="dropped")
    np.testing.assert_array_equal(kept.train_loss[:2], cut.train_loss[:2])  # two whole batches in the first pass
    assert not np.array_equal(kept.train_loss[2:], cut.train_loss[2:])
    with pytest.raises(InputError, match="24 training images make no batch of 25"):
        run(origin, batch_size=25, last_batch="dropped")


def test_validation_at_multiples():
    points = Recipe(steps=10_000, validate_every=350).evaluation_steps()
    assert (points[0], points[-1], len(points)) == (350, 9800, 28)
    assert Recipe(steps=20, validate_every=5, evaluations=99).evaluation_steps() == [5, 10, 15, 20]
    with pytest.raises(InputError, match="validate_every=21 is more than steps=20"):
        Recipe(steps=20, validate_every=21)
    with pytest.raises(InputError, match="validate_every=51 is more than steps=50"):
        make("finetune", {"validate_every": 51})


def test_run_that_ends_after_its_last_validation(tiny_vit):
    ds = run(tiny_vit, steps=5, validate_every=2)
    assert ds.evaluation.values.tolist() == [2, 4]
    assert int(ds.best_step) in (2, 4)
    assert ds.step.values.tolist() == [0, 1, 2, 3, 4]


def test_logged_steps_are_those_of_the_whole_curves(tiny_vit):
    origin = Origin(tiny_vit)
    whole, some = run(origin, steps=7), run(origin, steps=7, log_every=3)
    assert some.step.values.tolist() == [0, 3, 6]
    for name in ("train_loss", "learning_rate", "gradient_norm", "gradient_norm_total", "gradient_norm_head"):
        np.testing.assert_array_equal(whole[name].sel(step=[0, 3, 6]), some[name])
    for name in ("test_accuracy", "test_loss", "validation_loss", "diverged_step", "best_step"):
        np.testing.assert_array_equal(whole[name], some[name])
    gone = run(origin, steps=8, lr=1e30, components="all", evaluations=1, log_every=3)
    taken = int(gone.diverged_step) // 3 + 1
    assert np.isfinite(gone.learning_rate[:taken]).all()
    assert np.isnan(gone.learning_rate[taken:]).all()


# Micro-batches and memory


def test_micro_batches_of_a_budget_change_nothing_but_rounding(tiny_vit):
    from vitplast.cost.memory import activation_bytes, fixed_bytes, transient_bytes
    from vitplast.cost.shapes import Shape

    shape = Shape.of(tiny_vit)
    need = fixed_bytes(shape, components="MHA") + activation_bytes(shape, components="MHA", images=3)
    need += transient_bytes(shape, images=3)
    need += sum(images.nbytes for images, _ in SPLITS) + memory.BYTES_PER_VALUE * 3 * 32 * 32 * 8
    gib = need / (1 - memory.SLACK) / 2**30 * 1.001
    origin = Origin(tiny_vit)
    whole = run(origin)
    values = {"steps": 4, "batch_size": 8, "warmup": 1, "evaluations": 2, "precision": "float32", "lr": 0.05}
    parts = finetune(origin, *SPLITS, Recipe(**values), prepare=prepare, memory_gib=gib)
    assert (whole.micro_batches, parts.micro_batches) == (1, 3)
    assert parts.memory_gib == gib
    for name in ("train_loss", "gradient_norm", "gradient_norm_head", "test_loss"):
        np.testing.assert_allclose(whole[name], parts[name], rtol=2e-5, err_msg=name)
    with pytest.raises(InputError, match="image"):
        finetune(origin, *SPLITS, Recipe(**values), prepare=prepare, memory_gib=1e-6)


def test_a_recipe_with_more_micro_batches_keeps_them(tiny_vit):
    options = {"precision": "float32", "kept": 0, "image_values": 3072}
    recipe = Recipe(batch_size=64, accumulation=4)
    assert memory.micro_batches(recipe, tiny_vit, budget=None, **options) == 4
    assert memory.micro_batches(recipe, tiny_vit, budget=2.0**40, **options) == 4


def test_the_limit_comes_from_the_option_then_from_the_environment(monkeypatch):
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    assert memory.limit_bytes(0.0) is None
    assert memory.budget_bytes(0.0, CPU) is None
    monkeypatch.setenv(memory.VARIABLE, "1.5")
    assert memory.limit_bytes(0.0) == memory.budget_bytes(0.0, CPU) == 1.5 * 2**30
    assert memory.limit_bytes(2.0) == 2**31
    for wrong in ("0", "-1", "nan", "inf", "80GB"):
        monkeypatch.setenv(memory.VARIABLE, wrong)
        with pytest.raises(InputError, match="VITPLAST_MEMORY_GIB must be a number of GiB above 0"):
            memory.limit_bytes(0.0)


def test_the_budget_of_a_gpu_is_what_is_free_on_it(monkeypatch):
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    fractions = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda f, device: fractions.append(f))
    gpu = torch.device("cuda")
    assert memory.budget_bytes(0.0, gpu) == 8 * 2**30
    assert memory.budget_bytes(20.0, gpu) == 8 * 2**30
    assert memory.budget_bytes(4.5, gpu) == 4 * 2**30
    with memory.limited(0.0, gpu):
        assert fractions == []
    with memory.limited(20.5, gpu):
        assert fractions == [0.25]
    assert fractions == [0.25, 1.0]


def test_running_out_of_memory_cuts_the_batch(tiny_vit):
    images, labels = prepare(SPLITS[0][0]), SPLITS[0][1]
    sizes = []

    def scarce(x):
        sizes.append(len(x))
        if len(x) > 7:
            raise torch.OutOfMemoryError("no room")
        return tiny_vit(x)

    trained, recipe = select(tiny_vit, "MHA"), Recipe(batch_size=24)
    wanted = Stepper(tiny_vit, tiny_vit, trained, recipe).step(images, labels, 0.0)
    stepper = Stepper(scarce, tiny_vit, trained, recipe)
    found = stepper.step(images, labels, 0.0)
    assert sizes == [24, 12, 6, 6, 6, 6]
    assert stepper.parts == 4
    assert found.loss == pytest.approx(wanted.loss, rel=1e-6)
    assert found.norms == pytest.approx(wanted.norms, rel=1e-5)
    never = Stepper(lambda x: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")), tiny_vit, trained, recipe)
    with pytest.raises(torch.OutOfMemoryError):
        never.step(images, labels, 0.0)


# What is recorded, keys, compilation


def test_short_products_are_off_during_a_run_and_as_before_after_it():
    before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    try:
        with exact_products() as words:
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
            assert "TF32 off" in words
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32 == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_result_says_how_it_was_made(tiny_vit):
    attrs = run(tiny_vit).attrs
    table = schema_of("finetune")
    assert set(attrs) <= set(table.attrs | table.later)
    assert (attrs["attention"], attrs["micro_batches"], attrs["workers"], attrs["compile"]) == ("fused", 1, 0, "no")
    assert "TF32 off" in attrs["products"]
    assert attrs["peak_memory_gib"] == 0.0
    for block in tiny_vit.blocks:
        block.attn.fused_attn = False
    assert memory.attention(tiny_vit) == "written out"


def test_new_options_leave_old_keys_and_count_in_new_ones():
    (old,) = make("finetune", {"weights": "random"}).runs()
    named = {"validate_every": 5, "log_every": 2, "accuracy_batch": 5, "last_batch": "dropped", "compile": True}
    found = {name: next(iter(make("finetune", {"weights": "random", name: v}).runs())) for name, v in named.items()}
    assert len({old, *found.values()}) == 6
    for name, value in (("workers", 4), ("memory_gib", 2.0)):
        assert next(iter(make("finetune", {"weights": "random", name: value}).runs())) == old
        assert name in added_defaults("finetune")
    single = make("finetune", {"weights": "random"}).runs()[old]
    assert key_for(FinetuneParameters, {k: v for k, v in single.items() if k not in added_defaults("finetune")}) == old
    same_points = [make("finetune", {"validate_every": 5, "evaluations": n}) for n in (1, 7)]
    assert same_points[0] == same_points[1]
    with pytest.raises(UnknownNameError, match="Did you mean 'original'"):
        make("finetune", {"augment": "orginal"})


def test_a_run_of_the_notebook_is_written_gathered_and_taken_apart(tmp_path):
    base = {
        "model": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "device": "cpu", "dataset": "digits",
        "components": "LN1", "lrs": [0.1], "steps": 5, "warmup": 1, "batch_size": 8, "validation_images": 20,
        "test_images": 20, "precision": "float32",
    }  # fmt: skip
    paper = {
        "augment": "original", "validate_every": 2, "log_every": 2, "accuracy_batch": 8, "last_batch": "dropped",
    }  # fmt: skip
    files = []
    for values in (base, base | paper):
        ((key, one),) = make("finetune", values).runs().items()
        loaded = units.load(one)
        ds = units.finetune_run(one, loaded, Origin(loaded.model))
        files.append(results.write(ds, tmp_path / f"{key}.nc", kind="finetune", run=one))
    read = results.read(files[1])
    assert read.step.values.tolist() == [0, 2, 4]
    assert read.evaluation.values.tolist() == [2, 4]
    assert (read.augment, read.accuracy_batch, read.last_batch) == ("original", 8, "dropped")
    both = gather(tmp_path)["finetune"]
    assert both.step.values.tolist() == [0, 1, 2, 3, 4]
    assert sorted(both.log_every.values.tolist()) == ["1", "2"] or sorted(both.log_every.values.tolist()) == [1, 2]
    assert sorted(one.sizes["step"] for one in singles(both)) == [3, 5]
    assert json.loads(read.attrs["params_json"])["workers"] == 0


@pytest.mark.slow
def test_compiled_steps_give_the_same_numbers(tiny_vit, monkeypatch):
    """Through the whole compiler but its last stage, which takes minutes on a busy core."""
    used = []
    whole = torch.compile
    backend = functools.partial(whole, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", lambda f, **options: used.append(options) or backend(f, **options))
    origin = Origin(tiny_vit)
    plain, compiled = run(origin, accumulation=2), run(origin, accumulation=2, compile=True)
    assert used == [{"dynamic": False}]
    assert compiled.attrs["compile"] == "yes"
    for name in ("train_loss", "gradient_norm", "test_loss"):
        np.testing.assert_allclose(plain[name], compiled[name], rtol=1e-5, err_msg=name)
    torch.compiler.reset()


# Speed of reading


def test_bench_of_decoding_writes_what_it_measures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_decoding, "KINDS", {"array": (12, 10, False), "JPEG": (40, 30, True)})
    monkeypatch.setattr(bench_decoding, "SIZE", 32)
    bench_decoding.main(["--repeats", "2", "--write", str(tmp_path / "speed.csv")])
    with open(tmp_path / "speed.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["pictures"] for row in rows] == ["array"] * 3 + ["JPEG"] * 2
    assert len(capsys.readouterr().out.splitlines()) == 5
    for row in rows:
        assert tuple(row) == bench_decoding.COLUMNS
        assert 0 < int(row["slowest"]) <= int(row["images_per_second"]) <= int(row["fastest"])
        wanted = int(row["gpu_images_per_second_all"]) / int(row["images_per_second"])
        assert float(row["cores_all"]) == pytest.approx(wanted, rel=0.05, abs=0.01)  # of rounded speeds
        assert float(row["cores_ln1"]) >= float(row["cores_all"])
    assert float(rows[0]["kilobytes"]) == round(12 * 10 * 3 / 1000, 1)


def test_consumption_of_a_gpu_follows_from_the_operations_of_vit_base():
    """17.56 G multiply-adds forward at 224 pixels, less the last block's MLP, which acts on the class token alone.

    Three times that with the backward pass.
    """
    from vitplast.cost.devices import gpu_named
    from vitplast.cost.shapes import Shape
    from vitplast.cost.throughput import training_images_per_second

    shape = Shape.named(bench_decoding.MODEL, 224, 10)
    found = training_images_per_second(shape, "all", gpu_named("H100"), utilisation=0.4)
    needed = 17.56e9 - 2 * 196 * 768 * 3072
    assert found == pytest.approx(0.4 * 989e12 / (3 * 2 * needed), rel=0.02)


# The view of the authors' probe


def test_the_view_is_one_pass_without_the_incomplete_batch():
    split = Stored(23, shapes=((50, 41), (37, 64)))
    options = {"size": 32, "batch": 5, "seed": 4, "prepare": prepare, "device": CPU, "dtype": torch.float32}
    view = PaperView(split, **options)
    assert len(view) == len(view.labels) == 20
    used = order(23, batch_size=5, steps=4, seed=4, drop=5).flatten()
    assert len(set(used.tolist())) == 20
    np.testing.assert_array_equal(view.labels, split.labels[used])
    pass_ = torch.cat(list(pictures(split, seed=4).feed(used.reshape(4, 5))))
    assert torch.equal(view.at(torch.arange(20)), pass_)
    assert torch.equal(view.at(torch.tensor([7, 13])), pass_[[7, 13]])
    with pytest.raises(InputError, match="23 training images make no batch of 512"):
        PaperView(split, **{**options, "batch": 512})
    with pytest.raises(InputError, match="view=paper takes crops from train pictures"):
        PaperView(SimpleNamespace(all=lambda: SPLITS[0]), **options)


def test_images_that_reach_the_authors_probe():
    """B3: 512 of 1,020, 2,560 of 2,944, 6,144 of 6,400 and 39,936 of 40,000."""
    for n, wanted in ((1020, 512), (2944, 2560), (6400, 6144), (40_000, 39_936)):
        found = order(n, batch_size=512, steps=n // 512, seed=0, drop=512)
        assert found.numel() == len(found.unique()) == wanted


def test_probe_over_depth_in_the_view_paper(tiny_vit):
    tiny_vit.reset_classifier(0)
    ds = depth_probe(tiny_vit, Stored(32), SPLITS[2], prepare=prepare, view="paper", view_batch=10, seed=1)
    assert int(ds.n_train) == 30
    assert int(ds.n_test) == 15
    assert ds.attrs["view"] == "paper: random crops, whole batches of 10"
    assert float(ds.end_test_accuracy.sel(end="final_norm")) > 0.8
    other = depth_probe(tiny_vit, Stored(32), SPLITS[2], prepare=prepare, view="paper", view_batch=10, seed=2)
    assert not np.array_equal(ds.n_iter, other.n_iter)
    with pytest.raises(UnknownNameError, match="Did you mean 'paper'"):
        depth_probe(tiny_vit, Stored(32), SPLITS[2], prepare=prepare, view="papr")
    (old,) = make("depth", {"weights": "random"}).runs()
    assert old == next(iter(make("depth", {"weights": "random", "view_batch": 8}).runs()))
    assert old != next(iter(make("depth", {"weights": "random", "view": "paper"}).runs()))
    assert math.isfinite(float(ds.seconds))
