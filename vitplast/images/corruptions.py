"""Five corruptions of CIFAR-10-C, on uint8 RGB images, at any size, with numpy and scipy alone.

Constants of all five severities are those of CIFAR-10-C (Hendrycks and Dietterich, "Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations", 2019; their program for CIFAR-10), not the far stronger ones of
ImageNet-C. What differs from the original:

- It is applied to the image at its final size, with the same constants in pixels. The original worked at 32 pixels.
- Motion blur (also inside snow) follows ImageMagick's rule, a one-sided Gaussian over 2 radius + 1 pixels along a line
  at whole-pixel offsets with repeated edges, but was not compared with ImageMagick bit for bit.
- The result is rounded to the nearest level; the original cuts off the fraction (at most one level of difference).
- Every image has its own generator, so an image does not depend on those before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vitplast.errors import InputError, ShapeError, UnknownNameError

SEVERITIES = (1, 2, 3, 4, 5)

#: Constants for severities 1 to 5. contrast: factor; noises: deviation (image in 0..1); motion blur: radius, sigma;
#: snow: mean and deviation of the flakes, zoom, threshold, radius and sigma of their blur, weight of the image.
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "motion_blur": ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    "snow": (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ),
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
}
CORRUPTIONS = tuple(CONSTANTS)

#: Weights of red, green and blue in the grey value (ITU-R BT.601).
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def generator(base: str, image_id: str, corruption: str, severity: int) -> np.random.Generator:
    """The random numbers of one image: PCG64 seeded with SHA-256 of set, image, corruption and severity."""
    text = "\x1f".join((base, image_id, corruption, str(severity)))
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")))


def corrupt(image: np.ndarray, corruption: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """The corrupted image, uint8 (height, width, 3), from one of the same shape; `rng` is used up in a fixed order.

    Raises
    ------
    UnknownNameError, InputError
        If the corruption is not one of `CORRUPTIONS` or the severity not 1..5.
    ShapeError
        If the image is not uint8 (height, width, 3).
    """
    if corruption not in CONSTANTS:
        raise UnknownNameError("corruption", corruption, CORRUPTIONS)
    if type(severity) is not int or severity not in SEVERITIES:
        raise InputError(f"severity must be a whole number 1..5, got {severity!r}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ShapeError(f"the image must be uint8 (height, width, 3), got {image.dtype} {image.shape}")
    x = image.astype(np.float32) / 255.0
    result = FUNCTIONS[corruption](x, CONSTANTS[corruption][severity - 1], rng)
    return np.rint(np.clip(result, 0.0, 1.0) * 255.0).astype(np.uint8)


def contrast(x: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    """mean + factor (x - mean), the mean taken per channel; nothing random."""
    mean = x.mean(axis=(0, 1), keepdims=True, dtype=np.float64).astype(np.float32)
    return mean + factor * (x - mean)


def gaussian_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """x + deviation z, z standard normal per pixel and channel."""
    return x + deviation * rng.standard_normal(x.shape, dtype=np.float32)


def speckle_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """x (1 + deviation z), z standard normal per pixel and channel."""
    return x * (1.0 + deviation * rng.standard_normal(x.shape, dtype=np.float32))


def motion_blur(x: np.ndarray, constants: tuple[int, float], rng: np.random.Generator) -> np.ndarray:
    """Blur along a line at an angle drawn from U(-45, 45) degrees."""
    radius, sigma = constants
    return blur_along(x, radius, sigma, rng.uniform(-45.0, 45.0))


def snow(x: np.ndarray, constants: tuple, rng: np.random.Generator) -> np.ndarray:
    """Brightened image plus blurred flakes, plus the same flakes turned by 180 degrees."""
    mean, deviation, zoom, threshold, radius, sigma, weight = constants
    flakes = mean + deviation * rng.standard_normal(x.shape[:2], dtype=np.float32)
    flakes = zoom_centre(flakes, zoom)
    flakes = np.where(flakes < threshold, 0.0, flakes).clip(0.0, 1.0)
    flakes = np.floor(flakes * 255.0).astype(np.float32) / 255.0
    flakes = blur_along(flakes[..., None], radius, sigma, rng.uniform(-135.0, -45.0))
    whitened = np.maximum(x, (x @ GREY)[..., None] * 1.5 + 0.5)
    return weight * x + (1.0 - weight) * whitened + flakes + flakes[::-1, ::-1]


def blur_along(x: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """sum_i w_i x[p + o_i], w_i = exp(-i^2 / (2 sigma^2)) / sum, i = 0..2 radius.

    o_i is i steps along `angle` (degrees), x is (height, width, channels). Offsets are rounded to whole pixels; beyond
    the edge the edge pixel counts.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2.0 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    turned = math.radians(angle)
    dx = np.ceil(steps * math.cos(turned) - 0.5).astype(int)
    dy = np.ceil(steps * math.sin(turned) - 0.5).astype(int)
    reach = 2 * radius + 1
    height, width = x.shape[:2]
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    out = np.zeros_like(x)
    for weight, right, down in zip(weights, dx, dy, strict=True):
        out += weight * padded[reach + down : reach + down + height, reach + right : reach + right + width]
    return out


def zoom_centre(x: np.ndarray, factor: float) -> np.ndarray:
    """The middle part of x (height, width), enlarged `factor` times (linear) to the size of x."""
    from scipy import ndimage

    if factor == 1.0:
        return x
    parts = [math.ceil(n / factor) for n in x.shape]
    starts = [(n - part) // 2 for n, part in zip(x.shape, parts, strict=True)]
    middle = x[starts[0] : starts[0] + parts[0], starts[1] : starts[1] + parts[1]]
    large = ndimage.zoom(middle, factor, order=1)
    trims = [(big - n) // 2 for big, n in zip(large.shape, x.shape, strict=True)]
    return large[trims[0] : trims[0] + x.shape[0], trims[1] : trims[1] + x.shape[1]]


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "contrast": contrast,
    "gaussian_noise": gaussian_noise,
    "motion_blur": motion_blur,
    "snow": snow,
    "speckle_noise": speckle_noise,
}
