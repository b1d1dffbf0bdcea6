"""Activations, MLPs, residual blocks and patch embeddings (Props. 15, 16), and averages of bounds (Theorem 1)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from vitplast.bounds.activations import ACTIVATION_SLOPES, activation_name, activation_reach
from vitplast.bounds.attention import HeadNorms, attention_paper_bias, attention_quoted
from vitplast.bounds.attention_ball import attention_bound, mixing_bound, sharp_example
from vitplast.bounds.attention_local import attention_maps
from vitplast.bounds.blocks import (
    ACTIVATION_CONSTANTS,
    activation_constant,
    composition,
    fold_linear,
    gated_mlp_bound,
    layernorm_mlp_bound,
    layerscale_bound,
    mlp_bound,
    residual_bound,
)
from vitplast.bounds.folded import layernorm_attention, layernorm_linear
from vitplast.bounds.layernorm import centred_norm, layernorm_constant
from vitplast.bounds.linear import spectral_norm
from vitplast.bounds.patch_embedding import patch_embedding_bound, patch_stem_bound
from vitplast.bounds.reading import read_attention, read_layerscale, read_mlp, read_norm
from vitplast.errors import HypothesisError, NoBoundError, ShapeError
from vitplast.search.ascent import ascend
from vitplast.search.sets import Ball, Everything

SEEDS = st.integers(0, 2**31)
SCALES = st.sampled_from([1e-8, 1e-2, 1.0, 1e3, 1e8])
SLACK = 1 + 1e-6
MODULES = {
    "GELU": nn.GELU(),
    "GELUTanh": nn.GELU(approximate="tanh"),
    "SiLU": nn.SiLU(),
    "QuickGELU": timm.layers.activations.QuickGELU(),
    "ReLU": nn.ReLU(),
    "ReLU6": nn.ReLU6(),
    "Hardswish": nn.Hardswish(),
    "Identity": nn.Identity(),
    "Tanh": nn.Tanh(),
    "Sigmoid": nn.Sigmoid(),
}
NAMES = st.sampled_from(sorted(MODULES))


def normal(*shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rate(f, x, y):
    return float((f(x) - f(y)).norm() / (x - y).norm())


def in_ball(x, radius):
    return x * (radius / x.norm(dim=-1).max())


def layer_norm(x, gamma, beta, eps):
    return F.layer_norm(x, gamma.shape, gamma, beta, eps)


# ---- activations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_slopes_equal_those_on_a_fine_grid(name):
    t = torch.linspace(-20, 20, 400_001, dtype=torch.float64).requires_grad_()
    (slopes,) = torch.autograd.grad(MODULES[name](t).sum(), t)
    low, high = ACTIVATION_SLOPES[name]
    inner = slopes[(t.detach().abs() - 3).abs() > 1e-6]  # torch's own slope of Hardswish at its corners is one-sided
    assert float(inner.max()) == pytest.approx(high, abs=2e-4 if name == "Hardswish" else 1e-8)
    assert float(inner.min()) == pytest.approx(low, abs=2e-4 if name == "Hardswish" else 1e-8)
    assert ACTIVATION_CONSTANTS[name] == max(high, -low) >= float(slopes.abs().max()) - 1e-12


def test_constants_have_their_closed_forms():
    root = math.sqrt(2)
    density = math.exp(-1) / math.sqrt(2 * math.pi)
    gelu = 0.5 * (1 + math.erf(1.0)) + root * density
    assert ACTIVATION_CONSTANTS["GELU"] == pytest.approx(gelu, rel=1e-15)

    def zero(f, low, high):
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if f(middle) < 0 else (low, middle)
        return low

    silu = zero(lambda t: t * math.tanh(t / 2) - 2, 0, 10)
    assert ACTIVATION_CONSTANTS["SiLU"] == pytest.approx(0.5 + silu / 4, rel=1e-14)
    assert ACTIVATION_CONSTANTS["QuickGELU"] == ACTIVATION_CONSTANTS["SiLU"]
    c, a = math.sqrt(2 / math.pi), 0.044715
    # The slope is stationary where this increasing function meets that decreasing one: once for t > 0.
    t = zero(lambda t: t * c * math.tanh(c * (t + a * t**3)) - (1 + 6 * a * t**2) / (1 + 3 * a * t**2) ** 2, 1e-9, 10)
    tanh = math.tanh(c * (t + a * t**3))
    slope = 0.5 * (1 + tanh) + 0.5 * t * c * (1 + 3 * a * t**2) * (1 - tanh**2)
    assert ACTIVATION_CONSTANTS["GELUTanh"] == pytest.approx(slope, rel=1e-14)
    for name in ("GELU", "GELUTanh", "SiLU", "QuickGELU"):
        assert sum(ACTIVATION_SLOPES[name]) == pytest.approx(1.0, rel=1e-14)
    assert round(gelu, 6) == 1.128904


@settings(max_examples=40, deadline=None)
@given(SEEDS, NAMES, SCALES)
def test_no_pair_of_numbers_is_stretched_more_and_the_reach_is_the_largest_value(seed, name, scale):
    s, t = normal(2, 500, seed=seed, scale=scale)
    f = MODULES[name]
    assert bool(((f(s) - f(t)).abs() <= ACTIVATION_CONSTANTS[name] * (s - t).abs() * SLACK + 1e-15).all())
    reach = activation_reach(f, s.abs())
    assert bool((f(s).abs() <= reach * (1 + 1e-12)).all())
    assert bool((f(-s).abs() <= reach * (1 + 1e-12)).all())


def test_activations_are_known_by_class_or_name():
    layers = timm.layers
    for activation, name in {
        nn.GELU(): "GELU",
        layers.GELU(): "GELU",
        layers.GELUTanh(): "GELUTanh",
        layers.Swish(): "SiLU",
        layers.HardSwish(): "Hardswish",
        "gelu_tanh": "GELUTanh",
        "quick_gelu": "QuickGELU",
        "swish": "SiLU",
    }.items():
        assert activation_name(activation) == name
        assert activation_constant(activation) == ACTIVATION_CONSTANTS[name]
    own = type("GELU", (nn.Module,), {})()
    for activation in (own, nn.Mish(), "celu"):
        with pytest.raises(NoBoundError, match="is not known here; give it"):
            activation_constant(activation)
        assert activation_constant(activation, given=1.5) == 1.5
    with pytest.raises(NoBoundError, match="Did you mean 'GELU'"):
        activation_constant("gellu")
    for given_ in (math.nan, math.inf, -1.0):
        with pytest.raises(HypothesisError, match="finite and not negative"):
            activation_constant("celu", given=given_)
    with pytest.raises(HypothesisError, match=r"more than the 1\.0 given"):
        activation_constant("GELU", given=1.0)
    with pytest.raises(HypothesisError, match="t >= 0"):
        activation_reach("GELU", torch.tensor([-1.0]))


# ---- MLP ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.tuples(*[st.integers(2, 7)] * 3),
    NAMES,
    SCALES,
    st.sampled_from([1e-4, 1.0, 50.0]),
    st.sampled_from(["full", "rank one", "zero"]),
    st.booleans(),
)
def test_mlp_rates_never_exceed_the_bounds(seed, shape, name, scale, reach, kind, biased):
    d, hidden, out = shape
    w1, w2 = normal(hidden, d, seed=seed), normal(out, hidden, seed=seed + 1, scale=scale)
    w1 = {"full": w1, "rank one": w1[:, :1] @ w1[:1], "zero": 0 * w1}[kind]
    b1, b2 = biased * normal(hidden, seed=seed + 2), biased * scale * normal(out, seed=seed + 3)
    gamma, beta, factors = (normal(n, seed=seed + 4 + i) for i, n in enumerate((d, d, out)))
    x, y = normal(2, 5, d, seed=seed + 9, scale=reach)

    def f(t):
        return factors * (F.linear(MODULES[name](F.linear(t, w1, b1)), w2, b2))

    bound = mlp_bound(w1, w2, name, factors)
    centred = mlp_bound(w1, w2, name, factors, centred=True)
    noise = 1e-14 * scale * float(f(x).norm() + b1.norm() + 1) / float((x - y).norm())
    assert rate(f, x, y) <= centred * SLACK + noise
    assert centred <= bound * (1 + 1e-12)
    assert bound <= layerscale_bound(factors) * mlp_bound(w1, w2, name) * (1 + 1e-12)
    sigma, eps = float(torch.cat([x, y]).std(dim=-1, correction=0).min()), 1e-6
    folded = layernorm_mlp_bound(w1, w2, name, gamma, sigma, eps, factors)
    sharper = layernorm_mlp_bound(w1, w2, name, gamma, sigma, eps, factors, centred=True)
    assert rate(lambda t: f(layer_norm(t, gamma, beta, eps)), x, y) <= sharper * SLACK + noise * 1e3
    assert sharper <= folded * (1 + 1e-12)
    assert folded <= bound * layernorm_constant(gamma, sigma, eps) * (1 + 1e-9)


def test_mlp_bound_is_reached_where_the_activation_is_steepest():
    """Rank one weights through the steepest point: the product of norms is exact, LayerScale and LN2 included."""
    up, down, gamma = normal(1, 6, seed=0), normal(4, 1, seed=1), normal(6, seed=2)
    factors, eps, steepest = normal(4, seed=3), 0.0, math.sqrt(2)
    direction = up / up.norm()

    def f(t):
        return factors * (F.gelu(t @ up.T + steepest) @ down.T)

    reached = rate(f, 1e-5 * direction, -1e-5 * direction)
    assert reached == pytest.approx(mlp_bound(up, down, "GELU", factors), rel=1e-8)
    assert mlp_bound(up, down, "GELU", factors, centred=True) == pytest.approx(reached, rel=1e-8)
    folded, _ = fold_linear(up, None, gamma, torch.zeros(6))
    token = 0.5 * math.sqrt(6) * folded / folded.norm()  # std 0.5, along the direction that LN2 and FC1 stretch most
    steps = F.linear(layer_norm(token, gamma, None, eps) - layer_norm(-token, gamma, None, eps), up)
    linear = layernorm_linear(up, gamma, 0.5)
    assert float(steps.norm() / (2 * token).norm()) == pytest.approx(linear, rel=1e-9)
    bound = layernorm_mlp_bound(up, down, "ReLU", gamma, 0.5, layerscale=factors)
    assert bound == pytest.approx(linear * float((factors[:, None] * down).norm()), rel=1e-12)


def test_mlp_scales_with_its_weights_and_refuses_shapes_that_do_not_fit():
    w1, w2 = normal(5, 3, seed=0), normal(4, 5, seed=1)
    one = mlp_bound(w1, w2, "GELU")
    assert mlp_bound(-2 * w1, 3 * w2, nn.GELU()) == pytest.approx(6 * one, rel=1e-12)
    assert mlp_bound(w1.half(), w2.half(), "GELU") == pytest.approx(one, rel=1e-2)
    assert mlp_bound(w1, 0 * w2, "GELU") == 0.0
    assert mlp_bound(w1, w2, "Mish", given=1.1) == pytest.approx(1.1 / ACTIVATION_CONSTANTS["GELU"] * one)
    with pytest.raises(NoBoundError, match="Mish"):
        mlp_bound(w1, w2, "Mish", given=1.1, centred=True)
    with pytest.raises(ShapeError, match="do not follow each other"):
        mlp_bound(w1, w1, "GELU")
    with pytest.raises(ShapeError, match=r"LayerScale must have shape \(4,\), got \(5,\)"):
        mlp_bound(w1, w2, "GELU", torch.ones(5))
    with pytest.raises(HypothesisError, match="not finite"):
        mlp_bound(w1 * math.inf, w2, "GELU")
    with pytest.raises(HypothesisError, match="no positive lower bound"):
        layernorm_mlp_bound(w1, w2, "GELU", torch.ones(3), 0.0)


# ---- gated MLP ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.tuples(*[st.integers(2, 6)] * 3),
    NAMES,
    st.sampled_from([1e-8, 0.1, 1.0, 20.0, 1e8]),
    st.sampled_from([1e-8, 1.0, 1e3]),
    st.booleans(),
)
def test_gated_rates_never_exceed_the_bound_on_the_ball(seed, shape, name, radius, scale, biased):
    d, hidden, out = shape
    gate, value, output = (normal(*s, seed=seed + i) for i, s in enumerate(((hidden, d), (hidden, d), (out, hidden))))
    output, factors = scale * output, normal(out, seed=seed + 3)
    biases = [biased * normal(hidden, seed=seed + 4 + i) for i in range(2)]

    def f(t):
        hidden = MODULES[name](F.linear(t, gate, biases[0])) * F.linear(t, value, biases[1])
        return factors * F.linear(hidden, output)

    x, y = in_ball(normal(2, 4, d, seed=seed + 6), radius)
    bound = gated_mlp_bound(
        gate, value, output, name, radius=radius, gate_bias=biases[0], value_bias=biases[1], layerscale=factors
    )
    noise = 1e-14 * float(f(x).norm()) / float((x - y).norm())
    assert rate(f, x, y) <= bound * SLACK + noise
    gamma, beta, eps = normal(d, seed=seed + 7), normal(d, seed=seed + 8), 1e-6
    sigma = float(torch.cat([x, y]).std(dim=-1, correction=0).min())
    (gate_, gate_bias), (value_, value_bias) = (
        fold_linear(w, b, gamma, beta) for w, b in ((gate, biases[0]), (value, biases[1]))
    )
    folded = gated_mlp_bound(
        gate_, value_, output, name, radius=math.sqrt(d), gate_bias=gate_bias, value_bias=value_bias, layerscale=factors
    ) / math.hypot(sigma, math.sqrt(eps))
    with_norm = rate(lambda t: f(layer_norm(t, gamma, beta, eps)), x, y)
    assert with_norm <= folded * SLACK + 1e-9 * folded + noise * 1e3 / math.hypot(sigma, 1e-3)


def test_gated_bound_is_reached_by_a_square():
    """`x * x` at the edge of the ball has slope 2 r."""
    one = torch.ones(1, 1, dtype=torch.float64)
    x = torch.tensor([[3.0]], dtype=torch.float64)
    reached = rate(lambda t: t * t, x, x - 1e-7)
    assert reached == pytest.approx(gated_mlp_bound(one, one, one, "Identity", radius=3.0), rel=1e-6)


def test_gated_mlp_has_no_bound_without_a_ball():
    gate, value, output = normal(8, 4, seed=0), normal(8, 4, seed=1), normal(4, 8, seed=2)
    x, y = in_ball(normal(2, 3, 4, seed=3), 1.0)

    def f(t):
        return F.linear(F.silu(F.linear(t, gate)) * F.linear(t, value), output)

    rates = [rate(f, r * x, r * y) for r in (1.0, 10.0, 100.0, 1000.0)]
    bounds = [gated_mlp_bound(gate, value, output, "SiLU", radius=r) for r in (1.0, 10.0, 100.0, 1000.0)]
    assert all(r <= b for r, b in zip(rates, bounds, strict=True))
    assert rates[-1] > 9 * rates[-2] > 80 * rates[-3]
    with pytest.raises(NoBoundError, match="on a ball only"):
        gated_mlp_bound(gate, value, output, "SiLU", radius=None)
    assert gated_mlp_bound(gate, value, output, "SiLU", radius=0.0) == 0.0


def test_gated_bound_uses_the_value_of_the_activation_and_refuses_bad_input():
    gate, value, output = normal(8, 4, seed=0), normal(8, 4, seed=1), normal(4, 8, seed=2)
    reach = gate.norm(dim=1)  # what |phi(t)| <= |t| would give
    values = value.norm(dim=1)
    looser = spectral_norm(output) * (
        ACTIVATION_CONSTANTS["SiLU"] * spectral_norm(values[:, None] * gate) + spectral_norm(reach[:, None] * value)
    )
    assert gated_mlp_bound(gate, value, output, "SiLU", radius=1.0) < looser
    for radius in (math.nan, math.inf, -1.0):
        with pytest.raises(HypothesisError, match="finite and not negative"):
            gated_mlp_bound(gate, value, output, "SiLU", radius=radius)
    for shapes, words in (
        ((gate[:7], value, output), "differ in shape"),
        ((gate, value, output[:, :7]), "do not follow"),
    ):
        with pytest.raises(ShapeError, match=words):
            gated_mlp_bound(*shapes, "SiLU", radius=1.0)
    with pytest.raises(ShapeError, match=r"gate_bias must have shape \(8,\)"):
        gated_mlp_bound(gate, value, output, "SiLU", radius=1.0, gate_bias=torch.ones(4))
    with pytest.raises(ShapeError, match=r"beta must have shape \(4,\)"):
        fold_linear(gate, None, torch.ones(4), torch.ones(3))
    with pytest.raises(NoBoundError, match="Mish"):
        gated_mlp_bound(gate, value, output, "Mish", radius=1.0)


# ---- residual blocks ------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 1e-5, 0.1, 1.0, -3.0]), st.integers(1, 6))
def test_block_rates_never_exceed_the_product_of_its_halves(seed, factor, tokens):
    torch.manual_seed(seed)
    kind = timm.models.vision_transformer.Block
    block = kind(8, 2, qkv_bias=True, init_values=factor or None).double().eval()
    with torch.no_grad():
        for p in block.parameters():
            p.copy_(factor * torch.randn_like(p) if p is getattr(block.ls1, "gamma", None) else torch.randn_like(p))
    x, y = torch.randn(2, 1, tokens, 8, dtype=torch.float64)
    with torch.no_grad():
        middle = [t + block.ls1(block.attn(block.norm1(t))) for t in (x, y)]
        first, last = ([float(t.std(-1, correction=0).min()) for t in pair] for pair in ((x, y), middle))
        measured = rate(block, x, y)
    norm1, norm2, mlp = read_norm(block.norm1), read_norm(block.norm2), read_mlp(block.mlp)
    attention, gammas = read_attention(block.attn), [read_layerscale(ls) for ls in (block.ls1, block.ls2)]
    form = attention.form
    if gammas[0] is not None:
        form = form._replace(output=gammas[0][:, None] * form.output)
    halves = (
        layernorm_attention(form, norm1.weight, norm1.bias, min(first), norm1.eps, tokens=tokens),
        layernorm_mlp_bound(
            mlp.first.weight, mlp.second.weight, mlp.activation, norm2.weight, min(last), norm2.eps, gammas[1]
        ),
    )
    assert measured <= composition(*(residual_bound(b) for b in halves)) * SLACK


def test_residual_bounds_are_reached_and_compose():
    x, y = normal(2, 3, 4, seed=0)
    assert rate(lambda t: t + 0.5 * t, x, y) == pytest.approx(residual_bound(0.5))
    assert residual_bound(0.5, 0.25) == 1.75  # two branches side by side
    assert composition(residual_bound(0.5), residual_bound(0.25)) == 1.875
    assert (residual_bound(), composition()) == (1.0, 1.0)
    assert layerscale_bound(torch.tensor([0.5, -2.0])) == 2.0
    for bad in (-1.0, math.nan):
        with pytest.raises(HypothesisError, match="not negative"):
            residual_bound(bad)
        with pytest.raises(HypothesisError, match="not negative"):
            composition(1.0, bad)
    for shape in ((0,), (2, 2)):
        with pytest.raises(ShapeError, match="LayerScale"):
            layerscale_bound(torch.zeros(shape))


def test_searched_pairs_come_near_the_bounds_and_stay_below():
    """Gradient ascent on the rate: it refutes a wrong bound much sooner than random pairs do."""
    w1, b1, value, b2, w2 = (normal(*s, seed=i) for i, s in enumerate(((16, 8), (16,), (16, 8), (16,), (8, 16))))
    factors, radius = normal(8, seed=9), 2.0

    def branch(t):
        return factors * F.linear(F.gelu(F.linear(t, w1, b1)), w2)

    def gated(t):
        return F.linear(F.silu(F.linear(t, w1, b1)) * F.linear(t, value, b2), w2)

    inner = mlp_bound(w1, w2, "GELU", factors, centred=True)
    ball = gated_mlp_bound(w1, value, w2, "SiLU", radius=radius, gate_bias=b1, value_bias=b2)
    everywhere = Everything(tokens=1, width=8)
    for f, members, bound, share in (
        (branch, everywhere, inner, 0.6),
        (lambda t: t + branch(t), everywhere, residual_bound(inner), 0.5),
        (gated, Ball(tokens=1, width=8, radius=radius), ball, 0.2),
    ):
        g = torch.Generator().manual_seed(0)
        x, y = members.draw(24, g), members.draw(24, g)
        found = ascend(f, x, members.project(x + 0.3 * (y - x)), members.project, steps=120).rate.max()
        assert share * bound < float(found) <= bound * SLACK


# ---- patch embedding ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 3),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from([0, 1, 2]),
    SCALES,
    st.sampled_from(["full", "zero", "rank one"]),
)
def test_patch_rates_never_exceed_the_bound(seed, out, channels, kernel, stride, padding, scale, kind):
    weight = normal(out, channels, *kernel, seed=seed, scale=scale)
    if kind != "full":
        weight = weight[:1].expand(weight.shape) * (kind == "rank one")
    bias, std = scale * normal(out, seed=seed + 1), normal(channels, seed=seed + 2).abs() + 0.1
    x, y = normal(2, 1, channels, 9, 8, seed=seed + 3)

    def f(t):
        return F.conv2d(t / std[:, None, None], weight, bias, stride, padding)

    assert rate(f, x, y) <= patch_embedding_bound(weight, stride, std) * SLACK
    assert patch_embedding_bound(weight, stride) >= spectral_norm(weight.flatten(1)) * (1 - 1e-12)


def steepest(weight, stride, size, steps=300):
    """Power iteration on the convolution as a linear map of an image: the rate of the best image found."""
    x = normal(1, weight.shape[1], size, size, seed=0)
    for _ in range(steps):
        x = F.conv_transpose2d(F.conv2d(x, weight, stride=stride), weight, stride=stride)
        x = F.pad(x, [0, size - x.shape[-1], 0, size - x.shape[-2]])
        x = x / x.norm()
    return float(F.conv2d(x, weight, stride=stride).norm())


def test_disjoint_patches_are_exact_and_overlapping_ones_need_the_factor():
    weight = normal(6, 3, 4, 4, seed=0)
    top = torch.linalg.svd(weight.flatten(1)).Vh[0].reshape(1, 3, 4, 4)
    image = top.repeat(1, 1, 3, 3)
    for stride in (4, 5, None):
        assert patch_embedding_bound(weight, stride) == spectral_norm(weight.flatten(1))
    reached = rate(lambda t: F.conv2d(t, weight, stride=4), image, -image)
    assert reached == pytest.approx(patch_embedding_bound(weight), rel=1e-12)
    flat = torch.ones(1, 1, 4, 4, dtype=torch.float64)  # a mean: patches that overlap see the same
    found, without = steepest(flat, 2, 40), spectral_norm(flat.flatten(1))
    assert without * 1.9 < found <= patch_embedding_bound(flat, 2) * SLACK
    assert patch_embedding_bound(flat, 2) == pytest.approx(2 * without)
    assert patch_embedding_bound(flat, 3) == pytest.approx(2 * without)  # ceil(4/3) = 2
    assert patch_embedding_bound(flat, (4, 2)) == pytest.approx(math.sqrt(2) * without)


def test_patch_bound_divides_by_the_deviation_of_each_channel():
    weight, std = normal(5, 3, 2, 2, seed=1), torch.tensor([0.2, 0.5, 2.0]).double()
    assert patch_embedding_bound(weight, std=std) == pytest.approx(
        spectral_norm((weight / std[:, None, None]).flatten(1)), rel=1e-12
    )
    assert patch_embedding_bound(weight, std=torch.full((3,), 0.5)) == pytest.approx(2 * patch_embedding_bound(weight))
    for bad in ([1.0, 0.0, 1.0], [1.0, math.nan, 1.0], [1.0, -1.0, 1.0]):
        with pytest.raises(HypothesisError, match="finite and positive"):
            patch_embedding_bound(weight, std=torch.tensor(bad))
    for std, stride, kernel, words in (
        (torch.ones(2), None, weight, r"std must have shape \(3,\)"),
        (None, 0, weight, "1 or more, got 0"),
        (None, (1, 2, 3), weight, "1 or more"),
        (None, (1, 1.5), weight, "1 or more"),
        (None, None, weight[0], "patch kernel"),
        (None, None, weight[:0], "patch kernel"),
    ):
        with pytest.raises(ShapeError, match=words):
            patch_embedding_bound(kernel, stride, std)
    with pytest.raises(HypothesisError, match="not finite"):
        patch_embedding_bound(weight * math.inf)


@settings(max_examples=25, deadline=None)
@given(SEEDS, NAMES, SCALES)
def test_stem_rates_never_exceed_the_product(seed, name, reach):
    first, second = normal(4, 3, 3, 3, seed=seed), normal(5, 4, 2, 2, seed=seed + 1)
    std, bias = torch.tensor([0.5, 1.0, 2.0]).double(), normal(4, seed=seed + 2)
    x, y = normal(2, 1, 3, 9, 9, seed=seed + 3, scale=reach)

    def f(t):
        return F.conv2d(MODULES[name](F.conv2d(t / std[:, None, None], first, bias, 2, 1)), second, stride=2)

    bound = patch_stem_bound([(first, 2, name), (second, 2, None)], std)
    noise = 1e-14 * float(f(x).norm()) / float((x - y).norm())
    assert rate(f, x, y) <= bound * SLACK + noise
    with pytest.raises(ShapeError, match="takes 3 channels, the one before gives 4"):
        patch_stem_bound([(first, 2, name), (first, 2, None)])
    with pytest.raises(ShapeError, match="got none"):
        patch_stem_bound([])


# ---- Theorem 1: average the bound, never the radius -----------------------------------------------------------------


def test_the_bound_at_an_average_deviation_is_exceeded_by_the_mean_rate():
    """Opposite tokens reach the LayerNorm's bound at their own deviation; for eps = 0 it is convex in it."""
    gamma = normal(6, seed=0)
    dense = gamma[:, None] * (torch.eye(6, dtype=torch.float64) - 1 / 6)
    direction = math.sqrt(6) * torch.linalg.svd(dense).Vh[:1]
    sigmas = [0.1, 1.0, 3.0]
    rates = [rate(lambda t: layer_norm(t, gamma, None, 0.0), s * direction, -s * direction) for s in sigmas]
    mean_rate = sum(rates) / 3
    mean_bound = sum(layernorm_constant(gamma, s) for s in sigmas) / 3
    assert mean_rate == pytest.approx(mean_bound, rel=1e-9)  # equality in Theorem 1
    at_mean = layernorm_constant(gamma, sum(sigmas) / 3)
    assert mean_rate > 3 * at_mean
    assert at_mean == pytest.approx(centred_norm(gamma) / (4.1 / 3))


