"""Rates of change against the authors' numbers, brute force, and the algebra of Proposition 1."""

from __future__ import annotations

import copy
import gc
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import xarray as xr
from conftest import load_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitplast import bench
from vitplast.components import COMPONENTS, PATHS
from vitplast.errors import (
    HypothesisError,
    InputError,
    LayoutError,
    ModeError,
    PixelError,
    ShapeError,
    UnknownNameError,
)
from vitplast.measure import CommonInput, common_input, measure, rates_of_change
from vitplast.measure.common_input import embedding
from vitplast.measure.distances import distances
from vitplast.pairs import pair_indices, product_sides

RTOL = {torch.float64: 1e-9, torch.float32: 5e-6}
CONVENTIONS = ("common", "in_situ")


def images(count, seed=0, size=32, channels=3):
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


def brute_force(model, x, y, convention):
    """Distances (layer, component, pair), in and out, from the plain definition with every activation kept."""
    got = {}

    def keep(key):
        def hook(module, args, output):
            got.setdefault(key, []).append((args[0].clone(), output.clone()))

        return hook

    modules = {
        (layer, column): block.get_submodule(PATHS[c])
        for layer, block in enumerate(model.blocks)
        for column, c in enumerate(COMPONENTS)
    }
    handles = [m.register_forward_hook(keep(key)) for key, m in modules.items()]
    with torch.no_grad():
        for z in (x, y):
            if convention == "in_situ":
                model(z)
            else:
                e = embedding(model, z)
                for (_, column), module in modules.items():
                    padding = module.in_features - e.shape[-1] if COMPONENTS[column] == "FC2" else 0
                    module(F.pad(e, (0, padding)))
    for handle in handles:
        handle.remove()
    d = np.empty((2, len(model.blocks), len(COMPONENTS), len(x)))
    for (layer, column), ((in_x, out_x), (in_y, out_y)) in got.items():
        for side, (a, b) in enumerate(((in_x, in_y), (out_x, out_y))):
            d[side, layer, column] = (a.double() - b.double()).flatten(1).norm(dim=1)
    return d


def variants():
    """Plain vision transformers of every kind that timm has in this layout, tiny."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 0}
    return {
        "plain": small,
        "layer scale": {**small, "init_values": 0.1},
        "qk norm": {**small, "qk_norm": True},
        "scaled norms": {**small, "scale_attn_norm": True, "scale_mlp_norm": True},
        "post norm": {**small, "block_fn": ResPostBlock},
        "registers": {**small, "reg_tokens": 4, "class_token": False, "global_pool": "avg"},
        "pre norm": {**small, "pre_norm": True, "qkv_bias": False},
        "rms norm": {**small, "norm_layer": timm.layers.RmsNorm},
        "no affine": {**small, "norm_layer": lambda d, **kw: nn.LayerNorm(d, elementwise_affine=False)},
        "hidden 1.5 E": {**small, "mlp_ratio": 1.5},
        "in place": {**small, "act_layer": lambda: nn.ReLU(inplace=True)},
        "gated": small,
        "other attention": {**small, "attn_layer": "diff"},
        "drop layers": {**small, "proj_drop_rate": 0.5, "drop_path_rate": 0.5, "pos_drop_rate": 0.5},
    }


def make_variant(name):
    torch.manual_seed(1)
    model = VisionTransformer(**variants()[name]).double().eval()
    if name == "gated":
        for block in model.blocks:
            block.attn = timm.layers.Attention(32, 4, gated=True).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def test_authors_numbers(reference):
    """dist_in, dist_out, ratio, plasticity_mean and _std of the authors' code, both models, both precisions."""
    r = rates_of_change(reference.model, reference.x1, reference.x2, convention="common", batch_size=4)
    rtol, z = RTOL[reference.dtype], reference.z
    np.testing.assert_allclose(r.distance_in, np.broadcast_to(z["dist_in"], r.rate.shape), rtol=rtol)
    np.testing.assert_allclose(r.distance_out, z["dist_out"], rtol=rtol)
    np.testing.assert_allclose(r.rate, z["ratio"], rtol=rtol)
    np.testing.assert_allclose(r.rate.mean("pair"), z["plasticity_mean"], rtol=rtol)
    np.testing.assert_allclose(r.rate.std("pair", ddof=0), z["plasticity_std"], rtol=4 * rtol)
    assert list(r.component.values) == list(z["components"])
    assert r.attrs["precision"] == str(reference.dtype).removeprefix("torch.")


