"""Attention as pooling: `rho = sqrt(n) ||M (mean x - mean y)|| / ||X - Y||`, `M = sum_h O_h V_h` (after Theorem 14).

Where all scores of a row are alike, attention is the mean over the tokens. Nothing is left of a pair of images but the
difference of their mean tokens, which is small as soon as the tokens of an image differ from each other. The entropy
of the attention maps says how near a network is to that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.bounds.attention_local import attention_scores, tokens_of
from vitplast.bounds.canonical import Canonical, mixing_norms
from vitplast.errors import HypothesisError, ShapeError


def pooling(form: Canonical, x: Tensor, y: Tensor) -> Tensor:
    """`sqrt(n) ||M (mean x - mean y)|| / ||X - Y||` with `M = sum_h O_h V_h`: the rate of change of mean pooling.

    A prediction of the rate of change of attention, exact as the scores go to zero; not a bound.

    Parameters
    ----------
    form
        From `canonical`, H heads on tokens of width E.
    x, y
        The two sides of the pairs, shape (B, n, E).

    Returns
    -------
    Tensor of shape (B,), in float64.

    Raises
    ------
    ShapeError
        If the sides have not the same shape (B, n, E).
    HypothesisError
        If a token is not finite or the two sides of a pair are equal.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), 3 * torch.eye(2), 1), scale=1.0)
    >>> pooling(form, torch.ones(1, 4, 2), torch.zeros(1, 4, 2)).tolist()
    [3.0]
    """
    difference, distance = _pair(form, x, y)
    mean = difference.mean(dim=1)
    # Values first: neither of the two contractions forms an E x E product.
    moved = torch.einsum("hfd,bhd->bf", form.output, torch.einsum("hde,be->bhd", form.value, mean))
    return math.sqrt(x.shape[1]) * torch.linalg.vector_norm(moved, dim=-1) / distance


def pooling_gap(form: Canonical, x: Tensor, y: Tensor) -> Tensor:
    """`sqrt(n) sum_h ||M_h|| ((e^{eta_h(X)} - 1) r(X) + (e^{eta_h(Y)} - 1) r(Y)) / ||X - Y||`: how far `pooling` errs.

    `eta` is the largest difference of two scores of a row (`score_spread`) and `r` the largest distance of a token
    from the mean token. The rate of change of attention without a fixed bias differs from `pooling` by at most this
    much, since `|n P_ij - 1| <= e^eta - 1`. Arguments and errors as `pooling`.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=0.0)
    >>> pooling_gap(form, torch.ones(1, 4, 2), torch.zeros(1, 4, 2)).tolist()
    [0.0]
    """
    _, distance = _pair(form, x, y)
    norms, gap = mixing_norms(form), torch.zeros_like(distance)
    for side in (tokens_of(form, x), tokens_of(form, y)):
        spread = torch.linalg.vector_norm(side - side.mean(dim=1, keepdim=True), dim=-1).amax(dim=-1)
        gap = gap + (torch.expm1(score_spread(form, side)) @ norms) * spread
    return math.sqrt(x.shape[1]) * gap / distance


def score_spread(form: Canonical, x: Tensor) -> Tensor:
    """`eta = max_i (max_j s_ij - min_j s_ij)`, the largest difference of two scores of a row, shape (B, H).

    Raises
    ------
    ShapeError, HypothesisError
        As `attention_maps`.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=1.0)
    >>> score_spread(form, torch.eye(2)[None]).tolist()
    [[1.0]]
    """
    scores = attention_scores(form, x)
    return (scores.amax(dim=-1) - scores.amin(dim=-1)).amax(dim=-1)


def entropy(maps: Tensor) -> Tensor:
    """`-sum_j P_ij ln P_ij / ln n`, averaged over the rows: 1 for mean pooling, 0 where one token takes it all.

    Parameters
    ----------
    maps
        Attention maps, shape (..., n, n), from `attention_maps`.

    Returns
    -------
    Tensor of shape (...), in float64. A single token counts as 1, the value of mean pooling.

    Raises
    ------
    ShapeError
        If the last two dimensions differ or are empty.
    HypothesisError
        If a row is not a probability vector.

    Examples
    --------
    >>> entropy(torch.full((1, 3, 4, 4), 0.25)).tolist()
    [[1.0, 1.0, 1.0]]
    """
    if maps.ndim < 2 or maps.shape[-1] != maps.shape[-2] or not maps.numel():
        raise ShapeError(f"attention maps have shape (..., n, n), none of them empty, got {tuple(maps.shape)}")
    maps = maps.double()
    # Maps may have been computed in single precision.
    if not bool((maps >= 0).all()) or not bool(((maps.sum(dim=-1) - 1).abs() < 1e-4).all()):
        raise HypothesisError("the rows of an attention map must be probabilities: not negative, with sum 1")
    if maps.shape[-1] == 1:
        return torch.ones(maps.shape[:-2], dtype=torch.float64, device=maps.device)
    return -torch.special.xlogy(maps, maps).sum(dim=-1).mean(dim=-1) / math.log(maps.shape[-1])


def _pair(form: Canonical, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape != y.shape:
        raise ShapeError(f"the two sides must have the same shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    difference = tokens_of(form, x) - tokens_of(form, y)
    distance = torch.linalg.vector_norm(difference, dim=(-1, -2))
    if not bool((distance > 0).all()):
        raise HypothesisError("the two sides of a pair are equal: it has no rate of change")
    return difference, distance
