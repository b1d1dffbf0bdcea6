"""Theorem 13 (RoPE, QK-norm, cosine attention) and Theorem 14 (LN1 folded into MHA) against real layers of timm.

Ratios are taken over random pairs, close pairs and a short gradient ascent of both ends.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention, AttentionRope, RmsNorm
from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, apply_rot_embed_cat
from timm.models.swin_transformer_v2 import WindowAttention
from torch import nn

from vitplast.bounds.attention import heads
from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.attention_local import attention_maps
from vitplast.bounds.attention_three import (
    QKNorm,
    attention_cosine_bound,
    attention_qk_norm_bound,
    attention_rope_bound,
    three_argument_bound,
)
from vitplast.bounds.canonical import canonical, fold
from vitplast.bounds.folded import layernorm_attention
from vitplast.bounds.layernorm import layernorm_constant
from vitplast.bounds.three_argument import KINDS, query_key_floors
from vitplast.errors import HypothesisError, ShapeError, UnknownNameError

SEEDS = st.integers(0, 2**31)
SLACK = 1 + 1e-6
COMBINATIONS = ("separate", "sum", "stacked")


def randn(*shape, g):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def fill(module, g, scale):
    """Random parameters in float64: weights and scales of both signs, and all biases."""
    module = module.double().eval().requires_grad_(False)
    for p in module.parameters():
        p.copy_(scale * randn(*p.shape, g=g) / math.sqrt(p.shape[-1] if p.ndim > 1 else 1))
    return module


def rates(f, x, y):
    return (f(x) - f(y)).norm(dim=(-1, -2)) / (x - y).norm(dim=(-1, -2))


def largest_excess(f, bound_of, x, y, *, steps=30, rate=0.1):
    """Largest rate over bound of random, close and uphill pairs, each with the bound of its own radius and floors."""
    x, y = torch.cat([x, x]), torch.cat([y, x + 1e-3 * (y - x)])
    worst = 0.0
    for _ in range(steps):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        ratio = rates(f, x, y)
        bounds = torch.tensor([bound_of(torch.stack([a, b])) for a, b in zip(x.detach(), y.detach(), strict=True)])
        worst = max(worst, float((ratio.detach() / bounds).max()))
        moves = torch.autograd.grad(ratio.log().sum(), (x, y))
        # One step for both ends: close pairs stay close.
        size = rate * (x - y).norm(dim=(-1, -2), keepdim=True).detach()
        x, y = (
            end + size * m / m.norm(dim=(-1, -2), keepdim=True).clamp(min=1e-300)
            for end, m in zip((x, y), moves, strict=True)
        )
    return worst


def radius_of(x):
    return float(x.norm(dim=-1).max())


def causal(tokens):
    return torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)


def biases(layer):
    return {
        "query_bias": layer.qkv.bias[: layer.attn_dim],
        "key_bias": layer.qkv.bias[layer.attn_dim : 2 * layer.attn_dim],
    }


def slices_of(layer):
    return heads(layer.qkv.weight, layer.proj.weight, layer.num_heads)


# Theorem 13 itself


def three(q, k, v, bias=None):
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores if bias is None else scores + bias, dim=-1) @ v


@given(
    seed=SEEDS,
    tokens=st.integers(1, 8),
    width=st.integers(1, 4),
    size=st.sampled_from([1e-3, 0.3, 1.0, 4.0]),
    mask=st.booleans(),
    shift=st.sampled_from([0.0, 1.0, 50.0]),
)
@settings(max_examples=80, deadline=None)
def test_lemma_holds_for_pairs_of_queries_keys_and_values(seed, tokens, width, size, mask, shift):
    g = torch.Generator().manual_seed(seed)
    bias = causal(tokens) + randn(tokens, tokens, g=g) if mask else None
    q, k, v, q2, k2, v2 = size * randn(6, 16, tokens, width, g=g)
    close = (torch.rand(16, 1, 1, generator=g, dtype=torch.float64) ** 8).clamp(min=1e-3)
    q2, k2, v2 = q + close * (q2 - q), k + close * (k2 - k), v + close * (v2 - v)
    centre_k, centre_v = shift * randn(2, width, g=g)
    moved = (three(q, k + centre_k, v + centre_v, bias) - three(q2, k2 + centre_k, v2 + centre_v, bias)).norm(
        dim=(1, 2)
    )
    distances = [(a - b).norm(dim=(1, 2)) for a, b in ((q, q2), (k, k2), (v, v2))]
    phi, psi, radius = (radius_of(torch.stack(pair)) for pair in ((q, q2), (k, k2), (v, v2)))
    # Distances in place of constants: the lemma for a pair, multiplied by the distance of the tokens.
    bound = three_argument_bound(
        tokens=tokens,
        query_radius=phi,
        key_radius=psi,
        value_radius=radius,
        query_constant=distances[0],
        key_constant=distances[1],
        value_constant=distances[2],
    )
    assert bool((moved <= bound * SLACK + 1e-10).all())


def test_each_term_of_the_lemma_is_needed():
    """Moving values, keys or queries alone: the whole ratio is that term's, and comes near it (or reaches it)."""
    n = 64
    one = torch.zeros(n, 1, dtype=torch.float64)
    rest = {"query_radius": 0.0, "key_radius": 0.0, "value_radius": 1.0, "query_constant": 0, "key_constant": 0}
    # Values: all rows look at token 0 alone, and only its value moves.
    look = torch.full((n, n), -math.inf, dtype=torch.float64)
    look[:, 0] = 0
    v = one.clone()
    v[0] = 1.0
    reached = three(one, one, v, look).norm() / v.norm()
    assert float(reached) == pytest.approx(float(three_argument_bound(tokens=n, **rest)), rel=1e-12)
    # Keys: tokens 0 and 1 share the attention of all queries, their values are R and -R; h moves their keys apart.
    half = torch.full((n, n), -math.inf, dtype=torch.float64)
    half[:, :2] = 0
    v[0], v[1] = 1.0, -1.0
    h = one.clone()
    h[0], h[1] = 1e-6, -1e-6
    q = torch.full((n, 1), 5.0, dtype=torch.float64)
    reached = (three(q, h, v, half) - three(q, one, v, half)).norm() / h.norm()
    bound = three_argument_bound(
        tokens=n, query_radius=5.0, key_radius=0, value_radius=1, query_constant=0, key_constant=1, value_constant=0
    )
    assert float(reached / bound) == pytest.approx(1, abs=1e-6)
    # Queries: one of them moves, keys are at +-Psi and values at +-R.
    k = one.clone()
    k[0], k[1] = 3.0, -3.0
    step = one.clone()
    step[5] = 1e-6
    reached = (three(step, k, v, half) - three(one, k, v, half)).norm() / step.norm()
    bound = three_argument_bound(
        tokens=n, query_radius=0, key_radius=3, value_radius=1, query_constant=1, key_constant=0, value_constant=0
    )
    assert float(reached / bound) == pytest.approx(1, abs=1e-6)


