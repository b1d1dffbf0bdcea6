"""The state a model starts from: given back before each run, and compared with after it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, nn

from vitplast.errors import InputError, VitplastError
from vitplast.training.batches import generator
from vitplast.training.loop import History

#: A step this large relative to a group's norm moves at least one of its numbers in float32.
VISIBLE = 1e-6


class Origin:
    """One loaded model for many runs: `restore()` sets parameters and buffers back, bit for bit.

    `features` keeps what the frozen encoder gave for a set of images, for the next run on the same images; `kept` what
    a caller wants to have again in the next run, such as decoded images.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.state = {name: tensor.detach().clone() for name, tensor in tensors(model)}
        self.features: dict[tuple, Tensor] = {}
        self.kept: dict[Hashable, Any] = {}

    def restore(self) -> nn.Module:
        """The model as it was, in evaluation mode, without gradients."""
        with torch.no_grad():
            for name, tensor in tensors(self.model):
                tensor.copy_(self.state[name])
        for parameter in self.model.parameters():
            parameter.grad = None
        return self.model.eval()


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and all buffers, also those that a state dict leaves out."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def initialise_head(model: nn.Module, how: str, seed: int) -> None:
    """`keep`, `zero`, or `default`: uniform in ±1/sqrt(width), which is what PyTorch gives a new linear layer."""
    if how == "keep":
        return
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
        if how == "default":
            g, limit = generator(seed, "head"), 1 / math.sqrt(model.head.in_features)
            for parameter in model.head.parameters():
                drawn = torch.rand(parameter.shape, generator=g, dtype=torch.float64)
                parameter.copy_((2 * drawn - 1) * limit)


def classes(model: nn.Module) -> int:
    """Outputs of the head; an InputError if the model has no linear head."""
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        raise InputError(f"the model has no linear head but {type(head).__name__}; load it with num_classes above 0")
    return head.out_features


def check_frozen(model: nn.Module, start: Mapping[str, Tensor], trained: Set[str]) -> None:
    """A VitplastError that names the tensors outside `trained` that are not bit-equal to `start`."""
    drifted = [name for name, t in tensors(model) if name not in trained and not bit_equal(t, start[name])]
    if drifted:
        raise VitplastError(f"{len(drifted)} frozen tensors changed while training: {', '.join(drifted[:8])}")


def check_trained(
    model: nn.Module, start: Mapping[str, Tensor], trained: Mapping[str, list[str]], history: History
) -> list[str]:
    """Trained groups that no gradient moved, where that had to be so.

    Either no step was large enough to show (a rate of 0), or a head that starts at zero, through which no gradient
    passes, had not moved before the last step.

    Raises
    ------
    VitplastError
        If a group received no gradient, or none but zeros from a head that passes gradients back, or is unchanged
        although a step was large enough to show.
    """
    now = dict(tensors(model))
    head = start.get("head.weight")
    hidden = head is not None and not head.any() and not history.moved_before_last
    unmoved = []
    for group, names in trained.items():
        if all(now[name].grad is None for name in names):
            raise VitplastError(f"{group} should train but never received a gradient")
        if not history.gradients.get(group, 0.0) > 0:
            if not hidden:
                raise VitplastError(f"{group} should train but no step gave it a gradient that is finite and not zero")
            unmoved.append(group)
            continue
        if not all(bit_equal(now[name], start[name]) for name in names):
            continue
        size = math.sqrt(sum(float(start[name].double().square().sum()) for name in names))
        if history.pushes[group] > VISIBLE * size:
            raise VitplastError(f"{group} should train but did not change (largest step {history.pushes[group]:g})")
        unmoved.append(group)
    return unmoved


def bit_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits: NaN equals itself, 0 and -0 differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(*raw)
