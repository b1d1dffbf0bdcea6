"""The canonical form of attention (Prop. 8): per head the score matrix `A`, the shift `c` and the mixing map `M`.

`f(X)_i = const + sum_h M_h sum_j P_ij x_j` with `P_i = softmax_j(x_j^T (A_h x_i + c_h))`, where `A = s K^T Q`,
`c = s K^T b_q` and `M = O V`. The function depends on the weights through these alone: the key bias cancels, value
and output biases only shift. `A` and `M` are kept as their factors; neither E x E product is ever formed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitplast.bounds.attention import HeadNorms, Heads, product_norm, refuse_infinite, slice_norms
from vitplast.bounds.layernorm import euclidean_norms
from vitplast.errors import ShapeError


class Canonical(NamedTuple):
    """H heads of width d on tokens of width E, in float64: `A = key^T query`, `c = shift`, `M = output value`."""

    query: Tensor  # (H, d, E), the score scale included
    key: Tensor  # (H, d, E)
    value: Tensor  # (H, d, E)
    output: Tensor  # (H, F, d)
    shift: Tensor  # (H, E)


def canonical(slices: Heads, scale: float, query_bias: Tensor | None = None) -> Canonical:
    """`A = s K^T Q`, `c = s K^T b_q`, `M = O V` for each head (Prop. 8).

    Parameters
    ----------
    slices
        From `heads`.
    scale
        s, the factor of the scores.
    query_bias
        Shape (H d,), or None for queries without bias.

    Raises
    ------
    ShapeError
        If `query_bias` has not H d entries.
    HypothesisError
        If a weight, the scale or the bias is not finite.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=0.5).query[0].tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    n_heads, width, _ = slices.query.shape
    refuse_infinite(**slices._asdict(), scale=torch.as_tensor(scale))
    if query_bias is None:
        bias = slices.query.new_zeros(n_heads, width)
    elif query_bias.shape == (n_heads * width,):
        refuse_infinite(query_bias=query_bias)
        bias = query_bias.detach().double().reshape(n_heads, width)
    else:
        raise ShapeError(f"query_bias must have shape ({n_heads * width},), got {tuple(query_bias.shape)}")
    shift = scale * torch.einsum("hde,hd->he", slices.key, bias)
    return Canonical(scale * slices.query, slices.key, slices.value, slices.output, shift)


def recentre(form: Canonical, centre: Tensor) -> Canonical:
    """`c + A b`: the same attention seen from tokens measured around a common centre `b`, shape (E,) (Theorem 10)."""
    centre = _vector(centre, form, "centre")
    moved = torch.einsum("hde,hd->he", form.key, form.query @ centre)
    return form._replace(shift=form.shift + moved)


def fold(form: Canonical, gamma: Tensor, beta: Tensor) -> Canonical:
    """`A' = Pi G A G Pi`, `c' = Pi G (A beta + c)`, `M' = M G Pi`, `G = diag(gamma)`: behind a LayerNorm (Theorem 14).

    The tokens of the folded form are the normalised ones, centred and of norm at most sqrt(E).

    Raises
    ------
    ShapeError
        If `gamma` or `beta` has not E entries.
    HypothesisError
        If one of them is not finite.
    """
    gamma, beta = _vector(gamma, form, "gamma"), _vector(beta, form, "beta")

    def folded(rows: Tensor) -> Tensor:
        scaled = rows * gamma
        return scaled - scaled.mean(dim=-1, keepdim=True)

    shift = recentre(form, beta).shift
    return Canonical(folded(form.query), folded(form.key), folded(form.value), form.output, folded(shift))


def score_norms(form: Canonical) -> Tensor:
    """`||A_h||_2`, shape (H,)."""
    return product_norm(form.key.transpose(-1, -2), form.query.transpose(-1, -2))


def shift_norms(form: Canonical) -> Tensor:
    """`||c_h||`, shape (H,)."""
    return euclidean_norms(form.shift)


def mixing_norms(form: Canonical) -> Tensor:
    """`||M_h||_2 = ||O_h V_h||_2`, shape (H,)."""
    return product_norm(form.output, form.value.transpose(-1, -2))


def head_norms(form: Canonical) -> HeadNorms:
    """`||O_h||_2`, `||V_h||_2`, `||A_h||_2`, `||c_h||`: what `attention_quoted` takes."""
    apart = slice_norms(form.output), slice_norms(form.value.transpose(-1, -2))
    return HeadNorms(*apart, score_norms(form), shift_norms(form))


def _vector(given: Tensor, form: Canonical, name: str) -> Tensor:
    width = form.query.shape[-1]
    if given.shape != (width,):
        raise ShapeError(f"{name} must have shape ({width},), got {tuple(given.shape)}")
    refuse_infinite(**{name: given})
    return given.detach().to(form.query)
