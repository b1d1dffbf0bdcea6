"""Lemma 9 and Theorems 10 and 12: attention on a ball, by random draws, Jacobians, ascent and the sharp example."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jacrev
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from vitplast.bounds.attention import (
    attention_paper_bias,
    attention_quoted,
    column_heads,
    column_norms,
    heads,
    row_norms,
)
from vitplast.bounds.attention_ball import (
    COMBINATIONS,
    attention_bound,
    combine_heads,
    mixing_bound,
    score_gain,
    sharp_example,
)
from vitplast.bounds.canonical import canonical, mixing_norms, recentre, score_norms, shift_norms
from vitplast.errors import HypothesisError, ShapeError, UnknownNameError

EPS = 1e-6
seeds = st.integers(0, 10**6)


class Layer(NamedTuple):
    """Weights as timm stores them, n_heads of width d on tokens of width E."""

    qkv: Tensor
    bias: Tensor
    proj: Tensor
    out_bias: Tensor
    n_heads: int
    scale: float

    @property
    def slices(self):
        return heads(self.qkv, self.proj, self.n_heads)

    @property
    def query_bias(self):
        return self.bias[: self.proj.shape[1]]

    @property
    def form(self):
        return canonical(self.slices, self.scale, self.query_bias)

    @property
    def norms(self):
        return row_norms(self.slices, self.scale, self.query_bias)

    def __call__(self, x, mask=None):
        q, k, v = torch.nn.functional.linear(x, self.qkv, self.bias).reshape(len(x), 3, self.n_heads, -1).unbind(1)
        mixed = scaled_dot_product_attention(*(z.transpose(0, 1)[None] for z in (q, k, v)), mask, scale=self.scale)[0]
        return mixed.transpose(0, 1).flatten(1) @ self.proj.T + self.out_bias


def draw_layer(seed, n_heads=2, width=3, embed=5, bias=1.0, gain=1.0):
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    inner = n_heads * width
    qkv = gain * normal(3 * inner, embed) / math.sqrt(embed)
    proj = normal(embed, inner) / math.sqrt(inner)
    return Layer(qkv, bias * normal(3 * inner), proj, bias * normal(embed), n_heads, width**-0.5)


def ball(n, embed, radius, seed):
    """Tokens of norm up to the radius, some of them on the sphere."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, embed, generator=g, dtype=torch.float64)
    length = torch.rand(n, 1, generator=g, dtype=torch.float64).add(0.5).clamp(max=1)
    return radius * length * x / x.norm(dim=-1, keepdim=True)


def apply(form, x, mask=0.0):
    """The canonical form without its constant."""
    scores = torch.einsum("hde,ie,hdf,jf->hij", form.query, x, form.key, x) + (form.shift @ x.T)[:, None]
    mixed = torch.softmax(scores + mask, dim=-1) @ x
    return torch.einsum("hfd,hde,hie->if", form.output, form.value, mixed)


def ratio(f, x, y):
    return float((f(x) - f(y)).norm() / (x - y).norm())


def jacobian_norm(f, x):
    return torch.linalg.matrix_norm(jacrev(f)(x).reshape(-1, x.numel()), 2)


def ascend(f, x, radius, steps=25):
    """Largest ||J||_2 met by projected gradient ascent inside the ball."""
    best, rate = 0.0, 0.3 * radius
    for _ in range(steps):
        x = x.detach().requires_grad_()
        norm = jacobian_norm(f, x)
        best = max(best, float(norm.detach()))
        (slope,) = torch.autograd.grad(norm, x)
        x = x + rate * slope / slope.norm().clamp(min=1e-300)
        x = x * (radius / x.norm(dim=-1, keepdim=True)).clamp(max=1)
        rate *= 0.93
    return best


# ---- Lemma 9


def spread(p, t):
    return p * (t - (p * t).sum(-1, keepdim=True))


def lemma_left(p, t, s, omega):
    return (1 - s**2) * (p**2).sum(-1) + ((s[..., None] * p + omega * spread(p, t)) ** 2).sum(-1)