def test_the_attention_bound_at_an_average_radius_is_exceeded_by_the_mean_rate():
    sharp = sharp_example(64)
    form, x, y = sharp.form, sharp.x, sharp.y
    radius = float(torch.cat([x, y]).norm(dim=-1).max())

    def mixed(t):
        return attention_maps(form, t[None])[0] @ t

    steep = rate(mixed, x, y)
    calm = rate(mixed, 1e-3 * x, 1e-3 * y)  # nearly the mean of the tokens
    pairs = 10  # one steep pair, nine calm ones
    mean_rate = (steep + (pairs - 1) * calm) / pairs
    radii = [radius] + [1e-3 * radius] * (pairs - 1)
    bounds = [attention_bound(form, tokens=len(x), radius=r) for r in radii]
    at_mean = attention_bound(form, tokens=len(x), radius=sum(radii) / pairs)
    assert at_mean < mean_rate <= sum(bounds) / pairs
    assert steep <= bounds[0]


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.lists(st.floats(0.01, 30.0), min_size=2, max_size=6), st.floats(0.0, 1e-4))
def test_the_mean_of_a_convex_bound_is_never_below_the_bound_at_the_mean(seed, numbers, eps):
    """Quoted and repaired form and the first member of Theorem 10; LayerNorm where sigma^2 >= eps/2."""
    one, (score, shift) = torch.ones(1), normal(2, 1, seed=seed).abs()
    norms, gamma = HeadNorms(one, one, score, shift), normal(5, seed=seed + 2)
    for bound in (
        lambda r: attention_quoted(norms, tokens=7, radius=r),
        lambda r: attention_paper_bias(norms, tokens=7, radius=r),
        lambda r: float(mixing_bound(score, shift, tokens=7, radius=r, fixed_bias=True)),
        lambda s: layernorm_constant(gamma, s, eps),
    ):
        values = [bound(number) for number in numbers]
        assert bound(sum(numbers) / len(numbers)) <= sum(values) / len(values) * (1 + 1e-12)


