"""Self-attention: `f(X)_i = const + sum_h O_h V_h sum_j P_ij x_j`, `P_i = softmax_j(x_j^T (A_h x_i + c_h))` (Prop. 8).

Per head `A = s K^T Q` and `c = s K^T b_q`, with the score scale `s` (1/sqrt of the head width in most models). The
key bias cancels, value and output biases only shift the output, the query bias stays, in `c`. Heads are *rows* of
the query, key and value weights and *columns* of the output weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitplast.bounds.layernorm import binary_size, euclidean_norms
from vitplast.errors import HypothesisError, ShapeError


class Heads(NamedTuple):
    """The weights of each head as the forward pass uses them: H heads of width d, input E, output F."""

    query: Tensor  # (H, d, E)
    key: Tensor  # (H, d, E)
    value: Tensor  # (H, d, E)
    output: Tensor  # (H, F, d)


class ColumnHeads(NamedTuple):
    """The slices of the authors' code: input features of query, key and value, which belong to no head."""

    query: Tensor  # (H, E, d)
    key: Tensor  # (H, E, d)
    value: Tensor  # (H, E, d)
    output: Tensor  # (H, F, d)


class HeadNorms(NamedTuple):
    """Per head, shape (H,): spectral norms of output, value and `A`, and the Euclidean norm of `c`."""

    output: Tensor
    value: Tensor
    query_key: Tensor
    query_bias: Tensor


def heads(qkv_weight: Tensor, proj_weight: Tensor, n_heads: int) -> Heads:
    """`Q_h = Wq[h d:(h+1) d, :]`, the same for K and V; `O_h = Wo[:, h d:(h+1) d]` (Prop. 8). In float64.

    Parameters
    ----------
    qkv_weight
        Shape (3 H d, E): query, key and value rows below each other, as timm stores them.
    proj_weight
        Shape (F, H d).
    n_heads
        H.

    Raises
    ------
    ShapeError
        If the shapes do not fit each other or H does not divide them.
    HypothesisError
        If a weight is not finite.

    Examples
    --------
    >>> heads(torch.ones(12, 4), torch.ones(4, 4), n_heads=2).query.shape
    torch.Size([2, 2, 4])
    """
    inner = _inner_width(qkv_weight, proj_weight)
    width = _head_width(inner, n_heads, "attention width")
    refuse_infinite(qkv_weight=qkv_weight, proj_weight=proj_weight)
    blocks = qkv_weight.detach().double().reshape(3, n_heads, width, qkv_weight.shape[1])
    return Heads(*blocks, _output(proj_weight, n_heads))


def column_heads(qkv_weight: Tensor, proj_weight: Tensor, n_heads: int) -> ColumnHeads:
    """`Q_h = Wq[:, h d:(h+1) d]` with `d = E / H`, the same for K and V: the authors' slices. Not heads.

    They are kept to reproduce the published curve; the value moves when the heads are merely renumbered. Arguments
    and errors as `heads`, where H must divide E as well.

    Examples
    --------
    >>> column_heads(torch.ones(12, 4), torch.ones(4, 4), n_heads=2).query.shape
    torch.Size([2, 4, 2])
    """
    inner = _inner_width(qkv_weight, proj_weight)
    _head_width(inner, n_heads, "attention width")
    width = _head_width(qkv_weight.shape[1], n_heads, "input width")
    refuse_infinite(qkv_weight=qkv_weight, proj_weight=proj_weight)
    blocks = qkv_weight.detach().double().reshape(3, inner, n_heads, width).transpose(1, 2)
    return ColumnHeads(*blocks, _output(proj_weight, n_heads))


def row_norms(slices: Heads, scale: float, query_bias: Tensor | None = None) -> HeadNorms:
    """`||O_h||_2`, `||V_h||_2`, `||A_h||_2 = s ||K_h^T Q_h||_2`, `||c_h|| = s ||K_h^T b_h||` for each head (Prop. 8).

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
        If a weight or bias is not finite.

    Examples
    --------
    >>> float(row_norms(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=0.5).query_key)
    0.5
    """
    n_heads, width, _ = slices.query.shape
    if query_bias is None:
        shift = slices.query.new_zeros(n_heads)
    elif query_bias.shape == (n_heads * width,):
        refuse_infinite(query_bias=query_bias)
        bias = query_bias.detach().double().reshape(n_heads, width)
        shift = abs(scale) * euclidean_norms(torch.einsum("hde,hd->he", slices.key, bias))
    else:
        raise ShapeError(f"query_bias must have shape ({n_heads * width},), got {tuple(query_bias.shape)}")
    score = abs(scale) * product_norm(slices.key.transpose(-1, -2), slices.query.transpose(-1, -2))
    return HeadNorms(slice_norms(slices.output), slice_norms(slices.value.transpose(-1, -2)), score, shift)


def column_norms(slices: ColumnHeads) -> HeadNorms:
    """`||O_h||_2`, `||V_h||_2`, `||Q_h K_h^T||_2 / sqrt(d)` of the authors' slices; no query bias, as in their code.

    Examples
    --------
    >>> column_norms(column_heads(torch.eye(2).repeat(3, 1), torch.eye(2), 2)).query_key.tolist()
    [1.0, 1.0]
    """
    score = product_norm(slices.query, slices.key) / math.sqrt(slices.query.shape[-1])
    return HeadNorms(slice_norms(slices.output), slice_norms(slices.value), score, torch.zeros_like(score))


