"""What needs no data: the number of parameters, and advice that is always the same."""

from __future__ import annotations

import numpy as np
import xarray as xr
from torch import nn

from vitplast.components import COMPONENTS, parts
from vitplast.criteria.scores import scored
from vitplast.errors import UnknownNameError


def parameter_count(model: nn.Module) -> xr.Dataset:
    """`p`, the number of parameters of the component; all blocks together for the total.

    Examples
    --------
    >>> import timm
    >>> parameter_count(timm.create_model("vit_tiny_patch16_224")).total.sel(component="LN1").item()  # 12 * 2 * 192
    4608.0
    """
    found = parts(model)
    values = np.zeros((1 + found[-1].layer, len(COMPONENTS)))
    for part in found:
        values[part.layer, COMPONENTS.index(part.component)] = sum(p.numel() for p in part.module.parameters())
    return scored(values, "sum")


def constant(model: nn.Module, component: str) -> xr.Dataset:
    """1 for `component`, 0 for every other: the advice that any criterion has to beat.

    Raises
    ------
    UnknownNameError
        If there is no such component.
    """
    if component not in COMPONENTS:
        raise UnknownNameError("component", component, COMPONENTS)
    row = np.array([float(c == component) for c in COMPONENTS])
    return scored(np.tile(row, (1 + parts(model)[-1].layer, 1)), row)
