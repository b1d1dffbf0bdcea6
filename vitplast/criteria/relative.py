"""Relative rate of change: by which part of itself the output changes when the input changes by a part of itself."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import COMPONENTS, parts
from vitplast.criteria.scores import scored
from vitplast.errors import HypothesisError, ShapeError
from vitplast.measure.distances import distances, norms
from vitplast.measure.in_situ import watched
from vitplast.measure.sides import check_mode


@torch.no_grad()
def relative_rate(model: nn.Module, source: Tensor, target: Tensor, *, batch_size: int = 16) -> xr.Dataset:
    """`mean of (||f(X) - f(Y)|| / ||X - Y||) (||X||^2 + ||Y||^2)^(1/2) / (||f(X)||^2 + ||f(Y)||^2)^(1/2)`, in situ.

    A relative condition number: unlike plasticity it has no unit, and stays the same when f or its input is multiplied
    by a number, so also under every rescaling of Prop. 18 (LN2/FC1, LN1/qkv, V/O, Q/K).

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode.
    source, target
        Normalised images (pairs, C, H, W): image k of one with image k of the other.
    batch_size
        Images in the model at a time, of both sides together.

    Raises
    ------
    ShapeError
        If the two sides differ in shape.
    ModeError
        If a part of the model is in training mode.
    HypothesisError
        If two inputs or outputs coincide, or are not finite.
    """
    check_mode(model)
    if source.shape != target.shape:
        raise ShapeError(f"source images are {tuple(source.shape)}, target images {tuple(target.shape)}")
    found = parts(model)
    step = max(1, batch_size // 2)
    # distance and squared norm of both sides, at input and output
    seen = np.full((2, 2, 1 + found[-1].layer, len(COMPONENTS), len(source)), np.nan)
    first = next(model.parameters())
    for start in range(0, len(source), step):
        count = len(source[start : start + step])
        where = slice(start, start + count)

        def see(z: Tensor, place: tuple[int, int, int], earlier: object, count: int = count, where: slice = where):
            side, layer, column = place
            seen[0, side, layer, column, where] = distances(z[:count], z[count:]).cpu().numpy()
            squares = norms(z).square()
            seen[1, side, layer, column, where] = (squares[:count] + squares[count:]).sqrt().cpu().numpy()

        with watched(found, see):
            model.forward_features(torch.cat([source[where], target[where]]).to(first.device, first.dtype))
    (d_in, d_out), (size_in, size_out) = seen
    if not np.isfinite(seen).all() or not (d_in > 0).all() or not (size_out > 0).all():
        raise HypothesisError("a pair coincides at the input of a component, or an output is 0 or not finite")
    rate = d_out / d_in * size_in / size_out
    return scored(rate.mean(axis=-1), "mean", forward=2 * len(source))