def test_lemma_takes_heads_at_once_and_refuses_the_rest():
    given_sizes = {"query_radius": 1.0, "key_radius": torch.tensor([1.0, 2.0]), "value_radius": 1.0}
    constants = {"query_constant": 1.0, "key_constant": 1.0}
    assert three_argument_bound(tokens=2, **given_sizes, **constants).tolist() == [2 + 2**0.5, 3 + 2**0.5]
    assert three_argument_bound(tokens=1, **given_sizes, **constants).tolist() == [1.0, 1.0]
    with pytest.raises(ShapeError, match="one token or more, got 0"):
        three_argument_bound(tokens=0, **given_sizes, **constants)
    for name in given_sizes:
        for wrong in (-1.0, math.inf, math.nan):
            with pytest.raises(HypothesisError, match=f"{name} must be finite and not negative"):
                three_argument_bound(tokens=2, **{**given_sizes, name: wrong}, **constants)
    with pytest.raises(HypothesisError, match="key_constant"):
        three_argument_bound(tokens=2, **given_sizes, query_constant=1.0, key_constant=-1.0)


# RoPE


def rope_layer(g, scale=1.0, *, prefix=1, **options):
    made = AttentionRope(12, num_heads=3, num_prefix_tokens=prefix, **options)
    return fill(made, g, scale)


