"""One side of the pairs: its images, checked as they are read, and their ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError, ModeError, PixelError, ShapeError

#: Normalised pixels lie well inside this; pixels in 0..255 do not.
LARGEST_PIXEL = 20.0


def check_mode(model: nn.Module) -> None:
    """Plasticity is defined in evaluation mode only: with dropout the rate of close pairs has no bound.

    Raises
    ------
    ModeError
        If any submodule is in training mode.
    """
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        shown = ", ".join(training[:3]) + (", ..." if len(training) > 3 else "")
        raise ModeError(f"{len(training)} modules are in training mode ({shown}); call model.eval() first")


class Side:
    """The source or target images of a measurement: float tensor (N, C, H, W), or a split that has `images`.

    `side(index)` reads images, normalised, on the device and in the precision of the model.

    Raises
    ------
    InputError
        If the images are not numbers that a model takes: not normalised, or uint8 with nothing to prepare them.
    ShapeError
        If they are not (N, C, H, W), or not of the channels and size that the model takes.
    PixelError
        If a pixel is NaN or infinite.
    """

    def __init__(self, name: str, images: Any, model: nn.Module, prepare: Any = None) -> None:
        self.name, self.images, self.model, self.prepare = name, images, model, prepare
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        if isinstance(images, Tensor):
            self._check(images)
        elif not hasattr(images, "images"):
            raise InputError(
                f"the {name} is a {type(images).__name__}; give a float tensor (N, C, H, W) of normalised images, "
                "or an image split"
            )
        elif not len(images):
            raise ShapeError(f"the {name} is empty: no images")
        self.ids = [str(i) for i in getattr(images, "ids", range(len(images)))]
        self.groups = [str(g) for g in getattr(images, "groups", self.ids)]

    def __len__(self) -> int:
        return len(self.images)

    def __call__(self, index: np.ndarray) -> Tensor:
        if isinstance(self.images, Tensor):
            # images in their order are a view, no copy
            ordered = index[-1] - index[0] == len(index) - 1 and (np.diff(index) == 1).all()
            choice = slice(index[0], index[-1] + 1) if ordered else torch.from_numpy(index).to(self.images.device)
            found = self.images[choice]
        else:
            found = self.images.images(index)
            if found.dtype == torch.uint8 and self.prepare is not None:
                found = self.prepare(found)
            self._check(found)
        return found.to(self.device, self.dtype)

    def _check(self, images: Tensor) -> None:
        if images.dtype == torch.uint8:
            raise InputError(
                f"the {self.name} images are uint8; prepare them first (LoadedModel.prepare turns 0..255 into the "
                "normalised floats that the model was trained on)"
            )
        if not images.is_floating_point():
            raise InputError(f"the {self.name} images are {images.dtype}, but must be floats")
        if images.ndim != 4:
            raise ShapeError(f"the {self.name} images have shape {tuple(images.shape)}, not (N, C, H, W)")
        if not images.numel():
            raise ShapeError(f"the {self.name} is empty: shape {tuple(images.shape)}")
        check_image_shape(self.model, tuple(images.shape[1:]), self.name)
        check_pixels(images, self.name)


def check_pixels(images: Tensor, name: str) -> None:
    """Whether float images, not empty, hold what normalised pixels are: finite and not in 0..255.

    Raises
    ------
    PixelError
        If a pixel is NaN or infinite.
    InputError
        If a pixel is further from 0 than `LARGEST_PIXEL`.
    """
    low, high = (v.item() for v in torch.aminmax(images))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PixelError(f"the {name} images hold NaN or infinite pixels")
    if max(-low, high) > LARGEST_PIXEL:
        raise InputError(f"the {name} images go from {low:.4g} to {high:.4g}, which looks like 0..255; normalise first")


def check_image_shape(model: nn.Module, shape: Sequence[int], name: str = "images") -> None:
    """Whether the model takes images of `shape` (C, H, W).

    Raises
    ------
    ShapeError
        If not; the message says what it takes.
    """
    patches = getattr(model, "patch_embed", None)
    weight = getattr(getattr(patches, "proj", None), "weight", None)
    if weight is None or weight.ndim != 4:
        return
    channels, patch = weight.shape[1], tuple(weight.shape[2:])
    if shape[0] != channels:
        raise ShapeError(f"the {name} images have {shape[0]} channels, but the model takes {channels}: (N, C, H, W)")
    size = getattr(patches, "img_size", None)
    if size is not None and getattr(patches, "strict_img_size", True):
        if tuple(size) != tuple(shape[1:]):
            raise ShapeError(
                f"the {name} images are {shape[1]} x {shape[2]} pixels, but the model takes {size[0]} x {size[1]}"
            )
    elif not getattr(patches, "dynamic_img_pad", False) and (shape[1] % patch[0] or shape[2] % patch[1]):
        raise ShapeError(
            f"the {name} images are {shape[1]} x {shape[2]} pixels, not multiples of the patch, {patch[0]} x {patch[1]}"
        )
