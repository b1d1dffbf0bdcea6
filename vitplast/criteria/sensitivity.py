"""Squared-gradient sensitivity of SPT (He et al., ICCV 2023, arXiv 2303.08566)."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.criteria.accumulate import GradientSums
from vitplast.criteria.norms import by_part, passes
from vitplast.criteria.scores import scored
from vitplast.errors import InputError

#: Share of all parameters that count as sensitive: a budget that SPT shows patterns for.
SHARE = 0.004


def spt(sums: GradientSums) -> xr.Dataset:
    """`sum over parameters j and batches b of g_bj^2`, g_b the mean gradient of batch b: first-order gain of a step.

    A gradient step of one parameter lowers the loss by its squared gradient times the rate; SPT sums that over batches.
    The total is the sum over blocks. Batches are those of `gradient_sums`.
    """
    return scored(by_part(sums, lambda s: sum(float(b.sum()) for b in s.batches.values())), "sum", **passes(sums))


def spt_count(sums: GradientSums, *, share: float = SHARE) -> xr.Dataset:
    """`#{j in the component: s_j among the largest} / #{largest}`, the `share` of parameters with the largest s_j.

    `s_j` is the sensitivity of `spt`. SPT tunes the matrices that hold the most of these parameters as a whole, and the
    others entry by entry. Of equal values at the border as many count as are needed, the first ones.

    Parameters
    ----------
    share
        Of the parameters of all components, above 0, at most 1.

    Raises
    ------
    InputError
        If `share` is out of range.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share}")
    count = max(1, round(share * sum(s.parameters for s in sums.parts)))
    # the largest of each part suffice to find the largest of all, so nothing as long as all parameters is made
    tops = [torch.cat([b.flatten() for b in s.batches.values()]) for s in sums.parts]
    tops = [torch.topk(t, min(count, len(t))).values for t in tops]
    owner = np.repeat(np.arange(len(tops)), [len(t) for t in tops])
    order = np.argsort(-torch.cat(tops).cpu().numpy(), kind="stable")[:count]
    values = np.zeros((sums.layers, len(COMPONENTS)))
    for k, number in enumerate(np.bincount(owner[order], minlength=len(tops))):
        part = sums.parts[k].part
        values[part.layer, COMPONENTS.index(part.component)] = number / count
    return scored(values, "sum", **passes(sums))