def rope_embedding(grid=(2, 3), width=4):
    return RotaryEmbeddingCat(width, max_res=64, in_pixels=False, feat_shape=list(grid)).double().get_embed()


@pytest.mark.parametrize(("scale", "masked"), [(0.3, False), (1.0, False), (1.0, True), (3.0, False)])
def test_rope_layers_stay_below_the_bound(scale, masked):
    g = torch.Generator().manual_seed(10)
    layer, rope = rope_layer(g, scale), rope_embedding()
    mask = causal(7) if masked else None
    x, y = randn(2, 3, 7, 12, g=g)
    worst = largest_excess(
        lambda z: layer(z, rope=rope, attn_mask=mask),
        lambda z: attention_rope_bound(slices_of(layer), layer.scale, tokens=7, radius=radius_of(z), **biases(layer)),
        x,
        y,
        steps=15,
    )
    assert 1e-4 < worst <= SLACK


def test_rotations_are_isometries_and_depend_on_the_position():
    g = torch.Generator().manual_seed(11)
    rope, q = rope_embedding(), randn(6, 4, g=g)
    turned = apply_rot_embed_cat(q, rope)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    # The score of two equal tokens depends on where they stand: no single matrix A serves all pairs of positions.
    same = apply_rot_embed_cat(q[:1].repeat(6, 1), rope)
    scores = same @ same.T
    torch.testing.assert_close(scores.diagonal(), scores[0, 0].expand(6))
    assert (scores[0, 1:] - scores[0, 0]).abs().max() > 0.1


def test_the_key_bias_is_inert_without_rotations_only():
    g = torch.Generator().manual_seed(12)
    layer, rope = rope_layer(g, prefix=0), rope_embedding()
    x = randn(1, 6, 12, g=g)
    before, plain = layer(x, rope=rope), layer(x)
    layer.qkv.bias[12:24] += 5.0
    torch.testing.assert_close(layer(x), plain, rtol=1e-9, atol=1e-9)
    assert (layer(x, rope=rope) - before).abs().max() > 0.1


def test_a_bound_without_the_key_bias_is_violated_under_rope():
    """Keys are a rotated bias and nothing else; a bound that forgets it sees no scores at all."""
    g = torch.Generator().manual_seed(13)
    n, e = 2, torch.eye(4, dtype=torch.float64)
    layer = fill(AttentionRope(4, num_heads=1, num_prefix_tokens=0), g, 0.0)
    # One query reads feature 0; keys are a bias alone, turned by 0 and by pi; values and output are the identity.
    layer.qkv.weight[0] = e[0]
    layer.qkv.weight[8:] = torch.eye(4)
    layer.proj.weight.copy_(torch.eye(4))
    layer.qkv.bias[4:8] = 1e3 * e[0]
    angles = torch.tensor([0.0, math.pi], dtype=torch.float64)[:, None].expand(n, 4)
    rope = torch.cat([angles.sin(), angles.cos()], dim=-1)
    x = torch.stack([e[1], -e[1]])[None]
    y = x + 1e-6 * e[0]
    ratio = float(rates(lambda z: layer(z, rope=rope), x, y))
    r = radius_of(torch.cat([x, y]))
    right = attention_rope_bound(slices_of(layer), layer.scale, tokens=n, radius=r, **biases(layer))
    wrong = attention_rope_bound(slices_of(layer), layer.scale, tokens=n, radius=r)
    assert ratio > 10 * wrong
    assert ratio <= right * SLACK
    # One of the two terms that are left, sqrt(n), adds little.
    assert ratio > 0.5 * right


def test_rope_bound_of_a_layer_without_rotations_is_weaker_than_the_ball_bound_for_large_scores():
    g = torch.Generator().manual_seed(14)
    layer = fill(Attention(12, num_heads=3, qkv_bias=False), g, 2.0)
    slices = slices_of(layer)
    three_bound = attention_rope_bound(slices, layer.scale, tokens=9, radius=2.0)
    ball = attention_bound(canonical(slices, layer.scale), tokens=9, radius=2.0)
    assert ball < three_bound


# QK-norm


def qk_layer(kind, g, scale=1.0):
    norm = {"layernorm": nn.LayerNorm, "rmsnorm": RmsNorm}[kind]
    return fill(Attention(12, num_heads=3, qkv_bias=True, qk_norm=True, norm_layer=norm), g, scale)


