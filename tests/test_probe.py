"""Linear probe: which features, which images, what is told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch

from vitplast.errors import HypothesisError, InputError, LayoutError, PixelError, UnknownNameError
from vitplast.probe import hidden_features, linear_probe
from vitplast.results import SCHEMAS
from vitplast.training.batches import Images

CPU = torch.device("cpu")


def prepare(images):
    return (images.float() / 255 - 0.5) / 0.5


def pictures(n: int, seed: int):
    """Noise whose channel `label` is brighter."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = torch.randint(0, 120, (n, 3, 32, 32), generator=g)
    images[torch.arange(n), labels] += 60
    return images.to(torch.uint8), labels


TRAIN, TEST = pictures(45, 1), pictures(20, 2)


def test_mean_is_the_authors_probing_point(reference):
    """Mean over tokens of the last block's output with its residual, divided by its norm."""
    z = reference.z
    point = list(z["probe_components"]).index("ffn_res")
    inputs = Images(reference.x1, None, CPU, reference.dtype)
    atol = 1e-10 if reference.dtype == torch.float64 else 1e-5
    for features, key in (("mean", "probe_mean1"), ("cls", "probe_cls1")):
        wanted = z[key][-1, point]
        got = hidden_features(reference.model, inputs, features=features, batch_size=4)
        np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), rtol=0, atol=atol)


def test_both_sets_one_beside_the_other(tiny_vit):
    inputs = Images(TEST[0], prepare, CPU, torch.float32)
    one = [hidden_features(tiny_vit, inputs, features=f) for f in ("mean", "cls", "both")]
    np.testing.assert_array_equal(one[2], np.hstack(one[:2]))
    assert one[2].shape == (20, 64)
    assert not np.allclose(one[0], one[1])


def test_batch_size_does_not_matter(tiny_vit):
    inputs = Images(TEST[0], prepare, CPU, torch.float32)
    a, b = (hidden_features(tiny_vit, inputs, batch_size=n) for n in (1, 7))
    np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("features", ["mean", "cls", "both"])
def test_follows_the_schema_and_learns(tiny_vit, features):
    ds, table = linear_probe(tiny_vit, TRAIN, TEST, prepare=prepare, features=features), SCHEMAS["probe"].variables
    assert set(ds.data_vars) == set(table)
    assert set(ds.attrs) == set(SCHEMAS["probe"].attrs)
    for name, array in ds.data_vars.items():
        assert array.attrs == {"units": table[name].units, "long_name": table[name].meaning}
        assert str(array.dtype) == table[name].dtype
        assert array.dims == ()
    assert (int(ds.n_train), int(ds.n_test)) == (45, 20)
    assert float(ds.test_accuracy) > 0.9
    assert float(ds.train_accuracy) == 1.0
    assert ds.attrs["solver"].startswith("converged after")


def test_accuracy_counts_images(tiny_vit):
    labels = TEST[1].clone()
    labels[-1] = (labels[-1] + 1) % 3
    right, wrong = (linear_probe(tiny_vit, TRAIN, (TEST[0], y), prepare=prepare) for y in (TEST[1], labels))
    assert float(right.test_accuracy) - float(wrong.test_accuracy) == pytest.approx(1 / 20)


def test_same_numbers_twice_and_model_is_left_as_it_was(tiny_vit):
    tiny_vit.train()
    before = {k: v.clone() for k, v in tiny_vit.state_dict().items()}
    loaded = SimpleNamespace(model=tiny_vit, prepare=prepare)
    first, second = (linear_probe(m, TRAIN, TEST, prepare=p) for m, p in ((loaded, None), (tiny_vit, prepare)))
    assert first.drop_vars("seconds").identical(second.drop_vars("seconds"))
    assert tiny_vit.training
    assert not tiny_vit.blocks[-1]._forward_hooks
    assert all(torch.equal(v, before[k]) for k, v in tiny_vit.state_dict().items())


def test_solver_that_does_not_converge_is_told_not_printed(tiny_vit, recwarn):
    ds = linear_probe(tiny_vit, TRAIN, TEST, prepare=prepare, max_iter=2)
    assert ds.attrs["solver"].startswith("2 iterations; ")
    assert "converge" in ds.attrs["solver"]
    assert not recwarn


def test_class_missing_in_train_is_told(tiny_vit):
    keep = TRAIN[1] != 2
    ds = linear_probe(tiny_vit, (TRAIN[0][keep], TRAIN[1][keep]), TEST, prepare=prepare)
    assert ds.attrs["classes_missing_in_train"] == "2"
    assert float(ds.test_accuracy) <= 14 / 20


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (None, TEST, "no train images"),
        (TRAIN, None, "no test images"),
        ((TRAIN[0][:0], TRAIN[1][:0]), TEST, "no images"),
        ((TRAIN[0], torch.zeros_like(TRAIN[1])), TEST, "all 45 train labels are 0"),
        (TRAIN, (TEST[0], TEST[1] - 1), "at least 0"),
    ],
)
def test_splits_that_are_refused(tiny_vit, train, test, words):
    with pytest.raises(InputError, match=words):
        linear_probe(tiny_vit, train, test, prepare=prepare)


def test_pixels_that_are_not_finite_are_bad_input(tiny_vit):
    images = prepare(TEST[0])
    images[7, 0, 0, 0] = float("nan")
    with pytest.raises(PixelError, match="test images hold values that are not finite") as caught:
        linear_probe(tiny_vit, TRAIN, (images, TEST[1]), prepare=prepare)
    assert caught.value.exit_code == 2


def test_features_that_are_refused(tiny_vit):
    with pytest.raises(UnknownNameError, match="mean"):
        linear_probe(tiny_vit, TRAIN, TEST, prepare=prepare, features="meen")
    with pytest.raises(LayoutError, match="blocks"):
        linear_probe(torch.nn.Linear(2, 2), TRAIN, TEST, prepare=prepare)
    plain = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=16, depth=1, num_heads=2, class_token=False, global_pool="avg"
    )
    with pytest.raises(InputError, match="class token"):
        linear_probe(plain, TRAIN, TEST, prepare=prepare, features="cls")


def test_zero_features_are_refused(tiny_vit):
    tiny_vit.blocks[-1].register_forward_hook(lambda module, args, output: output * 0)
    with pytest.raises(HypothesisError, match="45 feature vectors"):
        linear_probe(tiny_vit, TRAIN, TEST, prepare=prepare)
