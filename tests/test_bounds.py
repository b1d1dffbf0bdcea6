"""Bounds: stored reference values, known matrices, examples that break the published forms, random layers."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from conftest import load_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitplast.bounds import (
    VARIANTS,
    HeadNorms,
    attention_paper_bias,
    attention_quoted,
    bounds,
    centred_norm,
    column_heads,
    column_norms,
    head_norms,
    heads,
    layernorm_bound,
    layernorm_coded,
    layernorm_constant,
    padded_norm,
    product_norm,
    row_norms,
    spectral_norm,
    token_statistics,
)
from vitplast.bounds.canonical import canonical, fold
from vitplast.errors import (
    HypothesisError,
    InputError,
    LayoutError,
    ModeError,
    NoBoundError,
    PixelError,
    ShapeError,
    UnknownNameError,
)

SCALES = st.sampled_from([1e-8, 1e-3, 1.0, 1e3, 1e8])
SEEDS = st.integers(0, 2**31)
SLACK = 1 + 1e-6


def rate(f, x, y):
    return float((f(x) - f(y)).norm() / (x - y).norm())


def attention(width, n_heads, generator, *, scale=1.0, rank=None, bias=True):
    """A timm attention layer in float64 with random weights, and its bound's two ingredients."""
    layer = timm.layers.Attention(width, num_heads=n_heads, qkv_bias=bias).double().eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        if rank is not None:
            thin = torch.randn(3 * width, rank, generator=generator, dtype=torch.float64)
            layer.qkv.weight.copy_(scale * thin @ torch.ones(rank, width, dtype=torch.float64))
    return layer, norms_of(layer)


def norms_of(layer):
    cut = heads(layer.qkv.weight, layer.proj.weight, layer.num_heads)
    bias = None if layer.qkv.bias is None else layer.qkv.bias[: layer.attn_dim]
    return row_norms(cut, layer.scale, bias)


def coded_norms(layer):
    return column_norms(column_heads(layer.qkv.weight, layer.proj.weight, layer.num_heads))


# ---- against the stored numbers of the authors' code ----------------------------------------------------------------


@pytest.fixture(scope="module", params=["tiny_a-float64", "tiny_a-float32", "tiny_b-float64", "tiny_b-float32"])
def measured(request):
    """A stored model with its statistics and bounds, computed once for all tests; they must not change it."""
    name, dtype = request.param.split("-")
    ref = load_reference(name, getattr(torch, dtype))
    own = token_statistics(ref.model, [ref.x1], conventions=["common"])
    both = token_statistics(ref.model, [ref.x1, ref.x2])
    radius = float(own["radius_rms"][0, 0, 0])
    return SimpleNamespace(
        **vars(ref),
        radius=radius,
        both=both,
        rtol=1e-9 if ref.dtype == torch.float64 else 2e-5,
        ds=bounds(ref.model, both, coded_radius=radius),
    )


def test_token_statistics_equal_the_reference(measured):
    z, rtol = measured.z, measured.rtol
    with_constant = token_statistics(measured.model, [measured.x1, measured.x2], include_constant=True)
    embedding = with_constant.sel(convention="common", layer=0, component="MHA")
    np.testing.assert_allclose(measured.radius, z["radius_rms"], rtol=rtol)
    np.testing.assert_allclose(embedding["radius_max"], z["radius_max"], rtol=rtol)
    np.testing.assert_allclose(embedding["sigma_min"], z["token_sigma_min"], rtol=rtol)
    np.testing.assert_allclose(embedding["sigma_mean"], z["token_sigma_mean"], rtol=rtol)
    # The class token, the same for all images, is in the stored mean; it does not decide the stored minimum.
    without = measured.both.sel(convention="common", layer=0, component="MHA")
    np.testing.assert_allclose(without["sigma_min"], z["token_sigma_min"], rtol=rtol)
    assert abs(without["sigma_mean"] / z["token_sigma_mean"] - 1) > 0.01
    assert measured.both.attrs["tokens"] == z["n_tokens"]


def test_head_norms_equal_the_reference(measured):
    ds = head_norms(measured.model)
    stored = {
        "O": "head_O",
        "V": "head_V",
        "QK": "head_QK",
        "qbias": "head_qbias",
        "coded_O": "head_peer_O",
        "coded_V": "head_peer_V",
        "coded_QK": "head_peer_QK",
    }
    assert set(ds.data_vars) == set(stored)
    for ours, theirs in stored.items():
        np.testing.assert_allclose(ds[ours], measured.z[theirs], rtol=measured.rtol)


