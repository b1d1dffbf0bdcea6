"""A layer norm folded into what follows it (Theorem 14): pre-norm branches as one map on tokens of std >= sigma.

The output of a layer norm is `gamma * N + beta` with tokens `N` that are centred and of norm at most `sqrt(E)`,
whatever came in. So `gamma` and `beta` move into the next weights, no radius has to be measured, and the numbers
don't change when a factor is shifted from `gamma` and `beta` to those weights (Prop. 18).
"""

from __future__ import annotations

import math

from torch import Tensor

from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.canonical import Canonical, fold
from vitplast.bounds.layernorm import deviation_floor
from vitplast.bounds.linear import spectral_norm
from vitplast.errors import ShapeError


def layernorm_linear(weight: Tensor, gamma: Tensor, sigma: float, eps: float = 0.0) -> float:
    """`||W diag(gamma) (I - 11^T/d)||_2 / sqrt(sigma^2 + eps)`: exact for `W LN(x) + b`, as FC1 o LN2 (Theorem 14).

    Holds on all tokens of std >= `sigma`; reached by two opposite tokens along the top right-singular vector. Neither
    the shift of the layer norm nor the bias of the linear map matters. `sigma = 0` gives the global constant.

    Parameters
    ----------
    weight
        W, shape (out, d).
    gamma
        Scales of the layer norm, shape (d,), d >= 2.
    sigma
        Smallest standard deviation (ddof 0) of a token that differs, on either side of the pairs.
    eps
        The constant that the layer norm adds to the variance.

    Raises
    ------
    ShapeError
        If `weight` is empty or has not two dimensions, or `gamma` has not one entry for each of its columns, or
        there are fewer than two columns.
    HypothesisError
        If `sigma` or `eps` is negative or not finite, both are 0, or a weight is not finite.

    Examples
    --------
    >>> import torch
    >>> round(layernorm_linear(torch.eye(2), torch.tensor([3.0, 1.0]), sigma=1.0) ** 2, 12)
    5.0
    """
    if weight.ndim != 2 or weight.numel() == 0:
        raise ShapeError(f"weight must have two dimensions and not be empty, got shape {tuple(weight.shape)}")
    width = weight.shape[1]
    if width < 2 or gamma.shape != (width,):
        raise ShapeError(f"gamma must have one entry for each of the {width} >= 2 columns, got {tuple(gamma.shape)}")
    scaled = weight.detach().double() * gamma.detach().double()
    return spectral_norm(scaled - scaled.mean(dim=1, keepdim=True)) / deviation_floor(sigma, eps)


def layernorm_attention(
    form: Canonical,
    gamma: Tensor,
    beta: Tensor,
    sigma: float,
    eps: float = 0.0,
    *,
    tokens: int,
    combine: str = "stacked",
    fixed_bias: bool = False,
) -> float:
    """`B(r = sqrt(E)) / sqrt(sigma^2 + eps)` for MHA o LN1, `B` the bound of the folded form (Theorems 10, 12, 14).

    Parameters
    ----------
    form
        From `canonical`, the attention before folding.
    gamma, beta
        Scales and shifts of the layer norm, shape (E,); zeros where it has no shift.
    sigma, eps
        As in `layernorm_linear`.
    tokens
        n, tokens of a sequence.
    combine
        How the heads are added up: "separate", "sum" or "stacked" (Theorem 12).
    fixed_bias
        True if a fixed mask or position bias is added to the scores.

    Raises
    ------
    ShapeError
        If `gamma` or `beta` has not E entries.
    HypothesisError
        If `sigma` or `eps` is negative or not finite, or both are 0, or a scale or shift is not finite; and the errors
        of `attention_bound`.

    Examples
    --------
    >>> import torch
    >>> from vitplast.bounds import heads
    >>> from vitplast.bounds.canonical import canonical
    >>> form = canonical(heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1), scale=0.0)
    >>> round(layernorm_attention(form, torch.ones(2), torch.zeros(2), sigma=0.5, tokens=3), 12)
    2.0
    """
    floor = deviation_floor(sigma, eps)
    radius = math.sqrt(form.query.shape[-1])
    folded = fold(form, gamma, beta)
    return attention_bound(folded, tokens=tokens, radius=radius, combine=combine, fixed_bias=fixed_bias) / floor
