"""Layer normalisation (Theorem 6): `LN(x) = w * (x - mean(x)) / sqrt(var(x) + eps) + b` on tokens of std >= sigma.

The bound grows as the tokens get flatter: without a positive floor `sigma` (or `eps`) there is none. Tokens that are
the same in both inputs carry no weight and may be left out of the floor. Neither the shift nor the sign of a scale
matters. Three numbers, from weak to strong: the global constant (`sigma = 0`), the constant on a set (`sigma` the
smallest deviation seen) and the mean of `pair_bound` over pairs, which bounds the mean rate only.
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
    return float(_scales(weight).abs().max()) / deviation_floor(sigma, eps)


def layernorm_constant(weight: Tensor, sigma: float, eps: float = 0.0) -> float:
    """`||diag(w) (I - 11^T/d)||_2 / sqrt(sigma^2 + eps)`: the exact Lipschitz constant (Theorem 6).

    Reached by a pair of opposite tokens along the top singular vector. `sigma = 0` gives the global constant.
    Arguments and errors as `layernorm_bound`.

    Examples
    --------
    >>> round(layernorm_constant(torch.tensor([3.0, 1.0]), sigma=1.0) ** 2, 12)
    5.0
    """
    return centred_norm(_scales(weight)) / deviation_floor(sigma, eps)


def centred_norm(weight: Tensor) -> float:
    """`||diag(w) (I - 11^T/d)||_2`, between the two largest `|w_j|` (Theorem 6), in time O(d); 0 for d = 1.

    The square is the root `t` of `sum_j 1 / (w_j^2 - t) = 0` between the two largest `w_j^2`, found by bisection.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or is empty.
    HypothesisError
        If a scale is not finite.

    Examples
    --------
    >>> centred_norm(torch.tensor([-2.0, 2.0, 1.0]))
    2.0
    """
    if weight.shape == (1,):
        return 0.0
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


def pair_bound(weight: Tensor, x: Tensor, y: Tensor, eps: float = 0.0) -> Tensor:
    """`||diag(w) (I - 11^T/d)||_2 max_{i: x_i != y_i} (tau(x_i) tau(y_i))^(-1/2)` per pair, `tau^2 = var + eps`.

    Bounds the rate of each pair (Theorem 6, from the two-point form of Lemma 5); its mean over pairs bounds the mean
    rate, though not the rate of every pair (Theorem 1). Never put averaged deviations into the formula instead.

    Parameters
    ----------
    weight
        Scales, shape (d,).
    x, y
        The tokens of both sides, shape (B, n, d).
    eps
        The constant added to the variance.

    Returns
    -------
    Bounds, shape (B,), in float64.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or fewer than two entries, or `x` and `y` are not both (B, n, d).
    HypothesisError
        If the two sides of a pair are the same, a value is not finite, `eps` is negative, or a token that differs
        has deviation 0 while `eps` is 0.

    Examples
    --------
    >>> x, y = torch.tensor([[[2.0, -2.0]]]), torch.tensor([[[8.0, -8.0]]])
    >>> pair_bound(torch.ones(2), x, y).mean()  # 1 / sqrt(2 * 8)
    tensor(0.2500, dtype=torch.float64)
    """
    norm = centred_norm(_scales(weight))
    return norm * two_point_factor(*token_deviations(x, y, width=weight.numel()), eps)


def token_deviations(x: Tensor, y: Tensor, *, width: int | None = None, centred: bool = True) -> tuple[Tensor, Tensor]:
    """`std(x_i)` and `std(y_i)` (rms if not `centred`), shape (2, B, n), and where `x_i != y_i`, shape (B, n).

    The tokens that differ are those with a weight in `||X - Y||`, and the only ones that count for `sigma`.
    The standard deviation has ddof 0; the mean is taken off before squaring.

    Raises
    ------
    ShapeError
        If `x` and `y` are not both of one shape (B, n, d), with d = `width` if that is given.
    HypothesisError
        If a value is not finite.

    Examples
    --------
    >>> x, y = torch.tensor([[[3.0, 1.0], [5.0, 5.0]]]), torch.tensor([[[0.0, 4.0], [5.0, 5.0]]])
    >>> deviations, differ = token_deviations(x, y)
    >>> deviations[:, differ].min()
    tensor(1., dtype=torch.float64)
    """
    if x.shape != y.shape or x.ndim != 3 or (width is not None and x.shape[-1] != width):
        wanted = f"(B, n, {'d' if width is None else width})"
        raise ShapeError(f"x and y must both have one shape {wanted}, got {tuple(x.shape)} and {tuple(y.shape)}")
    both = torch.stack([x, y]).detach().double()
    if not bool(torch.isfinite(both).all()):
        raise HypothesisError("a token holds a value that is not finite")
    differ = (both[0] != both[1]).any(dim=-1)
    size = binary_size(both, -1)
    both = both / size
    if centred:
        both = both - both.mean(dim=-1, keepdim=True)
    return torch.linalg.vector_norm(both, dim=-1) / math.sqrt(x.shape[-1]) * size.squeeze(-1), differ


def binary_size(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The power of two below the largest modulus along `dim` (kept, length 1); 1 where all are zero. `x` is finite.

    Squares and products of `x / binary_size(x)` neither overflow nor vanish, and the division is exact.

    Examples
    --------
    >>> binary_size(torch.tensor([[3.0, -5.0], [0.0, 0.0]]), -1).tolist()
    [[4.0], [1.0]]
    """
    largest = x.abs().amax(dim=dim, keepdim=True)
    return torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), torch.ones_like(largest))