def test_bounds_equal_the_reference(measured):
    common = measured.ds["bound"].sel(convention="common")
    for variant, key in zip(VARIANTS[:3], ("bound_peer", "bound_fixed", "bound_valid"), strict=True):
        ours, theirs = common.sel(variant=variant), measured.z[key]
        for i, component in enumerate(ours.component.values):
            # The stored valid layer norm bounds were rounded to float32 (half a unit: 6e-8).
            rounded = variant == "valid" and component.startswith("LN")
            rtol = max(measured.rtol, 6e-8) if rounded else measured.rtol
            np.testing.assert_allclose(ours.sel(component=component), theirs[:, i], rtol=rtol, err_msg=component)


def test_authors_numbers_belong_to_the_common_convention(measured):
    in_situ = measured.ds["bound"].sel(convention="in_situ")
    assert in_situ.sel(variant=["as_coded", "heads_fixed"]).isnull().all()
    assert np.isfinite(in_situ.sel(variant=["valid", "new"])).all()
    whole = [spectral_norm(b.mlp.fc2.weight) for b in measured.model.blocks]
    np.testing.assert_allclose(in_situ.sel(variant="valid", component="FC2"), whole, rtol=1e-12)


def test_stored_rates_respect_the_valid_bounds_and_break_a_coded_one(measured):
    common = measured.ds["bound"].sel(convention="common")
    ratio = measured.z["ratio"]
    assert (ratio <= common.sel(variant="valid").values[..., None] * SLACK).all()
    assert ratio[1, 0].max() > float(common.sel(variant="as_coded")[1, 0])


def test_in_situ_rates_respect_the_valid_bounds(measured):
    outputs, model = {}, copy.deepcopy(measured.model)
    for part in ("norm1", "attn", "norm2", "mlp.fc1", "mlp.fc2"):
        for layer, block in enumerate(model.blocks):
            block.get_submodule(part).register_forward_hook(
                lambda m, a, y, key=(layer, part): outputs.setdefault(key, []).append((a[0], y))
            )
    with torch.no_grad():
        model(measured.x1)
        model(measured.x2)
    limit = measured.ds["bound"].sel(convention="in_situ", variant="valid").values
    for (layer, part), ((x1, y1), (x2, y2)) in outputs.items():
        column = ("norm1", "attn", "norm2", "mlp.fc1", "mlp.fc2").index(part)
        rates = (y1 - y2).flatten(1).norm(dim=1) / (x1 - x2).flatten(1).norm(dim=1)
        assert rates.max() <= limit[layer, column] * SLACK


def test_statistics_enter_only_where_a_bound_uses_them(measured):
    ds = measured.ds
    assert ds["radius_max"].sel(component="MHA").notnull().all()
    assert ds["radius_max"].sel(component=["LN1", "LN2", "FC1", "FC2"]).isnull().all()
    assert ds["sigma_min"].sel(component=["LN1", "LN2"]).notnull().all()
    assert ds["sigma_min"].sel(component="MHA").isnull().all()
    assert json.loads(ds.attrs["no_bound"]) == {}
    assert all("units" in v.attrs and "long_name" in v.attrs for v in ds.data_vars.values())