def test_embedding_and_logits_of_the_reference(reference):
    """The model is the authors' to begin with; otherwise no other number means anything."""
    atol = 1e-10 if reference.dtype == torch.float64 else 1e-5
    with torch.no_grad():
        found = embedding(reference.model, reference.x1), reference.model(reference.x2)
    np.testing.assert_allclose(found[0], reference.z["embedding1"], atol=atol, rtol=0)
    np.testing.assert_allclose(found[1], reference.z["logits2"], atol=atol, rtol=0)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", variants())
def test_against_brute_force(name, convention):
    model, x, y = make_variant(name), images(3).double(), images(3, seed=1).double()
    found = rates_of_change(model, x, y, convention=convention, batch_size=4)
    d_in, d_out = brute_force(model, x, y, convention)
    np.testing.assert_allclose(found.distance_in, d_in, rtol=1e-9)
    np.testing.assert_allclose(found.distance_out, d_out, rtol=1e-9)
    np.testing.assert_allclose(found.rate, d_out / d_in, rtol=1e-9)


def test_unfused_attention_uses_its_scale(tiny_vit):
    """timm uses `scale` in the unfused path only; so does the measurement, which leaves the flag alone."""
    x, y = images(2), images(2, seed=1)
    tiny_vit.requires_grad_(False)
    fused = rates_of_change(tiny_vit, x, y, convention="common").rate
    for block in tiny_vit.blocks:
        block.attn.fused_attn, block.attn.scale = False, 5.0
    found = rates_of_change(tiny_vit, x, y, convention="common")
    np.testing.assert_allclose(found.distance_out, brute_force(tiny_vit, x, y, "common")[1], rtol=5e-6)
    assert abs(found.rate / fused - 1).sel(component="MHA").max() > 1e-3
    assert not any(block.attn.fused_attn for block in tiny_vit.blocks)


