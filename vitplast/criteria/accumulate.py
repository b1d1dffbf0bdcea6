"""Gradients of single images, streamed: sums over images of each parameter's gradient and of its square.

Images go through the model in batches; what the layers took in and the gradients at what they gave out make the
gradient of every image (`G_i = Delta_i^T X_i`). Memory does not grow with the number of images: four float64 numbers a
parameter, the second moment of what enters each linear layer, and the gradients of one layer for a few images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitplast.components import Part
from vitplast.criteria.layers import Affine, affine_layers, recording
from vitplast.errors import HypothesisError, InputError, LayoutError
from vitplast.gradients.passes import Loss, checked, named_parts, split_heads, working_copy

#: Images in the model at a time, and in a batch whose mean gradient `vitplast.criteria.sensitivity` squares.
BATCH = 16
#: Images whose gradients of one layer are in memory together.
CHUNK = 4


@dataclass
class PartSums:
    """Sums of the gradients g_i of one component of one block, float64, by parameter name.

    `values`: the parameters. `mean`: `(1/N) sum g_i`. `square`: `(1/N) sum g_i^2`. `batches`: sum over batches of the
    squared mean of g_i in the batch. `image_norms` (N,): norm of g_i by the parts of `split_heads` (Q, b_Q, ...).
    `inputs` and `moments`: mean over tokens and images of x and of x x^T (x^2 for norms), by the prefix of the layer.
    """

    part: Part
    layers: list[Affine]
    values: dict[str, Tensor]
    mean: dict[str, Tensor] = field(default_factory=dict)
    square: dict[str, Tensor] = field(default_factory=dict)
    batches: dict[str, Tensor] = field(default_factory=dict)
    image_norms: dict[str, list[float]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.values.values())


@dataclass(frozen=True)
class GradientSums:
    """What `gradient_sums` gives: one entry a part of a block, and how many images went in."""

    parts: list[PartSums]
    images: int

    @property
    def layers(self) -> int:
        return 1 + self.parts[-1].part.layer


def gradient_sums(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: Loss = F.cross_entropy,
    dtype: torch.dtype = torch.float32,
    batch_size: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> GradientSums:
    """`sum_i g_i` and `sum_i g_i^2` with `g_i` the gradient of the loss of image i alone, for every component.

    One forward and one backward pass an image, on a copy of the model; nothing is clipped.

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode with a linear head that is not zero.
    images, labels
        Normalised floats (N, C, H, W) and classes (N,).
    loss
        Takes logits (1, classes) and a label (1,), gives a scalar.
    dtype
        Of the passes; sums are in float64 always.
    batch_size
        Images in the model at a time, and in each of `batches`; the last batch may be smaller.

    Raises
    ------
    InputError
        If the model has no head, `batch_size` is below 1, or images or labels are wrong.
    LayoutError
        If the components are not made of the layers of `affine_layers`, have other parameters, or shared ones.
    ModeError
        If a part of the model is in training mode.
    HypothesisError
        If a loss or gradient is not finite, or that of a component is 0 for all images (as under a zero head).
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    with working_copy(model, dtype) as (twin, found):
        images, labels = checked(twin, images, labels)
        twin.requires_grad_(False)
        sums = [
            PartSums(p, affine_layers(p), {n: v.detach().double() for n, v in named_parts(p).items()}) for p in found
        ]
        layers = [layer for s in sums for layer in s.layers]
        with recording(twin, layers):
            for batch in torch.arange(len(images)).split(batch_size):
                _pass(twin, layers, images[batch].to(dtype), labels[batch], loss)
                with torch.no_grad():
                    for s in sums:
                        for layer in s.layers:
                            _take(s, layer)
                if progress is not None:
                    progress(int(batch[-1]) + 1, len(images))
    for s in sums:
        for n in s.values:
            s.mean[n] /= len(images)
            s.square[n] /= len(images)
        for n in s.moments:
            s.inputs[n] /= len(images)
            s.moments[n] /= len(images)
        _check(s)
    return GradientSums(sums, len(images))


def _pass(twin: nn.Module, layers: Sequence[Affine], images: Tensor, labels: Tensor, loss: Loss) -> None:
    for layer in layers:
        layer.x = layer.delta = None
    logits = twin(images)
    values = [loss(logits[i : i + 1], labels[i : i + 1]) for i in range(len(images))]
    bad = [v for v in values if v.numel() != 1 or not bool(torch.isfinite(v).all())]
    if bad:
        raise HypothesisError(f"the loss must be one finite number, got {bad[0].detach().flatten()[:3].tolist()}")
    torch.stack([v.reshape(()) for v in values]).sum().backward()
    for layer in layers:
        if layer.x is None or layer.delta is None:
            raise LayoutError(f"{layer.part.name} has no gradient: is it cut off the loss?")


def _take(s: PartSums, layer: Affine) -> None:
    """Adds what the last pass showed of a layer."""
    count = len(layer.x)
    total: dict[str, Tensor] = {}
    for start in range(0, count, CHUNK):
        gradients = layer.gradients(slice(start, start + CHUNK))
        for name, g in gradients.items():
            _add(total, name, g.sum(0).double())
            squares = g.square_()
            _add(s.square, name, squares.sum(0).double())
            for part, norms in _norms(s.part, name, squares).items():
                s.image_norms.setdefault(part, []).extend(norms.tolist())
    for name, value in total.items():
        _add(s.mean, name, value)
        _add(s.batches, name, (value / count).square())
    x = layer.x.flatten(0, 1)
    scale = count / len(x)
    _add(s.inputs, layer.prefix, scale * x.sum(0, dtype=torch.float64))
    _add(s.moments, layer.prefix, scale * (x.square().sum(0) if layer.diagonal else x.mT @ x).double())


def _norms(part: Part, name: str, squares: Tensor) -> dict[str, Tensor]:
    """Norm of each image's gradient (b,) from its squares, for the query, key and value rows of qkv apart."""
    if part.component != "MHA":
        return {name: squares.flatten(1).sum(1).double().sqrt()}
    letters = "QKV" if name.startswith("qkv") else "O"
    prefix = "b_" if name.endswith("bias") else ""
    sums = squares.unflatten(1, (len(letters), -1)).flatten(2).sum(2).double()
    return {prefix + c: n for c, n in zip(letters, sums.sqrt().T, strict=True)}


def parameter_norms(s: PartSums) -> dict[str, float]:
    """Norm of each parameter by the names of `image_norms`."""
    return {n: float(torch.linalg.vector_norm(v)) for n, v in split_heads(s.part, s.values).items()}


def _add(table: dict[str, Tensor], name: str, value: Tensor) -> None:
    if name in table:
        table[name] += value
    else:
        table[name] = value


def _check(s: PartSums) -> None:
    size = sum(float(v.sum()) for v in s.square.values())
    if not np.isfinite(size):
        raise HypothesisError(f"a gradient of {s.part.name} is not finite")
    if size == 0:
        raise HypothesisError(
            f"the gradient of {s.part.name} is 0 for all images: a head or branch after it that is zero hides it from "
            "the loss (give the model a fitted or default head)"
        )
