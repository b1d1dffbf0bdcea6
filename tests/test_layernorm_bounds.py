"""Normalisation (Lemma 5, Theorems 6 and 14, Prop. 7): random layers, pairs that reach the constants, broken forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import load_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from vitplast.bounds.folded import layernorm_linear
from vitplast.bounds.layernorm import (
    centred_norm,
    deviation_floor,
    layernorm_bound,
    layernorm_coded,
    layernorm_constant,
    pair_bound,
    token_deviations,
    two_point_factor,
)
from vitplast.bounds.linear import spectral_norm
from vitplast.bounds.rmsnorm import batchnorm_constant, rmsnorm_constant, rmsnorm_pair_bound
from vitplast.errors import HypothesisError, ShapeError
from vitplast.predictions.layernorm import inverse_scale, token_ratio

SCALES = st.sampled_from([1e-8, 1e-3, 1.0, 1e3, 1e8])
SEEDS = st.integers(0, 2**31)
EPSILONS = st.sampled_from([0.0, 1e-12, 1e-6, 0.3, 1e4])
KINDS = st.sampled_from(["both signs", "negative", "one", "equal", "two tied", "spread", "zero"])
SLACK = 1 + 1e-6


def rates(f, x, y):
    """One rate of change a pair, from (B, n, d) or (B, d)."""
    return (f(x) - f(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)


def layernorm(gamma, beta=None, eps=0.0):
    return lambda t: F.layer_norm(t, gamma.shape, gamma, beta, eps)


def rmsnorm(gamma, eps):
    return lambda t: gamma * t / (t.square().mean(dim=-1, keepdim=True) + eps).sqrt()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scales_of(kind, d, scale, g):
    gamma = scale * torch.randn(d, generator=g, dtype=torch.float64)
    tied = gamma.clone()
    tied[:2] = 2 * gamma.abs().max() * torch.tensor([1.0, -1.0])
    return {
        "both signs": gamma,
        "negative": -gamma.abs(),
        "one": gamma * torch.eye(d, dtype=torch.float64)[d // 2],
        "equal": torch.full_like(gamma, -scale),
        "two tied": tied,
        "spread": gamma * torch.logspace(-8, 8, d, dtype=torch.float64),
        "zero": 0 * gamma,
    }[kind]


def centred(matrix):
    return matrix - matrix.mean(dim=-1, keepdim=True)


def opposite(matrix, sigma):
    """Two opposite tokens of deviation `sigma` along the top right-singular vector of a matrix with M 1 = 0."""
    v = centred(torch.linalg.svd(matrix, full_matrices=False).Vh[:1])
    x = sigma * math.sqrt(matrix.shape[1]) * v / v.norm()
    return x, -x


def ascend(f, project, x, y, steps=400, rate=0.05):
    """Largest rate found by gradient ascent on all pairs at once, both ends put back on the set at each step."""
    ends = torch.stack([x, y]).requires_grad_()
    adam, best = torch.optim.Adam([ends], lr=rate), 0.0
    for _ in range(steps):
        found = rates(f, *project(ends))
        best = max(best, float(found.detach().max()))
        adam.zero_grad()
        (-found.log().sum()).backward()
        adam.step()
        with torch.no_grad():
            ends.copy_(project(ends))
    return best


# ---- the norm of the scales -----------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.integers(2, 64), SCALES, KINDS)
def test_centred_norm_is_the_dense_norm_between_the_two_largest_scales(seed, d, scale, kind):
    gamma = scales_of(kind, d, scale, torch.Generator().manual_seed(seed))
    norm = centred_norm(gamma)
    dense = float(torch.linalg.matrix_norm(centred(torch.diag(gamma)), 2))
    assert norm == pytest.approx(dense, rel=1e-9)
    top = gamma.abs().sort(descending=True).values
    assert float(top[1]) * (1 - 1e-12) <= norm <= float(top[0]) * (1 + 1e-12)
    assert norm == centred_norm(-gamma) == centred_norm(gamma.flip(0))
    if kind in ("equal", "two tied", "zero"):
        assert norm == float(top[0])
    assert layernorm_linear(torch.eye(d).double(), gamma, 0.5, 0.1) == pytest.approx(
        layernorm_constant(gamma, 0.5, 0.1), rel=1e-9
    )


def test_centred_norm_ends_of_the_bracket():
    assert centred_norm(torch.tensor([5.0])) == 0.0
    for d in (3, 30, 300):
        one = torch.eye(d)[0]
        assert centred_norm(one) == pytest.approx(math.sqrt(1 - 1 / d), rel=1e-12)
    close = torch.tensor([1.0, 1.0 - 2**-52]).double()
    assert centred_norm(close) == pytest.approx(1.0, rel=1e-15)
    with pytest.raises(HypothesisError, match="not finite"):
        centred_norm(torch.tensor([1.0, math.inf]))
    with pytest.raises(ShapeError, match="two entries"):
        layernorm_constant(torch.ones(1), 1.0)


# ---- pairs ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(1, 5), st.integers(2, 64), SCALES, SCALES, EPSILONS, KINDS, st.booleans())
def test_no_pair_exceeds_its_bound(seed, batch, n, d, scale, token_scale, eps, kind, shared):
    g = torch.Generator().manual_seed(seed)
    gamma, beta = scales_of(kind, d, scale, g), scale * torch.randn(d, generator=g, dtype=torch.float64)
    sizes = token_scale * 10.0 ** (2 * torch.randn(2, batch, n, 1, generator=g, dtype=torch.float64))
    x, y = sizes * torch.randn(2, batch, n, d, generator=g, dtype=torch.float64)
    if shared:  # a class token: the same on both sides and flatter than all others
        token = 1e-10 * token_scale * torch.randn(batch, 1, d, generator=g, dtype=torch.float64)
        x, y = (torch.cat([token, t], dim=1) for t in (x, y))
    bound, (deviations, differ) = pair_bound(gamma, x, y, eps), token_deviations(x, y)
    measured = rates(layernorm(gamma, beta, eps), x, y)
    assert (measured <= bound * SLACK).all()
    assert measured.mean() <= bound.mean() * SLACK
    assert bound.max() <= layernorm_constant(gamma, float(deviations[:, differ].min()), eps) * (1 + 1e-12)
    square = torch.stack([x, y]).square().mean(dim=-1).sqrt()
    bound = rmsnorm_pair_bound(gamma, x, y, eps)
    assert (rates(rmsnorm(gamma, eps), x, y) <= bound * SLACK).all()
    assert bound.max() <= rmsnorm_constant(gamma, float(square[:, differ].min()), eps) * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 32), SCALES, EPSILONS)
def test_two_point_form_is_reached_by_tokens_of_one_deviation(seed, d, token_scale, eps):
    g = torch.Generator().manual_seed(seed)
    x, y = centred(torch.randn(2, 3, 1, d, generator=g, dtype=torch.float64))
    x, y = (token_scale * t / t.std(dim=-1, correction=0, keepdim=True) for t in (x, y))
    if d == 2:
        y = -x
    signs = torch.randn(d, generator=g, dtype=torch.float64).sign()
    torch.testing.assert_close(rates(layernorm(signs, eps=eps), x, y), pair_bound(signs, x, y, eps), rtol=1e-6, atol=0)
    unit = torch.nn.functional.normalize(torch.randn(2, 3, 1, d, generator=g, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(
        rates(rmsnorm(signs, eps), *unit), rmsnorm_pair_bound(signs, *unit, eps), rtol=1e-6, atol=0
    )


def test_pair_bound_is_sharper_than_the_set_and_keeps_to_tokens_that_differ():
    x, y = normal(2, 20, 6, 8)
    x, y = x * torch.linspace(0.1, 3, 20)[:, None, None], y * torch.linspace(0.1, 3, 20)[:, None, None]
    gamma = normal(8, seed=1)
    flat = 1e-6 * normal(20, 1, 8, seed=2)
    with_class = pair_bound(gamma, torch.cat([flat, x], 1), torch.cat([flat, y], 1))
    torch.testing.assert_close(with_class, pair_bound(gamma, x, y), rtol=0, atol=0)
    deviations, differ = token_deviations(torch.cat([flat, x], 1), torch.cat([flat, y], 1))
    assert not differ[:, 0].any()
    assert differ[:, 1:].all()
    on_set = layernorm_constant(gamma, float(deviations[:, differ].min()))
    assert layernorm_constant(gamma, float(deviations.min())) > 1e4 * on_set
    assert float(with_class.mean()) < 0.5 * on_set
    torch.testing.assert_close(
        pair_bound(gamma.float(), x.float(), y.float()), pair_bound(gamma, x, y), rtol=1e-6, atol=0
    )


def test_averaged_deviations_are_not_a_hypothesis():
    x = torch.tensor([[[0.1, -0.1], [10.0, -10.0]]]).double()
    y = torch.tensor([[[-0.1, 0.1], [10.0, -10.0]]]).double()
    rate = float(rates(layernorm(torch.ones(2).double()), x, y))
    deviations, _ = token_deviations(x, y)
    assert rate == pytest.approx(float(pair_bound(torch.ones(2), x, y)), rel=1e-9)
    assert rate > 10 * layernorm_constant(torch.ones(2), float(deviations.mean()))


# ---- the constants are reached --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sigma", "eps"), [(0.5, 0.0), (0.5, 1e-6), (0.5, 0.3), (1e-8, 0.0), (1e8, 1e-6)])
def test_opposite_tokens_reach_every_constant(seed, sigma, eps):
    gamma, weight = normal(12, seed=seed), normal(20, 12, seed=seed + 10)
    x, y = opposite(centred(torch.diag(gamma)), sigma)
    assert float(rates(layernorm(gamma, normal(12), eps), x, y)) == pytest.approx(
        layernorm_constant(gamma, sigma, eps), rel=1e-9
    )
    assert float(pair_bound(gamma, x[None], y[None], eps)) == pytest.approx(
        layernorm_constant(gamma, sigma, eps), rel=1e-9
    )
    x, y = opposite(centred(weight * gamma), sigma)
    whole = lambda t: F.linear(layernorm(gamma, normal(12), eps)(t), weight, normal(20))  # noqa: E731
    assert float(rates(whole, x, y)) == pytest.approx(layernorm_linear(weight, gamma, sigma, eps), rel=1e-9)
    axis = sigma * math.sqrt(12) * torch.eye(12).double()[gamma.abs().argmax()][None]
    assert float(rates(rmsnorm(gamma, eps), axis, -axis)) == pytest.approx(
        rmsnorm_constant(gamma, sigma, eps), rel=1e-9
    )


def test_the_global_constant_is_a_limit():
    gamma, eps = normal(6), 0.01
    reached = []
    for sigma in (1.0, 1e-1, 1e-3, 1e-6):
        x, y = opposite(centred(torch.diag(gamma)), sigma)
        reached.append(float(rates(layernorm(gamma, None, eps), x, y)))
    assert reached == sorted(reached)
    assert reached[-1] == pytest.approx(layernorm_constant(gamma, 0.0, eps), rel=1e-9)
    assert reached[-1] < layernorm_constant(gamma, 0.0, eps) * (1 + 1e-12) < 11 * reached[0]


@pytest.mark.parametrize(
    ("kind", "sigma", "eps"), [("one sign", 0.5, 1e-6), ("both signs", 0.5, 1e-6), ("both signs", 0.5, 0.3)]
)
@pytest.mark.parametrize("family", ["layer norm", "rms norm", "FC1 o LN2"])
def test_ascent_comes_to_the_constant_and_not_beyond(kind, sigma, eps, family):
    gamma, weight = normal(8, seed=3), normal(10, 8, seed=4)
    gamma = gamma.abs() if kind == "one sign" else gamma
    middle = centred if family != "rms norm" else (lambda t: t)

    def project(ends):
        moved = middle(ends)
        size = moved.square().mean(dim=-1, keepdim=True).sqrt()
        return moved * (sigma / size).clamp(min=1)

    f, exact = {
        "layer norm": (layernorm(gamma, None, eps), layernorm_constant(gamma, sigma, eps)),
        "rms norm": (rmsnorm(gamma, eps), rmsnorm_constant(gamma, sigma, eps)),
        "FC1 o LN2": (
            lambda t: layernorm(gamma, None, eps)(t) @ weight.T,
            layernorm_linear(weight, gamma, sigma, eps),
        ),
    }[family]
    x, y = project(normal(2, 24, 8, seed=5))
    best = ascend(f, project, x, y)
    assert 0.999 * exact <= best <= exact * SLACK


# ---- forms that are broken ------------------------------------------------------------------------------------------


def test_formula_as_coded_is_violated_twice_over():
    gamma = torch.tensor([1.0, 0.8, -6.0, 0.5]).double()
    x, y = opposite(centred(torch.diag(gamma)), 1.0)
    found = float(rates(layernorm(gamma), x, y))
    assert layernorm_coded(gamma) == 1.0
    assert found > 5 * layernorm_coded(gamma)  # without the modulus
    x, y = opposite(centred(torch.diag(gamma.abs())), 0.5)
    found = float(rates(layernorm(gamma.abs()), x, y))
    assert found > 1.7 * layernorm_coded(gamma.abs())  # without 1 / sigma
    assert found <= layernorm_constant(gamma.abs(), 0.5) * SLACK < layernorm_bound(gamma.abs(), 0.5)


@pytest.mark.parametrize(("sigma", "eps"), [(1.0, 0.01), (2.0, 0.1), (0.5, 1e-3)])
def test_largest_jacobian_is_no_bound_for_two_features(sigma, eps):
    f = layernorm(torch.ones(2).double(), None, eps)
    direction = torch.tensor([1.0, -1.0]).double()
    offsets = sigma * torch.cat([torch.ones(1), torch.linspace(1, 5, 41)]).double()
    norms = [
        torch.linalg.matrix_norm(torch.func.jacrev(f)(s * direction + shift), 2)
        for s in (*offsets, *-offsets)
        for shift in (0.0, 3.0)
    ]
    local = float(torch.stack(norms).max())
    assert local == pytest.approx(eps / (sigma**2 + eps) ** 1.5, rel=1e-9)
    across = float(rates(f, sigma * direction[None], -sigma * direction[None]))
    assert across / local == pytest.approx((sigma**2 + eps) / eps, rel=1e-9)
    assert across == pytest.approx(layernorm_constant(torch.ones(2), sigma, eps), rel=1e-12)


@pytest.mark.parametrize("d", [3, 4, 9])
def test_largest_jacobian_equals_the_constant_from_three_features_on(d):
    gamma, sigma, eps = normal(d, seed=d), 0.7, 0.2
    top = torch.linalg.svd(centred(torch.diag(gamma))).Vh[0]
    other = centred(normal(d, seed=d + 1))
    other = other - (other @ top) * top
    x = sigma * math.sqrt(d) * other / other.norm()
    jacobian = torch.func.jacrev(layernorm(gamma, None, eps))(x)
    assert float(torch.linalg.matrix_norm(jacobian, 2)) == pytest.approx(
        layernorm_constant(gamma, sigma, eps), rel=1e-9
    )


@pytest.mark.parametrize("name", ["tiny_a", "tiny_b"])
def test_stored_rates_respect_the_bound_of_their_own_pair(name):
    ref = load_reference(name, torch.float64)
    seen = []
    handle = ref.model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        ref.model(ref.x1)
        ref.model(ref.x2)
    handle.remove()
    set_floor = min(float(token_deviations(*seen)[0][:, token_deviations(*seen)[1]].min()), 1.0)
    for layer, block in enumerate(ref.model.blocks):
        for column, norm in ((0, block.norm1), (2, block.norm2)):
            stored = ref.z["ratio"][layer, column].mean()
            bound = pair_bound(norm.weight, *seen, norm.eps)
            measured = rates(norm, *seen).detach().numpy()
            np.testing.assert_allclose(measured, ref.z["ratio"][layer, column], rtol=1e-9)
            assert (measured <= bound.numpy() * SLACK).all()
            assert stored <= float(bound.mean()) * SLACK
            assert float(bound.mean()) < layernorm_constant(norm.weight, set_floor, norm.eps)


# ---- folded into a linear map ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(2, 24), st.integers(1, 24), SCALES, EPSILONS, KINDS, st.sampled_from(["full", "one", "zero"]))
def test_folded_rates_never_exceed_the_constant(seed, d, out, scale, eps, kind, rank):
    g = torch.Generator().manual_seed(seed)
    gamma = scales_of(kind, d, scale, g)
    weight = torch.randn(out, d, generator=g, dtype=torch.float64) / max(scale, 1e-3)
    weight = {"full": weight, "one": weight[:, :1] @ weight[:1], "zero": 0 * weight}[rank]
    x, y = torch.randn(2, 4, 3, d, generator=g, dtype=torch.float64)
    sigma = float(token_deviations(x, y)[0].min())
    bound = layernorm_linear(weight, gamma, sigma, eps)
    found = rates(lambda t: layernorm(gamma, None, eps)(t) @ weight.T, x, y)
    # rounding: each output is a sum of d terms, of which large ones may cancel
    noise = 1e-13 * float((weight.abs() * gamma.abs()).norm() / (x - y).flatten(1).norm(dim=1).min())
    assert (found <= bound * SLACK + noise).all()
    assert bound <= spectral_norm(weight) * layernorm_constant(gamma, sigma, eps) * (1 + 1e-9)
    assert layernorm_linear(weight / 4, 4 * gamma, sigma, eps) == pytest.approx(bound, rel=1e-12)


def test_folding_gains_where_scales_and_weights_disagree():
    gamma, weight = torch.tensor([1.0, 1.0, 100.0, 100.0]), torch.diag(torch.tensor([100.0, 100.0, 1.0, 1.0]))
    folded, product = layernorm_linear(weight, gamma, 1.0), spectral_norm(weight) * layernorm_constant(gamma, 1.0)
    assert folded == pytest.approx(100.0, rel=1e-12)
    assert product == pytest.approx(1e4, rel=1e-12)


# ---- batch norm in evaluation mode ----------------------------------------------------------------------------------


def test_batch_norm_in_evaluation_mode_is_linear():
    layer = torch.nn.BatchNorm1d(6).double().eval()
    with torch.no_grad():
        layer.weight.copy_(normal(6))
        layer.running_mean.copy_(normal(6, seed=1))
        layer.running_var.copy_(normal(6, seed=2).square() + 0.1)
        x, y = normal(2, 200, 6, seed=3)
        bound = batchnorm_constant(layer.weight, layer.running_var, layer.eps)
        assert float(rates(layer, x, y).max()) <= bound * SLACK
        gains = layer.weight.abs() / (layer.running_var + layer.eps).sqrt()
        axis = torch.eye(6).double()[gains.argmax()][None]
        assert float(rates(layer, axis, -axis)) == pytest.approx(bound, rel=1e-12)


# ---- predictions ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 64), SCALES, SCALES)
def test_token_ratio_is_the_identity_of_the_formula(seed, d, left, right):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 5, d, generator=g, dtype=torch.float64)
    x, y = left * (x + 0.1), right * (y - 2)
    f = layernorm(torch.ones(d).double())
    direct = (f(x) - f(y)).norm(dim=-1) / centred(x - y).norm(dim=-1)
    close = {"rtol": 1e-7, "atol": 1e-10 / max(left, right)}  # two features: the images may coincide
    torch.testing.assert_close(token_ratio(x, y), direct, **close)
    s, t = (u.std(dim=-1, correction=0) for u in (x, y))
    c = (centred(x) * centred(y)).mean(dim=-1) / (s * t)
    if d > 2 and left == right:
        formula = 2 * (1 - c) / (s**2 + t**2 - 2 * s * t * c)
        torch.testing.assert_close(token_ratio(x, y) ** 2, formula, rtol=1e-7, atol=0)
    torch.testing.assert_close(token_ratio(x, y), token_ratio(y, x), **close)
    torch.testing.assert_close(token_ratio(3 * x, 3 * y), token_ratio(x, y) / 3, **close)


def test_token_ratio_of_close_equal_and_flat_tokens():
    x, step = normal(7), normal(7, seed=1)
    jacobian = torch.func.jacrev(layernorm(torch.ones(7).double()))(x)
    slope = (jacobian @ step).norm() / centred(step).norm()
    torch.testing.assert_close(token_ratio(x, x + 1e-7 * step), slope, rtol=1e-5, atol=0)
    tokens = torch.stack([x, x, x])
    moved = torch.stack([x, x + 1.0, -x])
    ratio = token_ratio(tokens, moved)
    assert math.isnan(float(ratio[0]))
    assert float(ratio[2]) == pytest.approx(1 / float(x.std(correction=0)), rel=1e-12)
    for bad in (torch.zeros(7), torch.full((7,), math.nan)):
        with pytest.raises(HypothesisError, match="constant or not finite"):
            token_ratio(x, bad)
    with pytest.raises(ShapeError, match=r"\(7,\) and \(6,\)"):
        token_ratio(x, x[:6])


def test_inverse_scale_predicts_uncorrelated_tokens():
    gamma = normal(256).sign() * (1 + 0.2 * normal(256, seed=1))
    for scale in (1e-6, 1.0, 1e6):
        x, y = scale * normal(2, 30, 17, 256, seed=2) * (0.5 + torch.arange(17)[:, None] / 17)
        deviations, differ = token_deviations(x, y)
        predicted = inverse_scale(gamma, float(deviations[:, differ].square().mean().sqrt()))
        assert float(rates(layernorm(gamma), x, y).mean()) == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.99])
def test_inverse_scale_is_exact_for_one_deviation_whatever_the_correlation(correlation):
    x, other = centred(normal(2, 4, 5, 16))
    other = other - (other * x).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True) * x
    unit = lambda t: t / t.norm(dim=-1, keepdim=True)  # noqa: E731
    x = 3 * unit(x)
    y = 3 * (correlation * unit(x) + math.sqrt(1 - correlation**2) * unit(other))
    gamma = -2 * torch.ones(16).double()
    predicted = inverse_scale(gamma, 3 / 4)
    assert rates(layernorm(gamma), x, y).tolist() == pytest.approx([predicted] * 4, rel=1e-9)


def test_inverse_scale_fails_where_correlated_tokens_differ_in_scale():
    x = normal(8, 3, 64)
    predicted = inverse_scale(torch.ones(64), float(token_deviations(x, 2 * x)[0].square().mean().sqrt()))
    assert float(rates(layernorm(torch.ones(64).double()), x, 2 * x).max()) < 1e-9 * predicted


# ---- input validation -----------------------------------------------------------------------------------------------


def test_refusals_of_pairs():
    x, y = normal(2, 2, 3, 4)
    same = torch.stack([y[0], x[1]])
    for bound in (pair_bound, rmsnorm_pair_bound):
        with pytest.raises(HypothesisError, match="pair 1 are the same"):
            bound(torch.ones(4), x, same)
        flat = y.clone()
        flat[1, 2] = 0
        with pytest.raises(HypothesisError, match="token 2 of pair 1 has deviation 0"):
            bound(torch.ones(4), x, flat)
        assert bool(torch.isfinite(bound(torch.ones(4), x, flat, 1e-6)).all())
        for eps in (-1e-6, math.nan):
            with pytest.raises(HypothesisError, match="eps must be finite"):
                bound(torch.ones(4), x, y, eps)
        for wrong in (y[:1], y[..., :3], y[0]):
            with pytest.raises(ShapeError, match="one shape"):
                bound(torch.ones(4), x, wrong)
        with pytest.raises(ShapeError, match=r"\(B, n, 5\)"):
            bound(torch.ones(5), x, y)
        with pytest.raises(HypothesisError, match="not finite"):
            bound(torch.ones(4), x, y / 0)
    # the same flat token on both sides has no weight
    assert bool(torch.isfinite(pair_bound(torch.ones(4), torch.cat([x, 0 * x], 1), torch.cat([y, 0 * y], 1))).all())
    with pytest.raises(ShapeError, match="one shape"):
        token_deviations(x, y, width=3)
    assert two_point_factor(*token_deviations(x, y), 1e8).tolist() == pytest.approx([1e-4, 1e-4], rel=1e-3)


def test_refusals_of_weights_and_floors():
    with pytest.raises(HypothesisError, match="no positive lower bound"):
        deviation_floor(0.0, 0.0)
    with pytest.raises(HypothesisError, match="no positive lower bound"):
        rmsnorm_constant(torch.ones(3), 0.0)
    with pytest.raises(HypothesisError, match="sigma must be finite"):
        layernorm_linear(torch.eye(3), torch.ones(3), -1.0)
    for weight in (torch.ones(3), torch.zeros(0, 3), torch.ones(2, 3, 3)):
        with pytest.raises(ShapeError, match="two dimensions"):
            layernorm_linear(weight, torch.ones(3), 1.0)
    for weight, gamma in (
        (torch.ones(3, 1), torch.ones(1)),
        (torch.eye(3), torch.ones(2)),
        (torch.eye(3), torch.eye(3)),
    ):
        with pytest.raises(ShapeError, match="one entry for each"):
            layernorm_linear(weight, gamma, 1.0)
    with pytest.raises(HypothesisError, match="not finite"):
        layernorm_linear(torch.eye(2), torch.tensor([1.0, math.nan]), 1.0)
    for refuse in (rmsnorm_constant, inverse_scale):
        with pytest.raises(ShapeError, match="not empty"):
            refuse(torch.ones(0), 1.0)
        with pytest.raises(HypothesisError, match="not finite"):
            refuse(torch.tensor([math.inf]), 1.0)
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(HypothesisError, match="rms_std must be positive"):
            inverse_scale(torch.ones(3), value)
    with pytest.raises(ShapeError, match="one variance a scale"):
        batchnorm_constant(torch.ones(3), torch.ones(2))
    for variance in (torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 1.0])):
        with pytest.raises(HypothesisError, match="finite and positive"):
            batchnorm_constant(torch.ones(2), variance)


@pytest.mark.parametrize("scale", [1e-300, 1e-165, 1e-100, 1e100, 1e155, 1e300])
def test_tokens_of_any_scale_keep_their_deviation(scale):
    """The squares leave the range of float64 at 1e155 and 1e-165; the bound scales as 1/s and stays one."""
    x, y = torch.tensor([[[2.0, -2.0], [1.0, 5.0]]]).double(), torch.tensor([[[8.0, -8.0], [1.0, 5.0]]]).double()
    deviations, differ = token_deviations(scale * x, scale * y)
    assert differ.tolist() == [[True, False]]
    torch.testing.assert_close(deviations / scale, token_deviations(x, y)[0], rtol=1e-12, atol=0)
    bound = pair_bound(torch.ones(2), scale * x, scale * y)
    assert float(bound) * scale == pytest.approx(0.25, rel=1e-12)
    root = rmsnorm_pair_bound(torch.ones(2), scale * x, scale * y)
    assert float(root) * scale == pytest.approx(0.25, rel=1e-12)
