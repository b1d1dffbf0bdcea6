"""The matrix of a linear layer, however it is stored: `nn.Linear`, transformers' `Conv1D`, or several stacked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitplast.layouts.stacked import Stacked

#: Computes `x W + b` with W stored as (inputs, outputs).
CONV1D = "transformers.pytorch_utils.Conv1D"


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' `Conv1D` itself, found without importing transformers."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == CONV1D


def linear_weight(module: nn.Module) -> Tensor | None:
    """W (outputs, inputs) of `x -> W x + b`; None if the module may compute anything else, or carries hooks.

    Examples
    --------
    >>> linear_weight(nn.Linear(3, 2)).shape, linear_weight(nn.ReLU()) is None
    (torch.Size([2, 3]), True)
    """
    if isinstance(module, Stacked):
        weights = [linear_weight(member) for member in module.members.values()]
        return None if any(w is None for w in weights) else torch.cat(weights)
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) is nn.Linear:
        return module.weight
    return module.weight.T if is_conv1d(module) else None


def inputs_of(module: nn.Module, default: int) -> int:
    """Number of features that a linear layer takes; `default` where the module does not say."""
    if isinstance(module, Stacked):
        module = next(iter(module.members.values()))
    return int(module.weight.shape[0]) if is_conv1d(module) else int(getattr(module, "in_features", default))