@pytest.mark.parametrize("kappa", [0.0, 0.01, 0.5, 0.7, 1.0, 3.0, 30.0, 1e3])
def test_lemma_by_random_draws_and_vertices(kappa):
    g = torch.Generator().manual_seed(3)
    r, omega = 2.0, kappa / 2.0
    for n in (1, 2, 3, 7):
        p = torch.softmax((6 * torch.rand(4000, 1, generator=g) * torch.randn(4000, n, generator=g)).double(), -1)
        inside = r * (2 * torch.rand(4000, n, generator=g, dtype=torch.float64) - 1)
        s = 2 * torch.rand(4000, generator=g, dtype=torch.float64) - 1
        for t in (inside, r * inside.sign()):
            assert float(spread(p, t).norm(dim=-1).max()) <= r / math.sqrt(2) * (1 + 1e-12)
            assert float((p * (t - (p * t).sum(-1, keepdim=True)) ** 2).sum(-1).max()) <= r**2 * (1 + 1e-12)
            for sign in (s, s.sign()):
                left = lemma_left(p, t, sign, torch.tensor(omega, dtype=torch.float64))
                assert float(left.max()) <= float(score_gain(torch.tensor(kappa, dtype=torch.float64))) * (1 + 1e-12)


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.8, 2.0, 50.0])
def test_lemma_is_reached_by_two_points(kappa):
    q = min(1.0, 1 / (2 * kappa))
    p = torch.tensor([(1 + q) / 2, (1 - q) / 2], dtype=torch.float64)
    t = torch.tensor([1.0, -1.0], dtype=torch.float64)
    left = lemma_left(p, t, torch.tensor(1.0), torch.tensor(kappa, dtype=torch.float64))
    assert float(left) == pytest.approx(float(score_gain(torch.tensor(kappa, dtype=torch.float64))), rel=1e-12)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    assert float(spread(half, t).norm()) == pytest.approx(1 / math.sqrt(2), rel=1e-14)
    assert float((half * t**2).sum()) == 1.0


@given(st.floats(1e-8, 1e8))
@settings(max_examples=100, deadline=None)
def test_gain_is_the_maximum_and_between_its_limits(kappa):
    gain = float(score_gain(torch.tensor(kappa, dtype=torch.float64)))
    q = torch.linspace(0, 1, 4001, dtype=torch.float64)
    q = torch.cat([q, (1 / (2 * kappa) * torch.linspace(0.9, 1.1, 4001, dtype=torch.float64)).clamp(max=1)])
    values = (1 + q**2) / 2 + (1 - q**2) ** 2 * kappa**2 / 2 + (1 - q**2) * q * kappa
    assert gain == pytest.approx(float(values.max()), rel=1e-12)
    assert max(1.0, (1 + kappa**2) / 2) * (1 - 1e-14) <= gain <= (1 + kappa**2 / 2) * (1 + 1e-14)


def test_gain_far_out():
    far = torch.tensor([0.0, 1e-300, 1e100, 1e300, math.inf], dtype=torch.float64)
    assert score_gain(far).tolist() == [1.0, 1.0, pytest.approx(5e199), math.inf, math.inf]
    for bad in (-1.0, math.nan):
        with pytest.raises(HypothesisError, match="kappa"):
            score_gain(torch.tensor([bad]))


# ---- Proposition 8


