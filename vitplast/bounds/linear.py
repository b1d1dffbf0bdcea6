"""Linear layers (Theorem 3): the bound is the largest singular value, and no smaller number will do."""

from __future__ import annotations

import torch
from torch import Tensor

from vitplast.errors import HypothesisError, ShapeError


def spectral_norm(weight: Tensor) -> float:
    """`||W||_2`, the largest singular value: the Lipschitz constant of `X -> X W^T + b` (Theorem 3; paper, exact).

    The bias plays no part. Holds for every pair, with equality when all rows of `X - Y` lie along the top right
    singular vector. Computed in float64. Add low-rank or normalised parametrisations up into one weight first.

    Parameters
    ----------
    weight
        Shape (out, in), as `nn.Linear` stores it.

    Raises
    ------
    ShapeError
        If `weight` is empty or has not two dimensions.
    HypothesisError
        If `weight` holds a value that is not finite.

    Examples
    --------
    >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    4.0
    """
    if weight.ndim != 2 or weight.numel() == 0:
        raise ShapeError(f"a linear weight has two dimensions and is not empty, got shape {tuple(weight.shape)}")
    weight = weight.detach().double()
    if not bool(weight.isfinite().all()):
        raise HypothesisError("the weight holds values that are not finite")
    size = weight.abs().max()
    if size == 0:
        return 0.0
    scaled = weight / size if weight.shape[0] >= weight.shape[1] else weight.T / size
    # The largest eigenvalue of the Gram matrix has all its digits (the small ones would not), for half of the time.
    return float(size * torch.linalg.eigvalsh(scaled.T @ scaled)[-1].clamp(min=0).sqrt())


def padded_norm(weight: Tensor, width: int) -> float:
    """`||W[:, :width]||_2`: the bound of a layer whose input is `width` features followed by zeros (Theorem 3).

    This is FC2 under the common input convention, where only its first `width` columns act. It depends on the order
    of the hidden units, so it is not a property of the network.

    Raises
    ------
    ShapeError
        As `spectral_norm`, and if the layer takes fewer than `width` features.

    Examples
    --------
    >>> padded_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]), 1)
    3.0
    """
    if weight.ndim == 2 and not 1 <= width <= weight.shape[1]:
        raise ShapeError(f"{width} features cannot be padded to the {weight.shape[1]} inputs of this layer")
    return spectral_norm(weight[:, :width] if weight.ndim == 2 else weight)