def norms_of(layer, kind, floors):
    return [
        QKNorm(n.weight, floor, n.eps, getattr(n, "bias", None), kind)
        for n, floor in zip((layer.q_norm, layer.k_norm), floors, strict=True)
    ]


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize(("scale", "masked"), [(0.3, False), (1.0, False), (1.0, True), (3.0, False)])
def test_qk_norm_layers_stay_below_the_bound(kind, scale, masked):
    g = torch.Generator().manual_seed(20)
    layer = qk_layer(kind, g, scale)
    mask = causal(6) if masked else None
    x, y = randn(2, 3, 6, 12, g=g)

    def bound(z):
        floors = query_key_floors(slices_of(layer), z, kind, **biases(layer))
        return attention_qk_norm_bound(
            slices_of(layer), layer.scale, *norms_of(layer, kind, floors), tokens=6, radius=radius_of(z)
        )

    assert 1e-4 < largest_excess(lambda z: layer(z, attn_mask=mask), bound, x, y, steps=15) <= SLACK


def test_qk_norm_before_rope_needs_the_shift_of_the_keys():
    g = torch.Generator().manual_seed(21)
    layer, rope = rope_layer(g, qk_norm=True, norm_layer=nn.LayerNorm), rope_embedding()
    slices, x, y = slices_of(layer), *randn(2, 3, 7, 12, g=g)

    def bound(z, rotated=True):
        norms = norms_of(layer, "layernorm", query_key_floors(slices, z, "layernorm", **biases(layer)))
        return attention_qk_norm_bound(slices, layer.scale, *norms, tokens=7, radius=radius_of(z), rotated=rotated)

    assert largest_excess(lambda z: layer(z, rope=rope), bound, x, y, steps=10) <= SLACK
    assert bound(x) > bound(x, rotated=False)
    layer.k_norm.bias.zero_()
    assert bound(x) == bound(x, rotated=False)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_qk_norm_without_floors_is_not_bounded_by_larger_ones(kind):
    """A query near zero turns round under a small step: the bound with a typical floor is passed."""
    g = torch.Generator().manual_seed(22)
    layer = qk_layer(kind, g, 2.0)
    layer.qkv.bias[:24] = 0
    layer.q_norm.eps = layer.k_norm.eps = 1e-12
    slices = slices_of(layer)
    x = randn(1, 6, 12, g=g)
    typical = query_key_floors(slices, x, kind)
    x[0, 0] *= 1e-6
    y = x.clone()
    y[0, 0] *= -1
    ratio = float(rates(layer, x, y))
    wrong = attention_qk_norm_bound(slices, layer.scale, *norms_of(layer, kind, typical), tokens=6, radius=radius_of(x))
    floors = query_key_floors(slices, torch.cat([x, y]), kind)
    right = attention_qk_norm_bound(slices, layer.scale, *norms_of(layer, kind, floors), tokens=6, radius=radius_of(x))
    assert ratio > wrong
    assert ratio <= right * SLACK
    # The floor of eps alone holds as well.
    zero = attention_qk_norm_bound(
        slices, layer.scale, *norms_of(layer, kind, (0.0, 0.0)), tokens=6, radius=radius_of(x)
    )
    assert right <= zero


def test_qk_norm_forgets_the_scale_of_queries_and_keys():
    g = torch.Generator().manual_seed(23)
    layer = qk_layer("rmsnorm", g)
    x, values = randn(4, 6, 12, g=g), []
    layer.q_norm.eps = layer.k_norm.eps = 0.0
    for factor in (1.0, 1e-3, 1e3):
        layer.qkv.weight[:24] *= factor
        layer.qkv.bias[:24] *= factor
        floors = query_key_floors(slices_of(layer), x, "rmsnorm", **biases(layer))
        norms = norms_of(layer, "rmsnorm", floors)
        values.append(attention_qk_norm_bound(slices_of(layer), layer.scale, *norms, tokens=6, radius=2.0))
    assert values == pytest.approx([values[0]] * 3, rel=1e-9)


# Cosine attention


