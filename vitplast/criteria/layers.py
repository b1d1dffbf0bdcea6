"""The affine layers that the components are made of, and what one forward and backward pass shows of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitplast.components import Part
from vitplast.errors import LayoutError
from vitplast.measure.common_input import LAYER_NORMS

RMS_NORMS = (nn.RMSNorm, timm.layers.RmsNorm)


@dataclass
class Affine:
    """A layer `W x + b` or `w * N(x) + b` of a component; `prefix` before its parameter names inside the component.

    `x` (B, n, d), what the weight is multiplied with (N(x) for norms), and `delta` (B, n, e), the gradient of the loss
    at the output, are those of the last pass.
    """

    part: Part
    prefix: str
    module: nn.Module
    x: Tensor | None = None
    delta: Tensor | None = None

    @property
    def diagonal(self) -> bool:
        """Whether the weight is a vector that scales each feature."""
        return not isinstance(self.module, nn.Linear)

    def gradients(self, some: slice) -> dict[str, Tensor]:
        """Gradient of each parameter for each image of the slice: (b, e, d) or (b, d) weights, (b, e) biases."""
        x, delta = self.x[some], self.delta[some]
        found = {}
        if self.module.weight is not None:
            found["weight"] = (x * delta).sum(1) if self.diagonal else delta.mT @ x
        if getattr(self.module, "bias", None) is not None:
            found["bias"] = delta.sum(1)
        return {self.prefix + name: g for name, g in found.items()}


def affine_layers(part: Part) -> list[Affine]:
    """The layers of a component: qkv and proj of MHA, itself for every other.

    Raises
    ------
    LayoutError
        If it is made of anything else than linear layers (MHA, FC1, FC2), or a layer norm or RMSNorm (LN1, LN2).
    """
    names = ("qkv", "proj") if part.component == "MHA" else ("",)
    known = (*LAYER_NORMS, *RMS_NORMS) if part.component in ("LN1", "LN2") else (nn.Linear,)
    layers = []
    for name in names:
        module = getattr(part.module, name, None) if name else part.module
        if type(module) not in known:
            raise LayoutError(
                f"{part.name}{'.' + name if name else ''} is a {type(module).__name__}; per-image gradients are known "
                f"for {', '.join(sorted({c.__name__ for c in known}))}"
            )
        layers.append(Affine(part, f"{name}." if name else "", module))
    return layers


def _multiplied(module: nn.Module, x: Tensor) -> Tensor:
    """What the weight is multiplied with."""
    if isinstance(module, nn.Linear):
        return x
    if type(module) in RMS_NORMS:
        eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return F.layer_norm(x, module.normalized_shape, eps=module.eps)


@contextmanager
def recording(model: nn.Module, layers: list[Affine]) -> Iterator[None]:
    """Inside, a forward pass notes `x` of each layer and a backward pass its `delta`; hooks are gone afterwards.

    The tokens that enter the first block start the graph, so parameters need no gradient.
    """

    def start(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return (args[0].detach().requires_grad_(), *args[1:]), kwargs

    def hook(layer: Affine):
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> Tensor:
            if layer.x is not None:
                raise LayoutError(f"a layer of {layer.part.name} is called twice in a forward pass")
            x = (args[0] if args else next(iter(kwargs.values()))).detach()
            layer.x = _multiplied(module, x)
            # a copy, whose hook stays when an activation works in place
            output = output.clone()
            output.register_hook(lambda g: setattr(layer, "delta", g.detach()))
            return output

        return note

    handles = [model.blocks[0].register_forward_pre_hook(start, with_kwargs=True)]
    try:
        for layer in layers:
            handles.append(layer.module.register_forward_hook(hook(layer), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
