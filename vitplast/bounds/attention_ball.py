"""Attention on a ball of tokens (Lemma 9, Theorems 10 and 12): a bound from the weights and the largest token norm.

Per head `m(X)_i = sum_j P_ij x_j` has `Lip(m) <= r^2 ||A|| + min(sqrt(n G(kappa)), sqrt(n_eff (1 + kappa^2)))` on all
sequences with token norms <= r, where `kappa = r (r ||A|| + ||c||)`. The heads are combined through `M_h = O_h V_h`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitplast.bounds.attention import checked_ball, product_norm, refuse_infinite, slice_norms
from vitplast.bounds.canonical import Canonical, score_norms, shift_norms
from vitplast.bounds.layernorm import binary_size
from vitplast.errors import HypothesisError, ShapeError, UnknownNameError

COMBINATIONS = ("separate", "sum", "stacked")


class SharpExample(NamedTuple):
    """One head and a close pair of inputs whose ratio comes near the bound of Theorem 10."""

    form: Canonical
    radius: float
    x: Tensor  # (n, 3)
    y: Tensor  # (n, 3)


def score_gain(kappa: Tensor) -> Tensor:
    """`G(kappa) = 1/2 + (k + 1/(4 k))^2 / 2` with `k = max(kappa, 1/2)` (Lemma 9).

    It is the maximum over xi in [0, 1] of `(1+xi^2)/2 + (1-xi^2)^2 kappa^2/2 + (1-xi^2) xi kappa`. With `y = xi kappa`
    the derivative is `(2y - 1)(y^2 - y - kappa^2)` up to a positive factor; its only root in (0, 1) is
    `xi = 1/(2 kappa)`, and for `kappa <= 1/2` the maximum is 1, at xi = 1. Infinite where the square overflows.

    Parameters
    ----------
    kappa
        Any shape, not negative.

    Raises
    ------
    HypothesisError
        If an entry is negative or NaN.

    Examples
    --------
    >>> score_gain(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [1.0, 1.0, 1.28125]
    """
    return _root_gain(kappa) ** 2


def mixing_bound(score: Tensor, shift: Tensor, *, tokens: int, radius: float, fixed_bias: bool = False) -> Tensor:
    """`b = r^2 ||A|| + min(sqrt(n G(kappa)), sqrt(n_eff (1 + kappa^2)))` per head (Theorem 10).

    `kappa = r (r ||A|| + ||c||)` and `n_eff = n / (1 + (n - 1) exp(-2 kappa))`. It bounds the Lipschitz constant of
    `X -> m(X)`, `m(X)_i = sum_j P_ij x_j`, on all X whose tokens have norm <= r.

    Parameters
    ----------
    score, shift
        `||A_h||_2` and `||c_h||`, shape (H,) each.
    tokens
        n.
    radius
        r, the largest norm of a token of either input. A mean or root mean square does not meet the hypothesis.
    fixed_bias
        Whether a mask or a position bias is added to the scores; only the first member of the minimum holds then.

    Returns
    -------
    Tensor
        b for each head, shape (H,); 1 for a single token.

    Raises
    ------
    HypothesisError
        If the radius is missing, not finite or negative, or a norm is negative or NaN.
    ShapeError
        If there are no tokens.

    Examples
    --------
    >>> mixing_bound(torch.zeros(2), torch.zeros(2), tokens=5, radius=1.0).tolist()
    [1.0, 1.0]
    """
    radius = checked_ball(tokens, radius)
    score, shift = torch.as_tensor(score).double(), torch.as_tensor(shift).double()
    for name, norm in (("score", score), ("shift", shift)):
        if not bool((norm >= 0).all()):
            raise HypothesisError(f"{name} norms must not be negative or NaN, got {norm.flatten()[:8].tolist()}")
    if tokens == 1:
        return torch.ones_like(score + shift)
    curvature = radius * (radius * score)
    kappa = curvature + radius * shift
    rows = math.sqrt(tokens) * _root_gain(kappa)
    if not fixed_bias:
        spread = torch.exp(-torch.clamp(2 * kappa, max=700.0))
        columns = torch.sqrt(tokens / (1 + (tokens - 1) * spread))
        rows = torch.minimum(rows, columns * torch.hypot(torch.ones_like(kappa), kappa))
    return curvature + rows


def attention_bound(
    form: Canonical, *, tokens: int, radius: float, combine: str = "stacked", fixed_bias: bool = False
) -> float:
    """Theorems 10 and 12: the bound of the whole layer, `combine_heads` of `mixing_bound`.

    It holds for all pairs whose tokens have norm <= r, with any biases. For tokens in a ball around a common centre
    pass `recentre(form, centre)` and the radius of that ball.

    Parameters
    ----------
    form
        From `canonical`, `recentre` or `fold`.
    tokens, radius, fixed_bias
        As in `mixing_bound`.
    combine
        "separate", "sum" or "stacked", from the loosest to the tightest.

    Raises
    ------
    HypothesisError, ShapeError
        As `mixing_bound`.
    UnknownNameError
        If `combine` is none of the three.

    Examples
    --------
    >>> from vitplast.bounds.attention import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> qkv = torch.cat([torch.zeros(4, 2), 3 * torch.eye(2)])
    >>> attention_bound(canonical(heads(qkv, torch.eye(2), 1), 1.0), tokens=7, radius=2.0)
    3.0
    """
    _known(combine)
    per_head = mixing_bound(score_norms(form), shift_norms(form), tokens=tokens, radius=radius, fixed_bias=fixed_bias)
    return combine_heads(form, per_head, combine)


def combine_heads(form: Canonical, per_head: Tensor, combine: str = "stacked") -> float:
    """`sum ||O|| ||V|| b_h`, `sum ||M_h|| b_h` or `||[t_1 M_1 ... t_H M_H]||_2 sqrt(sum ||M_h|| b_h)` (Theorem 12).

    `t_h = sqrt(b_h / ||M_h||)`. With `V_h^T = U_h R_h`, U_h of orthonormal columns, the stacked norm is that of
    `[t_h O_h R_h^T]_h`, shape (F, H d): no product of width E x E is formed for a head. It is taken of
    `M_h / ||M_h||`, so that no scale of weights or tokens overflows before the result does. Heads with M_h = 0 are
    dropped, and those with b_h = 0 add nothing.

    Parameters
    ----------
    form
        H heads.
    per_head
        b_h, a Lipschitz constant of each `m_h`, shape (H,).
    combine
        "separate", "sum" or "stacked".

    Raises
    ------
    ShapeError
        If `per_head` has not H entries.
    HypothesisError
        If an entry is negative or NaN, or a weight is not finite.
    UnknownNameError
        If `combine` is none of the three.

    Examples
    --------
    >>> from vitplast.bounds.attention import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 2), 1.0)
    >>> [round(combine_heads(form, torch.ones(2), how), 4) for how in ("separate", "sum", "stacked")]
    [2.0, 2.0, 1.4142]
    """
    _known(combine)
    per_head = torch.as_tensor(per_head).detach().double()
    if per_head.shape != form.output.shape[:1]:
        raise ShapeError(f"one constant a head needed, shape ({form.output.shape[0]},), got {tuple(per_head.shape)}")
    if not bool((per_head >= 0).all()):
        raise HypothesisError(f"constants of the heads must not be negative or NaN, got {per_head.tolist()}")
    refuse_infinite(output=form.output, value=form.value)
    wide, high = binary_size(form.output, (-2, -1)), binary_size(form.value, (-2, -1))
    output, value = form.output / wide, form.value / high
    mixing = product_norm(output, value.transpose(-1, -2))
    kept = mixing > 0
    if not bool(kept.any()):
        return 0.0
    mixing, per_head, output, value = mixing[kept], per_head[kept], output[kept], value[kept]
    wide, high = wide[kept].flatten(), high[kept].flatten()
    if combine == "separate":
        return float((wide * slice_norms(output) * per_head * (high * slice_norms(value.transpose(-1, -2)))).sum())
    each = wide * per_head * (high * mixing)
    total = float(each.sum())
    if combine == "sum" or not 0 < total < math.inf:
        return total
    weight = torch.sqrt(each / total) / mixing
    factor = torch.linalg.qr(value.transpose(-1, -2), mode="r").R
    stacked = torch.einsum("h,hfd,hkd->fhk", weight, output, factor).flatten(1)
    return float(torch.linalg.svdvals(stacked)[0]) * total


def sharp_example(
    tokens: int, *, strength: float = 1e4, margin: float = 8.0, radius: float = 1.0, step: float = 1e-3
) -> SharpExample:
    """`A = (strength / r^2) e f^T`, two tokens near `+-r u`, the others at `r f`: ratio near `sqrt(n/2) r^2 ||A||`.

    The sharp example after Theorem 10. Two tokens share the attention of all others, who see them alike; moving the
    two apart along e by a step makes every other row jump between `r u` and `-r u`. `e, f, u` are orthonormal. The
    ratio over the bound tends to 1 for many tokens, `strength / ln n` and `margin` large.

    Parameters
    ----------
    tokens
        n, 3 or more.
    strength
        `r^2 ||A||`.
    margin
        C: the scores of the two tokens are `ln n + C` above the rest.
    radius
        r; all tokens of the pair have norm <= r.
    step
        Change of the two scores from x to y.

    Raises
    ------
    ShapeError
        For fewer than 3 tokens.
    HypothesisError
        If the strength is not above `ln n + margin`.

    Examples
    --------
    >>> example = sharp_example(32)
    >>> attention_bound(example.form, tokens=32, radius=example.radius) > 5e4
    True
    """
    if tokens < 3:
        raise ShapeError(f"the sharp example needs three tokens or more, got {tokens}")
    lift = (math.log(tokens) + margin) / strength
    if not 0 < lift < 1:
        raise HypothesisError(f"the strength must be above ln n + margin = {lift * strength:.4g}, got {strength!r}")
    e, f, u = torch.eye(3, dtype=torch.float64)
    start = f.repeat(tokens, 1)
    start[0] = math.sqrt(1 - lift**2) * u + lift * e
    start[1] = -math.sqrt(1 - lift**2) * u + lift * e
    move = torch.zeros_like(start)
    move[0], move[1] = step / strength * e, -step / strength * e
    pair = torch.stack([start - move / 2, start + move / 2])
    pair = radius * pair / pair.norm(dim=-1).max()
    query, key = torch.zeros(2, 1, 3, 3, dtype=torch.float64)
    query[0, 0], key[0, 0] = strength / radius**2 * f, e
    eye = torch.eye(3, dtype=torch.float64)[None]
    return SharpExample(Canonical(query, key, eye, eye, torch.zeros(1, 3, dtype=torch.float64)), radius, *pair)


def _root_gain(kappa: Tensor) -> Tensor:
    kappa = torch.as_tensor(kappa).double()
    if not bool((kappa >= 0).all()):
        raise HypothesisError(f"kappa must not be negative or NaN, got {kappa.flatten()[:8].tolist()}")
    k = torch.clamp(kappa, min=0.5)
    return torch.hypot(torch.ones_like(k), k + 0.25 / k) / math.sqrt(2)


def _known(combine: str) -> None:
    if combine not in COMBINATIONS:
        raise UnknownNameError("combination of heads", combine, COMBINATIONS)