def swin_layer(g, scale=1.0, temperature=10.0):
    layer = fill(WindowAttention(12, window_size=(2, 3), num_heads=3), g, scale)
    layer.logit_scale.fill_(math.log(temperature))
    return layer


def swin_bound(layer, z):
    slices = heads(layer.qkv.weight, layer.proj.weight, layer.num_heads)
    floors = query_key_floors(slices, z, "cosine", query_bias=layer.q_bias, key_bias=layer.k_bias)
    factor = layer.logit_scale.clamp(max=math.log(100)).exp().flatten()
    return attention_cosine_bound(
        slices, factor, tokens=6, radius=radius_of(z), query_floor=floors[0], key_floor=floors[1]
    )


@pytest.mark.parametrize(("scale", "temperature"), [(0.3, 10.0), (1.0, 10.0), (1.0, 1e4), (3.0, 1.0)])
def test_swin_v2_layers_stay_below_the_bound(scale, temperature):
    g = torch.Generator().manual_seed(30)
    layer = swin_layer(g, scale, temperature)
    window = torch.zeros(1, 6, 6, dtype=torch.float64)
    window[:, :3, 3:] = window[:, 3:, :3] = -100.0
    x, y = randn(2, 3, 6, 12, g=g)
    for mask in (None, window):
        worst = largest_excess(lambda z, m=mask: layer(z, mask=m), lambda z: swin_bound(layer, z), x, y, steps=10)
        assert 1e-5 < worst <= SLACK


def test_cosine_attention_near_a_zero_query_passes_the_bound_of_a_typical_floor():
    g = torch.Generator().manual_seed(31)
    layer = swin_layer(g)
    layer.q_bias.zero_()
    x = randn(1, 6, 12, g=g)
    wrong = swin_bound(layer, x)
    x[0, 0] *= 1e-6
    y = x.clone()
    y[0, 0] *= -1
    ratio = float(rates(layer, x, y))
    assert ratio > wrong
    assert ratio <= swin_bound(layer, torch.cat([x, y])) * SLACK


# What all three refuse


def test_refuses_missing_floors_radii_and_wrong_shapes():
    g = torch.Generator().manual_seed(40)
    slices = slices_of(qk_layer("layernorm", g))
    good = QKNorm(torch.ones(4), 1.0)
    cosine = {"query_floor": 1.0, "key_floor": 1.0}
    for radius in (None, -1.0, math.inf, math.nan):
        for call in (
            lambda r: attention_rope_bound(slices, 0.5, tokens=3, radius=r),
            lambda r: attention_qk_norm_bound(slices, 0.5, good, good, tokens=3, radius=r),
            lambda r: attention_cosine_bound(slices, 1.0, tokens=3, radius=r, **cosine),
        ):
            with pytest.raises(HypothesisError, match="largest token norm"):
                call(radius)
    for norms in ((good._replace(floor=None), good), (good, good._replace(floor=None))):
        with pytest.raises(HypothesisError, match="norm is missing"):
            attention_qk_norm_bound(slices, 0.5, *norms, tokens=3, radius=1.0)
    with pytest.raises(HypothesisError, match="sigma and eps are both 0"):
        attention_qk_norm_bound(slices, 0.5, good._replace(floor=torch.tensor([1.0, 0, 1])), good, tokens=3, radius=1.0)
    assert attention_qk_norm_bound(slices, 0.5, good._replace(floor=0.0, eps=1e-6), good, tokens=3, radius=1.0) > 0
    for wrong in (good._replace(weight=torch.ones(3)), good._replace(bias=torch.ones(12))):
        with pytest.raises(ShapeError, match="heads of width 4"):
            attention_qk_norm_bound(slices, 0.5, wrong, good, tokens=3, radius=1.0)
    with pytest.raises(ShapeError, match="one a head"):
        attention_qk_norm_bound(slices, 0.5, good._replace(floor=torch.ones(2)), good, tokens=3, radius=1.0)
    with pytest.raises(UnknownNameError, match="layernorm"):
        attention_qk_norm_bound(slices, 0.5, good._replace(kind="batchnorm"), good, tokens=3, radius=1.0)
    for name in cosine:
        for wrong, message in ((None, "missing"), (0.0, "positive"), (-1.0, "negative"), (math.nan, "finite")):
            with pytest.raises(HypothesisError, match=message):
                attention_cosine_bound(slices, 1.0, tokens=3, radius=1.0, **{**cosine, name: wrong})
    with pytest.raises(ShapeError, match="temperature"):
        attention_cosine_bound(slices, torch.ones(2), tokens=3, radius=1.0, **cosine)
    for bias in ("query_bias", "key_bias"):
        with pytest.raises(ShapeError, match=bias):
            attention_rope_bound(slices, 0.5, tokens=3, radius=1.0, **{bias: torch.ones(4)})
        with pytest.raises(ShapeError, match=bias):
            query_key_floors(slices, torch.ones(1, 2, 12), "cosine", **{bias: torch.ones(4)})
    with pytest.raises(ShapeError, match="tokens must have shape"):
        query_key_floors(slices, torch.ones(2, 12), "cosine")
    with pytest.raises(UnknownNameError, match="cosine"):
        query_key_floors(slices, torch.ones(1, 2, 12), "norm")


