"""Training images as the authors' linear probe sees them: one pass of the finetuning loader, random crops and all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitplast.training.batches import order
from vitplast.training.pictures import Crops, OwnSize, labels_of


class PaperView:
    """N // b batches of b images in random order, a random crop of each: of N images those of an incomplete batch lack.

    The first pass that finetuning makes with this seed, `augment="original"` and `last_batch="dropped"`. Crops come
    from the pictures at their own size; `at` gives them normalised, as `training.batches.Images` gives whole images.

    Parameters
    ----------
    split
        Has `picture(i)`, `labels` and a length.
    size
        Side of a crop in pixels.
    batch
        Images in a batch, b; the authors' is 512.
    prepare
        Normalises uint8 (B, 3, size, size).

    Raises
    ------
    InputError
        If there are fewer than `batch` images, or the split has no labels or no pictures at their own size.
    """

    def __init__(
        self,
        split: OwnSize | None,
        *,
        size: int,
        batch: int,
        seed: int,
        prepare: Callable[[Tensor], Tensor] | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        labels = labels_of(split, "train", classes=None, can_prepare=prepare is not None, wanted="view=paper")
        indices = order(len(split), batch_size=batch, steps=max(1, len(split) // batch), seed=seed, drop=batch)
        self.crops, self.prepare, self.device, self.dtype = Crops(split, size, seed), prepare, device, dtype
        self.keys = [(step, p, i) for step, row in enumerate(indices.tolist()) for p, i in enumerate(row)]
        #: int64 (len(self),), in the order of the crops.
        self.labels = labels[indices.flatten()]

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, rows: Tensor) -> Tensor:
        """Normalised crops (B, 3, size, size) on the device."""
        crops = torch.stack(self.crops.__getitems__([self.keys[row] for row in rows.tolist()]))
        return self.prepare(crops.to(self.device)).to(self.device, self.dtype)
