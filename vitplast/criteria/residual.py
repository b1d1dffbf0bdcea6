"""Residual norm and activation energy, after the Layer Card (Xu et al., 2026, arXiv 2602.04019).

Of that paper its abstract and summaries could be read, not its formulas: the residual norm "equals a normalized
gradient norm" for squared loss and linear adapters, normalised by the covariance of the activations, whose energy
controls conditioning. What is defined here is the least-squares form of these words, and ours.
"""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from vitplast.criteria.accumulate import GradientSums, PartSums
from vitplast.criteria.layers import Affine
from vitplast.criteria.norms import by_part, passes
from vitplast.criteria.scores import scored
from vitplast.errors import InputError

#: Added to the second moment, as a share of its diagonal.
RIDGE = 1e-3


def residual_norm(sums: GradientSums, *, ridge: float = RIDGE) -> xr.Dataset:
    """`R = (tr G S^-1 G^T)^(1/2)`, `G = (1/N) sum_i Delta_i^T X_i`, `S = E[x x^T] + ridge diag E[x x^T]`.

    x is what the layer multiplies its weight with, a 1 appended for its bias, over all tokens of all images; Delta the
    gradient of the loss at its output. `R^2 / 2` is what the best change of the layer gains when the loss is a square
    of curvature 1 at its output: the norm of the residual, projected on what the layer can express. S of a norm is
    2 x 2 for each feature. The squares of qkv and proj are summed for MHA, and of all blocks for the total. Nothing
    changes when each feature of the input of a linear layer is multiplied by a number of its own, and its weight
    divided by it.

    Raises
    ------
    InputError
        If `ridge` is not above 0.
    """
    if not ridge > 0:
        raise InputError(f"ridge must be above 0, got {ridge}")
    squares = by_part(sums, lambda s: sum(_whitened(s, layer, ridge) for layer in s.layers))
    return scored(np.sqrt(squares), "root_sum_square", **passes(sums))


def residual_energy(sums: GradientSums) -> xr.Dataset:
    """`||G|| / E^(1/2)`, `E = E||x||^2` the activation energy: the same with a scalar in the place of the covariance.

    G and x as in `residual_norm`, biases with energy 1 of their own included.
    """
    squares = by_part(sums, lambda s: sum(_scaled(s, layer) for layer in s.layers))
    return scored(np.sqrt(squares), "root_sum_square", **passes(sums))


def _whitened(s: PartSums, layer: Affine, ridge: float) -> float:
    """`tr G S^-1 G^T` of one layer."""
    weight, bias = (s.mean.get(layer.prefix + name) for name in ("weight", "bias"))
    x, moment = s.inputs[layer.prefix], s.moments[layer.prefix]
    if layer.diagonal:
        return float(_pairs(weight, bias, x, moment, ridge).sum())
    gradient = weight
    if bias is not None:
        gradient = torch.cat([weight, bias[:, None]], 1)
        moment = torch.cat([torch.cat([moment, x[:, None]], 1), torch.cat([x, x.new_ones(1)])[None]])
    diagonal = moment.diagonal().clone()
    # a feature that is always 0 has gradient 0 too: any positive number does
    diagonal[diagonal == 0] = 1.0
    scale = diagonal.rsqrt()
    moment = scale[:, None] * moment * scale + ridge * torch.eye(len(moment)).to(moment)
    solved = torch.linalg.solve_triangular(torch.linalg.cholesky(moment), (gradient * scale).mT, upper=False)
    return float(solved.square().sum())


def _pairs(weight: Tensor | None, bias: Tensor | None, x: Tensor, moment: Tensor, ridge: float) -> Tensor:
    """The same for a scale and a shift of each feature: `(g, h) [[a, c], [c, b]]^-1 (g, h)^T`."""
    a = torch.where(moment > 0, moment, 1.0) * (1 + ridge)
    if bias is None:
        return weight.square() / a
    b = 1 + ridge
    if weight is None:
        return bias.square() / b
    return (b * weight.square() - 2 * x * weight * bias + a * bias.square()) / (a * b - x.square())


def _scaled(s: PartSums, layer: Affine) -> float:
    weight, bias = (s.mean.get(layer.prefix + name) for name in ("weight", "bias"))
    moment = s.moments[layer.prefix]
    energy = float(moment.sum() if layer.diagonal else moment.trace()) + (bias is not None)
    return sum(float(g.square().sum()) for g in (weight, bias) if g is not None) / energy