# ---- linear layers --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 9), st.integers(1, 9), SCALES, st.sampled_from(["full", "rank one", "zero"]))
def test_linear_rates_never_exceed_the_norm(seed, n_out, n_in, scale, kind):
    g = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(n_out, n_in, generator=g, dtype=torch.float64)
    weight = {"full": weight, "rank one": weight[:, :1] @ weight[:1], "zero": 0 * weight}[kind]
    bias = weight.norm() * torch.randn(n_out, generator=g, dtype=torch.float64)
    x, y = torch.randn(2, 5, n_in, generator=g, dtype=torch.float64)
    bound = spectral_norm(weight)
    assert rate(lambda t: t @ weight.T + bias, x, y) <= bound * SLACK
    assert spectral_norm(2 * weight) == pytest.approx(2 * bound, rel=1e-12)
    top = torch.linalg.svd(weight).Vh[:1]
    assert rate(lambda t: t @ weight.T, top, -top) == pytest.approx(bound, rel=1e-9)
    assert padded_norm(weight, 1) == pytest.approx(float(weight[:, 0].norm()), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("shape", [(3,), (0, 4), (2, 0), (2, 3, 4)])
def test_linear_refuses_other_shapes(shape):
    with pytest.raises(ShapeError, match="two dimensions"):
        spectral_norm(torch.zeros(shape))


def test_linear_refuses_bad_values_and_impossible_padding():
    with pytest.raises(HypothesisError, match="not finite"):
        spectral_norm(torch.tensor([[math.nan]]))
    with pytest.raises(ShapeError, match="5 features"):
        padded_norm(torch.ones(2, 4), 5)


# ---- layer normalisation --------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    SEEDS,
    st.integers(2, 12),
    SCALES,
    SCALES,
    st.sampled_from([0.0, 1e-12, 1e-6, 0.3]),
    st.sampled_from(["both signs", "negative", "one", "equal", "zero"]),
)
def test_layernorm_rates_never_exceed_the_exact_constant(seed, d, scale, token_scale, eps, kind):
    g = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(d, generator=g, dtype=torch.float64)
    weight = {
        "both signs": weight,
        "negative": -weight.abs(),
        "one": weight * torch.eye(d, dtype=torch.float64)[0],
        "equal": torch.full_like(weight, scale),
        "zero": 0 * weight,
    }[kind]
    bias = scale * torch.randn(d, generator=g, dtype=torch.float64)
    x, y = token_scale * torch.randn(2, 4, d, generator=g, dtype=torch.float64)

    def f(t):
        centred = t - t.mean(dim=-1, keepdim=True)
        return weight * centred / (t.var(dim=-1, correction=0, keepdim=True) + eps).sqrt() + bias

    sigma = float(torch.cat([x, y]).std(dim=-1, correction=0).min())
    exact, simple = layernorm_constant(weight, sigma, eps), layernorm_bound(weight, sigma, eps)
    assert rate(f, x, y) <= exact * SLACK
    assert exact <= simple * (1 + 1e-12)
    dense = torch.diag(weight) @ (torch.eye(d, dtype=torch.float64) - 1 / d)
    norm = centred_norm(weight)
    assert norm == pytest.approx(float(torch.linalg.matrix_norm(dense, 2)), rel=1e-9)
    top = weight.abs().sort(descending=True).values
    assert float(top[1]) * (1 - 1e-12) <= norm <= float(top[0]) * (1 + 1e-12)


def test_layernorm_constant_is_reached_by_opposite_tokens():
    weight, sigma, eps = torch.tensor([3.0, -1.0, 0.5, 0.25]).double(), 0.5, 0.1
    dense = torch.diag(weight) @ (torch.eye(4, dtype=torch.float64) - 0.25)
    x = sigma * 2 * torch.linalg.svd(dense).Vh[:1]
    reached = rate(lambda t: torch.nn.functional.layer_norm(t, (4,), weight, None, eps), x, -x)
    assert reached == pytest.approx(layernorm_constant(weight, sigma, eps), rel=1e-12)
    assert reached < layernorm_bound(weight, sigma, eps)
    assert reached > layernorm_coded(weight)


def test_layernorm_coded_keeps_the_sign():
    assert layernorm_coded(torch.tensor([-3.0, 0.25])) == 0.25
    assert layernorm_bound(torch.tensor([-3.0, 0.25]), 1.0) == 3.0
    assert layernorm_bound(torch.tensor([-3.0, 0.25]), 0.0, eps=0.25) == 6.0


@pytest.mark.parametrize("f", [layernorm_bound, layernorm_constant])
def test_layernorm_refuses_what_it_has_no_bound_for(f):
    with pytest.raises(HypothesisError, match="no positive lower bound"):
        f(torch.ones(3), 0.0, 0.0)
    for sigma, eps in ((-1.0, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1.0, -0.1)):
        with pytest.raises(HypothesisError, match="not negative"):
            f(torch.ones(3), sigma, eps)
    for shape in ((1,), (0,), (2, 2)):
        with pytest.raises(ShapeError, match="scales"):
            f(torch.ones(shape), 1.0)


# ---- attention ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    SEEDS,
    st.sampled_from([(4, 1), (8, 2), (12, 3)]),
    st.integers(1, 7),
    st.sampled_from([1e-8, 1e-2, 1.0, 10.0, 1e8]),
    st.sampled_from([1e-8, 0.1, 1.0, 30.0, 1e8]),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)