@given(seeds, st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_canonical_form_is_the_layer_up_to_a_constant(seed, n_heads, n):
    layer = draw_layer(seed, n_heads)
    x, y = ball(n, 5, 2.0, seed), ball(n, 5, 2.0, seed + 1)
    shift = layer(x) - apply(layer.form, x)
    torch.testing.assert_close(shift, shift[:1].expand_as(shift), rtol=0, atol=1e-11)
    torch.testing.assert_close(layer(x) - layer(y), apply(layer.form, x) - apply(layer.form, y), rtol=0, atol=1e-11)


def test_key_bias_is_inert_and_query_bias_is_not():
    layer, x = draw_layer(5), ball(4, 5, 2.0, 5)
    other = layer.bias.clone()
    other[6:12] += 3
    torch.testing.assert_close(layer._replace(bias=other)(x), layer(x), rtol=0, atol=1e-12)
    other = layer.bias.clone()
    other[:6] += 3
    assert float((layer._replace(bias=other)(x) - layer(x)).norm()) > 1e-2


# ---- Theorem 10


@given(seeds, st.integers(1, 4), st.integers(1, 7), st.sampled_from([1e-8, 0.05, 1.0, 4.0, 1e3]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_random_pair_or_jacobian_exceeds_the_bound(seed, n_heads, n, radius, biased):
    layer = draw_layer(seed, n_heads, bias=float(biased))
    x, y = ball(n, 5, radius, seed), ball(n, 5, radius, seed + 1)
    bound = attention_bound(layer.form, tokens=n, radius=radius)
    local = float(jacobian_norm(lambda z: apply(layer.form, z), x))
    assert max(ratio(layer, x, y), ratio(layer, x, x + 1e-3 * (y - x)) if radius > 1e-3 else 0, local) <= bound * (
        1 + EPS
    )


@given(seeds, st.sampled_from(["causal", "position", "padding"]), st.integers(2, 7))
@settings(max_examples=30, deadline=None)
def test_masks_and_position_biases(seed, kind, n):
    layer, g = draw_layer(seed), torch.Generator().manual_seed(seed)
    mask = torch.zeros(n, n, dtype=torch.float64)
    if kind == "causal":
        mask[torch.ones(n, n).triu(1) > 0] = -math.inf
    elif kind == "padding":
        mask[:, n // 2 + 1 :] = -math.inf
    else:
        mask = 5 * torch.randn(n, n, generator=g, dtype=torch.float64)
    x, y = ball(n, 5, 2.0, seed), ball(n, 5, 2.0, seed + 1)
    bound = attention_bound(layer.form, tokens=n, radius=2.0, fixed_bias=True)
    assert ratio(lambda z: layer(z, mask), x, y) <= bound * (1 + EPS)
    assert float(jacobian_norm(lambda z: apply(layer.form, z, mask), x)) <= bound * (1 + EPS)


def test_a_mask_breaks_the_second_branch():
    """All queries look at token 1 alone: ratio sqrt(n), where the branch without mask says 1."""
    n, form = 9, canonical(heads(torch.cat([torch.zeros(4, 2), torch.eye(2)]), torch.eye(2), 1), 1.0)
    mask = torch.full((n, n), -math.inf, dtype=torch.float64)
    mask[:, 0] = 0
    x, y = ball(n, 2, 1.0, 0), ball(n, 2, 1.0, 0)
    y[0] = -y[0]
    with_mask = attention_bound(form, tokens=n, radius=1.0, fixed_bias=True)
    without = attention_bound(form, tokens=n, radius=1.0)
    assert ratio(lambda z: apply(form, z, mask), x, y) == pytest.approx(with_mask, rel=1e-12) == math.sqrt(n)
    assert without == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("seed", "n_heads", "n", "radius", "gain", "fixed"),
    [
        (0, 2, 4, 1.0, 1.5, False),
        (1, 1, 6, 2.0, 1.5, False),
        (2, 4, 5, 2.0, 1.0, False),
        (3, 3, 6, 0.05, 1.0, False),
        (4, 2, 6, 2.0, 1.5, True),
    ],
)
def test_ascent_in_the_ball_stays_below(seed, n_heads, n, radius, gain, fixed):
    layer = draw_layer(seed, n_heads, width=2, embed=4, gain=gain)
    mask = torch.zeros(n, n, dtype=torch.float64)
    if fixed:
        mask[torch.ones(n, n).triu(1) > 0] = -math.inf
    start = ball(n, 4, radius, seed)
    found = ascend(lambda z: apply(layer.form, z, mask), start, radius)
    bound = attention_bound(layer.form, tokens=n, radius=radius, fixed_bias=fixed)
    assert float(jacobian_norm(lambda z: apply(layer.form, z, mask), start)) < found <= bound * (1 + EPS)
    assert found > 0.05 * bound  # the bound is not idle


@given(seeds, st.floats(0.0, 20.0))
@settings(max_examples=20, deadline=None)
def test_recentring(seed, distance):
    layer, g = draw_layer(seed), torch.Generator().manual_seed(seed)
    centre = torch.randn(5, generator=g, dtype=torch.float64)
    centre = distance * centre / centre.norm()
    x, y = centre + ball(6, 5, 0.4, seed), centre + ball(6, 5, 0.4, seed + 1)
    moved = recentre(layer.form, centre)
    torch.testing.assert_close(
        apply(layer.form, x) - apply(layer.form, y),
        apply(moved, x - centre) - apply(moved, y - centre),
        rtol=0,
        atol=1e-10,
    )
    bound = attention_bound(moved, tokens=6, radius=0.4)
    assert ratio(layer, x, y) <= bound * (1 + EPS)
    assert float(jacobian_norm(lambda z: apply(layer.form, z), x)) <= bound * (1 + EPS)
    if distance > 5:
        assert bound < attention_bound(layer.form, tokens=6, radius=0.4 + distance)


def test_one_token_and_flat_scores_are_exact():
    layer = draw_layer(0, n_heads=1)
    one = attention_bound(layer.form, tokens=1, radius=7.0)
    assert one == pytest.approx(float(mixing_norms(layer.form)), rel=1e-12)
    x = ball(1, 5, 7.0, 0)
    assert float(jacobian_norm(lambda z: apply(layer.form, z), x)) == pytest.approx(one, rel=1e-9)
    flat = layer._replace(qkv=layer.qkv * torch.tensor([0.0] * 6 + [1.0] * 3).double()[:, None], bias=0 * layer.bias)
    v = torch.linalg.svd(flat.slices.output[0] @ flat.slices.value[0]).Vh[0]
    x = v.expand(6, 5)
    assert ratio(flat, x, -x) == pytest.approx(attention_bound(flat.form, tokens=6, radius=1.0), rel=1e-9)


@pytest.mark.parametrize(("n", "least"), [(8, 0.571), (32, 0.767), (197, 0.896), (1024, 0.948), (4096, 0.969)])
def test_sharp_example(n, least):
    example = sharp_example(n, strength=8 * n, margin=4)
    assert max(float(z.norm(dim=-1).max()) for z in (example.x, example.y)) <= example.radius * (1 + 1e-14)
    norms = example.form
    value = torch.softmax(example.x[2:3] @ norms.query[0].T @ norms.key[0] @ example.x.T, -1)
    assert float(value[0, 0]) == pytest.approx(float(value[0, 1]), rel=0.01)
    measured = ratio(lambda z: _one_head(example.form, z), example.x, example.y)
    bound = attention_bound(example.form, tokens=n, radius=example.radius)
    assert measured / bound == pytest.approx(least, abs=1e-3)
    best = sharp_example(n)
    tight = ratio(lambda z: _one_head(best.form, z), best.x, best.y) / attention_bound(best.form, tokens=n, radius=1.0)
    assert measured / bound < tight <= 1
    assert tight == pytest.approx(math.sqrt((n - 2) / 2) / (1 + math.sqrt(n / 2)), rel=1e-3)


def test_sharp_example_has_the_norms_it_says():
    example = sharp_example(12, strength=300.0, margin=3.0, radius=2.5)
    assert float(score_norms(example.form)) * 2.5**2 == pytest.approx(300.0)
    assert float(mixing_norms(example.form)) == pytest.approx(1.0)
    assert ratio(lambda z: apply(example.form, z), example.x, example.y) <= attention_bound(
        example.form, tokens=12, radius=2.5
    )
    with pytest.raises(ShapeError, match="three tokens"):
        sharp_example(2)
    with pytest.raises(HypothesisError, match="strength"):
        sharp_example(12, strength=3.0)


def _one_head(form, x):
    """As `apply` for one head with M = I; no four-index contraction, for many tokens."""
    return torch.softmax((x @ form.query[0].T) @ (form.key[0] @ x.T), dim=-1) @ x


# ---- against the quoted form


@given(st.floats(1e-6, 1e6), st.integers(1, 5000), st.floats(1e-3, 1e3))
@settings(max_examples=100, deadline=None)
def test_below_two_thirds_of_the_quoted_form_without_bias(score, n, radius):
    quoted = math.sqrt(3 * n + (12 * n + 3) * radius**4 * score**2)
    for fixed in (False, True):
        b = float(mixing_bound(torch.tensor([score]), torch.zeros(1), tokens=n, radius=radius, fixed_bias=fixed))
        assert b <= math.sqrt(2 / 3) * quoted * (1 + 1e-6)


@given(st.floats(1e-6, 300.0), st.floats(0, 300.0))
@settings(max_examples=60, deadline=None)
def test_no_number_of_tokens_lifts_the_bound_above_its_limit(score, shift):
    b = [
        float(mixing_bound(torch.tensor([score]), torch.tensor([shift]), tokens=n, radius=1.0))
        for n in (2, 50, 10**4, 10**12)
    ]
    kappa = score + shift
    assert b == sorted(b)
    assert b[-1] <= (score + math.exp(kappa) * math.hypot(1, kappa)) * (1 + 1e-5)


def test_asymptotic_ratio_to_the_quoted_form():
    for n in (10**4, 10**7):
        b = float(mixing_bound(torch.tensor([1e6]), torch.zeros(1), tokens=n, radius=1.0))
        expected = (1 + math.sqrt(n / 2)) / math.sqrt(12 * n + 3)
        assert b / math.sqrt(3 * n + (12 * n + 3) * 1e12) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(1 / math.sqrt(24), rel=1e-3)


@given(seeds, st.floats(0, 30), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_below_the_repaired_form_with_bias(seed, bias, n):
    layer = draw_layer(seed, bias=bias)
    repaired = attention_paper_bias(layer.norms, tokens=n, radius=2.0)
    assert attention_bound(layer.form, tokens=n, radius=2.0, combine="separate") <= repaired * (1 + 1e-9)


def test_query_bias_violates_the_quoted_form():
    """W_Q = 0: the quoted form sees no scores at all, the bias alone makes attention sharp."""
    n, push = 32, 20.0
    e = torch.eye(2, dtype=torch.float64)
    qkv = torch.cat([torch.zeros(2, 2), torch.eye(2), torch.eye(2)]).double()
    layer = Layer(qkv, torch.tensor([push, 0, 0, 0, 0, 0]).double(), e, torch.zeros(2).double(), 1, 1.0)
    lift = (math.log(n) + 4) / push
    x = torch.zeros(n, 2, dtype=torch.float64)
    x[0], x[1] = lift * e[0] + math.sqrt(1 - lift**2) * e[1], lift * e[0] - math.sqrt(1 - lift**2) * e[1]
    assert float(layer.norms.query_key) == 0
    local = float(jacobian_norm(lambda z: apply(layer.form, z), x))
    assert local > 5 * attention_quoted(layer.norms, tokens=n, radius=1.0)
    bound = attention_bound(layer.form, tokens=n, radius=1.0)
    assert 0.9 * bound < local <= bound < attention_paper_bias(layer.norms, tokens=n, radius=1.0)


def test_root_mean_square_radius_violates_even_the_quoted_form():
    n, small, lift = 197, 0.02, 0.1
    e, f, u, g = torch.eye(4, dtype=torch.float64)
    strength = (math.log(n) + 6) / (small * lift)
    x = small * f.repeat(n, 1)
    x[0], x[1] = math.sqrt(1 - lift**2) * u + lift * e, -math.sqrt(1 - lift**2) * u + lift * e
    y = x.clone()
    x[2] += 1e-3 / strength * g
    y[2] -= 1e-3 / strength * g
    # A = K^T Q = strength (e f^T + u g^T)
    qkv = torch.cat([strength * torch.stack([f, g, 0 * e, 0 * e]), torch.stack([e, u, 0 * e, 0 * e]), torch.eye(4)])
    layer = Layer(qkv, torch.zeros(12).double(), torch.eye(4).double(), torch.zeros(4).double(), 1, 1.0)
    measured = ratio(layer, x, y)
    rms = float((x**2).sum(-1).mean().sqrt())
    largest = max(float(z.norm(dim=-1).max()) for z in (x, y))
    assert measured > 1.8 * attention_quoted(layer.norms, tokens=n, radius=rms)
    assert measured <= attention_bound(layer.form, tokens=n, radius=largest)


def column_layer(n_heads=2, strength=400.0):
    """The sharp example hidden from the column cut: queries and keys of head 0 read different halves of the input."""
    e, f, u = (torch.eye(4, dtype=torch.float64)[k] for k in (2, 0, 1))
    zero = torch.zeros(4, dtype=torch.float64)
    qkv = torch.stack([strength * f, zero, zero, zero, e, zero, zero, zero, u, zero, zero, zero])
    return Layer(qkv, torch.zeros(12).double(), torch.eye(4).double(), torch.zeros(4).double(), n_heads, 1.0)


def test_column_slices_are_violated():
    n, layer = 32, column_layer()
    example = sharp_example(n, strength=400.0, margin=4.0)  # coordinates e, f, u
    x, y = (z[:, [1, 2, 0]] for z in (example.x, example.y))  # to f, u, e
    x, y = (torch.cat([z, torch.zeros(n, 1)], 1) for z in (x, y))
    coded = attention_quoted(column_norms(column_heads(layer.qkv, layer.proj, 2)), tokens=n, radius=1.0)
    assert ratio(layer, x, y) > 20 * coded
    assert ratio(layer, x, y) <= attention_bound(layer.form, tokens=n, radius=1.0) * (1 + EPS)


def permuted(layer, order):
    inner, width = layer.proj.shape[1], layer.proj.shape[1] // layer.n_heads
    rows = torch.cat([torch.arange(h * width, (h + 1) * width) for h in order])
    return layer._replace(
        qkv=layer.qkv.reshape(3, inner, -1)[:, rows].flatten(0, 1),
        bias=layer.bias.reshape(3, inner)[:, rows].flatten(),
        proj=layer.proj[:, rows],
    )


@given(seeds, st.floats(0.001, 1000.0), st.booleans())
@settings(max_examples=25, deadline=None)
def test_invariance_of_function_and_bound(seed, c, negative):
    """Heads renumbered; (V, O) -> (cV, O/c); (Q, K) -> (cQ, K/c), the query bias with Q."""
    c = -c if negative else c
    layer, x = draw_layer(seed, n_heads=3, width=2, embed=6), ball(5, 6, 2.0, seed)
    three = torch.tensor([c, 1 / c, 1.0], dtype=torch.float64).repeat_interleave(6)
    last = torch.tensor([1.0, 1.0, c], dtype=torch.float64).repeat_interleave(6)
    other = {
        "heads": permuted(layer, [2, 0, 1]),
        "values": layer._replace(qkv=layer.qkv * last[:, None], bias=layer.bias * last, proj=layer.proj / c),
        "queries": layer._replace(qkv=layer.qkv * three[:, None], bias=layer.bias * three),
    }
    for name, changed in other.items():
        torch.testing.assert_close(changed(x), layer(x), rtol=0, atol=1e-9, msg=name)
        for combine in COMBINATIONS:
            bounds = [attention_bound(z.form, tokens=5, radius=2.0, combine=combine) for z in (layer, changed)]
            assert bounds[1] == pytest.approx(bounds[0], rel=1e-9), (name, combine)


def test_column_slices_change_when_heads_are_renumbered():
    layer = draw_layer(7, n_heads=3, width=2, embed=6)
    first = torch.tensor([9.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    layer = layer._replace(qkv=layer.qkv * first, proj=layer.proj * first)
    coded = [
        attention_quoted(column_norms(column_heads(z.qkv, z.proj, 3)), tokens=5, radius=2.0)
        for z in (layer, permuted(layer, [1, 2, 0]))
    ]
    assert abs(coded[1] / coded[0] - 1) > 0.05


# ---- Theorem 12


@given(seeds, st.integers(1, 4), st.sampled_from([1e-8, 1.0, 1e8]), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_order_of_the_three_combinations(seed, n_heads, gain, n):
    form = draw_layer(seed, n_heads, gain=gain).form
    separate, total, stacked = (attention_bound(form, tokens=n, radius=1.5, combine=c) for c in COMBINATIONS)
    assert 0 < stacked <= total * (1 + 1e-9) <= separate * (1 + 1e-9) ** 2


@given(seeds, st.integers(1, 4), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_stacked_norm_equals_the_plain_one(seed, n_heads, width):
    """Also for heads wider than the tokens; the E x E products are formed here only."""
    form = draw_layer(seed, n_heads, width).form
    b = torch.linspace(0.5, 3.0, n_heads, dtype=torch.float64)
    mixing = form.output @ form.value
    norms = torch.linalg.matrix_norm(mixing, 2)
    t = torch.sqrt(b / norms)
    plain = float(torch.linalg.matrix_norm((t[:, None, None] * mixing).transpose(0, 1).flatten(1), 2))
    expected = plain * math.sqrt(float((norms * b).sum()))
    assert combine_heads(form, b, "stacked") == pytest.approx(expected, rel=1e-9)


@given(seeds, st.integers(2, 4))
@settings(max_examples=20, deadline=None)
def test_stacking_bounds_any_mixtures(seed, n_heads):
    """`|| sum_h M_h d_h || <= combine_heads` for all `d_h` with `||d_h|| <= b_h`."""
    form, g = draw_layer(seed, n_heads).form, torch.Generator().manual_seed(seed)
    b = torch.rand(n_heads, generator=g, dtype=torch.float64) + 0.1
    d = torch.randn(200, n_heads, 5, generator=g, dtype=torch.float64)
    d = b[:, None] * d / d.norm(dim=-1, keepdim=True)
    reached = torch.einsum("hfd,hde,khe->kf", form.output, form.value, d).norm(dim=-1).max()
    assert float(reached) <= combine_heads(form, b, "stacked") * (1 + EPS)


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_orthogonal_heads_gain_the_root_of_their_number(n_heads):
    width = 8 // n_heads
    eye = torch.eye(8, dtype=torch.float64)
    form = canonical(heads(torch.cat([0 * eye, 0 * eye, eye]), eye, n_heads), width**-0.5)
    total, stacked = (attention_bound(form, tokens=6, radius=1.0, combine=c) for c in ("sum", "stacked"))
    assert total == pytest.approx(n_heads, rel=1e-12)
    assert total / stacked == pytest.approx(math.sqrt(n_heads), rel=1e-12)


def test_zero_heads_are_dropped():
    layer = draw_layer(1, n_heads=3)
    proj = layer.proj.clone()
    proj[:, 3:6] = 0
    dead = layer._replace(proj=proj)
    rows = torch.tensor([0, 1, 2, 6, 7, 8])
    alive = layer._replace(
        qkv=layer.qkv.reshape(3, 9, -1)[:, rows].flatten(0, 1), bias=layer.bias.reshape(3, 9)[:, rows].flatten()
    )._replace(proj=layer.proj[:, rows], n_heads=2)
    for combine in COMBINATIONS:
        bounds = [attention_bound(z.form, tokens=5, radius=2.0, combine=combine) for z in (dead, alive)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
        none = layer._replace(proj=0 * proj)
        assert attention_bound(none.form, tokens=5, radius=2.0, combine=combine) == 0.0
        assert combine_heads(dead.form, torch.tensor([1.0, math.inf, 1.0]), combine) < math.inf


def test_far_out_radius_gives_no_nan():
    form = draw_layer(0).form
    values = [attention_bound(form, tokens=5, radius=r) for r in (0.0, 1e-200, 1e50, 1e200)]
    assert not any(map(math.isnan, values))
    assert values[0] <= values[1] <= values[2] < values[3] == math.inf


# ---- what is refused


@pytest.mark.parametrize("radius", [None, -1.0, math.inf, math.nan])
def test_radius_is_checked(radius):
    layer = draw_layer(0)
    with pytest.raises(HypothesisError, match="largest token norm"):
        attention_bound(layer.form, tokens=4, radius=radius)


def test_what_else_is_refused():
    form = draw_layer(0).form
    with pytest.raises(ShapeError, match="got 0"):
        attention_bound(form, tokens=0, radius=1.0)
    with pytest.raises(UnknownNameError, match="stacked"):
        attention_bound(form, tokens=4, radius=1.0, combine="stackd")
    with pytest.raises(UnknownNameError, match="separate"):
        combine_heads(form, torch.ones(2), "seperate")
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        combine_heads(form, torch.ones(3), "sum")
    with pytest.raises(HypothesisError, match="negative or NaN"):
        combine_heads(form, torch.tensor([1.0, math.nan]), "sum")
    with pytest.raises(HypothesisError, match="negative or NaN"):
        mixing_bound(-torch.ones(2), torch.zeros(2), tokens=3, radius=1.0)
    with pytest.raises(ShapeError, match="query_bias"):
        canonical(draw_layer(0).slices, 1.0, torch.zeros(5))
    with pytest.raises(ShapeError, match="centre"):
        recentre(form, torch.zeros(4))
    assert shift_norms(form).shape == (2,)


class _Largest(TorchDispatchMode):
    """Notes the largest number of entries in an array that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, Tensor):
                self.entries = max(self.entries, one.numel())
        return out


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_no_product_as_wide_as_the_tokens_is_formed(combine):
    embed, n_heads, width = 80, 3, 2
    form = draw_layer(0, n_heads, width, embed).form
    with _Largest() as seen:
        attention_bound(form, tokens=5, radius=1.0, combine=combine)
    assert seen.entries == embed * n_heads * width < embed**2


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize(
    ("qkv_size", "out_size", "radius"),
    [
        (1.0, 1e-150, 1e150),
        (1e-150, 1.0, 1e150),
        (1e100, 1e-100, 1e-150),
        (1e-100, 1e-200, 1e100),
        (1e-150, 1e-150, 1.0),
    ],
)
def test_extreme_scales(combine, qkv_size, out_size, radius):
    """The bound of the layer is that of unit weights times the size of `M`, at the same `r^2 ||A||`."""
    g = torch.Generator().manual_seed(0)
    qkv, out = torch.randn(36, 12, generator=g).double(), torch.randn(12, 12, generator=g).double()
    form = canonical(heads(qkv_size * qkv, out_size * out, 3), 1.0)
    per_head = mixing_bound(score_norms(form), shift_norms(form), tokens=5, radius=radius)
    found = attention_bound(form, tokens=5, radius=radius, combine=combine)
    unit = canonical(heads(qkv, out, 3), 1.0)
    largest = per_head.max()
    expected = combine_heads(unit, per_head / largest, combine) * ((float(largest) * out_size) * qkv_size)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-320)
    assert found > 0


def test_a_tiny_shift_counts_on_a_large_ball():
    shift = torch.tensor([[3e-200, 4e-200]], dtype=torch.float64)
    form = canonical(heads(torch.zeros(6, 2), torch.eye(2), 1), 1.0)._replace(shift=shift)
    assert float(shift_norms(form)) == pytest.approx(5e-200, rel=1e-12, abs=0)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize(("score", "shift"), [(-1.0, 5.0), (5.0, -1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_norms_that_are_negative_or_nan_are_refused(tokens, score, shift):
    with pytest.raises(HypothesisError, match="negative or NaN"):
        mixing_bound(torch.tensor([score]), torch.tensor([shift]), tokens=tokens, radius=1.0)
