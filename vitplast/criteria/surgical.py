"""Auto-RGN and Auto-SNR of Surgical Fine-Tuning (Lee et al., ICLR 2023, arXiv 2210.11466)."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from vitplast.criteria.accumulate import GradientSums, PartSums
from vitplast.criteria.norms import by_part, passes, squared_mean
from vitplast.criteria.scores import scored
from vitplast.errors import InputError

#: Gradients this small, relative to the root mean square of their component, are rounding.
ROUNDING = 1e-5


def auto_rgn(sums: GradientSums) -> xr.Dataset:
    """`||g|| / ||theta||`, g the mean gradient over all images: the relative gradient norm.

    The paper takes the ratio for each parameter tensor (its code averages it over five batches) and scales learning
    rates by it. Here what the paper calls a layer is a component, in one block or in all: norms are joint, and the
    whole sample is one batch.
    """
    gradient, size = by_part(sums, squared_mean), by_part(sums, _squared_parameters)
    return scored(np.sqrt(gradient / size), np.sqrt(gradient.sum(0) / size.sum(0)), **passes(sums))


def auto_snr(sums: GradientSums) -> xr.Dataset:
    """`mean over parameters j of (mean_i g_ij)^2 / var_i(g_ij)`, var with ddof 1: the signal-to-noise ratio.

    Over images i, as the paper defines it for examples (the variance in its code runs over the first axis of the
    tensor instead, with 1e-8 added). Pure noise has about 1/N. What is rounding does not count: gradients below
    `ROUNDING` of the component's root mean square (key biases have gradient 0), and those that are the same for all
    images, unless that leaves nothing (HypothesisError by `scored`).

    Raises
    ------
    InputError
        If there is but one image.
    """
    if sums.images < 2:
        raise InputError("one image has no variance: auto_snr needs two or more")
    ratios, counts = (
        by_part(sums, lambda s: _ratios(s, sums.images)[0]),
        by_part(sums, lambda s: _ratios(s, sums.images)[1]),
    )
    return scored(ratios / counts, ratios.sum(0) / counts.sum(0), **passes(sums))


def _ratios(s: PartSums, images: int) -> tuple[float, int]:
    """Sum of the ratios, and how many there are."""
    total, count = 0.0, 0
    floor = ROUNDING**2 * sum(float(v.sum()) for v in s.square.values()) / s.parameters
    for name, mean in s.mean.items():
        variance = (s.square[name] - mean.square()) * images / (images - 1)
        # rounding of float32 gradients may leave a variance of 0 or below
        there = (s.square[name] > floor) & (variance > 1e-12 * s.square[name])
        total += float((mean.square()[there] / variance[there]).sum())
        count += int(there.sum())
    return total, count


def _squared_parameters(s: PartSums) -> float:
    return sum(float(torch.linalg.vector_norm(v)) ** 2 for v in s.values.values())