def test_attention_rates_never_exceed_the_valid_bound(seed, shape, tokens, scale, radius, rank, bias):
    g = torch.Generator().manual_seed(seed)
    layer, norms = attention(*shape, g, scale=scale, rank=rank, bias=bias)
    if scale == 1e8:  # an output bias would only hide the differences behind rounding
        nn.init.zeros_(layer.proj.bias)
    x, y = radius * torch.randn(2, 1, tokens, shape[0], generator=g, dtype=torch.float64) / shape[0] ** 0.5
    near = x + 1e-3 * (y - x)
    largest = float(torch.cat([x, y]).norm(dim=-1).max())
    bound = attention_paper_bias(norms, tokens=tokens, radius=largest)
    with torch.no_grad():
        assert rate(layer, x, y) <= bound * SLACK
        assert rate(layer, x, near) <= bound * SLACK + 1e-9 * float(layer(x).norm() / (x - near).norm())
    if not bias:
        assert attention_quoted(norms, tokens=tokens, radius=largest) == pytest.approx(bound, rel=1e-12)


def test_head_slices_rebuild_the_forward_pass():
    g = torch.Generator().manual_seed(0)
    layer, _ = attention(12, 3, g)
    cut = heads(layer.qkv.weight, layer.proj.weight, 3)
    x = torch.randn(5, 12, generator=g, dtype=torch.float64)
    q_bias, _, v_bias = layer.qkv.bias.reshape(3, 3, 4)
    total = layer.proj.bias.clone()
    for h in range(3):
        scores = (x @ cut.query[h].T + q_bias[h]) @ (x @ cut.key[h].T).T * layer.scale
        total = total + scores.softmax(dim=-1) @ (x @ cut.value[h].T + v_bias[h]) @ cut.output[h].T
    torch.testing.assert_close(total, layer(x[None])[0], rtol=1e-12, atol=1e-12)


def test_norms_by_triangular_factors_equal_dense_ones():
    g = torch.Generator().manual_seed(1)
    layer, norms = attention(12, 3, g)
    cut = heads(layer.qkv.weight, layer.proj.weight, 3)
    dense = torch.linalg.matrix_norm(cut.key.transpose(1, 2) @ cut.query, 2) * layer.scale
    torch.testing.assert_close(norms.query_key, dense, rtol=1e-12, atol=0)
    torch.testing.assert_close(norms.value, torch.linalg.matrix_norm(cut.value, 2), rtol=1e-12, atol=0)
    left, right = torch.randn(2, 7, 3, generator=g, dtype=torch.float64)
    assert float(product_norm(left, right)) == pytest.approx(float(torch.linalg.matrix_norm(left @ right.T, 2)))


def test_renumbering_heads_moves_the_coded_number_only():
    g = torch.Generator().manual_seed(2)
    layer, norms = attention(16, 4, g)
    for h in range(4):  # heads of different sizes
        with torch.no_grad():
            layer.qkv.weight.view(3, 4, 4, 16)[:, h] *= h + 1
    norms, coded = norms_of(layer), coded_norms(layer)
    other, order = timm.layers.Attention(16, num_heads=4, qkv_bias=True).double().eval(), [3, 1, 0, 2]
    with torch.no_grad():
        other.qkv.weight.copy_(layer.qkv.weight.view(3, 4, 4, 16)[:, order].reshape(48, 16))
        other.qkv.bias.copy_(layer.qkv.bias.view(3, 4, 4)[:, order].reshape(48))
        other.proj.weight.copy_(layer.proj.weight.view(16, 4, 4)[:, order].reshape(16, 16))
        other.proj.bias.copy_(layer.proj.bias)
    x = torch.randn(1, 5, 16, generator=g, dtype=torch.float64)
    torch.testing.assert_close(other(x), layer(x), rtol=1e-12, atol=1e-12)
    kinds = dict(tokens=5, radius=2.0)
    for form in (attention_quoted, attention_paper_bias):
        assert form(norms_of(other), **kinds) == pytest.approx(form(norms, **kinds), rel=1e-12)
    moved = attention_quoted(coded_norms(other), **kinds) / attention_quoted(coded, **kinds)
    assert abs(moved - 1) > 0.01


