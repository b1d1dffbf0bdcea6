"""Patch embedding (Prop. 16): each token is `W` times one patch of the image, so disjoint patches give `||W||_2`.

Class token, positions and bias only shift. Where patches overlap, a pixel counts in up to `ceil(k/s)` patches along
each side. Distances between images are Euclidean over all pixels and channels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitplast.bounds.activations import activation_constant
from vitplast.bounds.linear import spectral_norm
from vitplast.errors import HypothesisError, ShapeError

#: A convolution and what follows it: kernel, stride, activation or None.
Stage = tuple[Tensor, "int | tuple[int, int] | None", "nn.Module | str | None"]


def patch_embedding_bound(
    weight: Tensor, stride: int | tuple[int, int] | None = None, std: Tensor | None = None
) -> float:
    """`sqrt(ceil(kh/sh) ceil(kw/sw)) ||W||_2`, which is `||W||_2` and exact for patches that are disjoint (Prop. 16).

    Holds for all pairs of images. Zero padding doesn't matter, other padding is not covered.

    Parameters
    ----------
    weight
        The kernel, shape (E, C, kh, kw).
    stride
        s, one number or (sh, sw); None: the kernel's size.
    std
        What each channel is divided by before the embedding, shape (C,): the bound is then one for the images as
        they were before. None: nothing is divided.

    Raises
    ------
    ShapeError
        If the kernel has not four dimensions or is empty, a stride is below 1, or `std` has not C entries.
    HypothesisError
        If an entry of `std` is not finite and positive, or the kernel holds a value that is not finite.

    Examples
    --------
    >>> kernel = torch.ones(1, 1, 2, 2)
    >>> patch_embedding_bound(kernel), patch_embedding_bound(kernel, stride=1)
    (2.0, 4.0)
    >>> patch_embedding_bound(kernel, std=torch.tensor([0.5]))
    4.0
    """
    if weight.ndim != 4 or weight.numel() == 0:
        raise ShapeError(f"a patch kernel has shape (E, C, kh, kw) and is not empty, got {tuple(weight.shape)}")
    kernel = tuple(weight.shape[2:])
    steps = kernel if stride is None else _steps(stride)
    weight = weight.detach().double()
    if std is not None:
        if std.shape != weight.shape[1:2]:
            raise ShapeError(f"std must have shape ({weight.shape[1]},), got {tuple(std.shape)}")
        std = std.detach().double()
        if not bool((torch.isfinite(std) & (std > 0)).all()):
            raise HypothesisError(f"std must be finite and positive, got {std.tolist()}")
        weight = weight / std[:, None, None]
    times = math.prod(math.ceil(k / s) for k, s in zip(kernel, steps, strict=True))
    return math.sqrt(times) * spectral_norm(weight.flatten(1))


def _steps(stride: int | tuple[int, int]) -> tuple[int, int]:
    both = stride if isinstance(stride, Iterable) and getattr(stride, "ndim", 1) else (stride, stride)
    try:
        steps = tuple(map(operator.index, both))
    except TypeError:
        steps = ()
    if len(steps) != 2 or min(steps) < 1:
        raise ShapeError(f"a stride is one number or two, 1 or more, got {stride!r}")
    return steps


def patch_stem_bound(stages: Iterable[Stage], std: Tensor | None = None) -> float:
    """The product over convolutions that follow each other, and of the slopes of the activations between (Prop. 16).

    Valid for all pairs of images and usually loose: the directions stretched most by one stage need not be those of
    the next. Fold batch norms in evaluation mode into the kernels first.

    Parameters
    ----------
    stages
        Kernel, stride and activation (None: there is none) of each convolution, first one first.
    std
        As in `patch_embedding_bound`, for the first kernel.

    Raises
    ------
    ShapeError
        As `patch_embedding_bound`, and if there is no stage or one takes other channels than the one before gives.
    NoBoundError
        If an activation is not known.

    Examples
    --------
    >>> patch_stem_bound([(torch.ones(1, 1, 2, 2), 1, "Sigmoid"), (torch.ones(1, 1, 2, 2), 2, None)])
    2.0
    """
    bound, channels = 1.0, None
    for weight, stride, activation in stages:
        if channels is not None and weight.ndim == 4 and weight.shape[1] != channels:
            raise ShapeError(f"a stage takes {weight.shape[1]} channels, the one before gives {channels}")
        bound *= patch_embedding_bound(weight, stride, std if channels is None else None)
        bound *= 1.0 if activation is None else activation_constant(activation)
        channels = weight.shape[0]
    if channels is None:
        raise ShapeError("a stem has one convolution or more, got none")
    return bound