@given(seed=SEEDS, scale=st.sampled_from([1e-8, 1e-3, 1e3, 1e8]))
@settings(max_examples=20, deadline=None)
def test_bounds_are_finite_and_ordered_for_all_scales(seed, scale):
    g = torch.Generator().manual_seed(seed)
    slices = slices_of(qk_layer("layernorm", g, scale))
    norm = QKNorm(torch.ones(4), scale)
    for call in (
        lambda c: attention_rope_bound(slices, 0.5, tokens=5, radius=1.0, combine=c),
        lambda c: attention_qk_norm_bound(slices, 0.5, norm, norm, tokens=5, radius=1.0, combine=c),
        lambda c: attention_cosine_bound(slices, 3.0, tokens=5, radius=1.0, query_floor=scale, key_floor=1, combine=c),
    ):
        separate, total, stacked = (call(c) for c in COMBINATIONS)
        assert 0 < stacked <= total * SLACK <= separate * SLACK**2 < math.inf


# Theorem 14, second part: MHA after LN1


def pre_norm(g, scale=1.0, *, eps=1e-6, width=12, n_heads=3):
    norm = fill(nn.LayerNorm(width, eps=eps), g, 1.0)
    return norm, fill(Attention(width, num_heads=n_heads, qkv_bias=True), g, scale)


def folded_bound(norm, layer, sigma, tokens, **options):
    form = canonical(slices_of(layer), layer.scale, biases(layer)["query_bias"])
    return layernorm_attention(form, norm.weight, norm.bias, sigma, norm.eps, tokens=tokens, **options)


def least_std(z):
    return float(z.std(dim=-1, correction=0).min())


@pytest.mark.parametrize(("scale", "masked"), [(0.1, False), (1.0, False), (1.0, True), (3.0, False)])
def test_mha_after_ln1_stays_below_the_folded_bound(scale, masked):
    g = torch.Generator().manual_seed(50)
    norm, layer = pre_norm(g, scale)
    mask = causal(6) if masked else None
    x, y = randn(2, 4, 6, 12, g=g)
    worst = largest_excess(
        lambda z: layer(norm(z), attn_mask=mask),
        lambda z: folded_bound(norm, layer, least_std(z), 6, fixed_bias=masked),
        x,
        y,
    )
    assert 1e-3 < worst <= SLACK


def test_folded_bound_is_reached_without_scores():
    """Mean pooling behind a layer norm: all tokens opposite along the top direction, at deviation sigma."""
    g = torch.Generator().manual_seed(51)
    norm, layer = pre_norm(g, eps=0.0, n_heads=1)
    layer.qkv.weight[:24] = 0
    layer.qkv.bias[:12] = 0
    moved = layer.proj.weight @ layer.qkv.weight[24:] * norm.weight
    moved = moved - moved.mean(dim=1, keepdim=True)
    x = (0.3 * math.sqrt(12) * torch.linalg.svd(moved).Vh[0]).expand(1, 5, 12)
    bound = folded_bound(norm, layer, 0.3, 5)
    assert float(rates(lambda z: layer(norm(z)), x, -x)) == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize("factor", [0.25, 4.0, -2.0, 1e-6])
