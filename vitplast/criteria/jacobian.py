"""Norms of the Jacobians of the components, at their own inputs: the local side of plasticity (Prop. 2, Theorem 2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.criteria.scores import scored
from vitplast.errors import InputError
from vitplast.forward_mode import math_attention, push_forward
from vitplast.local import local_lipschitz
from vitplast.measure.sides import check_mode


def frobenius(f: Callable[[Tensor], Tensor], x: Tensor, *, draws: int = 4, seed: int = 0) -> Tensor:
    """`(mean over v of ||J_f(X) v||^2)^(1/2)` for Gaussian v (Hutchinson), an estimate of `||J_f(X)||_F`; shape (B,).

    The squares are unbiased, with relative variance `2 / (draws r_4)`, r_4 the participation ratio of Prop. 2.

    Parameters
    ----------
    f
        Maps (B, n, d) to (B, ...), each sample on its own.
    x
        Shape (B, n, d).

    Raises
    ------
    InputError
        If `draws` is below 1, or f has no forward derivative.

    Examples
    --------
    >>> found = frobenius(lambda x: 3 * x, torch.zeros(1, 100, 100), draws=2)
    >>> abs(found.item() / 300 - 1) < 0.02
    True
    """
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for _ in range(draws):
        v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        total += push_forward(f, x, v).flatten(1).double().square().sum(1)
    return (total / draws).sqrt()


def jacobian_frobenius(model: nn.Module, images: Tensor, *, draws: int = 4, seed: int = 0) -> xr.Dataset:
    """`mean over images of ||J_f(X)||_F / sqrt(n d)`, X of shape (n, d) the input of f in the network.

    The root mean square gain over all directions of the input, to which plasticity tends for close pairs (Prop. 2); for
    a linear layer exactly `||W||_F / sqrt(d)`. The total is the mean over blocks.

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode.
    images
        Normalised images (N, C, H, W).
    draws
        Random vectors of Hutchinson's estimate, each a forward pass with its tangent (counted as two).
    """
    model_inputs = component_inputs(model, images)
    values = np.empty((1 + model_inputs[-1][0].layer, len(COMPONENTS)))
    with torch.no_grad(), math_attention(model):
        for part, x in model_inputs:
            norm = frobenius(part.module, x, draws=draws, seed=seed) / x[0].numel() ** 0.5
            values[part.layer, COMPONENTS.index(part.component)] = float(norm.mean())
    return scored(values, "mean", forward=len(images) * (1 + 2 * draws))


def jacobian_spectral(
    model: nn.Module, images: Tensor, *, tolerance: float = 1e-2, max_iterations: int = 20, seed: int = 0
) -> xr.Dataset:
    """`mean over images of ||J_f(X)||_2`, X the input of f in the network, by power iteration from below.

    Accuracy is for ranking: `vitplast.local.local_lipschitz` with a loose tolerance and few iterations, so a lower
    estimate. The total is the mean over blocks. An iteration counts as two forward passes and a backward one.
    """
    model_inputs = component_inputs(model, images)
    values = np.empty((1 + model_inputs[-1][0].layer, len(COMPONENTS)))
    iterations = []
    with math_attention(model):
        for part, x in model_inputs:
            found = local_lipschitz(part.module, x, tolerance=tolerance, max_iterations=max_iterations, seed=seed)
            values[part.layer, COMPONENTS.index(part.component)] = float(found.norm.mean())
            iterations.append(found.iterations)
    mean = float(np.mean(iterations))
    return scored(values, "mean", forward=len(images) * (1 + 2 * mean), backward=len(images) * mean)


@torch.no_grad()
def component_inputs(model: nn.Module, images: Tensor) -> list[tuple[Part, Tensor]]:
    """Every part of every block with its input (B, n, d), from one forward pass.

    Raises
    ------
    ModeError
        If a part of the model is in training mode.
    """
    check_mode(model)
    found, inputs = parts(model), {}

    def keep(name: str):
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            inputs[name] = (args[0] if args else next(iter(kwargs.values()))).clone()

        return hook

    handles = [p.module.register_forward_pre_hook(keep(p.name), with_kwargs=True) for p in found]
    try:
        first = next(model.parameters())
        model.forward_features(images.to(first.device, first.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return [(part, inputs[part.name]) for part in found]