def euclidean_norms(x: Tensor) -> Tensor:
    """`||x||` along the last axis, whatever the scale: squares may leave the range of float64, the norm does not.

    Examples
    --------
    >>> euclidean_norms(torch.tensor([3e-200, 4e-200], dtype=torch.float64)).item()
    5e-200
    """
    size = binary_size(x, -1)
    return torch.linalg.vector_norm(x / size, dim=-1) * size.squeeze(-1)


def two_point_factor(deviations: Tensor, differ: Tensor, eps: float) -> Tensor:
    """`max_{i: x_i != y_i} (tau(x_i) tau(y_i))^(-1/2)` with `tau^2 = deviation^2 + eps`, shape (B,) (Lemma 5).

    Takes what `token_deviations` returns.

    Raises
    ------
    HypothesisError
        If the two sides of a pair are the same, `eps` is negative or not finite, or a token that differs has
        deviation 0 while `eps` is 0.

    Examples
    --------
    >>> two_point_factor(torch.tensor([[[2.0]], [[8.0]]]), torch.tensor([[True]]), eps=0.0)
    tensor([0.2500], dtype=torch.float64)
    """
    if not (math.isfinite(eps) and eps >= 0):
        raise HypothesisError(f"eps must be finite and not negative, got {eps!r}")
    same = ~differ.any(dim=-1)
    if bool(same.any()):
        raise HypothesisError(f"the two sides of pair {int(same.nonzero()[0])} are the same: it has no rate of change")
    tau = torch.hypot(deviations.double(), torch.tensor(math.sqrt(eps), dtype=torch.float64, device=deviations.device))
    flat = differ & (tau == 0).any(dim=0)
    if bool(flat.any()):
        pair, token = flat.nonzero()[0].tolist()
        raise HypothesisError(f"token {token} of pair {pair} has deviation 0 and eps is 0: no rate is bounded there")
    return torch.where(differ, (tau[0].sqrt() * tau[1].sqrt()).reciprocal(), 0.0).amax(dim=-1)


def _scales(weight: Tensor) -> Tensor:
    if weight.ndim != 1 or weight.numel() < 2:
        raise ShapeError(f"layer norm scales have one dimension and two entries or more, got {tuple(weight.shape)}")
    weight = weight.detach().double()
    if not bool(torch.isfinite(weight).all()):
        raise HypothesisError("the layer norm scales hold values that are not finite")
    return weight


def deviation_floor(sigma: float, eps: float) -> float:
    """`sqrt(sigma^2 + eps)`: what a token of std >= sigma is divided by, at least.

    Raises
    ------
    HypothesisError
        If `sigma` or `eps` is negative or not finite, or both are 0.

    Examples
    --------
    >>> deviation_floor(3.0, 16.0)
    5.0
    """
    for name, value in (("sigma", sigma), ("eps", eps)):
        if not (math.isfinite(value) and value >= 0):
            raise HypothesisError(f"{name} must be finite and not negative, got {value!r}")
    if sigma == 0 and eps == 0:
        raise HypothesisError("no positive lower bound on the token deviation: sigma and eps are both 0")
    return math.hypot(sigma, math.sqrt(eps))
