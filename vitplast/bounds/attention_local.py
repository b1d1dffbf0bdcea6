"""Attention at given tokens: `||J|| <= sqrt(max_j sum_i P_ij (1 + ||S_i|| ||w_i||^2)) + max_i ||S_i A||` (Theorem 11).

Row `i` of the attention map of a head is `P_i = softmax_j(x_j^T (A x_i + c) + mu_ij)`, its covariance is
`S_i = sum_j P_ij (x_j - m_i)(x_j - m_i)^T` with `m_i = sum_j P_ij x_j`, and `w_i = A x_i + c`. No ball is needed: the
maps themselves say how far attention is from pooling. The value is a bound on the Jacobian *at* the given tokens, not
on the rate of change of a pair, which would need the largest value along the segment (Theorem 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitplast.bounds.attention import product_norm
from vitplast.bounds.canonical import Canonical
from vitplast.errors import HypothesisError, ShapeError

# Numbers of the largest array a chunk of tokens may hold (8 bytes each).
_CHUNK = 4_000_000


def attention_maps(form: Canonical, x: Tensor, fixed_bias: Tensor | None = None) -> Tensor:
    """`P_ij = softmax_j(x_j^T (A x_i + c) + mu_ij)` of each head (Prop. 8), in float64.

    Parameters
    ----------
    form
        From `canonical`, H heads on tokens of width E.
    x
        Tokens, shape (B, n, E).
    fixed_bias
        Position bias or mask `mu`, added to the scores: a shape that broadcasts to (B, H, n, n). `-inf` leaves a token
        out; each row must keep at least one.

    Returns
    -------
    Tensor of shape (B, H, n, n); rows sum to one.

    Raises
    ------
    ShapeError
        If `x` has not the shape (B, n, E), or the bias does not fit.
    HypothesisError
        If a token is not finite, the bias is NaN or `+inf`, or a row of it leaves out all tokens.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=1.0)
    >>> attention_maps(form, torch.zeros(1, 2, 2)).tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    scores = attention_scores(form, x)
    if fixed_bias is not None:
        scores = scores + _bias(fixed_bias, scores)
    return torch.softmax(scores, dim=-1)


def attention_scores(form: Canonical, x: Tensor) -> Tensor:
    """`x_j^T (A x_i + c)`, the scores of each head up to a constant of each row (Prop. 8), shape (B, H, n, n).

    Raises
    ------
    ShapeError, HypothesisError
        As `attention_maps`.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=1.0)
    >>> attention_scores(form, 2 * torch.eye(2)[None]).tolist()
    [[[[4.0, 0.0], [0.0, 4.0]]]]
    """
    x = tokens_of(form, x)
    query = torch.einsum("bne,hde->bhnd", x, form.query)
    key = torch.einsum("bne,hde->bhnd", x, form.key)
    return query @ key.transpose(-1, -2) + torch.einsum("bne,he->bhn", x, form.shift)[:, :, None, :]


def local_attention_bound(
    form: Canonical, x: Tensor, *, fixed_bias: Tensor | None = None, tight: bool = False
) -> Tensor:
    """`sqrt(max_j sum_i P_ij (1 + ||S_i|| ||w_i||^2)) + max_i ||S_i A||` of each head, at the tokens x (Theorem 11).

    An upper bound on `||J||_2` of the mixing map `m(X)_i = sum_j P_ij x_j` of each head at `x`. The heads are put
    together as in Theorem 12, with `combine_heads`. The covariances are never stored for all tokens at once.

    Parameters
    ----------
    form
        From `canonical`, H heads on tokens of width E.
    x
        Tokens, shape (B, n, E).
    fixed_bias
        As in `attention_maps`.
    tight
        False takes `tr S_i`, which is cheap, for `||S_i||` in the first term; True takes its largest eigenvalue.

    Returns
    -------
    Tensor of shape (B, H).

    Raises
    ------
    ShapeError, HypothesisError
        As `attention_maps`.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=0.0)
    >>> local_attention_bound(form, torch.eye(2)[None]).tolist()
    [[1.0]]
    """
    x = tokens_of(form, x)
    maps = attention_maps(form, x, fixed_bias)
    query_factor = torch.linalg.qr(form.query.transpose(-1, -2), mode="r").R
    return torch.stack(
        [
            torch.stack([_head(form, h, query_factor[h], x[b], maps[b, h], tight) for h in range(maps.shape[1])])
            for b in range(maps.shape[0])
        ]
    )


def tokens_of(form: Canonical, x: Tensor) -> Tensor:
    """`x` in float64, if it is finite and has the shape (B, n, E) that the form takes.

    Raises
    ------
    ShapeError
        If the shape is another one or empty.
    HypothesisError
        If a token is not finite.
    """
    width = form.query.shape[-1]
    if x.ndim != 3 or x.shape[-1] != width or not x.numel():
        raise ShapeError(f"tokens must have shape (B, n, {width}), none of them empty, got {tuple(x.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise HypothesisError("the tokens hold values that are not finite")
    return x.to(form.query)


def _bias(fixed_bias: Tensor, scores: Tensor) -> Tensor:
    try:
        bias = torch.broadcast_to(fixed_bias.to(scores), scores.shape)
    except RuntimeError as error:
        raise ShapeError(
            f"a fixed bias must broadcast to (B, H, n, n) = {tuple(scores.shape)}, got {tuple(fixed_bias.shape)}"
        ) from error
    if bool(torch.isnan(bias).any() | torch.isposinf(bias).any()):
        raise HypothesisError("a fixed bias may hold finite numbers and -inf, got nan or +inf")
    if bool(torch.isneginf(bias).all(dim=-1).any()):
        raise HypothesisError("a row of the fixed bias leaves out all tokens: its softmax is not defined")
    return bias


def _head(form: Canonical, head: int, query_factor: Tensor, x: Tensor, maps: Tensor, tight: bool) -> Tensor:
    centred = x - x.mean(dim=0)
    # Orthonormal coordinates of the span of the tokens: norms stay, the width shrinks to min(n, E).
    tokens = torch.linalg.qr(centred.T, mode="r").R.T
    keys = centred @ form.key[head].T
    steepness = ((x @ form.query[head].T) @ form.key[head] + form.shift[head]).square().sum(dim=-1)
    spread, slope = [], []
    for rows in maps.split(max(1, _CHUNK // max(1, tokens.numel()))):
        # Tokens and keys around the mean of each row, so that a peaked row loses no digits.
        around = tokens - (rows @ tokens)[:, None, :]
        weighted = rows[:, :, None] * around
        near = keys - (rows @ keys)[:, None, :]
        slope.append(product_norm(weighted.transpose(-1, -2) @ near, query_factor).max())
        if tight:
            spread.append(torch.linalg.eigvalsh(weighted.transpose(-1, -2) @ around)[:, -1].clamp(min=0))
        else:
            spread.append((weighted * around).sum(dim=(-1, -2)))
    weights = 1 + torch.cat(spread) * steepness
    return (maps * weights[:, None]).sum(dim=0).max().sqrt() + torch.stack(slope).max()