def test_hooks_of_others_are_respected(tiny_vit):
    """A component that someone has hooked is called as it is, not replaced by its formula."""
    x, y = images(2), images(2, seed=1)
    for block in tiny_vit.blocks:
        for path in PATHS.values():
            block.get_submodule(path).register_forward_hook(lambda module, args, output: 2 * output)
    found = rates_of_change(tiny_vit, x, y, convention="common")
    np.testing.assert_allclose(found.distance_out, brute_force(tiny_vit, x, y, "common")[1], rtol=5e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_crossed_is_all_pairs_done_singly(tiny_vit, convention, monkeypatch):
    x, y = images(5), images(4, seed=1)
    monkeypatch.setattr(common_input, "KEPT_BYTES", 25_000)
    assert CommonInput(tiny_vit).tile_sizes(x[:1], 3)[0] in (2, 3), "the test wants more than one tile"
    found = rates_of_change(tiny_vit, x, y, convention=convention, design="crossed", batch_size=5)
    i, j = np.repeat(np.arange(5), 4), np.tile(np.arange(4), 5)
    singly = rates_of_change(tiny_vit, x, y, convention=convention, source_index=i, target_index=j)
    for name in ("distance_in", "distance_out", "rate"):
        np.testing.assert_allclose(found[name], singly[name], rtol=1e-5)
    np.testing.assert_array_equal(found.source_id, i.astype(str))
    np.testing.assert_array_equal(found.target_id, j.astype(str))


@pytest.mark.parametrize("design", ["disjoint", "crossed", "cycled"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_shared_source_is_separate(tiny_vit, convention, design):
    x, ys = images(6), {"a": images(5, seed=1), "b": images(4, seed=2), "c": images(7, seed=3)}
    options = {"convention": convention, "design": design, "pairs": 4, "seed": 3, "batch_size": 6}
    shared = rates_of_change(tiny_vit, x, ys, **options)
    assert list(shared) == list(ys)
    for name, y in ys.items():
        separate = rates_of_change(tiny_vit, x, y, **options)
        xr.testing.assert_allclose(shared[name], separate, rtol=1e-5)
    np.testing.assert_array_equal(shared["a"].source_id, shared["c"].source_id)


def test_source_goes_through_the_model_once(tiny_vit):
    x, ys = images(4), {"a": images(4, seed=1), "b": images(4, seed=2)}
    seen = []
    handle = tiny_vit.blocks[0].attn.q_norm.register_forward_hook(lambda m, a, o: seen.append(len(o)))
    for convention in CONVENTIONS:
        seen.clear()
        rates_of_change(tiny_vit, x, ys, convention=convention)
        assert sum(seen) == 12
    handle.remove()


def test_gram_form_equals_direct_form(monkeypatch):
    """Also where the weights nearly annihilate the difference and the Gram form alone would lose all digits."""
    g = torch.Generator().manual_seed(0)
    width, hidden = 64, 256
    weight = torch.randn(hidden, width, generator=g)
    u = torch.randn(width, generator=g)
    u /= u.norm()
    weight = weight - (weight @ u)[:, None] * u
    difference = torch.randn(5, 17, width, generator=g)
    direction = torch.tensor([0, 1, 30, 1e3, 1e4])[:, None, None] * torch.randn(5, 17, 1, generator=g) * u
    for d in (difference, difference + direction):
        out = torch.full((1, 5, 5), torch.nan, dtype=torch.float64)
        common_input._Linear([(0, 3, weight)], width).fill(out, d)
        direct = (d.double() @ weight.double().T).flatten(1).norm(dim=1)
        in_float32 = (d @ weight.T).flatten(1).double().norm(dim=1)
        tolerance = 5e-6 + 2 * abs(in_float32 / direct - 1).max().item()
        np.testing.assert_allclose(out[0, 3], direct, rtol=tolerance)
    monkeypatch.setattr(common_input, "CANCELLATION", float("inf"))
    common_input._Linear([(0, 3, weight)], width).fill(out, difference + direction)
    assert abs(out[0, 3] / direct - 1).max() > 1e-3, "without the direct form the digits are lost"


def test_zero_weights(tiny_vit):
    """A layer of zeros has plasticity 0; so has any constant map (Proposition 1a)."""
    with torch.no_grad():
        tiny_vit.blocks[1].mlp.fc1.weight.zero_()
        tiny_vit.blocks[0].attn.proj.weight.zero_()
    rate = rates_of_change(tiny_vit, images(2), images(2, seed=1), convention="common").rate
    assert (rate.sel(layer=1, component="FC1") == 0).all()
    assert (rate.sel(layer=0, component="MHA") == 0).all()
    assert (rate.sel(layer=0, component="FC1") > 0).all()


REFERENCES = {name: load_reference(name, torch.float64) for name in ("tiny_a", "tiny_b")}


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from(sorted(REFERENCES)), exponent=st.floats(-3, 3), sign=st.sampled_from([-1, 1]))
def test_scale_law(name, exponent, sign):
    """Inputs scaled by c: linear maps keep their plasticity, layer norms (eps 1e-12) get 1/|c| (Proposition 1c)."""
    r, c = REFERENCES[name], sign * 10**exponent
    scaled = copy.deepcopy(r.model)
    with torch.no_grad():
        for parameter in (scaled.cls_token, scaled.pos_embed, *scaled.patch_embed.parameters()):
            parameter.mul_(c)
    found = rates_of_change(scaled, r.x1, r.x2, convention="common").rate.values
    expected = r.z["ratio"].copy()
    np.testing.assert_allclose(found[:, 3:], expected[:, 3:], rtol=1e-9)
    np.testing.assert_allclose(found[:, [0, 2]] * abs(c), expected[:, [0, 2]], rtol=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(sorted(REFERENCES)),
    factor=st.floats(-50, 50).filter(lambda a: abs(a) > 1e-3),
    component=st.sampled_from(COMPONENTS),
    convention=st.sampled_from(CONVENTIONS),
)
def test_plasticity_is_homogeneous_and_blind_to_bias(name, factor, component, convention):
    """P(a f + b) = |a| P(f) for every component in either convention (Proposition 1a)."""
    r = REFERENCES[name]
    layer = len(r.model.blocks) - 1
    before = rates_of_change(r.model, r.x1, r.x2, convention=convention).rate
    changed = copy.deepcopy(r.model)
    module = changed.blocks[layer].get_submodule(PATHS[component])
    module = module.proj if component == "MHA" else module
    with torch.no_grad():
        module.weight.mul_(factor)
        module.bias.mul_(factor).add_(1.5)
    after = rates_of_change(changed, r.x1, r.x2, convention=convention).rate
    place = {"layer": layer, "component": component}
    np.testing.assert_allclose(after.sel(place), abs(factor) * before.sel(place), rtol=1e-7)


def test_composition_law(reference):
    """rho of FC1 after LN2 is the product of the rates in situ (Proposition 1d), LN2's output being FC1's input."""
    r = rates_of_change(reference.model, reference.x1, reference.x2, convention="in_situ")
    for f, g in (("LN1", "MHA"), ("LN2", "FC1")):
        first, second = r.sel(component=f), r.sel(component=g)
        np.testing.assert_array_equal(first.distance_out, second.distance_in)
        np.testing.assert_allclose(first.rate * second.rate, second.distance_out / first.distance_in, rtol=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("precision", "band"), [("bfloat16", 0.02), ("float16", 0.003)])
def test_half_precision_within_its_band(reference_name, convention, precision, band):
    """bfloat16 has 8 bits, float16 has 11: rates within 2 % and 0.3 %, and not equal to those of float32."""
    r = load_reference(reference_name, torch.float32)
    exact = rates_of_change(r.model, r.x1, r.x2, convention=convention).rate
    found = rates_of_change(r.model, r.x1, r.x2, convention=convention, precision=precision)
    off = abs(found.rate / exact - 1)
    assert 1e-6 < off.max() < band
    assert found.attrs["precision"] == precision
    assert found.rate.dtype == np.float64


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_model_is_left_as_it_was(tiny_vit, convention):
    tiny_vit.blocks[0].attn.requires_grad_(False)
    before = {k: v.clone() for k, v in tiny_vit.state_dict().items()}
    grads = [p.requires_grad for p in tiny_vit.parameters()]
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            rates_of_change(tiny_vit, images(2), images(2, seed=1), convention=convention)
    assert [p.requires_grad for p in tiny_vit.parameters()] == grads
    assert all(p.grad is None for p in tiny_vit.parameters())
    assert not tiny_vit.training
    for key, value in tiny_vit.state_dict().items():
        assert torch.equal(value, before[key])
    tiny_vit(images(1)).sum().backward()


@pytest.mark.parametrize("design", ["disjoint", "crossed"])
def test_hooks_are_removed_after_an_error(tiny_vit, design):
    def fail(module, args):
        raise RuntimeError("on purpose")

    handle = tiny_vit.blocks[1].mlp.act.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        rates_of_change(tiny_vit, images(2), images(2, seed=1), convention="in_situ", design=design)
    handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in tiny_vit.modules())


class Largest(TorchDispatchMode):
    """The most numbers that any operation gives back."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out


@pytest.mark.parametrize("design", ["disjoint", "crossed"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_memory_is_flat_in_the_number_of_pairs(tiny_vit, convention, design, monkeypatch):
    """Neither the largest tensor made nor the tensors alive at the last batch grow with the number of pairs."""
    monkeypatch.setattr(common_input, "KEPT_BYTES", 30_000)
    found = []
    for count in (6, 18):
        x, y = images(count), images(count, seed=1)
        alive = []

        def progress(done, total, alive=alive):
            if done == total:
                alive.append(sum(t.numel() for t in gc.get_objects() if issubclass(type(t), torch.Tensor)))

        with Largest() as largest:
            rates_of_change(tiny_vit, x, y, convention=convention, design=design, batch_size=4, progress=progress)
        found.append((largest.numel, alive[0] - x.numel() - y.numel()))
    assert found[1][0] == found[0][0]
    assert abs(found[1][1] - found[0][1]) < 1000


def test_setup_is_shared(tiny_vit):
    """A set-up given is used, not made again: with stale weights the old rates come out."""
    x, y = images(2), images(2, seed=1)
    setup = CommonInput(tiny_vit)
    before = rates_of_change(tiny_vit, x, y, convention="common", setup=setup)
    with torch.no_grad():
        tiny_vit.blocks[0].mlp.fc1.weight.mul_(3)
    xr.testing.assert_identical(rates_of_change(tiny_vit, x, y, convention="common", setup=setup), before)
    fresh = rates_of_change(tiny_vit, x, y, convention="common")
    ratio = (fresh.rate / before.rate).sel(layer=0, component="FC1")
    np.testing.assert_allclose(ratio, 3, rtol=1e-5)


class Split:
    """Images read on demand, as the image sets of the package give them."""

    def __init__(self, tensor, groups):
        self.tensor, self.groups = tensor, groups
        self.ids = [f"photo-{i}" for i in range(len(tensor))]
        self.read = []

    def __len__(self):
        return len(self.tensor)

    def images(self, index):
        self.read.append(len(index))
        return self.tensor[torch.from_numpy(np.asarray(index))]


def test_splits_of_uint8_images_through_a_loaded_model(tiny_vit):
    g = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (2, 6, 3, 32, 32), dtype=torch.uint8, generator=g)
    loaded = SimpleNamespace(model=tiny_vit, prepare=lambda u: (u.float() / 255 - 0.5) / 0.25)
    x, y = Split(raw[0], list("aabbcc")), Split(raw[1], list("uvwxyz"))
    found = rates_of_change(loaded, x, y, convention="common", pairs=5, seed=1, batch_size=4)
    i, j = pair_indices(6, 6, 5, "disjoint", 1)
    direct = rates_of_change(tiny_vit, loaded.prepare(raw[0])[i], loaded.prepare(raw[1])[j], convention="common")
    np.testing.assert_allclose(found.rate, direct.rate, rtol=1e-5)
    assert list(found.source_id.values) == [x.ids[k] for k in i]
    assert list(found.source_group.values) == [x.groups[k] for k in i]
    assert max(x.read) == 2, "images are read as they are needed"
    with pytest.raises(InputError, match="uint8; prepare"):
        rates_of_change(tiny_vit, x, y, convention="common", pairs=5)


def test_measure_joins_conventions(tiny_vit):
    x, y = images(3), images(3, seed=1)
    whole = measure(tiny_vit, x, y, source_name="photos", target_name="digits", batch_size=2)
    assert whole.rate.dims == ("convention", "layer", "component", "pair")
    assert list(whole.convention.values) == ["common", "in_situ"]
    for convention in CONVENTIONS:
        one = rates_of_change(tiny_vit, x, y, convention=convention, batch_size=2)
        np.testing.assert_array_equal(whole.rate.sel(convention=convention), one.rate)
    assert whole.attrs == {
        "design": "disjoint",
        "precision": "float32",
        "seed": 0,
        "dropped_pairs": 0,
        "source": "photos",
        "target": "digits",
    }
    for name, variable in whole.variables.items():
        assert variable.attrs.get("long_name"), name
    assert all(whole[v].attrs["units"] == "1" and whole[v].dtype == np.float64 for v in whole.data_vars)
    several = measure(tiny_vit, x, {"a": y, "b": y + 1}, conventions=["in_situ"])
    assert several["b"].attrs["target"] == "b"
    assert several["a"].sizes["convention"] == 1


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("design", ["disjoint", "crossed"])
def test_coinciding_pairs(tiny_vit, convention, design):
    """Up to 1 % of the pairs are dropped and counted; more are an error."""
    tiny = VisionTransformer(img_size=8, patch_size=8, embed_dim=8, depth=1, num_heads=2, num_classes=0).eval()
    count = 100 if design == "disjoint" else 11
    x, y = images(count, size=8), images(count, seed=1, size=8)
    y[7] = x[7]
    found = rates_of_change(tiny, x, y, convention=convention, design=design)
    same = 7 if design == "disjoint" else 7 * count + 7
    assert found.attrs["dropped_pairs"] == 1
    assert same not in found.pair
    assert found.sizes["pair"] in (99, 120)
    assert np.isfinite(found.rate).all()
    whole = measure(tiny, x, y, design=design)
    assert whole.attrs["dropped_pairs"] == 1
    assert whole.sizes["pair"] == found.sizes["pair"]
    y[8:10] = x[8:10]
    with pytest.raises(HypothesisError, match="coincide, more than 1%"):
        rates_of_change(tiny, x, y, convention=convention, design=design)


X, Y = images(3), images(3, seed=1)
BAD_PIXEL = X.clone()
BAD_PIXEL[1, 2, 3, 4] = torch.nan
WRONG = {
    "convention": ({"convention": "in situ"}, UnknownNameError, "in_situ"),
    "design": ({"design": "cross"}, UnknownNameError, "crossed"),
    "precision": ({"precision": "bf16"}, UnknownNameError, "bfloat16"),
    "batch size": ({"batch_size": 0}, InputError, "batch_size must be at least 1, got 0"),
    "too many pairs": ({"pairs": 4}, InputError, "3 are available"),
    "no pairs": ({"pairs": 0}, InputError, "at least 1"),
    "0..255": ({"source": X * 50}, InputError, r"looks like 0\.\.255; normalise first"),
    "uint8": ({"targets": (X * 50).to(torch.uint8)}, InputError, "uint8; prepare"),
    "int64": ({"targets": X.long()}, InputError, "must be floats"),
    "NaN": ({"source": BAD_PIXEL}, PixelError, "source images hold NaN"),
    "inf": ({"targets": BAD_PIXEL.nan_to_num(torch.inf)}, PixelError, "NaN or infinite"),
    "three axes": ({"source": X[0]}, ShapeError, "N, C, H, W"),
    "channels last": ({"source": X.permute(0, 2, 3, 1)}, ShapeError, "32 channels, but the model takes 3"),
    "one channel": ({"targets": X[:, :1]}, ShapeError, "1 channels"),
    "size": ({"targets": images(3, size=24)}, ShapeError, "24 x 24 pixels, but the model takes 32 x 32"),
    "empty": ({"source": X[:0]}, ShapeError, "source is empty"),
    "numpy": ({"source": X.numpy()}, InputError, "ndarray"),
    "no targets": ({"targets": {}}, InputError, "no targets"),
    "unequal": ({"targets": Y[:2]}, InputError, "at most 2"),
    "one index": ({"source_index": np.arange(2)}, InputError, "both"),
    "index out of range": ({"source_index": np.arange(4), "target_index": np.arange(4)}, InputError, "3 images"),
    "index of floats": ({"source_index": [0.5], "target_index": [0]}, InputError, "integers"),
    "unequal indices": ({"source_index": [0, 1], "target_index": [0]}, ShapeError, "2 source images for 1"),
    "not crossed": ({"source_index": [0, 1, 2], "target_index": [0, 1, 1], "design": "crossed"}, InputError, "crossed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_refused(tiny_vit, what):
    changes, error, message = WRONG[what]
    arguments = {"source": X, "targets": Y, "convention": "common", **changes}
    with pytest.raises(error, match=message) as caught:
        rates_of_change(tiny_vit, **arguments)
    assert caught.value.exit_code == 2


def test_wrong_models_are_refused(tiny_vit):
    x, y = images(2), images(2, seed=1)
    tiny_vit.blocks[1].mlp.drop1.train()
    with pytest.raises(ModeError, match=r"blocks\.1\.mlp\.drop1"):
        rates_of_change(tiny_vit, x, y, convention="common")
    narrow = make_variant("plain").float()
    narrow.blocks[1].mlp = timm.layers.Mlp(32, 16).eval()
    with pytest.raises(ShapeError, match=r"blocks\.1\.mlp\.fc2 takes 16 inputs"):
        rates_of_change(narrow, x, y, convention="common")
    assert np.isfinite(rates_of_change(narrow, x, y, convention="in_situ").rate).all()
    with pytest.raises(LayoutError, match="no 'blocks'"):
        rates_of_change(nn.Conv2d(3, 4, 3).eval(), x, y, convention="in_situ")

    class Rotary(VisionTransformer):
        def _pos_embed(self, x):
            return super()._pos_embed(x), None

    rotary = Rotary(img_size=8, patch_size=8, embed_dim=8, depth=1, num_heads=2, num_classes=0).eval()
    with pytest.raises(LayoutError, match="passes more than tokens"):
        rates_of_change(rotary, images(2, size=8), images(2, seed=1, size=8), convention="common")
    with pytest.raises(InputError, match="float32 weights, these are float64"):
        rates_of_change(narrow.double(), x, y, convention="in_situ", precision="bfloat16")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_outputs_that_are_not_finite_are_named(tiny_vit, convention):
    with torch.no_grad():
        tiny_vit.blocks[1].mlp.fc2.weight[0, 0] = torch.nan
    with pytest.raises(HypothesisError, match="outputs of FC2 in layer 1 is not finite"):
        rates_of_change(tiny_vit, images(2), images(2, seed=1), convention=convention)


def test_component_called_twice_is_refused(tiny_vit):
    tiny_vit.blocks[1] = tiny_vit.blocks[0]
    with pytest.raises(LayoutError, match="called 2 times"):
        rates_of_change(tiny_vit, images(2), images(2, seed=1), convention="in_situ")


def test_distances_do_not_cancel_or_round_to_half():
    """Float64 sums of differences: neither the sum of squares form nor half precision would pass."""
    x = torch.full((2, 50, 40), 1e3)
    y = x + torch.randn(2, 50, 40, generator=torch.Generator().manual_seed(0)) * 1e-2
    expected = (x.double() - y.double()).flatten(1).norm(dim=1)
    np.testing.assert_allclose(distances(x, y), expected, rtol=1e-7)
    assert distances(x.half(), y[:1].half()).dtype == torch.float64
    np.testing.assert_allclose(distances(x[:1], y), expected, rtol=1e-7)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 20), m=st.integers(1, 20), seed=st.integers(0, 9), data=st.data())
def test_pairs_of_each_design(n, m, seed, data):
    pairs = data.draw(st.integers(1, min(n, m)))
    s, t = pair_indices(n, m, pairs, "disjoint", seed)
    assert len(set(s)) == len(set(t)) == len(s) == pairs
    assert s.dtype == t.dtype == np.int64
    rows, cols = product_sides(*pair_indices(n, m, pairs, "crossed", seed))
    assert list(rows) == list(s)
    assert list(cols) == list(t)
    k = data.draw(st.integers(1, n))
    s, t = pair_indices(n, m, k, "cycled", seed)
    assert len(set(s)) == k
    assert np.bincount(t, minlength=m).max() - np.bincount(t, minlength=m).min() <= 1
    assert len(set(t)) == min(k, m)
    for first, again in zip((s, t), pair_indices(n, m, k, "cycled", seed), strict=True):
        np.testing.assert_array_equal(first, again)


def test_pairs_depend_on_the_seed_and_refuse_too_few():
    assert list(pair_indices(50, 50, 20, "disjoint", 0)[0]) != list(pair_indices(50, 50, 20, "disjoint", 1)[0])
    s, t = pair_indices(50, 50, 50, "disjoint", 0)
    assert list(s) != list(t)
    assert list(pair_indices(50, 9, 9, "disjoint", 5)[0]) == list(pair_indices(50, 40, 9, "disjoint", 5)[0])
    with pytest.raises(InputError, match="5 are available"):
        pair_indices(9, 5, 6, "crossed", 0)
    with pytest.raises(InputError, match="5 are available"):
        pair_indices(5, 9, 6, "cycled", 0)
    with pytest.raises(InputError, match="no images"):
        pair_indices(0, 9, 1, "disjoint", 0)


def test_bench_times_what_it_says(tiny_vit):
    work = bench.steps(tiny_vit, images(2), images(2, seed=1), targets=2)
    assert set(work) >= {"two_forwards", "plasticity_common", "plasticity_in_situ", "plasticity_setup"}
    shared, separate = work["shared_source"](), work["separate"]()
    np.testing.assert_allclose(shared["1"].rate, separate[1].rate, rtol=1e-5)
    ratios = bench.compare(lambda: [work["two_forwards"]() for _ in range(6)], work["two_forwards"], repeats=5)
    assert len(ratios) == 5
    assert np.median(ratios) > 2


@pytest.mark.parametrize(("kind", "band"), [(torch.float16, 0.02), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("design", ["disjoint", "crossed"])
def test_weights_of_half_precision_on_the_common_input(tiny_vit, design, kind, band):
    x, y = images(3), images(3, seed=1)
    exact = rates_of_change(tiny_vit, x, y, convention="common", design=design).rate
    found = rates_of_change(tiny_vit.to(kind), x.to(kind), y.to(kind), convention="common", design=design).rate
    assert np.isfinite(found).all()
    assert abs(found / exact - 1).max() < band