def test_folded_bound_does_not_see_the_rescaling_of_ln1(factor):
    """Prop. 18: gamma_1 and beta_1 times c with W_qkv over c leave the function and this bound alone."""
    g = torch.Generator().manual_seed(52)
    norm, layer = pre_norm(g)
    x = randn(2, 6, 12, g=g)
    before, bound = layer(norm(x)), folded_bound(norm, layer, 0.2, 6)

    def composed():
        form = canonical(slices_of(layer), layer.scale, biases(layer)["query_bias"])
        radius = math.sqrt(12) * float(norm.weight.abs().max()) + float(norm.bias.norm())
        return layernorm_constant(norm.weight, 0.2, norm.eps) * attention_bound(form, tokens=6, radius=radius)

    plain = composed()
    assert bound < plain
    norm.weight *= factor
    norm.bias *= factor
    layer.qkv.weight /= factor
    torch.testing.assert_close(layer(norm(x)), before, rtol=1e-6, atol=1e-9)
    assert folded_bound(norm, layer, 0.2, 6) == pytest.approx(bound, rel=1e-9)


def test_folded_bound_needs_no_radius_but_the_floor():
    g = torch.Generator().manual_seed(53)
    norm, layer = pre_norm(g, eps=0.0)
    assert folded_bound(norm, layer, 0.1, 6) == pytest.approx(2 * folded_bound(norm, layer, 0.2, 6))
    with pytest.raises(HypothesisError, match="both 0"):
        folded_bound(norm, layer, 0.0, 6)
    # With tokens below the floor that it assumes, the bound fails.
    x = 1e-3 * randn(4, 6, 12, g=g)
    assert float(rates(lambda z: layer(norm(z)), x, x + 0.1 * randn(4, 6, 12, g=g) * 1e-3).max()) > folded_bound(
        norm, layer, 1.0, 6
    )


@given(seed=SEEDS, scale=st.sampled_from([1e-3, 1.0, 10.0]), size=st.sampled_from([1e-4, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_random_pairs_stay_below_the_folded_bound(seed, scale, size):
    g = torch.Generator().manual_seed(seed)
    norm, layer = pre_norm(g, scale)
    x, y = size * randn(2, 8, 5, 12, g=g)
    # Closer pairs than these would measure rounding.
    y = x + (torch.rand(8, 1, 1, generator=g, dtype=torch.float64) ** 6).clamp(min=1e-3) * (y - x)
    sigma = least_std(torch.cat([x, y]))
    for combine in COMBINATIONS:
        bound = folded_bound(norm, layer, sigma, 5, combine=combine)
        assert float(rates(lambda z: layer(norm(z)), x, y).max()) <= bound * SLACK


def test_maps_of_the_folded_form_are_those_of_the_layer():
    g = torch.Generator().manual_seed(54)
    norm, layer = pre_norm(g, eps=0.0)
    form = canonical(slices_of(layer), layer.scale, biases(layer)["query_bias"])
    x = randn(2, 6, 12, g=g)
    normed = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    folded = fold(form, norm.weight, norm.bias)
    torch.testing.assert_close(attention_maps(folded, normed), attention_maps(form, norm(x)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_floors_at_extreme_scales_and_of_what_is_not_finite(kind):
    g = torch.Generator().manual_seed(0)
    layer = heads(torch.randn(36, 12, generator=g), torch.randn(12, 12, generator=g), 3)
    x = torch.randn(2, 5, 12, generator=g, dtype=torch.float64)
    plain = query_key_floors(layer, x, kind)
    for scale in (1e-200, 1e160):
        for found, expected in zip(query_key_floors(layer, scale * x, kind), plain, strict=True):
            torch.testing.assert_close(found / scale, expected, rtol=1e-12, atol=0)
    for bad in (math.nan, math.inf):
        with pytest.raises(HypothesisError, match="tokens holds values that are not finite"):
            query_key_floors(layer, x * bad, kind)
        with pytest.raises(HypothesisError, match="key_bias holds"):
            query_key_floors(layer, x, kind, key_bias=torch.full((12,), bad))
        with pytest.raises(HypothesisError, match="query holds"):
            query_key_floors(layer._replace(query=layer.query * bad), x, kind)