def product_norm(left: Tensor, right: Tensor) -> Tensor:
    """`||L R^T||_2` from the triangular factors of L and R; shapes (..., E, d) and (..., F, d), result (...).

    The E x F product, which would square the conditioning, is never formed: with `L = U S` and `R = W T`
    (orthonormal columns U, W) the norm is that of `S T^T`, d x d. Infinite where it is beyond float64.

    Raises
    ------
    HypothesisError
        If a factor holds a value that is not finite.

    Examples
    --------
    >>> float(product_norm(torch.tensor([[3.0], [0.0]]), torch.tensor([[0.0], [2.0]])))
    6.0
    """
    refuse_infinite(left=left, right=right)
    left, right = left.double(), right.double()
    sizes = [binary_size(side, (-2, -1)) for side in (left, right)]
    factors = [torch.linalg.qr(side / size, mode="r").R for side, size in zip((left, right), sizes, strict=True)]
    norm = torch.linalg.svdvals(factors[0] @ factors[1].transpose(-1, -2))[..., 0]
    return norm * sizes[0][..., 0, 0] * sizes[1][..., 0, 0]


def attention_quoted(norms: HeadNorms, *, tokens: int, radius: float | None) -> float:
    """`sum_h ||O|| ||V|| sqrt(3 n + (12 n + 3) r^4 ||A||^2)` (paper). Not a bound if queries have a bias.

    Parameters
    ----------
    norms
        From `row_norms` (or `column_norms`, for the curve as published).
    tokens
        n.
    radius
        r, the largest norm of a token of either input. A mean or root mean square does not meet the hypothesis.

    Raises
    ------
    HypothesisError
        If the radius is missing, not finite or negative, or a norm is NaN or so large that nothing can be said.
    ShapeError
        If there are no tokens.

    Examples
    --------
    >>> one = torch.ones(1)
    >>> attention_quoted(HeadNorms(one, one, 0 * one, 0 * one), tokens=3, radius=1.0)
    3.0
    """
    radius = checked_ball(tokens, radius)
    curvature = radius * (radius * norms.query_key.double())
    return _sum_over_heads(norms, _length(math.sqrt(3 * tokens), math.sqrt(12 * tokens + 3) * curvature))


def attention_paper_bias(norms: HeadNorms, *, tokens: int, radius: float | None) -> float:
    """`sum_h ||O|| ||V|| sqrt(3 (n + r^4 ||A||^2 + 4 n r^2 (r ||A|| + ||c||)^2))`: valid with a query bias.

    The paper's bound with its proof repaired (after Theorem 10); equal to `attention_quoted` where `c = 0`. It holds
    for all pairs whose tokens have norm <= r. Arguments and errors as `attention_quoted`.

    Examples
    --------
    >>> one = torch.ones(1)
    >>> attention_paper_bias(HeadNorms(one, one, 0 * one, 2 * one), tokens=3, radius=1.0)
    12.36931687685298
    """
    radius = checked_ball(tokens, radius)
    curvature = radius * (radius * norms.query_key.double())
    kappa = curvature + radius * norms.query_bias.double()
    slope = _length(curvature, 2 * math.sqrt(tokens) * kappa)
    return _sum_over_heads(norms, math.sqrt(3) * _length(math.sqrt(tokens), slope))


def _inner_width(qkv_weight: Tensor, proj_weight: Tensor) -> int:
    if qkv_weight.ndim != 2 or proj_weight.ndim != 2 or qkv_weight.shape[0] != 3 * proj_weight.shape[1]:
        raise ShapeError(
            "qkv and output weights must have shapes (3 D, E) and (F, D), "
            f"got {tuple(qkv_weight.shape)} and {tuple(proj_weight.shape)}"
        )
    return proj_weight.shape[1]


def _head_width(width: int, n_heads: int, name: str) -> int:
    if n_heads < 1 or width < 1 or width % n_heads:
        raise ShapeError(f"{n_heads} heads do not divide the {name} {width}")
    return width // n_heads


def _output(proj_weight: Tensor, n_heads: int) -> Tensor:
    return proj_weight.detach().double().reshape(proj_weight.shape[0], n_heads, -1).transpose(0, 1)


def slice_norms(stack: Tensor) -> Tensor:
    """`||S||_2` of tall slices, shape (H, F, d), from their triangular factors; shape (H,)."""
    return torch.linalg.svdvals(torch.linalg.qr(stack, mode="r").R)[..., 0]


def refuse_infinite(**values: Tensor) -> None:
    """Raises HypothesisError, which names the first of the tensors that holds a value that is not finite."""
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise HypothesisError(f"{name} holds values that are not finite")


def checked_ball(tokens: int, radius: float | None) -> float:
    """The radius of a ball for sequences of `tokens`, if both can be that; else ShapeError or HypothesisError."""
    if tokens < 1:
        raise ShapeError(f"attention needs one token or more, got {tokens}")
    if radius is None or not (math.isfinite(radius) and radius >= 0):
        raise HypothesisError(f"the largest token norm must be known, finite and not negative, got radius={radius!r}")
    return float(radius)


def _sum_over_heads(norms: HeadNorms, head: Tensor) -> float:
    outside, inside = norms.output.double(), norms.value.double()
    alive = (outside != 0) & (inside != 0)
    total = float(torch.where(alive, outside * head * inside, 0.0).sum())
    if math.isnan(total):
        raise HypothesisError("a norm of the heads is NaN, or infinite with radius 0: there is no bound")
    return total


def _length(a: float | Tensor, b: Tensor) -> Tensor:
    return torch.hypot(torch.as_tensor(a, dtype=b.dtype, device=b.device), b)
