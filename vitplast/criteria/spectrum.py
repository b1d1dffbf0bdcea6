"""Singular values above the noise, over those below: Spectrum (Hartford et al., 2024, arXiv 2406.06623)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import xarray as xr
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.criteria.scores import scored
from vitplast.errors import LayoutError, ShapeError, UnknownNameError

#: How the noise level is taken from the singular values: from their quartiles, as published, or from their median.
NOISE = ("quartiles", "median")
#: Interquartile range of the standard normal distribution, as rounded in Spectrum.
NORMAL_RANGE = 1.349
NO_MATRIX = "a layer norm has a vector of scales, which has no spectrum"


@lru_cache
def noise_median(ratio: float) -> float:
    """Median of the law of Marchenko and Pastur: eigenvalues of `X X^T / m`, X of shape (ratio m, m) with unit noise.

    Examples
    --------
    >>> round(noise_median(1.0), 3)
    0.653
    """
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    middle, half = (low + high) / 2, (high - low) / 2

    def below(angle: float) -> float:
        # t = middle - half cos(a): the square roots at both edges become sines
        def density(a: float) -> float:
            t = middle - half * np.cos(a)
            return half**2 * np.sin(a) ** 2 / (2 * np.pi * ratio * t) if t > 0 else half / (np.pi * ratio)

        return quad(density, 0, angle)[0]

    return float(middle - half * np.cos(brentq(lambda angle: below(angle) - 0.5, 0, np.pi)))


def signal_to_noise(weight: Tensor, noise: str = "quartiles") -> float:
    """`(sum of s > e / sum of s <= e) / s_max` of the singular values s, with the edge e of pure noise.

    "quartiles" is Spectrum's own edge, `e = sigma (1 + sqrt(n / m))` for n <= m, `sigma = (q75 - q25) / 1.349`. The
    singular values of noise are not normal, and this edge lies inside them: pure noise seems to have a signal there.
    "median" sets the edge where the law of Marchenko and Pastur ends whose median is that of the singular values
    (Gavish and Donoho, 2014): `e = (sqrt(n) + sqrt(m)) median(s) / sqrt(m noise_median(n / m))`, so that pure noise has
    (nearly) no signal. Where nothing lies below the edge (as may be with the published one in oblong matrices), the
    smallest singular value counts as noise; a matrix of zeros has ratio 0.

    Raises
    ------
    ShapeError
        If the weight is no matrix or empty.
    UnknownNameError
        If `noise` is none of `NOISE`.

    Examples
    --------
    >>> weight = torch.eye(100)
    >>> weight[0, 0] = 50.0
    >>> round(signal_to_noise(weight, "median"), 4)  # 50 / 99 / 50
    0.0101
    """
    if noise not in NOISE:
        raise UnknownNameError("noise", noise, NOISE)
    if weight.ndim != 2 or not weight.numel():
        raise ShapeError(f"a matrix is needed, got shape {tuple(weight.shape)}")
    values = torch.linalg.svdvals(weight.detach().double()).cpu().numpy()
    n, m = sorted(weight.shape)
    if noise == "quartiles":
        low, high = np.quantile(values, (0.25, 0.75))
        edge = (high - low) / NORMAL_RANGE * (1 + np.sqrt(n / m))
    else:
        edge = (np.sqrt(n) + np.sqrt(m)) * np.median(values) / np.sqrt(m * noise_median(n / m))
    below = values[values <= edge].sum()
    if not values[-1] and not below:
        return 0.0
    return float(values[values > edge].sum() / (below or values[-1]) / values[0])


def spectrum(model: nn.Module, noise: str = "quartiles") -> xr.Dataset:
    """Mean `signal_to_noise` of the matrices of the component: one for FC1 and FC2; Q, K, V and O for MHA.

    LayerNorms have no matrix: NaN. The total is the mean over blocks. Spectrum trains what has the highest ratio.

    Raises
    ------
    LayoutError
        If FC1 or FC2 has no weight matrix, or the attention no `qkv` and `proj`.
    """
    found = parts(model)
    values = np.full((1 + found[-1].layer, len(COMPONENTS)), np.nan)
    for part in found:
        matrices = _matrices(part)
        if matrices:
            ratios = [signal_to_noise(w, noise) for w in matrices]
            values[part.layer, COMPONENTS.index(part.component)] = np.mean(ratios)
    return scored(values, "mean", reasons=dict.fromkeys(("LN1", "LN2"), NO_MATRIX))


def _matrices(part: Part) -> list[Tensor]:
    if part.component in ("LN1", "LN2"):
        return []
    names = ("qkv", "proj") if part.component == "MHA" else ("",)
    layers = [getattr(part.module, name, None) if name else part.module for name in names]
    weights = [getattr(layer, "weight", None) for layer in layers]
    if any(w is None or w.ndim != 2 for w in weights):
        raise LayoutError(f"{part.name} is a {type(part.module).__name__} without weight matrices")
    return [*weights[0].chunk(3), weights[1]] if part.component == "MHA" else weights
