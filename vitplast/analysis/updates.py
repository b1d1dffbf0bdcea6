"""How far one step of the optimizer moves each group of parameters, relative to its size, and what clipping does."""

from __future__ import annotations

import numpy as np
import xarray as xr
from torch import nn

from vitplast.analysis.curves import early_norm
from vitplast.components import CONFIGURATIONS, groups
from vitplast.errors import InputError

#: What adds up to `all`, but for head, final norm and LayerScale.
GROUPS = tuple(c for c in CONFIGURATIONS if c not in ("all", "head"))


def group_sizes(model: nn.Module) -> xr.Dataset:
    """`||theta_k||_F` and the number of scalars of every group of parameters, and `rms = norm / sqrt(count)`.

    Returns
    -------
    Dataset (group), as `vitplast.components.groups` names and orders them; without units.
    """
    given = dict(model.named_parameters())
    found = {g: [given[n].detach() for n in names] for g, names in groups(model).items()}
    norm = [float(sum(v.square().sum() for v in values)) ** 0.5 for values in found.values()]
    count = [sum(v.numel() for v in values) for values in found.values()]
    table = xr.Dataset({"norm": ("group", norm), "count": ("group", count)}, coords={"group": list(found)})
    table["rms"] = table["norm"] / np.sqrt(table["count"])
    return table


def gradient_shares(grid: xr.Dataset) -> xr.Dataset:
    """`(n_k / lr_k)^2 / sum_j (n_j / lr_j)^2`: share of each group in the first gradient of `all`, squared.

    n_k is the first gradient norm above 0 of the configuration that trains group k alone. A head of zeros passes no
    gradient back; one update later it, and with it n_k, is proportional to the learning rate, which is divided out.
    All configurations start at the same weights with the same images, so the n_k are parts of one gradient, up to what
    changes with the learning rate to higher order.

    Returns
    -------
    Dataset (dataset, group): norm (`n_k / lr_k`, mean over rates), share; (dataset): joint (the root of the sum of
    squares) and whole (the same of the runs that train everything; NaN if there are none). NaN where a group has no
    run.
    """
    missing = [g for g in GROUPS if g not in grid["configuration"].values]
    names = [*GROUPS, "all"]
    first = (early_norm(grid)["first"] / grid["lr"]).mean("rate").reindex(configuration=names)
    parts = first.sel(configuration=list(GROUPS)).rename(configuration="group")
    total = (parts**2).sum("group", skipna=False)
    table = xr.Dataset({"norm": parts, "share": parts**2 / total, "joint": np.sqrt(total)})
    table["whole"] = first.sel(configuration="all", drop=True)
    return table.assign_attrs(missing=", ".join(missing))


def step_sizes(grid: xr.Dataset, sizes: xr.Dataset | None = None, clip: float = 1.0, joint: bool = True) -> xr.Dataset:
    """`lr_t c_t n_t / ||theta||` with `c_t = min(1, clip / N_t)`: largest relative update of the component by a step.

    n is the gradient norm of the component, N that of all that trains (joint) or of the component alone (separate).
    Momentum, which adds up to ten such steps, is left out.

    Parameters
    ----------
    grid : Dataset
        With gradient_norm, gradient_norm_head and gradient_norm_total.
    sizes : Dataset (group)
        From `group_sizes`; without it there is no `relative`.

    Returns
    -------
    Dataset (dataset, configuration, rate): head_share, mean over steps and seeds of the share of head and final norm in
    the square of the total norm; factor, mean of c; moved, the largest over steps of `lr c n` with the peak rate, mean
    over seeds; relative, that over the norm of the pretrained parameters.

    Raises
    ------
    InputError
        If the grid has no gradient norms.
    """
    lacking = [n for n in ("gradient_norm", "gradient_norm_head", "gradient_norm_total") if n not in grid]
    if lacking:
        raise InputError(f"the grid has no {', '.join(lacking)}")
    own, head, total = grid["gradient_norm"], grid["gradient_norm_head"], grid["gradient_norm_total"]
    begun = own > 0
    share = (head**2 / total.where(total > 0) ** 2).where(begun).mean(["step", "seed"])
    factor = np.minimum(1.0, clip / (total if joint else own).where(begun))
    moved = (grid["lr"] * factor * own).max("step").mean("seed")
    table = xr.Dataset({"head_share": share, "factor": factor.mean(["step", "seed"]), "moved": moved})
    if sizes is not None:
        squares = sizes["norm"] ** 2
        inner = squares.sel(group=[g for g in squares["group"].values if g not in ("norm", "head")]).sum()
        squares = xr.concat([squares, inner.expand_dims(group=["all"])], "group")
        norms = np.sqrt(squares).reindex(group=grid["configuration"].values).rename(group="configuration")
        table["relative"] = moved / norms
    return table
