"""Distances between the images of a pair, in float64 whatever the precision of the model."""

from __future__ import annotations

import torch
from torch import Tensor

#: Pairs closer than this, relative to the longer of the two, are not pairs (rate 0/0).
COINCIDENCE = 1e-6


def wide(x: Tensor) -> Tensor:
    """`x` in float32 at least: differences are never taken in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def distances(x: Tensor, y: Tensor) -> Tensor:
    """`||x_b - y_b||` over all but the first axis: (B,) float64 from (B, ...) tensors, one side may have B=1.

    The difference is taken first (the form `||x||^2 + ||y||^2 - 2 x.y` cancels), its squares are summed in float64.
    """
    if x.device.type != "cpu":
        return norms(wide(x) - wide(y))
    count = max(len(x), len(y))
    # image by image: the float64 sum of one image stays in the cache, and no difference of a whole batch is kept
    found = [
        torch.linalg.vector_norm(wide(a) - wide(b), dtype=torch.float64)
        for a, b in zip(x.expand(count, *x.shape[1:]), y.expand(count, *y.shape[1:]), strict=True)
    ]
    return torch.stack(found)


def norms(x: Tensor) -> Tensor:
    """`||x_b||` over all but the first axis: (B,) float64 from (B, ...)."""
    if x.device.type != "cpu":
        return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    return torch.stack([torch.linalg.vector_norm(a, dtype=torch.float64) for a in x])


def column_energies(x: Tensor) -> Tensor:
    """Sum of squares over tokens: (B, d) float64 from (B, n, d)."""
    if x.device.type != "cpu":
        return x.square().sum(dim=1, dtype=torch.float64)
    return torch.stack([a.square().sum(dim=0, dtype=torch.float64) for a in x])


def rough_norms(x: Tensor) -> Tensor:
    """`||x_b||` to a few digits, for comparisons only."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.promote_types(x.dtype, torch.float32)).double()


def coincide(distance: Tensor, norm_x: Tensor, norm_y: Tensor) -> Tensor:
    """Which pairs are too close to have a rate of change: `||x - y|| <= 1e-6 max(||x||, ||y||)`."""
    return distance <= COINCIDENCE * torch.maximum(norm_x, norm_y)