def test_the_smaller_of_the_two_members_is_not_convex_and_layernorm_is_not_near_zero():
    """There the bound at an average is above the average of the bounds, for a short stretch."""
    low, high, middle = (
        float(mixing_bound(torch.tensor([0.05]), torch.tensor([0.3]), tokens=197, radius=r)) for r in (3.61, 6.41, 5.01)
    )
    assert middle > 1.1 * (low + high) / 2
    eps, gamma = 0.01, normal(6, seed=0)
    edge = math.sqrt(eps / 2)
    for sigmas, sign in (([0.0, edge], 1), ([edge, 3 * edge], -1)):
        first, last, at_mean = (layernorm_constant(gamma, s, eps) for s in (*sigmas, sum(sigmas) / 2))
        assert sign * (at_mean - (first + last) / 2) > 1e-3


def test_what_is_not_finite_is_refused_by_name():
    ones = torch.ones(2)
    for bad in (math.nan, math.inf):
        wrong = torch.tensor([1.0, bad])
        with pytest.raises(HypothesisError, match="gamma holds values that are not finite"):
            layerscale_bound(wrong)
        for name in ("weight", "bias", "gamma", "beta"):
            given_ = {"weight": torch.eye(2), "bias": ones, "gamma": ones, "beta": ones}
            given_[name] = wrong * torch.eye(2) if name == "weight" else wrong
            with pytest.raises(HypothesisError, match=f"{name} holds"):
                fold_linear(**given_)
    for bounds in ((math.inf, 0.0), (0.0, 2.0, math.inf)):
        with pytest.raises(HypothesisError, match="says nothing"):
            composition(*bounds)
    assert composition(math.inf, 2.0) == math.inf


def test_strides_of_any_integer_type():
    kernel = torch.ones(1, 1, 4, 4)
    for stride in (np.int64(2), (np.int32(2), 2), np.array([2, 2]), torch.tensor(2), [2, 2]):
        assert patch_embedding_bound(kernel, stride=stride) == patch_embedding_bound(kernel, stride=2)
    for stride in (2.0, np.float64(2), (2, 1.5), (1, 2, 3), np.int64(0), (2, -1), "ab"):
        with pytest.raises(ShapeError, match="a stride is one number or two"):
            patch_embedding_bound(kernel, stride=stride)
