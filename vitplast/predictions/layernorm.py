"""What a layer norm's plasticity will be, from the scale of its inputs alone (Prop. 7). Predictions, not bounds.

Between two tokens of the same deviation `s` the unscaled layer norm has the rate `1/s` whatever their directions are,
so its plasticity measures the inverse scale of what it is fed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.errors import HypothesisError, ShapeError


def token_ratio(x: Tensor, y: Tensor) -> Tensor:
    """`||N(x) - N(y)|| / ||Pi(x - y)|| = sqrt(2 (1 - c) / (s_x^2 + s_y^2 - 2 s_x s_y c))`, exactly (Prop. 7).

    `N(x) = Pi x / s_x` is the layer norm with scales 1 and eps 0, `Pi` takes the mean off, `s` is the standard
    deviation (ddof 0) and `c` the correlation of the two tokens.

    Parameters
    ----------
    x, y
        Tokens, shape (..., d).

    Returns
    -------
    Ratio of each pair of tokens, shape (...), float64; NaN where they differ by a constant or not at all. They are
    compared through `sqrt(2 (1 - c)) = ||u_x - u_y||` with unit vectors `u`, so nothing cancels for close tokens.

    Raises
    ------
    ShapeError
        If `x` and `y` are of different shapes or have fewer than two features.
    HypothesisError
        If a token is constant or not finite.

    Examples
    --------
    >>> token_ratio(torch.tensor([3.0, -3.0, 0.0]), torch.tensor([0.0, 3.0, -3.0])) ** -2
    tensor(6.0000, dtype=torch.float64)
    """
    if x.shape != y.shape or x.ndim < 1 or x.shape[-1] < 2:
        raise ShapeError(f"x and y must both be (..., d), d >= 2, got {tuple(x.shape)} and {tuple(y.shape)}")
    both = torch.stack([x, y]).detach().double()
    both = both - both.mean(dim=-1, keepdim=True)
    s_x, s_y = s = torch.linalg.vector_norm(both, dim=-1) / math.sqrt(x.shape[-1])
    if not bool((torch.isfinite(s) & (s > 0)).all()):
        raise HypothesisError("a token is constant or not finite: its deviation is 0 or no number")
    units = both / s[..., None]
    apart = torch.linalg.vector_norm(units[0] - units[1], dim=-1) / math.sqrt(x.shape[-1])
    return apart / torch.hypot(s_x - s_y, (s_x * s_y).sqrt() * apart)


def inverse_scale(weight: Tensor, rms_std: float) -> float:
    """`rms(w) / rms(std)`: the plasticity of a layer norm on pairs of nearly uncorrelated tokens (Prop. 7).

    Exact for scales of one magnitude and eps 0 if all tokens that differ have one deviation and one mean, however
    correlated they are. Otherwise close if the tokens of a pair are nearly uncorrelated or similar in deviation, and
    their differences are spread evenly over the features.

    Parameters
    ----------
    weight
        Scales, shape (d,).
    rms_std
        Root mean square of the standard deviations (ddof 0) over the tokens that differ, on both sides of the pairs.

    Raises
    ------
    ShapeError
        If `weight` has not one dimension or is empty.
    HypothesisError
        If `rms_std` is not positive and finite, or a scale is not finite.

    Examples
    --------
    >>> inverse_scale(torch.tensor([1.0, -7.0]), rms_std=2.5)
    2.0
    """
    if weight.ndim != 1 or weight.numel() == 0:
        raise ShapeError(f"layer norm scales have one dimension and are not empty, got {tuple(weight.shape)}")
    if not (math.isfinite(rms_std) and rms_std > 0):
        raise HypothesisError(f"rms_std must be positive and finite, got {rms_std!r}")
    size = float(torch.linalg.vector_norm(weight.detach().double())) / math.sqrt(weight.numel())
    if not math.isfinite(size):
        raise HypothesisError("the layer norm scales hold values that are not finite")
    return size / rms_std
