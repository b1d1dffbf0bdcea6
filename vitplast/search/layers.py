"""Cases of maps put together (Theorems 13 and 14, Prop. 15): LN1 before MHA, QK-norm, RoPE, MLP and gated MLP."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.attention_three import QKNorm, attention_qk_norm_bound, attention_rope_bound
from vitplast.bounds.blocks import gated_mlp_bound, mlp_bound, residual_bound
from vitplast.bounds.canonical import fold
from vitplast.bounds.folded import layernorm_attention
from vitplast.bounds.layernorm import layernorm_constant
from vitplast.search.attention import random_attention, shared_attention
from vitplast.search.maps import Attention, rotations
from vitplast.search.problems import Case, Problem, Version
from vitplast.search.sets import Ball, Everything, NormedBall, Spread, normal

TOKENS, WIDTH = 16, 16


def behind_norm(tokens: int = 8, sigma: float = 0.5, eps: float = 1e-6) -> Problem:
    """MHA of LN1, all biases random: folded (Theorem 14) and as a product of two bounds."""
    generator = torch.Generator().manual_seed(301)
    layer = random_attention(WIDTH, 2, generator, biases=True)
    gamma = 0.5 + 0.5 * torch.rand(WIDTH, generator=generator, dtype=torch.float64)
    beta = 0.3 * normal(WIDTH, generator=generator)
    reach = float(gamma.max()) * math.sqrt(WIDTH) + float(beta.norm())
    bounds = {
        "folded": layernorm_attention(layer.form, gamma, beta, sigma, eps, tokens=tokens),
        "composed": layernorm_constant(gamma, sigma, eps) * attention_bound(layer.form, tokens=tokens, radius=reach),
    }
    where = Spread(tokens, WIDTH, sigma, sigma)
    starts = where.project(sigma * shared_attention(fold(layer.form, gamma, beta), tokens, math.sqrt(WIDTH)))
    return Problem(where, bounds, lambda x: layer(F.layer_norm(x, (WIDTH,), gamma, beta, eps)), starts=starts)


def rope(radius: float = 1.0) -> Problem:
    """Queries and keys turned by angles that grow with the position, all biases random."""
    layer = random_attention(WIDTH, 2, torch.Generator().manual_seed(302), biases=True)
    layer = Attention(layer.qkv, layer.out, 2, layer.qkv_bias, layer.out_bias, inner=rotations(TOKENS, WIDTH // 2))
    biases = {"query_bias": layer.query_bias, "key_bias": layer.key_bias}
    bound = attention_rope_bound(layer.slices, layer.score_scale, tokens=TOKENS, radius=radius, **biases)
    starts = shared_attention(layer.form, TOKENS, radius)
    return Problem(Ball(TOKENS, WIDTH, radius), {"three arguments": bound}, layer, starts=starts)


def qk_norm(radius: float = 1.0, floor: float = 0.15, eps: float = 1e-6) -> Problem:
    """Layer norms on queries and keys, whose standard deviations are at least 0.15 on the set."""
    generator = torch.Generator().manual_seed(303)
    layer = random_attention(WIDTH, 2, generator)
    scales = 0.5 + torch.rand(2, WIDTH // 2, generator=generator, dtype=torch.float64)
    shift = 0.3 * normal(WIDTH // 2, generator=generator)

    def normed(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        shape = scales[0].shape
        return F.layer_norm(query, shape, scales[0], shift, eps), F.layer_norm(key, shape, scales[1], None, eps)

    layer = Attention(layer.qkv, layer.out, 2, inner=normed)
    norms = QKNorm(scales[0], floor, eps, shift), QKNorm(scales[1], floor, eps)
    bound = attention_qk_norm_bound(layer.slices, layer.score_scale, *norms, tokens=TOKENS, radius=radius)
    maps = torch.cat([layer.slices.query, layer.slices.key])
    maps = maps - maps.mean(dim=1, keepdim=True)
    where = NormedBall(TOKENS, WIDTH, radius, maps, (floor * math.sqrt(WIDTH // 2),) * len(maps))
    starts = where.project(shared_attention(layer.form, TOKENS, radius).flatten(0, 1)).unflatten(0, (2, -1))
    return Problem(where, {"three arguments": bound}, layer, starts=starts)


def mlp(layerscale: bool) -> Problem:
    """`W2 GELU(W1 x + b1) + b2`, alone or as a residual branch behind a LayerScale."""
    generator = torch.Generator().manual_seed(304)
    w1 = normal(4 * WIDTH, WIDTH, generator=generator) / 2
    w2 = normal(WIDTH, 4 * WIDTH, generator=generator) / 2
    b1, b2 = normal(4 * WIDTH, generator=generator), normal(WIDTH, generator=generator)

    def branch(x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)

    where = Everything(2, WIDTH, 2.0)
    if not layerscale:
        return Problem(where, {"product": mlp_bound(w1, w2, "GELU")}, branch)
    scales = 2 * normal(WIDTH, generator=generator)
    bounds = {"product": residual_bound(mlp_bound(w1, w2, "GELU", scales))}
    return Problem(where, bounds, lambda x: x + scales * branch(x))


def gated(radius: float = 2.0) -> Problem:
    """SwiGLU on tokens of norm at most 2."""
    generator = torch.Generator().manual_seed(305)
    gate, value = normal(2, 2 * WIDTH, WIDTH, generator=generator) / 2
    output = normal(WIDTH, 2 * WIDTH, generator=generator) / 2
    biases = normal(2, 2 * WIDTH, generator=generator)
    bound = gated_mlp_bound(gate, value, output, "SiLU", radius=radius, gate_bias=biases[0], value_bias=biases[1])

    def swiglu(x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, gate, biases[0])) * F.linear(x, value, biases[1]), output)

    return Problem(Ball(2, WIDTH, radius), {"on a ball": bound}, swiglu)


def cases() -> tuple[Case, ...]:
    """All of them, in the order of the statements."""
    product = (Version("folded", reference=0.230), Version("composed", reference=0.046))
    return (
        Case("A8", "A8", "Theorem 14", "MHA of LN1, deviation from 0.5, n = 8, d = 16", product, behind_norm),
        Case("A9-qk-norm", "A9", "Theorem 13", "QK-norm, n = 16, d = 16", _one("three arguments", 0.217), qk_norm),
        Case("A9-rope", "A9", "Theorem 13", "RoPE, n = 16, d = 16", _one("three arguments", 0.201), rope),
        Case("M2", "M2", "Prop. 15", "MLP 16 - 64 - 16, GELU", _one("product", 0.536), lambda: mlp(False)),
        Case("M3", "M3", "Prop. 15", "residual MLP with LayerScale", _one("product", 0.447), lambda: mlp(True)),
        Case("M4", "M4", "Prop. 15", "SwiGLU, r = 2", _one("on a ball", 0.156), gated),
    )


def _one(formula: str, reference: float) -> tuple[Version, ...]:
    return (Version(formula, reference=reference),)