def test_coded_number_is_zero_for_a_layer_that_reads_disjoint_features():
    layer = timm.layers.Attention(16, num_heads=4, qkv_bias=False).double().eval()
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        query, key, value = layer.qkv.weight.view(3, 16, 16)
        # Only head 0 is used: its queries, keys and values read the features 0-3, 4-7 and 8-11.
        for weight, start in ((query, 0), (key, 4), (value, 8)):
            weight[:4, start : start + 4] = torch.randn(4, 4, generator=g, dtype=torch.float64)
        layer.proj.weight[:, :4] = torch.randn(16, 4, generator=g, dtype=torch.float64)
    x, y = torch.randn(2, 1, 6, 16, generator=g, dtype=torch.float64)
    radius = float(torch.cat([x, y]).norm(dim=-1).max())
    assert attention_quoted(coded_norms(layer), tokens=6, radius=radius) == 0.0
    with torch.no_grad():
        found = rate(layer, x, y)
    assert 0.1 < found <= attention_quoted(norms_of(layer), tokens=6, radius=radius)


def test_query_bias_breaks_the_quoted_form_and_not_the_repaired_one():
    tokens, width = 17, 32
    layer = timm.layers.Attention(width, num_heads=1, qkv_bias=True).double().eval()
    g = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.qkv.weight.view(3, width, width)[1:] = torch.eye(width, dtype=torch.float64)
        layer.proj.weight.copy_(torch.eye(width, dtype=torch.float64))
        layer.qkv.bias[0] = 50.0
    x = torch.randn(1, tokens, width, generator=g, dtype=torch.float64)
    radius = float(x.norm(dim=-1).max())
    quoted = attention_quoted(norms_of(layer), tokens=tokens, radius=radius)
    repaired = attention_paper_bias(norms_of(layer), tokens=tokens, radius=radius)
    assert quoted == pytest.approx(math.sqrt(3 * tokens), rel=1e-12)
    jacobian = torch.autograd.functional.jacobian(layer, x).reshape(tokens * width, -1)
    local = float(torch.linalg.matrix_norm(jacobian, 2))
    assert quoted < local <= repaired


def test_key_value_and_output_bias_do_not_matter():
    layer, norms = attention(8, 2, torch.Generator().manual_seed(5))
    with torch.no_grad():
        layer.qkv.bias[8:] += 100.0
        layer.proj.bias += 100.0
    assert all(torch.equal(a, b) for a, b in zip(norms, norms_of(layer), strict=True))


@pytest.mark.parametrize("form", [attention_quoted, attention_paper_bias])
def test_attention_needs_a_radius(form):
    one = torch.ones(2)
    norms = HeadNorms(one, one, one, one)
    for radius in (None, math.nan, math.inf, -1.0):
        with pytest.raises(HypothesisError, match="largest token norm"):
            form(norms, tokens=3, radius=radius)
    with pytest.raises(ShapeError, match="one token"):
        form(norms, tokens=0, radius=1.0)
    assert form(norms, tokens=3, radius=0.0) == pytest.approx(6.0)


@pytest.mark.parametrize("cut", [heads, column_heads])
def test_heads_must_divide_the_width(cut):
    with pytest.raises(ShapeError, match="5 heads do not divide"):
        cut(torch.ones(24, 8), torch.ones(8, 8), 5)
    with pytest.raises(ShapeError, match=r"\(3 D, E\)"):
        cut(torch.ones(24, 8), torch.ones(8, 9), 2)
    with pytest.raises(ShapeError, match="query_bias"):
        row_norms(heads(torch.ones(24, 8), torch.ones(8, 8), 2), 1.0, torch.ones(24))


# ---- token statistics -----------------------------------------------------------------------------------------------


def images(n, seed=0, size=32):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_statistics_do_not_depend_on_the_batches(tiny_vit):
    x, y = images(5), images(4, 1)
    whole = token_statistics(tiny_vit, [torch.cat([x, y])], batch_size=9)
    pieces = token_statistics(tiny_vit, [x, iter(y.split(3))], batch_size=2)
    assert pieces.attrs == whole.attrs
    for name in whole.data_vars:
        np.testing.assert_allclose(pieces[name], whole[name], rtol=1e-5)


def test_only_a_few_batches_are_alive_at_a_time(tiny_vit):
    alive, most = [], 0

    def batches():
        nonlocal most
        for seed in range(6):
            batch = images(2, seed)
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            most = max(most, sum(r() is not None for r in alive))

    token_statistics(tiny_vit, [batches()])
    assert 1 <= most <= 2


