"""Accuracy and loss over a whole split, counted image by image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitplast.training.batches import Images

BATCH = 64


def evaluate(
    forward: Callable[[Tensor], Tensor],
    inputs: Images,
    labels: Tensor,
    *,
    batch_size: int = BATCH,
    accuracy_batch: int = 0,
) -> tuple[float, float]:
    """Fraction of images classified right, and mean cross-entropy in nats; all images, in order.

    Correct images are counted and divided once, so the batch size doesn't weigh images. With `accuracy_batch` n > 0 the
    accuracy is what the authors report: the mean over batches of n images, the last one perhaps smaller, of the
    fraction right in each; the loss stays a mean over images. `labels` is (N,). The first of equal logits is the
    prediction.
    """
    right, loss = [], 0.0
    with torch.inference_mode():
        for indices in torch.arange(len(inputs)).split(batch_size):
            logits = forward(inputs.at(indices))
            logits = logits if logits.dtype == torch.float64 else logits.float()
            wanted = labels[indices].to(logits.device)
            right.append(logits.argmax(dim=1) == wanted)
            loss += float(cross_entropy(logits, wanted, reduction="none").double().sum())
    hits = torch.cat(right).double()
    if not accuracy_batch:
        return int(hits.sum()) / len(inputs), loss / len(inputs)
    return float(torch.stack([part.mean() for part in hits.split(accuracy_batch)]).mean()), loss / len(inputs)
