"""Attention maps and the local bound (Theorem 11): against plain softmax attention, full Jacobians and the ball."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitplast.bounds.attention import heads
from vitplast.bounds.attention_ball import combine_heads, mixing_bound
from vitplast.bounds.attention_local import attention_maps, local_attention_bound
from vitplast.bounds.canonical import canonical, score_norms, shift_norms
from vitplast.errors import HypothesisError, ShapeError

SEEDS = st.integers(0, 2**31)
SLACK = 1 + 1e-6


def layer(width, n_heads, generator, *, scale=1.0, bias=True):
    """A timm attention layer in float64 with random weights of size `scale`, biases included."""
    made = timm.layers.Attention(width, num_heads=n_heads, qkv_bias=bias).double().eval()
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=torch.float64) / math.sqrt(width))
    return made.requires_grad_(False)


def form_of(attention):
    cut = heads(attention.qkv.weight, attention.proj.weight, attention.num_heads)
    bias = None if attention.qkv.bias is None else attention.qkv.bias[: attention.attn_dim]
    return canonical(cut, attention.scale, bias)


def mixed(form, x, fixed_bias=None):
    """m of each head from the weights alone, (H, n, E) for x (n, E): softmax written out."""
    matrix = form.key.transpose(-1, -2) @ form.query
    scores = torch.einsum("je,hef,if->hij", x, matrix, x) + torch.einsum("je,he->hj", x, form.shift)[:, None]
    if fixed_bias is not None:
        scores = scores + fixed_bias
    return torch.softmax(scores, dim=-1) @ x


def jacobian_norms(form, x, fixed_bias=None):
    """`||J_m||_2` of each head at x (n, E) from the full Jacobian."""
    full = torch.func.jacrev(lambda z: mixed(form, z, fixed_bias))(x)
    return torch.linalg.matrix_norm(full.reshape(len(full), x.numel(), x.numel()), ord=2)


def plain_bound(form, x, maps, tight):
    """Theorem 11 with all covariances and score matrices written out."""
    values = []
    for h, p in enumerate(maps):
        matrix = form.key[h].T @ form.query[h]
        w = x @ matrix.T + form.shift[h]
        around = x[None] - (p @ x)[:, None]
        cov = torch.einsum("ij,ije,ijf->ief", p, around, around)
        spread = torch.linalg.matrix_norm(cov, ord=2) if tight else cov.diagonal(dim1=1, dim2=2).sum(1)
        first = (p * (1 + spread * w.square().sum(1))[:, None]).sum(0).max().sqrt()
        values.append(first + torch.linalg.matrix_norm(cov @ matrix, ord=2).max())
    return torch.stack(values)


def masks(tokens, generator):
    bias = torch.randn(tokens, tokens, generator=generator, dtype=torch.float64)
    causal = torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)
    return {"none": None, "position bias": bias, "causal": causal, "causal and bias": bias + causal}


@pytest.mark.parametrize("mask", ["none", "position bias", "causal", "causal and bias"])
def test_maps_mix_tokens_as_the_layer_does(mask):
    g = torch.Generator().manual_seed(0)
    attention = layer(12, 3, g)
    form, bias = form_of(attention), masks(5, g)[mask]
    x, y = torch.randn(2, 4, 5, 12, generator=g, dtype=torch.float64)
    expected = attention(x, attn_mask=bias) - attention(y, attn_mask=bias)
    moved = attention_maps(form, x, bias) @ x[:, None] - attention_maps(form, y, bias) @ y[:, None]
    found = torch.einsum("hfd,hde,bhne->bnf", form.output, form.value, moved)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_key_bias_is_inert_and_the_query_bias_is_not():
    g = torch.Generator().manual_seed(1)
    attention = layer(8, 2, g)
    x = torch.randn(1, 5, 8, generator=g, dtype=torch.float64)
    before, maps = attention(x), attention_maps(form_of(attention), x)
    with torch.no_grad():
        attention.qkv.bias[8:16] += 3
    torch.testing.assert_close(attention(x), before, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        attention.qkv.bias[:8] += 3
    assert (attention_maps(form_of(attention), x) - maps).abs().max() > 1e-2


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize(("tokens", "width", "n_heads"), [(3, 12, 3), (9, 4, 1), (6, 6, 6), (1, 4, 2), (2, 5, 1)])
def test_value_is_the_formula_written_out(tokens, width, n_heads, tight):
    g = torch.Generator().manual_seed(2)
    form = form_of(layer(width, n_heads, g, scale=2.0))
    x = torch.randn(2, tokens, width, generator=g, dtype=torch.float64) + 1
    for bias in masks(tokens, g).values():
        maps = attention_maps(form, x, bias)
        found = local_attention_bound(form, x, fixed_bias=bias, tight=tight)
        expected = torch.stack([plain_bound(form, x[b], maps[b], tight) for b in range(2)])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@given(
    seed=SEEDS,
    tokens=st.integers(1, 8),
    width=st.sampled_from([(4, 1), (6, 2), (12, 4)]),
    scale=st.sampled_from([1e-8, 1e-3, 0.3, 1.0, 5.0, 1e2, 1e4]),
    size=st.sampled_from([1e-3, 1.0, 10.0]),
    mask=st.sampled_from(["none", "position bias", "causal", "causal and bias"]),
)
@settings(max_examples=60, deadline=None)
def test_no_jacobian_exceeds_the_local_bound(seed, tokens, width, scale, size, mask):
    g = torch.Generator().manual_seed(seed)
    form = form_of(layer(*width, g, scale=scale))
    x = size * torch.randn(tokens, width[0], generator=g, dtype=torch.float64)
    bias = masks(tokens, g)[mask]
    norms = jacobian_norms(form, x, bias)
    tight, cheap = (local_attention_bound(form, x[None], fixed_bias=bias, tight=t)[0] for t in (True, False))
    assert bool((norms <= tight * SLACK).all())
    assert bool((tight <= cheap * SLACK).all())


def test_rank_one_and_zero_scores_and_single_tokens():
    g = torch.Generator().manual_seed(3)
    attention = layer(6, 2, g)
    x = torch.randn(1, 4, 6, generator=g, dtype=torch.float64)
    one = torch.ones(1, 2, dtype=torch.float64)
    torch.testing.assert_close(local_attention_bound(form_of(attention), x[:, :1]), one)
    attention.qkv.weight[:12] = 0
    attention.qkv.bias[:6] = 0
    # Mean pooling: the bound is 1 and is reached.
    torch.testing.assert_close(local_attention_bound(form_of(attention), x), one)
    torch.testing.assert_close(jacobian_norms(form_of(attention), x[0]), one[0])
    thin = torch.randn(12, 1, generator=g, dtype=torch.float64)
    attention.qkv.weight[:12] = thin @ torch.ones(1, 6, dtype=torch.float64)
    norms = jacobian_norms(form_of(attention), x[0])
    assert bool((norms <= local_attention_bound(form_of(attention), x, tight=True)[0] * SLACK).all())


def test_equal_tokens_reach_the_bound():
    """All tokens equal: covariances vanish, attention is pooling whatever the scores, and both sides are 1."""
    g = torch.Generator().manual_seed(4)
    form = form_of(layer(6, 2, g, scale=3.0))
    x = torch.randn(1, 1, 6, generator=g, dtype=torch.float64).repeat(1, 5, 1)
    one = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(local_attention_bound(form, x)[0], one)
    torch.testing.assert_close(jacobian_norms(form, x[0]), one)


def test_a_mask_can_make_one_token_count_for_all():
    """All rows look at token 0: `m_i = x_0`, so the norm is sqrt(n), and the bound says so."""
    g = torch.Generator().manual_seed(5)
    form = form_of(layer(6, 2, g))
    x = torch.randn(1, 4, 6, generator=g, dtype=torch.float64)
    only = torch.full((4,), -math.inf, dtype=torch.float64)
    only[0] = 0
    root = torch.full((2,), 2.0, dtype=torch.float64)
    torch.testing.assert_close(jacobian_norms(form, x[0], only), root)
    torch.testing.assert_close(local_attention_bound(form, x, fixed_bias=only)[0], root)


def test_a_far_common_centre_costs_no_digits():
    """Moving all tokens along a direction that no query and no key of a head sees leaves its Jacobian alone."""
    g = torch.Generator().manual_seed(6)
    form = form_of(layer(8, 4, g))
    one = form._replace(**{name: getattr(form, name)[:1] for name in form._fields})
    x = torch.randn(1, 5, 8, generator=g, dtype=torch.float64)
    unseen = torch.linalg.svd(torch.cat([one.key[0], one.query[0]])).Vh[-1]
    for tight in (False, True):
        near, far = (local_attention_bound(one, x + c * unseen, tight=tight) for c in (0, 1e7))
        torch.testing.assert_close(far, near, rtol=1e-6, atol=0)


@given(seed=SEEDS, tokens=st.integers(2, 10), scale=st.sampled_from([0.1, 1.0, 4.0]))
@settings(max_examples=30, deadline=None)
def test_local_is_below_the_second_branch_of_the_ball(seed, tokens, scale):
    """Theorem 11 is the second branch of Theorem 10 before it is maximised over the ball."""
    g = torch.Generator().manual_seed(seed)
    form = form_of(layer(8, 2, g, scale=scale))
    x = torch.randn(3, tokens, 8, generator=g, dtype=torch.float64)
    r = x.norm(dim=-1).max()
    kappa = r * (r * score_norms(form) + shift_norms(form))
    seen = tokens / (1 + (tokens - 1) * torch.exp(-2 * kappa))
    ball = r**2 * score_norms(form) + torch.sqrt(seen * (1 + kappa**2))
    assert bool((local_attention_bound(form, x) <= ball * SLACK).all())


def test_local_bound_is_far_tighter_than_the_ball_for_typical_tokens():
    g = torch.Generator().manual_seed(7)
    form = form_of(layer(8, 2, g, scale=2.0))
    x = torch.randn(16, 12, 8, generator=g, dtype=torch.float64)
    ball = combine_heads(
        form, mixing_bound(score_norms(form), shift_norms(form), tokens=12, radius=float(x.norm(dim=-1).max()))
    )
    local = [combine_heads(form, one) for one in local_attention_bound(form, x, tight=True)]
    layer_map = torch.einsum("hfd,hde->hfe", form.output, form.value)

    def whole(z):
        return torch.einsum("hfe,hne->nf", layer_map, mixed(form, z))

    norms = [torch.linalg.matrix_norm(torch.func.jacrev(whole)(z).reshape(96, 96), ord=2) for z in x]
    assert all(float(n) <= b * SLACK for n, b in zip(norms, local, strict=True))
    assert max(local) < ball
    assert sorted(local)[8] < 0.5 * ball
    assert sorted(norms)[8] < 0.5 * sorted(local)[8]


def test_sequences_are_bounded_one_by_one_and_in_chunks(monkeypatch):
    g = torch.Generator().manual_seed(8)
    form = form_of(layer(8, 2, g))
    x = torch.randn(3, 7, 8, generator=g, dtype=torch.float64)
    bias = torch.randn(3, 2, 7, 7, generator=g, dtype=torch.float64)
    together = local_attention_bound(form, x, fixed_bias=bias)
    apart = [local_attention_bound(form, x[b : b + 1], fixed_bias=bias[b]) for b in range(3)]
    torch.testing.assert_close(together, torch.cat(apart))
    monkeypatch.setattr("vitplast.bounds.attention_local._CHUNK", 1)
    torch.testing.assert_close(local_attention_bound(form, x, fixed_bias=bias), together)


def test_refuses_what_it_cannot_take():
    g = torch.Generator().manual_seed(9)
    form = form_of(layer(8, 2, g))
    x = torch.randn(1, 4, 8, generator=g, dtype=torch.float64)
    for wrong in (x[0], x[..., :6], x[:, :0], x[:0]):
        with pytest.raises(ShapeError, match="tokens must have shape"):
            local_attention_bound(form, wrong)
    with pytest.raises(ShapeError, match=r"broadcast.*\(3, 3\)"):
        attention_maps(form, x, torch.zeros(3, 3))
    with pytest.raises(HypothesisError, match="tokens hold values that are not finite"):
        attention_maps(form, x * math.nan)
    for value in (math.nan, math.inf):
        with pytest.raises(HypothesisError, match="nan or"):
            attention_maps(form, x, torch.full((4, 4), value))
    closed = torch.zeros(4, 4)
    closed[2] = -math.inf
    with pytest.raises(HypothesisError, match="leaves out all tokens"):
        local_attention_bound(form, x, fixed_bias=closed)
