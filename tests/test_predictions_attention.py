"""The pooling prediction and the entropy of attention maps: exact limits, how far off at most, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch.utils._python_dispatch import TorchDispatchMode

from vitplast.bounds.attention import heads
from vitplast.bounds.attention_local import attention_maps
from vitplast.bounds.canonical import canonical
from vitplast.errors import HypothesisError, ShapeError
from vitplast.predictions.attention import entropy, pooling, pooling_gap, score_spread


def layer(width, n_heads, generator, *, scores=1.0):
    """A timm attention layer in float64 with random weights; queries and their bias times `scores`."""
    made = Attention(width, num_heads=n_heads, qkv_bias=True).double().eval().requires_grad_(False)
    for p in made.parameters():
        p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / math.sqrt(width))
    made.qkv.weight[:width] *= scores
    made.qkv.bias[:width] *= scores
    cut = heads(made.qkv.weight, made.proj.weight, n_heads)
    return made, canonical(cut, made.scale, made.qkv.bias[:width])


def rates(f, x, y):
    return (f(x) - f(y)).norm(dim=(-1, -2)) / (x - y).norm(dim=(-1, -2))


def test_exact_without_scores():
    g = torch.Generator().manual_seed(0)
    attention, form = layer(12, 3, g, scores=0.0)
    x, y = torch.randn(2, 6, 9, 12, generator=g, dtype=torch.float64)
    torch.testing.assert_close(pooling(form, x, y), rates(attention, x, y), rtol=1e-10, atol=0)
    assert torch.equal(pooling_gap(form, x, y), torch.zeros(6, dtype=torch.float64))


@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 9),
    scores=st.sampled_from([1e-8, 1e-4, 1e-2, 0.3, 2.0]),
    size=st.sampled_from([1e-3, 1.0, 3.0]),
)
@settings(max_examples=60, deadline=None)
def test_never_off_by_more_than_the_gap(seed, tokens, scores, size):
    g = torch.Generator().manual_seed(seed)
    attention, form = layer(8, 2, g, scores=scores)
    x, y = size * torch.randn(2, 3, tokens, 8, generator=g, dtype=torch.float64)
    error = (pooling(form, x, y) - rates(attention, x, y)).abs()
    assert bool((error <= pooling_gap(form, x, y) * (1 + 1e-6) + 1e-9).all())


def test_the_error_falls_with_the_scores():
    g = torch.Generator().manual_seed(1)
    errors = []
    for scores in (1.0, 1e-2, 1e-4):
        attention, form = layer(8, 2, g.manual_seed(2), scores=scores)
        x, y = torch.randn(2, 3, 7, 8, generator=g, dtype=torch.float64)
        errors.append(float((pooling(form, x, y) / rates(attention, x, y) - 1).abs().max()))
    assert errors[0] > 1e-2
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


@given(seed=st.integers(0, 2**31), scores=st.sampled_from([1e-6, 1e-2, 1.0, 5.0]))
@settings(max_examples=30, deadline=None)
def test_maps_stay_within_the_spread_of_the_scores(seed, scores):
    """`|n P_ij - 1| <= e^eta - 1`, the remark after Theorem 14."""
    g = torch.Generator().manual_seed(seed)
    _, form = layer(8, 2, g, scores=scores)
    x = torch.randn(3, 6, 8, generator=g, dtype=torch.float64)
    off = (6 * attention_maps(form, x) - 1).abs().amax(dim=(-1, -2))
    assert bool((off <= torch.expm1(score_spread(form, x)) * (1 + 1e-9) + 1e-12).all())


def test_pooling_averages_token_differences_away():
    g = torch.Generator().manual_seed(3)
    _, form = layer(8, 2, g, scores=0.0)
    x = torch.randn(1, 6, 8, generator=g, dtype=torch.float64)
    shuffled = x[:, torch.randperm(6, generator=g)]
    assert float(pooling(form, x, shuffled)) < 1e-12
    moved = torch.einsum("hfd,hde->fe", form.output, form.value)
    step = torch.linalg.svd(moved).Vh[0].expand(1, 6, 8)
    # All tokens moved alike, along the top direction of M: the largest value that pooling can take.
    top = torch.linalg.matrix_norm(moved, ord=2)
    torch.testing.assert_close(pooling(form, x + step, x)[0], top)


def test_entropy_of_known_maps():
    uniform = torch.full((2, 3, 5, 5), 0.2, dtype=torch.float64)
    torch.testing.assert_close(entropy(uniform), torch.ones(2, 3, dtype=torch.float64))
    assert torch.equal(entropy(torch.eye(4)), torch.tensor(0.0, dtype=torch.float64))
    half = torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 4)
    assert float(entropy(half)) == pytest.approx(0.5, rel=1e-12)
    assert float(entropy(torch.ones(1, 1))) == 1.0
    # Rows are averaged.
    assert float(entropy(torch.cat([half[:2], torch.eye(4)[:2]]))) == pytest.approx(0.25, rel=1e-12)


def test_entropy_falls_as_scores_grow():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(2, 9, 8, generator=g, dtype=torch.float64)
    values = []
    for scores in (0.0, 1.0, 10.0, 1e3):
        _, form = layer(8, 2, g.manual_seed(5), scores=scores)
        values.append(float(entropy(attention_maps(form, x)).mean()))
    assert values[0] == pytest.approx(1.0, abs=1e-12)
    assert values == sorted(values, reverse=True)
    assert 0 <= values[-1] < 0.1


def test_refuses_what_it_cannot_take():
    g = torch.Generator().manual_seed(6)
    _, form = layer(8, 2, g)
    x = torch.randn(2, 4, 8, generator=g, dtype=torch.float64)
    with pytest.raises(ShapeError, match="same shape"):
        pooling(form, x, x[:1])
    with pytest.raises(ShapeError, match="tokens must have shape"):
        pooling(form, x[..., :4], x[..., :4])
    y = x.clone()
    y[0] += 1
    for law in (pooling, pooling_gap):
        with pytest.raises(HypothesisError, match="equal"):
            law(form, x, y)
    with pytest.raises(HypothesisError, match="not finite"):
        pooling(form, x, y * math.nan)
    for wrong in (torch.ones(3), torch.ones(2, 3), torch.ones(0, 0)):
        with pytest.raises(ShapeError, match="attention maps"):
            entropy(wrong)
    for wrong in (torch.ones(2, 2), torch.tensor([[2.0, -1.0], [0.5, 0.5]]), torch.full((2, 2), math.nan)):
        with pytest.raises(HypothesisError, match="probabilities"):
            entropy(wrong)


def test_no_product_as_wide_as_the_tokens_is_formed():
    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known:
                self.entries = max(self.entries, out.numel())
            return out

    g = torch.Generator().manual_seed(0)
    width, n_heads = 48, 2
    _, form = layer(width, n_heads, g)
    form = form._replace(value=form.value[:, :3].clone(), output=form.output[..., :3].clone())
    x, y = torch.randn(2, 2, 5, width, generator=g, dtype=torch.float64)
    known = {t.untyped_storage().data_ptr() for t in form}
    with Largest() as made:
        found = pooling(form, x, y)
    assert made.entries <= max(x.numel(), form.value.numel()) < width**2
    mixed = (form.output @ form.value).sum(dim=0)
    expected = math.sqrt(5) * ((x - y).mean(dim=1) @ mixed.T).norm(dim=-1) / (x - y).norm(dim=(-1, -2))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
