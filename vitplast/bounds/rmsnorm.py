"""Normalisations that take no mean off: RMSNorm (Theorem 6) and batch norm in evaluation mode (Theorem 3).

`RMSNorm(x) = w * x / sqrt(mean(x^2) + eps)`. All of the layer norm's theory holds with the root mean square in place
of the standard deviation and `I` in place of `I - 11^T/d`, so the norm of the scales is simply the largest one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.bounds.layernorm import deviation_floor, token_deviations, two_point_factor
from vitplast.errors import HypothesisError, ShapeError


def rmsnorm_constant(weight: Tensor, sigma: float, eps: float = 0.0) -> float:
    """`max_j |w_j| / sqrt(sigma^2 + eps)`: the exact Lipschitz constant on tokens of rms >= sigma (Theorem 6).

    Reached by a pair of opposite tokens along the axis of the largest scale. `sigma = 0` gives the global constant.

    Parameters
    ----------
    weight
        Scales, shape (d,).
    sigma
        Smallest root mean square of a token that differs, on either side of the pairs.
    eps
        The constant added to the mean square.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or is empty.
    HypothesisError
        If `sigma` or `eps` is negative or not finite, both are 0, or a scale is not finite.

    Examples
    --------
    >>> rmsnorm_constant(torch.tensor([-2.0, 0.5]), sigma=0.5)
    4.0
    """
    return _largest(weight) / deviation_floor(sigma, eps)


def rmsnorm_pair_bound(weight: Tensor, x: Tensor, y: Tensor, eps: float = 0.0) -> Tensor:
    """`max_j |w_j| max_{i: x_i != y_i} (tau(x_i) tau(y_i))^(-1/2)` per pair, `tau^2 = mean square + eps` (Theorem 6).

    Arguments, result and errors as `pair_bound` of the layer norm; the mean over pairs bounds the mean rate.

    Examples
    --------
    >>> rmsnorm_pair_bound(torch.ones(1), torch.tensor([[[2.0]]]), torch.tensor([[[-8.0]]]))
    tensor([0.2500], dtype=torch.float64)
    """
    largest = _largest(weight)
    return largest * two_point_factor(*token_deviations(x, y, width=weight.numel(), centred=False), eps)


def batchnorm_constant(weight: Tensor, variance: Tensor, eps: float = 0.0) -> float:
    """`max_j |w_j| / sqrt(v_j + eps)`: batch norm with stored variances is a diagonal affine map (Theorem 3, exact).

    No property of the input enters. In training mode there is no bound, as the variances depend on the batch.

    Parameters
    ----------
    weight
        Scales, shape (d,).
    variance
        The stored variance of each feature, shape (d,).
    eps
        The constant added to the variances.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension, is empty, or `variance` is of another shape.
    HypothesisError
        If a value is not finite, or a variance plus `eps` is not positive.

    Examples
    --------
    >>> batchnorm_constant(torch.tensor([1.0, -3.0]), torch.tensor([0.25, 4.0]))
    2.0
    """
    _largest(weight)
    if variance.shape != weight.shape:
        raise ShapeError(f"there is one variance a scale: {tuple(weight.shape)}, got {tuple(variance.shape)}")
    total = variance.detach().double() + eps
    if not bool((torch.isfinite(total) & (total > 0)).all()):
        raise HypothesisError(f"variances plus eps must be finite and positive, the least is {float(total.min())!r}")
    return float((weight.detach().double().abs() / total.sqrt()).max())


def _largest(weight: Tensor) -> float:
    if weight.ndim != 1 or weight.numel() == 0:
        raise ShapeError(f"the scales have one dimension and are not empty, got shape {tuple(weight.shape)}")
    largest = float(weight.detach().double().abs().max())
    if not math.isfinite(largest):
        raise HypothesisError("the scales hold values that are not finite")
    return largest
