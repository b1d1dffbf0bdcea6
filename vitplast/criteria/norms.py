"""Sizes of gradients: plain norm, per parameter, and times the size of the parameters (elasticity)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.criteria.accumulate import GradientSums, PartSums, parameter_norms
from vitplast.criteria.scores import scored


def gradient_norm(sums: GradientSums) -> xr.Dataset:
    """`||(1/N) sum_i g_i||`: the gradient that the first step of finetuning takes, before clipping.

    Of the component alone, without head and final norm. `vitplast.gradients` has the mean of the norms instead.
    """
    return scored(np.sqrt(by_part(sums, squared_mean)), "root_sum_square", **passes(sums))


def gradient_rms(sums: GradientSums) -> xr.Dataset:
    """`||(1/N) sum_i g_i|| / sqrt(p)`, p the number of parameters: the root mean square entry of the mean gradient."""
    squares, count = by_part(sums, squared_mean), by_part(sums, lambda s: s.parameters)
    return scored(np.sqrt(squares / count), np.sqrt(squares.sum(0) / count.sum(0)), **passes(sums))


def elasticity(sums: GradientSums) -> xr.Dataset:
    """`mean_i (sum over parts p of (||theta_p|| ||g_ip||)^2)^(1/2)`, parts Q, K, V, O, weights and biases.

    As `vitplast.gradients.gradient_norms`; stays the same under every rescaling of Prop. 18. The total sums the squares
    over blocks, image by image.
    """
    squares = np.zeros((sums.layers, len(COMPONENTS), sums.images))
    for s in sums.parts:
        place = s.part.layer, COMPONENTS.index(s.part.component)
        for name, norm in parameter_norms(s).items():
            squares[place] += np.square(norm * np.array(s.image_norms[name]))
    return scored(np.sqrt(squares).mean(-1), np.sqrt(squares.sum(0)).mean(-1), **passes(sums))


def passes(sums: GradientSums) -> dict[str, float]:
    """One forward and one backward pass an image."""
    return {"forward": sums.images, "backward": sums.images}


def by_part(sums: GradientSums, value: Callable[[PartSums], float]) -> np.ndarray:
    """`value(s)` for the sums s of every block and component, shape (layers, 5)."""
    found = np.zeros((sums.layers, len(COMPONENTS)))
    for s in sums.parts:
        found[s.part.layer, COMPONENTS.index(s.part.component)] = float(value(s))
    return found


def squared_mean(s: PartSums) -> float:
    """`||(1/N) sum_i g_i||^2` of a component of one block."""
    return sum(float(torch.linalg.vector_norm(m)) ** 2 for m in s.mean.values())
