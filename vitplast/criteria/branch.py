"""Plasticity of whole residual branches: what no rescaling inside the branch can change (after Prop. 18)."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import COMPONENTS, parts
from vitplast.criteria.scores import scored
from vitplast.errors import HypothesisError, LayoutError, ShapeError
from vitplast.measure.distances import distances
from vitplast.measure.sides import check_mode

#: Where a residual branch begins and ends inside a timm block, and the components that it is made of.
BRANCHES = {("norm1", "ls1"): ("LN1", "MHA"), ("norm2", "ls2"): ("LN2", "FC1", "FC2")}


@torch.no_grad()
def branch_plasticity(model: nn.Module, source: Tensor, target: Tensor, *, batch_size: int = 16) -> xr.Dataset:
    """`mean of ||g(X) - g(Y)|| / ||X - Y||` with g = LayerScale(MHA(LN1)) or LayerScale(MLP(LN2)), in situ.

    Every component has the score of the branch that it is in (so LN1 and MHA tie, and LN2, FC1 and FC2): what is left
    of plasticity when only what all parametrisations of the same network agree on is kept. The total is the mean over
    blocks. Arguments as `vitplast.criteria.relative.relative_rate`.

    Raises
    ------
    LayoutError
        If a block has not the layers norm1, ls1, norm2 and ls2 of timm's.
    ShapeError, ModeError
        If the two sides differ in shape, or a part of the model is in training mode.
    HypothesisError
        If a pair coincides or a distance is not finite.
    """
    check_mode(model)
    if source.shape != target.shape:
        raise ShapeError(f"source images are {tuple(source.shape)}, target images {tuple(target.shape)}")
    layers = 1 + parts(model)[-1].layer
    distance = np.full((2, 2, layers, len(source)), np.nan)
    first, step = next(model.parameters()), max(1, batch_size // 2)
    here = slice(0, 0)

    def note(side: int, branch: int, layer: int):
        def hook(module: nn.Module, args: tuple, output: Tensor) -> None:
            z = args[0] if side == 0 else output
            distance[side, branch, layer, here] = distances(*z.chunk(2)).cpu().numpy()

        return hook

    handles = []
    try:
        for layer, block in enumerate(model.blocks):
            for branch, ends in enumerate(BRANCHES):
                for side, name in enumerate(ends):
                    module = getattr(block, name, None)
                    if module is None:
                        raise LayoutError(f"block {layer} of {type(model).__name__} has no {name!r}")
                    handles.append(module.register_forward_hook(note(side, branch, layer)))
        for start in range(0, len(source), step):
            here = slice(start, min(start + step, len(source)))
            model.forward_features(torch.cat([source[here], target[here]]).to(first.device, first.dtype))
    finally:
        for handle in handles:
            handle.remove()
    if not np.isfinite(distance).all() or not (distance[0] > 0).all():
        raise HypothesisError("a pair coincides where a residual branch begins, or a distance is not finite")
    rate = (distance[1] / distance[0]).mean(axis=-1)
    values = np.full((layers, len(COMPONENTS)), np.nan)
    for branch, members in enumerate(BRANCHES.values()):
        values[:, [COMPONENTS.index(c) for c in members]] = rate[branch][:, None]
    return scored(values, "mean", forward=2 * len(source))