def test_constant_tokens_are_found_by_comparing(tiny_vit):
    with torch.no_grad():
        tiny_vit.pos_embed.zero_()
        tiny_vit.cls_token.fill_(1.0)
        tiny_vit.cls_token[..., 0] += 1e-3
    x = images(4)
    x[:, :, :8, :8] = 0.25  # the first patch is the same in all images as well
    default, included = (
        token_statistics(tiny_vit, [x], batch_size=2, include_constant=c).sel(component="LN1", layer=0)
        for c in (False, True)
    )
    with torch.no_grad():
        tokens = tiny_vit.patch_embed(x).double()
    std = tokens.std(dim=-1, correction=0)
    assert float(default["sigma_min"].sel(convention="common")) == pytest.approx(float(std[:, 1:].min()), rel=1e-6)
    assert float(included["sigma_min"].sel(convention="common")) < 1e-3
    np.testing.assert_allclose(default["radius_max"], included["radius_max"])  # attention sees every token
    with pytest.raises(HypothesisError, match="the same for all images"):
        token_statistics(tiny_vit, [x[:1]])


def test_in_situ_statistics_are_those_of_the_inputs(tiny_vit):
    x, seen = images(3), {}
    tiny_vit.blocks[1].mlp.fc2.register_forward_pre_hook(lambda m, a: seen.update(tokens=a[0].double()))
    ds = token_statistics(tiny_vit, [x]).sel(convention="in_situ", layer=1, component="FC2")
    assert float(ds["radius_max"]) == pytest.approx(float(seen["tokens"].norm(dim=-1).max()))
    assert float(ds["sigma_min"]) == pytest.approx(float(seen["tokens"].std(dim=-1, correction=0).min()))
    rms = seen["tokens"].square().sum(dim=-1).mean(dim=-1).sqrt().mean()
    assert float(ds["radius_rms"]) == pytest.approx(float(rms))


def test_common_statistics_alone_are_the_same_and_run_no_block(tiny_vit):
    both = token_statistics(tiny_vit, [images(3)])
    called = []
    tiny_vit.blocks[0].norm1.register_forward_hook(lambda *_: called.append(1))
    alone = token_statistics(tiny_vit, [images(3)], conventions=["common"])
    assert not called
    assert alone.equals(both.sel(convention=["common"]))
    assert bounds(tiny_vit, alone).sizes["convention"] == 1


def test_images_of_a_split_are_prepared_once_each(tiny_vit):
    asked, done = [], []

    def pictures(indices):
        asked.extend(indices)
        return (255 * torch.rand(len(indices), 3, 32, 32)).to(torch.uint8)

    split = SimpleNamespace(images=pictures)
    loaded = SimpleNamespace(model=tiny_vit, prepare=lambda u: u.float() / 255)
    sides = [(split, [3, 1, 3]), (split, [0])]
    ds = token_statistics(loaded, sides, batch_size=2, progress=lambda *a: done.append(a))
    assert (ds.attrs["images"], asked, done) == (3, [1, 3, 0], [(2, 3), (3, 3)])
    with pytest.raises(ShapeError, match="LoadedModel"):
        token_statistics(tiny_vit, sides)


def test_bad_images_are_refused_and_no_hook_stays(tiny_vit):
    def hooks():
        return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in tiny_vit.modules())

    bad = {"no images": [], "floats": [images(2).to(torch.uint8)]}
    for words, sides in bad.items():
        with pytest.raises((HypothesisError, ShapeError), match=words):
            token_statistics(tiny_vit, sides)
        assert hooks() == 0
    for sides, error, words in (
        ([images(2), images(2) * math.inf], PixelError, "the target images hold NaN or infinite"),
        ([images(2) * 50], InputError, r"the given images go from .*looks like 0\.\.255"),
    ):
        with pytest.raises(error, match=words) as caught:
            token_statistics(tiny_vit, sides)
        assert caught.value.exit_code == 2
        assert hooks() == 0
    with pytest.raises(UnknownNameError, match="in_situ"):
        token_statistics(tiny_vit, [images(2)], conventions=["insitu"])


def test_a_model_that_makes_tokens_infinite_breaks_the_hypothesis(tiny_vit):
    with torch.no_grad():
        tiny_vit.patch_embed.proj.weight[0, 0] = math.inf
    with pytest.raises(HypothesisError, match="a token that enters a component is not finite"):
        token_statistics(tiny_vit, [images(2)])
    with pytest.raises(ModeError):
        token_statistics(tiny_vit.train(), [images(2)])


