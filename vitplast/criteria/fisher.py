"""Trace of the empirical Fisher information."""

from __future__ import annotations

import xarray as xr

from vitplast.criteria.accumulate import GradientSums
from vitplast.criteria.norms import by_part, passes
from vitplast.criteria.scores import scored


def fisher(sums: GradientSums) -> xr.Dataset:
    """`sum_j (1/N) sum_i g_ij^2`: trace of the diagonal empirical Fisher, gradients at the true labels.

    As in the FISH mask (Sung et al., NeurIPS 2021, arXiv 2111.09839), summed over the parameters of the component; the
    total is the sum over blocks. Equals the mean squared norm of the gradients of single images.
    """
    return scored(by_part(sums, lambda s: sum(float(v.sum()) for v in s.square.values())), "sum", **passes(sums))
