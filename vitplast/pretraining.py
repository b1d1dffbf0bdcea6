"""Supervised pretraining of the project's own small vision transformer, from random weights on one image set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from vitplast.errors import InputError
from vitplast.training.batches import Images, generator, order
from vitplast.training.evaluate import evaluate

#: Pixels by which a training image is moved at most in each direction; what comes in is black.
SHIFT = 4


def pretrain(
    model: nn.Module,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    prepare: Callable[[Tensor], Tensor],
    epochs: int,
    batch_size: int = 128,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Trains all parameters with AdamW, linear warm-up over a twentieth of the steps, then cosine to 0, and clip 1.

    Every training image is moved at random by up to `SHIFT` pixels and mirrored half of the time. The last state is
    kept, whatever the validation says; the weights are rounded to half precision before the last evaluation, as they
    are stored so.

    Parameters
    ----------
    model
        A vision transformer with a head for the labels, on the device where it is to be trained. Changed in place.
    train, validation, test
        uint8 images (N, C, H, W) and labels (N,).
    prepare
        Normalises uint8 images.
    progress
        Called as `progress(steps_done, steps)`.

    Returns
    -------
    Dataset of kind "pretrain": over `epoch` train_loss, validation_accuracy, validation_loss; scalars test_accuracy,
    validation_accuracy_last, seconds, images_per_second.

    Raises
    ------
    InputError
        If `epochs` is below 1 or the loss stops being finite.
    """
    if epochs < 1:
        raise InputError(f"epochs must be at least 1, got {epochs}")
    device = next(model.parameters()).device
    inputs = [Images(images, prepare, device, torch.float32) for images, _ in (train, validation, test)]
    per_epoch = math.ceil(len(train[1]) / batch_size)
    steps = epochs * per_epoch
    batches = order(len(train[1]), batch_size=batch_size, steps=steps, seed=seed)
    optimizer = torch.optim.AdamW(_decayed(model, weight_decay), lr=lr, fused=device.type in ("cpu", "cuda"))
    augment, warmup = Moved(seed), max(1, steps // 20)
    losses, validations, seen, clock = [], [], 0.0, time.perf_counter()
    for step, indices in enumerate(batches):
        model.train()
        fallen = max(0, step - warmup) / max(1, steps - warmup)
        rate = lr * min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * fallen)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = cross_entropy(model(inputs[0].at(indices, augment)), train[1][indices].to(device))
        seen += float(loss.detach())
        if not math.isfinite(seen):
            raise InputError(f"the loss is not finite in step {step}: choose a smaller rate than {lr:g}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % per_epoch == 0:
            losses.append(seen / per_epoch)
            seen = 0.0
            validations.append(evaluate(model.eval(), inputs[1], validation[1], batch_size=256))
        if progress is not None:
            progress(step + 1, steps)
    seconds = time.perf_counter() - clock
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    model.eval()
    last = evaluate(model, inputs[1], validation[1], batch_size=256)
    tested = evaluate(model, inputs[2], test[1], batch_size=256)
    accuracy, loss = (np.array(values) for values in zip(*validations, strict=True))
    scalars = {
        "test_accuracy": tested[0], "test_loss": tested[1], "validation_accuracy_last": last[0], "seconds": seconds,
        "images_per_second": steps * batch_size / seconds,
    }  # fmt: skip
    splits = {"n_train": train, "n_validation": validation, "n_test": test}
    counts = {name: len(split[1]) for name, split in splits.items()}
    return xr.Dataset(
        {
            "train_loss": ("epoch", np.array(losses)),
            "validation_accuracy": ("epoch", accuracy),
            "validation_loss": ("epoch", loss),
            **{name: ((), np.float64(value)) for name, value in scalars.items()},
            **{name: ((), np.int64(value)) for name, value in counts.items()},
        },
        coords={"epoch": np.arange(1, epochs + 1, dtype=np.int64)},
    )


class Moved:
    """Images (B, C, H, W) moved by up to `SHIFT` pixels and mirrored half of the time, from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = generator(seed, "augment")

    def __call__(self, images: Tensor) -> Tensor:
        count, height, width = len(images), *images.shape[-2:]
        wide = pad(images, (SHIFT,) * 4)
        top, left = torch.randint(0, 2 * SHIFT + 1, (2, count), generator=self.generator)
        mirrored = torch.rand(count, generator=self.generator) < 0.5
        rows = (top[:, None] + torch.arange(height))[:, None, :, None]
        columns = torch.arange(width).expand(count, width).clone()
        columns[mirrored] = columns[mirrored].flip(1)
        columns = (left[:, None] + columns)[:, None, None, :]
        moved = wide[torch.arange(count)[:, None, None, None], torch.arange(images.shape[1])[None, :, None, None],
                     rows.to(images.device), columns.to(images.device)]  # fmt: skip
        return moved


def _decayed(model: nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay on matrices alone: not on biases, norms, class token and position embedding."""
    decayed = {n for n, p in model.named_parameters() if p.ndim > 1 and n not in ("cls_token", "pos_embed")}
    split = [[p for n, p in model.named_parameters() if (n in decayed) is side] for side in (True, False)]
    return [{"params": split[0], "weight_decay": weight_decay}, {"params": split[1], "weight_decay": 0.0}]
