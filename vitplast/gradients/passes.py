"""One backward pass for one image: input, output gradient and parameter gradients of every component."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitplast.components import Part, parts
from vitplast.errors import HypothesisError, InputError, LayoutError, ShapeError
from vitplast.local import math_attention
from vitplast.measure.sides import Side, check_mode

#: Parameters of the components; the query, key and value parts of a fused layer count as parameters of their own.
PARTS = ("weight", "bias", "Q", "b_Q", "K", "b_K", "V", "b_V", "O", "b_O")

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Seen:
    """What one backward pass shows of one component: X (n, d), Delta (n, e), and the gradient of each parameter."""

    part: Part
    x: Tensor
    delta: Tensor
    gradients: dict[str, Tensor]


@contextmanager
def working_copy(model: nn.Module, dtype: torch.dtype = torch.float64) -> Iterator[tuple[nn.Module, list[Part]]]:
    """A copy of `model` in `dtype` whose component parameters have gradients, and its parts.

    Checkpointing and fused attention are off in the copy; the model itself is never changed.

    Raises
    ------
    ModeError
        If a submodule is in training mode.
    LayoutError
        If a block lacks a component, a component has no parameter or one that `PARTS` does not name, or a component's
        parameter has a second user.
    InputError
        If the model has no head.
    """
    check_mode(model)
    if not isinstance(getattr(model, "head", None), nn.Linear):
        raise InputError(
            "a loss needs logits, but the model has no linear head; load it with num_classes, or set model.head"
        )
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(_device(model).type, enabled=False):
        twin = copy.deepcopy(model).to(dtype).requires_grad_(False)
        if hasattr(twin, "set_grad_checkpointing"):
            twin.set_grad_checkpointing(False)
        found = parts(twin)
        users = Counter(id(p) for _, p in twin.named_parameters(remove_duplicate=False))
        for part in found:
            named = named_parts(part)
            known = {id(p) for p in named.values()}
            others = [name for name, p in part.module.named_parameters() if id(p) not in known]
            if others:
                raise LayoutError(f"{part.name} has parameters that are no part of Prop. 17: {', '.join(others)}")
            for name, parameter in named.items():
                parameter.requires_grad_(True)
                if users[id(parameter)] > 1:
                    raise LayoutError(f"{part.name} shares its {name} with another module: no gradient is its own")
            if not named:
                raise LayoutError(f"{part.name} has no parameters, so there is no gradient to speak of")
        twin.zero_grad(set_to_none=True)
        with math_attention(twin):
            yield twin, found


def named_parts(part: Part) -> dict[str, nn.Parameter]:
    """The parameters of a component by their name inside it: weight, bias; qkv.weight, proj.bias, ... for MHA."""
    module = part.module
    if part.component != "MHA":
        own = {name: getattr(module, name, None) for name in ("weight", "bias")}
        return {name: p for name, p in own.items() if isinstance(p, nn.Parameter)}
    layers = {name: getattr(module, name, None) for name in ("qkv", "proj")}
    if not all(isinstance(layer, nn.Linear) for layer in layers.values()):
        found = ", ".join(name for name, _ in module.named_children())
        raise LayoutError(f"{part.name} is a {type(module).__name__} without linear 'qkv' and 'proj'; it has: {found}")
    named = {f"{a}.{b}": getattr(layer, b) for a, layer in layers.items() for b in ("weight", "bias")}
    return {name: p for name, p in named.items() if p is not None}


def split_heads(part: Part, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters (or gradients) as in `PARTS`: those of MHA per head, with the head as their first axis, but `b_O`."""
    if part.component != "MHA":
        return dict(values)
    heads, found = part.module.num_heads, {}
    for name, sign in (("qkv.weight", ""), ("qkv.bias", "b_")):
        if name in values:
            three = values[name].reshape(3, heads, -1, *values[name].shape[1:])
            found |= {f"{sign}{letter}": block for letter, block in zip("QKV", three, strict=True)}
    output = values["proj.weight"]
    found["O"] = output.reshape(len(output), heads, -1).transpose(0, 1)
    if "proj.bias" in values:
        found["b_O"] = values["proj.bias"]
    return found


def checked(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Images in float64 on the device of the model, and labels beside them.

    Raises
    ------
    ShapeError
        If images are not (N, C, H, W) as the model takes them, or there is not one label an image.
    InputError
        If images are not normalised floats, or a label is no class of the head (PixelError: pixels not finite).
    """
    images = Side("image", images, model)(torch.arange(len(images)).numpy()).double()
    labels = torch.as_tensor(labels)
    if labels.shape != (len(images),):
        raise ShapeError(f"{len(images)} images need labels of shape ({len(images)},), got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers, got {labels.dtype}")
    classes = model.head.out_features
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(f"labels go from {low} to {high}, but the head has {classes} classes")
    return images, labels.long().to(images.device)


def one_pass(twin: nn.Module, found: list[Part], image: Tensor, label: Tensor, loss: Loss) -> list[Seen]:
    """Gradients of `loss(logits, label)` for one image (C, H, W), with hooks that are always removed.

    Raises
    ------
    HypothesisError
        If the loss is not one finite number, or a component has no gradient or the gradient 0 (as under a zero head).
    LayoutError
        If a component is not called exactly once.
    """
    inputs: dict[str, Tensor] = {}
    deltas: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def hook(part: Part) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> Tensor:
            calls[part.name] += 1
            inputs[part.name] = (args[0] if args else next(iter(kwargs.values()))).detach()[0].clone()
            # a copy, as the output may be a view, whose hook an activation that works in place would drop
            output = output.clone()
            if output.requires_grad:
                output.register_hook(lambda g: deltas.__setitem__(part.name, g.detach()[0]))
            return output

        return note

    parameters = {(part.name, name): p for part in found for name, p in named_parts(part).items()}
    handles = []
    try:
        handles += [part.module.register_forward_hook(hook(part), with_kwargs=True) for part in found]
        # images made under inference mode can't take part in a backward pass, their copies can
        value = loss(twin(image[None].clone()), label[None])
        if value.numel() != 1 or not bool(torch.isfinite(value).all()):
            raise HypothesisError(f"the loss must be one finite number, got {value.detach().flatten()[:3].tolist()}")
        for part in found:
            if calls[part.name] != 1:
                raise LayoutError(f"{part.name} was called {calls[part.name]} times in a forward pass, not once")
        if not value.requires_grad:
            raise HypothesisError("the loss does not depend on the parameters of any component")
        gradients = torch.autograd.grad(value.sum(), list(parameters.values()), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    table = dict(zip(parameters, gradients, strict=True))
    return [_seen(part, inputs, deltas, table) for part in found]


def _seen(part: Part, inputs: dict[str, Tensor], deltas: dict[str, Tensor], table: dict) -> Seen:
    own = {name: g for (where, name), g in table.items() if where == part.name}
    missing = [name for name, g in own.items() if g is None]
    if missing or part.name not in deltas:
        what = ", ".join(missing) or "output"
        raise HypothesisError(f"{part.name} has no gradient ({what}): is it cut off the loss?")
    size = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in own.values()])))
    if not math.isfinite(size):
        raise HypothesisError(f"a gradient of {part.name} is not finite")
    if size == 0:
        raise HypothesisError(
            f"the gradient of {part.name} is 0 throughout: a head or branch after it that is zero hides it from the "
            "loss (give the model a default or fitted head)"
        )
    return Seen(part, inputs[part.name], deltas[part.name], own)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