# ---- models ---------------------------------------------------------------------------------------------------------


def vit(**changes):
    torch.manual_seed(0)
    kind = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=0)
    return timm.models.vision_transformer.VisionTransformer(**kind | changes).eval()


@pytest.mark.parametrize(
    ("changes", "component", "words"),
    [
        ({"qk_norm": True}, "MHA", "QK-norm"),
        ({"scale_attn_norm": True}, "MHA", "attention output"),
        ({"norm_layer": timm.layers.RmsNorm}, "LN1", "RmsNorm"),
        ({"mlp_ratio": 0.5}, "FC2", "takes 16 features"),
    ],
)
def test_what_has_no_bound_says_why_and_leaves_the_rest(changes, component, words):
    model = vit(**changes)
    ds = bounds(model, token_statistics(model, [images(3)]))
    reasons = json.loads(ds.attrs["no_bound"])
    ((reason, layers),) = reasons[component].items()
    assert words in reason
    assert layers == [0, 1]
    assert np.isnan(ds["bound"].sel(convention="common", variant="valid", component=component)).all()
    assert np.isfinite(ds["bound"].sel(convention="in_situ", variant="valid", component="FC1")).all()
    if component == "MHA":
        with pytest.raises(NoBoundError, match=words):
            head_norms(model)
    if component == "FC2":
        assert np.isfinite(ds["bound"].sel(convention="in_situ", variant="valid", component=component)).all()


def test_another_attention_class_or_an_adapter_has_no_bound(tiny_vit):
    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.sum()

    statistics = token_statistics(tiny_vit, [images(3)])
    tiny_vit.blocks[0].attn.__class__ = type("Gated", (timm.layers.Attention,), {})
    tiny_vit.blocks[1].mlp.fc1.__class__ = Adapter
    reasons = json.loads(bounds(tiny_vit, statistics).attrs["no_bound"])
    assert [*reasons["MHA"].values()] == [[0]]
    assert "Gated" in next(iter(reasons["MHA"]))
    assert [*reasons["FC1"].values()] == [[1]]


def test_weight_norm_and_norms_without_scales_are_read_right(tiny_vit):
    statistics = token_statistics(tiny_vit, [images(3)])
    before = bounds(tiny_vit, statistics)
    nn.utils.parametrizations.weight_norm(tiny_vit.blocks[0].mlp.fc1)
    tiny_vit.blocks[0].norm1 = timm.layers.LayerNorm(32, affine=False)
    after = bounds(tiny_vit, statistics)
    np.testing.assert_allclose(after["bound"], before["bound"], rtol=1e-5)
    assert after.attrs["no_bound"] == "{}"


def test_scale_of_the_module_is_read_where_the_forward_pass_uses_it(tiny_vit):
    base = head_norms(tiny_vit)["QK"]
    for fused, factor in ((True, 1.0), (False, 3.0)):
        for block in tiny_vit.blocks:
            block.attn.fused_attn, block.attn.scale = fused, 3 * 8**-0.5
        np.testing.assert_allclose(head_norms(tiny_vit)["QK"], factor * base, rtol=1e-12)


def test_quoted_radius_replaces_the_measured_one(tiny_vit):
    statistics = token_statistics(tiny_vit, [images(3)])
    own, quoted = bounds(tiny_vit, statistics), bounds(tiny_vit, statistics, coded_radius=19.4)
    same = {"variant": "valid"}
    assert own["bound"].sel(same).equals(quoted["bound"].sel(same))
    mha = {"variant": "as_coded", "convention": "common", "component": "MHA"}
    assert (own["bound"].sel(mha) < quoted["bound"].sel(mha)).all()
    assert own.attrs["coded_radius"] == float(statistics["radius_rms"].sel(convention="common")[0, 0])
    assert quoted.attrs["coded_radius"] == 19.4


def test_statistics_must_be_those_of_the_model(tiny_vit):
    statistics = token_statistics(tiny_vit, [images(3)])
    with pytest.raises(ShapeError, match="3 blocks"):
        bounds(vit(depth=3), statistics)
    with pytest.raises(HypothesisError, match="largest token norm"):
        bounds(tiny_vit, statistics.assign(radius_max=statistics["radius_max"] * np.nan))
    with pytest.raises(LayoutError):
        bounds(nn.Linear(2, 2), statistics)


