"""Labelled images that are checked, put in a seeded order, cropped at random and normalised a batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError, PixelError, ShapeError

#: Images up to this size are kept on the device; larger sets are sent a batch at a time.
ON_DEVICE_BYTES = 2**31
#: Normalised images lie within a few units; a larger float image was not normalised.
LARGEST_FLOAT = 64.0


class Labelled(Protocol):
    """What an image split offers: all its images and labels."""

    def all(self) -> tuple[Tensor, Tensor]: ...


Split = Labelled | tuple[Tensor, Tensor]


class Images:
    """Images (N, C, H, W), uint8 or already normalised floats; `at(indices)` gives a normalised batch on the device."""

    def __init__(
        self, images: Tensor, prepare: Callable[[Tensor], Tensor] | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.images = images.to(device) if images.nbytes <= ON_DEVICE_BYTES else images
        self.prepare = prepare if images.dtype == torch.uint8 else None
        self.device, self.dtype = device, dtype

    def __len__(self) -> int:
        return len(self.images)

    @property
    def nbytes(self) -> int:
        """What is kept on the device."""
        return self.images.nbytes if self.images.device.type == self.device.type else 0

    def subset(self, indices: Tensor) -> Images:
        """These images alone, in this order."""
        return Images(self.images[indices.to(self.images.device)], self.prepare, self.device, self.dtype)

    def at(self, indices: Tensor, augment: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        batch = self.images[indices.to(self.images.device)]
        if augment is not None:
            batch = augment(batch)
        batch = to_device(batch, self.device)
        if self.prepare is not None:
            batch = self.prepare(batch)
        return batch.to(self.device, self.dtype)

    def feed(self, batches: Iterable[Tensor], augment: Callable[[Tensor], Tensor] | None = None) -> Iterator[Tensor]:
        """`at` each row of indices in turn."""
        return (self.at(indices, augment) for indices in batches)


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """The batch on the device; from the host to a GPU through pinned memory, without waiting for the copy."""
    if device.type == "cuda" and batch.device.type == "cpu":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)


def labelled(
    split: Split | None, name: str, *, classes: int | None, model: nn.Module, can_prepare: bool
) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) and int64 labels (N,) of a split (an object with `all()`, or a pair), checked.

    Raises
    ------
    InputError
        If the split is missing or empty, labels are no whole numbers in 0..classes-1 (`classes` None: any from 0 on),
        images are not normalised, or uint8 without something that normalises them.
    PixelError
        If a pixel is NaN or infinite.
    ShapeError
        If images are not (N, C, H, W), not of the size that the model takes, or not as many as labels.
    """
    if split is None:
        raise InputError(f"there are no {name} images; finetuning needs train, validation and test images")
    images, labels = split.all() if hasattr(split, "all") and not isinstance(split, Tensor) else split
    images, labels = torch.as_tensor(images), torch.as_tensor(labels)
    if images.ndim != 4 or labels.ndim != 1 or len(images) != len(labels):
        raise ShapeError(
            f"{name} images must be (N, C, H, W) and labels (N,), got {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    if len(images) == 0:
        raise InputError(f"the {name} split has no images")
    _check_size(images, name, model)
    labels = checked_labels(labels, name, classes)
    if images.dtype == torch.uint8:
        if not can_prepare:
            raise InputError(f"{name} images are uint8: pass `prepare`, which normalises them for the checkpoint")
    elif images.dtype.is_floating_point:
        largest = float(images.abs().max())
        if not math.isfinite(largest):
            raise PixelError(f"{name} images hold values that are not finite")
        if largest > LARGEST_FLOAT:
            raise InputError(f"{name} images reach {largest:g}: they are not normalised; pass them as uint8")
    else:
        raise InputError(f"{name} images must be uint8 or normalised floats, got {images.dtype}")
    return images, labels


def checked_labels(labels: Tensor, name: str, classes: int | None) -> Tensor:
    """Labels as int64; an InputError if they are no whole numbers in 0..classes-1 (`classes` None: any from 0 on)."""
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise InputError(f"{name} labels must be whole numbers, got {labels.dtype}")
    labels = labels.to(torch.int64)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "at least 0" if classes is None else f"in 0..{classes - 1} (the head has {classes} outputs)"
        raise InputError(f"{name} labels must be {allowed}, got {low}..{high}")
    return labels


def order(images: int, *, batch_size: int, steps: int, seed: int, drop: int = 0) -> Tensor:
    """Indices (steps, batch_size) into the training images, a new random permutation for each pass.

    Passes follow each other without a gap: a batch that the end of a pass leaves incomplete is filled from the next
    pass, so that every image is used equally often and every step has `batch_size` images. With `drop` > 0 each pass is
    cut to a multiple of `drop` images instead, as by a loader with batches of `drop` that leaves the last one out.

    Raises
    ------
    InputError
        If there are fewer than `drop` images, so that nothing would be left of a pass.
    """
    g = generator(seed, "order")
    used = images // drop * drop if drop else images
    if used == 0:
        raise InputError(f"{images} training images make no batch of {drop}, and an incomplete one is dropped")
    passes = math.ceil(steps * batch_size / used)
    indices = torch.cat([torch.randperm(images, generator=g)[:used] for _ in range(passes)])
    return indices[: steps * batch_size].reshape(steps, batch_size)


class RandomCrop:
    """The paper's augmentation: a random part of the image at its old size, mirrored half of the time.

    Area 0.08 to 1 of the image's, ratio of width to height 3/4 to 4/3 (uniform in its logarithm), bilinear. Parameters
    are drawn from a generator of its own; the global random state is neither read nor changed.
    """

    def __init__(self, seed: int) -> None:
        self.generator = generator(seed, "augment")

    def __call__(self, images: Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        size = list(images.shape[-2:])
        cropped = []
        for image in images:
            top, left, height, width, mirror = self.draw(*size)
            new = F.resized_crop(image, top, left, height, width, size=size, antialias=True)
            cropped.append(F.horizontal_flip(new) if mirror else new)
        return torch.stack(cropped)

    def draw(self, height: int, width: int) -> tuple[int, int, int, int, bool]:
        """Top, left, height and width of the part, and whether it is mirrored."""
        for _ in range(10):
            u = torch.rand(5, generator=self.generator, dtype=torch.float64).tolist()
            area = height * width * (0.08 + 0.92 * u[0])
            ratio = math.exp((2 * u[1] - 1) * math.log(4 / 3))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(u[2] * (height - h + 1)), int(u[3] * (width - w + 1)), h, w, u[4] < 0.5
        # As torchvision: the largest part in the middle whose ratio is allowed.
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        return (height - h) // 2, (width - w) // 2, h, w, u[4] < 0.5


def generator(seed: int, use: str) -> torch.Generator:
    """A generator for one use of a run's seed; different uses are independent of each other."""
    words = np.random.SeedSequence([seed, *use.encode()]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)


def _check_size(images: Tensor, name: str, model: nn.Module) -> None:
    embed = getattr(model, "patch_embed", None)
    size, projection = getattr(embed, "img_size", None), getattr(embed, "proj", None)
    channels = getattr(projection, "in_channels", images.shape[1])
    if images.shape[1] != channels:
        raise ShapeError(f"{name} images have {images.shape[1]} channels, the model takes {channels}")
    if size is not None and getattr(embed, "strict_img_size", True) and tuple(images.shape[2:]) != tuple(size):
        raise ShapeError(f"{name} images are {tuple(images.shape[2:])}, the model takes {tuple(size)}")
