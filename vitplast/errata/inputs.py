"""A5 to A7: statistics of another checkpoint, images in file order and used again, every component on the embedding.

Valid versions: `load_model` normalises with the checkpoint's own statistics, `pair_indices` shuffles both sides,
`resampling` knows which images repeat, and `measure` has both input conventions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitplast.errors import InputError, ShapeError

Statistics = tuple[Sequence[float], Sequence[float]]


def normalised(images: Tensor, statistics: Statistics) -> Tensor:
    """`(image / 255 - mean) / std` per channel: uint8 (B, 3, H, W) to float32.

    Raises
    ------
    InputError
        If the images are not uint8.
    """
    if images.dtype != torch.uint8:
        raise InputError(f"images must be uint8, got {images.dtype}")
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in statistics)
    return (images.float() / 255 - mean) / std


def widening(used: Statistics, right: Statistics) -> tuple[float, float]:
    """A5: smallest and largest factor by which differences of pixels grow, `std_right / std_used` over the channels.

    Examples
    --------
    >>> widening(((0.0,), (0.25,)), ((0.0,), (0.5,)))
    (2.0, 2.0)
    """
    factors = [float(r) / float(u) for u, r in zip(used[1], right[1], strict=True)]
    return min(factors), max(factors)


def file_order(images: int, needed: int, batch: int) -> np.ndarray:
    """A6 as the authors' code does it: indices of the images that a loader without shuffling hands out.

    It goes through the files in order, leaves out the last incomplete batch, and starts again when it is through.

    Raises
    ------
    InputError
        If there is not even one whole batch.

    Examples
    --------
    >>> file_order(5, needed=6, batch=2)
    array([0, 1, 2, 3, 0, 1])
    """
    whole = images // batch * batch
    if whole == 0:
        raise InputError(f"{images} images do not make one batch of {batch}")
    return np.resize(np.arange(whole), needed)


def classes_seen(labels: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The different labels among the images at these indices.

    Examples
    --------
    >>> classes_seen(np.repeat([7, 8, 9], 4), file_order(12, needed=8, batch=4))
    array([7, 8])
    """
    return np.unique(np.asarray(labels)[indices])


def times_used(images: int, needed: int, batch: int) -> tuple[int, float]:
    """A6: number of different images behind `needed` of them, and how often one is used on average.

    Examples
    --------
    >>> times_used(5, needed=6, batch=2)
    (4, 1.5)
    """
    distinct = len(np.unique(file_order(images, needed, batch)))
    return distinct, needed / distinct


def cycled_errors(images: int, pairs: int, *, share: float, repetitions: int, seed: int = 0) -> tuple[float, float]:
    """A6: claimed and true deviation of a mean over pairs whose target images are used again and again.

    Rates are `a_k + b_j` with independent normal terms: source image k is new in each pair, target image j comes back
    every `images` pairs; b has the given share of a variance of 1. Claimed: `s / sqrt(pairs)`, mean over the
    repetitions; true: the deviation of the means.

    Raises
    ------
    InputError
        If the share is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise InputError(f"share must be between 0 and 1, got {share}")
    rng = np.random.default_rng(seed)
    own = np.sqrt(1 - share) * rng.standard_normal((repetitions, pairs))
    target = np.sqrt(share) * rng.standard_normal((repetitions, images))
    rates = own + target[:, np.arange(pairs) % images]
    claimed = rates.std(axis=1) / np.sqrt(pairs)
    return float(claimed.mean()), float(rates.mean(axis=1).std(ddof=1))


def padded_rate(weight: Tensor, x: Tensor, y: Tensor) -> float:
    """A7 as the authors' code does it: mean rate of FC2 on (embedding, 0, ..., 0), so on its first E columns.

    Parameters
    ----------
    weight
        Of FC2, shape (E, hidden).
    x, y
        Embeddings, shape (B, n, E).

    Raises
    ------
    ShapeError
        If the hidden width is smaller than E.

    Examples
    --------
    >>> weight = torch.tensor([[1.0, 5.0]])
    >>> padded_rate(weight, torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    1.0
    """
    width = x.shape[-1]
    if weight.ndim != 2 or weight.shape[1] < width:
        raise ShapeError(f"{width} features cannot be padded to the inputs of a weight {tuple(weight.shape)}")
    difference = (x - y).double()
    out = difference @ weight.detach().double()[:, :width].T
    return float((out.flatten(1).norm(dim=1) / difference.flatten(1).norm(dim=1)).mean())


def extreme_orders(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A7: FC2's weight with its hidden units sorted by the norm of their columns, smallest first and largest first."""
    order = weight.detach().norm(dim=0).argsort()
    return weight.detach()[:, order], weight.detach()[:, order.flip(0)]


def padded_rates(weight: Tensor, x: Tensor, y: Tensor, orders: int, seed: int = 0) -> np.ndarray:
    """A7: `padded_rate` for the hidden units in random orders, all of which are the same network; shape (orders,)."""
    rng = np.random.default_rng(seed)
    return np.array([padded_rate(weight[:, rng.permutation(weight.shape[1])], x, y) for _ in range(orders)])