def test_half_the_reference_weights_give_half_the_linear_bounds():
    ref = load_reference("tiny_a", torch.float64)
    before = bounds(ref.model, token_statistics(ref.model, [ref.x1]))
    with torch.no_grad():
        for block in ref.model.blocks:
            block.mlp.fc1.weight /= 2
    after = bounds(ref.model, token_statistics(ref.model, [ref.x1]))
    ratio = (after["bound"] / before["bound"]).sel(convention="common", variant="valid")
    np.testing.assert_allclose(ratio.sel(component="FC1"), 0.5, rtol=1e-12)
    np.testing.assert_allclose(ratio.sel(component=["LN1", "MHA", "LN2", "FC2"]), 1.0, rtol=1e-12)


@pytest.mark.parametrize("name", ["linear", "layernorm", "attention"])
def test_docstring_examples_run(name):
    failed, tried = doctest.testmod(importlib.import_module(f"vitplast.bounds.{name}"))
    assert tried
    assert not failed


# ---- extreme scales, and weights that are not finite -----------------------------------------------------------------


def one_head(out=1.0, value=1.0, score=1.0, shift=0.0):
    return HeadNorms(*(torch.tensor([v], dtype=torch.float64) for v in (out, value, score, shift)))


@pytest.mark.parametrize("form", [attention_quoted, attention_paper_bias])
def test_the_papers_forms_at_extreme_scales(form):
    """Only `r^2 ||A||` counts, whatever powers of r or of the norm are beyond float64."""
    plain = form(one_head(score=4.0), tokens=3, radius=1.0)
    for radius, score in ((1e-150, 4e300), (1e100, 4e-200), (1e150, 4e-300)):
        assert form(one_head(score=score), tokens=3, radius=radius) == pytest.approx(plain, rel=1e-12)
    assert form(one_head(), tokens=3, radius=1e150) == pytest.approx(math.sqrt(39) * 1e300, rel=1e-12)
    assert form(one_head(), tokens=3, radius=1e200) == math.inf
    assert form(one_head(out=0.0, score=1e300), tokens=3, radius=1e100) == 0.0
    with pytest.raises(HypothesisError, match="NaN"):
        form(one_head(score=math.inf), tokens=3, radius=0.0)
    with pytest.raises(HypothesisError, match="NaN"):
        form(one_head(score=math.nan), tokens=3, radius=1.0)


@pytest.mark.parametrize(("left", "right"), [(1e200, 1e-200), (1e-180, 1e-100), (1e150, 1e150)])
def test_product_norm_at_extreme_scales(left, right):
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 5, 2, generator=g, dtype=torch.float64)
    expected = product_norm(a, b) * left * right
    torch.testing.assert_close(product_norm(left * a, right * b), expected, rtol=1e-12, atol=0)
    assert product_norm(1e200 * a, 1e200 * b).tolist() == [math.inf] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_named(bad):
    qkv, out, n_heads = torch.ones(12, 4), torch.ones(4, 4), 2
    broken = torch.ones(4, 4)
    broken[1, 2] = bad
    layer = heads(qkv, out, n_heads)
    with pytest.raises(HypothesisError, match="qkv_weight holds values that are not finite"):
        heads(torch.cat([broken] * 3), out, n_heads)
    with pytest.raises(HypothesisError, match="proj_weight"):
        heads(qkv, broken, n_heads)
    with pytest.raises(HypothesisError, match="proj_weight"):
        column_heads(qkv, broken, n_heads)
    with pytest.raises(HypothesisError, match="right"):
        product_norm(out, broken)
    bias = torch.tensor([1.0, bad, 1.0, 1.0])
    with pytest.raises(HypothesisError, match="query_bias"):
        row_norms(layer, 1.0, bias)
    with pytest.raises(HypothesisError, match="query_bias"):
        canonical(layer, 1.0, bias)
    with pytest.raises(HypothesisError, match="scale"):
        canonical(layer, bad)
    with pytest.raises(HypothesisError, match="value holds"):
        canonical(layer._replace(value=layer.value * bad), 1.0)
    form = canonical(layer, 1.0)
    for gamma, beta, name in ((bias, torch.ones(4), "gamma"), (torch.ones(4), bias, "beta")):
        with pytest.raises(HypothesisError, match=name):
            fold(form, gamma, beta)
