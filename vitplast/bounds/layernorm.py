"""Layer normalisation (Theorem 6): `LN(x) = w * (x - mean(x)) / sqrt(var(x) + eps) + b` on tokens of std >= sigma.

The bound grows as the tokens get flatter: without a positive floor `sigma` (or `eps`) there is none. Tokens that are
the same in both inputs carry no weight and may be left out of the floor. Neither the shift nor the sign of a scale
matters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vitplast.errors import HypothesisError, ShapeError


def layernorm_coded(weight: Tensor) -> float:
    """`max_j w_j`, with sign: what the authors' code draws. Not a bound: it lacks the modulus and `1/sigma`.

    Parameters
    ----------
    weight
        Scales, shape (d,).

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or fewer than two entries.

    Examples
    --------
    >>> layernorm_coded(torch.tensor([-2.0, 0.5]))
    0.5
    """
    return float(_scales(weight).max())


def layernorm_bound(weight: Tensor, sigma: float, eps: float = 0.0) -> float:
    """`max_j |w_j| / sqrt(sigma^2 + eps)`: valid on all tokens of std >= sigma (paper; weaker than Theorem 6).

    Parameters
    ----------
    weight
        Scales, shape (d,).
    sigma
        Smallest standard deviation (ddof 0) of a token on either side of the pairs.
    eps
        The constant added to the variance; it decides the bound where `sigma` is 0.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or fewer than two entries.
    HypothesisError
        If `sigma` or `eps` is negative or not finite, or both are 0.

    Examples
    --------
    >>> layernorm_bound(torch.tensor([-2.0, 0.5]), sigma=0.5)
    4.0
    """
    return float(_scales(weight).abs().max()) / _deviation(sigma, eps)


def layernorm_constant(weight: Tensor, sigma: float, eps: float = 0.0) -> float:
    """`||diag(w) (I - 11^T/d)||_2 / sqrt(sigma^2 + eps)`: the exact Lipschitz constant (Theorem 6).

    Reached by a pair of opposite tokens along the top singular vector. `sigma = 0` gives the global constant.
    Arguments and errors as `layernorm_bound`.

    Examples
    --------
    >>> round(layernorm_constant(torch.tensor([3.0, 1.0]), sigma=1.0) ** 2, 12)
    5.0
    """
    return centred_norm(weight) / _deviation(sigma, eps)


def centred_norm(weight: Tensor) -> float:
    """`||diag(w) (I - 11^T/d)||_2`, between the two largest `|w_j|` (Theorem 6), in time O(d).

    The square is the root `t` of `sum_j 1 / (w_j^2 - t) = 0` between the two largest `w_j^2`, found by bisection.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or fewer than two entries.

    Examples
    --------
    >>> centred_norm(torch.tensor([-2.0, 2.0, 1.0]))
    2.0
    """
    sizes = np.sort(_scales(weight).abs().cpu().numpy())[::-1]
    top = float(sizes[0])
    if top == 0.0 or sizes[1] == top:
        return top
    squares = (sizes / top) ** 2
    low, high = float(squares[1]), 1.0
    while low < (middle := 0.5 * (low + high)) < high:
        # Above the root the pole at the largest square wins and the sum is positive.
        if np.sum(1.0 / (squares - middle)) > 0:
            high = middle
        else:
            low = middle
    return top * math.sqrt(high)


def _scales(weight: Tensor) -> Tensor:
    if weight.ndim != 1 or weight.numel() < 2:
        raise ShapeError(f"layer norm scales have one dimension and two entries or more, got {tuple(weight.shape)}")
    weight = weight.detach().double()
    if not bool(torch.isfinite(weight).all()):
        raise HypothesisError("the layer norm scales hold values that are not finite")
    return weight


def _deviation(sigma: float, eps: float) -> float:
    for name, value in (("sigma", sigma), ("eps", eps)):
        if not (math.isfinite(value) and value >= 0):
            raise HypothesisError(f"{name} must be finite and not negative, got {value!r}")
    if sigma == 0 and eps == 0:
        raise HypothesisError("no positive lower bound on the token deviation: sigma and eps are both 0")
    return math.hypot(sigma, math.sqrt(eps))
