"""The paper's random crop as numbers: which part of a picture, drawn for its place in a batch and nothing else."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

#: Tries for a part that lies inside the picture, as torchvision's RandomResizedCrop.
ATTEMPTS = 10
#: Area of the part relative to the picture's, and its ratio of width to height.
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def uniforms(seed: int, step: int, places: int) -> np.ndarray:
    """Numbers in [0, 1) of shape (places, 10, 5), for the first `places` pictures of the batch of a step.

    They depend on seed, step and place alone: neither on the batch size, nor on what was drawn before, nor on the
    process that draws. The last axis: area, ratio, top, left, mirror.
    """
    words = np.random.SeedSequence([seed, step, *b"crop"])
    return np.random.Generator(np.random.PCG64(words)).random((places, ATTEMPTS, 5))


def boxes(u: np.ndarray, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Top, left, height and width of the part of each picture, and 1 if it is mirrored: int64 (B, 5).

    The rule of torchvision's RandomResizedCrop with its defaults and of a flip half of the time: area uniform in 0.08
    to 1, ratio 3/4 to 4/3 uniform in its logarithm, the first of ten tries that fits, else the largest part in the
    middle whose ratio is allowed.

    Parameters
    ----------
    u
        (B, 10, 5), see `uniforms`.
    heights, widths
        (B,), pixels of each picture.
    """
    h, w = np.asarray(heights)[:, None], np.asarray(widths)[:, None]
    area = h * w * (AREA[0] + (AREA[1] - AREA[0]) * u[..., 0])
    ratio = np.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * u[..., 1])
    found_w, found_h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (found_w > 0) & (found_w <= w) & (found_h > 0) & (found_h <= h)
    rows, first, some = np.arange(len(u)), fits.argmax(axis=1), fits.any(axis=1)
    h, w = h[:, 0], w[:, 0]
    part_h = np.where(some, found_h[rows, first], np.minimum(h, np.rint(w / RATIO[0])))
    part_w = np.where(some, found_w[rows, first], np.minimum(w, np.rint(h * RATIO[1])))
    top = np.where(some, u[rows, first, 2] * (h - part_h + 1), (h - part_h) // 2)
    left = np.where(some, u[rows, first, 3] * (w - part_w + 1), (w - part_w) // 2)
    return np.stack([top, left, part_h, part_w, u[:, 0, 4] < 0.5], axis=1).astype(np.int64)


def crop_one(picture: np.ndarray, box: np.ndarray, size: int) -> Tensor:
    """The part `box` of a picture (H, W, 3) at `size` x `size` (bilinear, antialiased), mirrored if it says so.

    uint8 (3, size, size), the pixels of torchvision's `resized_crop` and `horizontal_flip`.
    """
    from torchvision.transforms.v2 import functional as F

    top, left, height, width, mirror = box.tolist()
    part = torch.from_numpy(picture[top : top + height, left : left + width].copy()).permute(2, 0, 1)
    new = F.resize(part, [size, size], antialias=True)
    return F.horizontal_flip(new) if mirror else new


def crop_together(pictures: Tensor, box: np.ndarray, size: int) -> Tensor:
    """`crop_one` of many pictures of one size at once, on their device; at most 1 of 255 away from it.

    The parts must not be larger than `size`: enlarging needs no antialiasing, so that one bilinear sample per pixel,
    kept inside the part, is all there is to it.

    Parameters
    ----------
    pictures
        uint8 (B, C, H, W), H and W at most `size`.
    box
        (B, 5), see `boxes`.

    Returns
    -------
    uint8 (B, C, size, size)
    """
    top, left, height, width, mirror = torch.from_numpy(box).to(pictures.device).unbind(dim=1)
    places = (torch.arange(size, device=pictures.device, dtype=torch.float32) + 0.5) / size
    y = _inside(places, height) + top[:, None]
    x = _inside(places, width)
    x = torch.where(mirror[:, None] > 0, x.flip(1), x) + left[:, None]
    # grid_sample counts from -1 to 1 between the outer edges of the picture
    rows, columns = pictures.shape[-2:]
    y, x = (2 * y + 1) / rows - 1, (2 * x + 1) / columns - 1
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1)
    found = torch.nn.functional.grid_sample(
        pictures.float(), grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    return found.round_().clamp_(0, 255).to(torch.uint8)


def _inside(places: Tensor, length: Tensor) -> Tensor:
    """Where the pixels of the result lie in a part of this length: (B, size), from 0 to length - 1."""
    found = places[None] * length[:, None] - 0.5
    return torch.minimum(found.clamp(min=0), (length[:, None] - 1).to(found.dtype))
