"""Training pictures at their own size, a random crop of each a step: read when needed, or kept where all are small.

Memory: pictures that all have one small size (CIFAR: 3 kB each, 120 MB for 40,000) are kept as they are, on the device.
Others are decoded anew in each step, by `workers` processes that each keep two batches of crops ahead (77 MB a batch of
512 crops of 224 pixels).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitplast.errors import InputError
from vitplast.training.batches import ON_DEVICE_BYTES, checked_labels, to_device
from vitplast.training.crops import boxes, crop_one, crop_together, uniforms


@runtime_checkable
class OwnSize(Protocol):
    """What a split offers beside its prepared images: labels and pictures at their own size, uint8 (H, W, 3)."""

    labels: np.ndarray

    def __len__(self) -> int: ...
    def picture(self, index: int) -> np.ndarray: ...


class Pictures:
    """Pictures of a split, from which `feed` makes normalised crops of `size` x `size`.

    The crop of a picture depends on seed, step and place in the batch (`crops.uniforms`), so the batches are the same
    with any number of workers.

    Parameters
    ----------
    split
        Has `picture(i)`, `labels`, a length, and `pictures_size` (height and width that all pictures have, or None).
    prepare
        Normalises uint8 (B, 3, size, size).
    workers
        Processes that decode, at most one a core; 0: this one.
    kept
        Where decoded small pictures are kept for the next run on the same split.
    """

    def __init__(
        self,
        split: OwnSize,
        *,
        size: int,
        seed: int,
        prepare: Callable[[Tensor], Tensor],
        device: torch.device,
        dtype: torch.dtype,
        workers: int = 0,
        kept: MutableMapping[Any, Any] | None = None,
    ) -> None:
        self.prepare, self.device, self.dtype = prepare, device, dtype
        self.workers = min(workers, cores())
        self.crops = Crops(split, size, seed)
        shape = getattr(split, "pictures_size", None)
        self.small = None
        if shape is not None and max(shape) <= size:
            self.small = _all_of(split, {} if kept is None else kept)
            self.small = self.small.to(device) if self.small.nbytes <= ON_DEVICE_BYTES else self.small

    def __len__(self) -> int:
        return len(self.crops)

    @property
    def nbytes(self) -> int:
        """What is kept on the device."""
        return self.small.nbytes if self.small is not None and self.small.device.type == self.device.type else 0

    @property
    def description(self) -> str:
        """Where the pictures are, in words."""
        if self.small is None:
            return "read at their own size in each step"
        return f"kept at their own size, {self.small.shape[-2]} x {self.small.shape[-1]}"

    def feed(self, batches: Tensor) -> Iterator[Tensor]:
        """Normalised crops (B, 3, size, size) on the device for each row of `batches` (steps, B), in order."""
        if self.small is not None:
            for step, indices in enumerate(batches):
                yield self._ready(self._small(step, indices))
            return
        for crops in self._streamed(batches):
            yield self._ready(crops)

    def _small(self, step: int, indices: Tensor) -> Tensor:
        shape = np.broadcast_to(np.array(self.small.shape[-2:])[:, None], (2, len(indices)))
        box = boxes(uniforms(self.crops.seed, step, len(indices)), *shape)
        chosen = to_device(self.small[indices.to(self.small.device)], self.device)
        return crop_together(chosen, box, self.crops.size)

    def _streamed(self, batches: Tensor) -> Iterator[Tensor]:
        workers: dict[str, Any] = {}
        if self.workers:
            # Splits hold functions, which a new process can have only as a copy of this one.
            workers["multiprocessing_context"] = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        loader = DataLoader(
            self.crops,
            batch_sampler=Keys(batches),
            num_workers=self.workers,
            collate_fn=torch.stack,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else the global one is drawn from
            **workers,
        )
        with warnings.catch_warnings():
            if sys.version_info >= (3, 12):  # says that threads do not live on in a copied process; none is needed
                warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            found = iter(loader)
        yield from found

    def _ready(self, crops: Tensor) -> Tensor:
        return self.prepare(to_device(crops, self.device)).to(self.device, self.dtype)


class Crops(Dataset):
    """Key (step, place, index) to the crop of a picture, uint8 (3, size, size)."""

    def __init__(self, split: OwnSize, size: int, seed: int) -> None:
        self.split, self.size, self.seed = split, size, seed

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int, int]) -> Tensor:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[tuple[int, int, int]]) -> list[Tensor]:
        """Crops for a list of keys; PyTorch's loader asks for a batch in this way."""
        drawn = {
            step: uniforms(self.seed, step, 1 + max(place for s, place, _ in keys if s == step))
            for step in {key[0] for key in keys}
        }
        found = []
        for step, place, index in keys:
            picture = np.asarray(self.split.picture(index))
            box = boxes(drawn[step][place : place + 1], *(np.array([n]) for n in picture.shape[:2]))
            found.append(crop_one(picture, box[0], self.size))
        return found


class Keys:
    """The keys of each batch, made when they are asked for."""

    def __init__(self, batches: Tensor) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        for step, indices in enumerate(self.batches):
            yield [(step, place, index) for place, index in enumerate(indices.tolist())]


def labels_of(
    split: Any, name: str, *, classes: int | None, can_prepare: bool, wanted: str = "augment=original"
) -> Tensor:
    """Labels int64 (N,) of a split whose pictures are read at their own size, checked; decodes nothing.

    Raises
    ------
    InputError
        If the split is missing or empty, has no pictures at their own size, cannot be normalised, or a label is not in
        0..classes-1.
    """
    if split is None:
        raise InputError(f"there are no {name} images; finetuning needs train, validation and test images")
    if not isinstance(split, OwnSize) or split.labels is None:
        raise InputError(
            f"{wanted} takes crops from {name} pictures at their own size and their labels, which a split of type "
            f"{type(split).__name__} does not give"
        )
    if len(split) == 0:
        raise InputError(f"the {name} split has no images")
    if not can_prepare:
        raise InputError(f"{name} images are uint8: pass `prepare`, which normalises them for the checkpoint")
    return checked_labels(torch.as_tensor(np.array(split.labels)), name, classes)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _all_of(split: OwnSize, kept: MutableMapping[Any, Any]) -> Tensor:
    """All pictures, uint8 (N, 3, H, W); of the latest split they are kept."""
    if kept.get("pictures", (None,))[0] is not split:
        found = np.stack([np.asarray(split.picture(i)) for i in range(len(split))])
        kept["pictures"] = split, torch.from_numpy(found).permute(0, 3, 1, 2).contiguous()
    return kept["pictures"][1]
