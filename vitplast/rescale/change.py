"""Rescalings that leave the function of a vision transformer unchanged (Prop. 18)."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import timm.layers
import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitplast.components import parts
from vitplast.errors import HypothesisError, InputError, LayoutError, ShapeError, UnknownNameError
from vitplast.measure.common_input import LAYER_NORMS
from vitplast.measure.sides import check_mode
from vitplast.rescalings import KINDS

#: Norms whose output is linear in their scale and shift.
NORMS = (*LAYER_NORMS, nn.RMSNorm, timm.layers.RmsNorm)

#: Parts of each component that a kind multiplies by c and divides by c.
_MOVED = {
    "LN2/FC1": {"LN2": (("weight", "bias"), ()), "FC1": ((), ("weight",))},
    "LN1/qkv": {"LN1": (("weight", "bias"), ()), "MHA": ((), ("Q", "K", "V"))},
    "V/O": {"MHA": (("V", "b_V"), ("O",))},
    "Q/K": {"MHA": (("Q", "b_Q"), ("K", "b_K"))},
}


def moved_parts(kind: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The parts of each component that `kind` multiplies by c, and those that it divides by c.

    Examples
    --------
    >>> moved_parts("Q/K")
    {'MHA': (('Q', 'b_Q'), ('K', 'b_K'))}
    """
    _check_name(kind)
    return dict(_MOVED[kind])


@torch.inference_mode(False)
@torch.no_grad()
def rescale(model: Any, kind: str, c: float, *, layers: Iterable[int] | None = None) -> nn.Module:
    """A copy of `model` with some parameters times c and others divided by c: the same function (Prop. 18).

    `kind` is one of `KINDS`: in each, c reaches the next linear map and its inverse undoes it there. Any c but 0 will
    do, also a negative one; with a power of two nothing is rounded. LayerScale and all other parameters stay.

    Parameters
    ----------
    model
        A plain timm vision transformer, or a `LoadedModel` with one.
    kind
        One of `KINDS`.
    c
        The factor.
    layers
        Blocks to change, counted from 0; all of them by default.

    Raises
    ------
    UnknownNameError
        If `kind` is none of `KINDS`.
    InputError
        If `c` is 0 or not finite, or a layer is not there or named twice.
    LayoutError
        If the function would not stay: blocks that are not pre-norm, norms without scale, QK-norm with Q/K, a norm
        between heads and output with V/O, gates, other modules than timm's, or a parameter that a second module uses.
    HypothesisError
        If a changed parameter overflows or vanishes in the precision of the model.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False).eval()
    >>> other = rescale(model, "LN2/FC1", 4.0, layers=[0])
    >>> other.blocks[0].norm2.weight[0].item(), other.blocks[1].norm2.weight[0].item()
    (4.0, 1.0)
    """
    _check_name(kind)
    if not isinstance(c, (int, float)) or not math.isfinite(c) or c == 0:
        raise InputError(f"the factor c must be a finite number other than 0, got {c!r}")
    model = model if isinstance(model, nn.Module) else model.model
    chosen = check_kind(model, kind, layers=layers)
    twin = copy.deepcopy(model)
    for layer in chosen:
        for _, values, factor in _targets(twin.blocks[layer], layer, kind, float(c)):
            there = values != 0
            values.mul_(factor)
            if not bool(torch.isfinite(values).all()) or not torch.equal(values != 0, there):
                raise HypothesisError(f"with c = {c:g} a weight of block {layer} leaves the range of {values.dtype}")
    return twin


def check_kind(model: Any, kind: str, *, layers: Iterable[int] | None = None) -> list[int]:
    """Whether `rescale(model, kind, c)` keeps the function; arguments and errors as there. Changes and copies nothing.

    Returns
    -------
    The blocks that would change.

    Examples
    --------
    >>> import timm
    >>> len(check_kind(timm.create_model("test_vit", pretrained=False), "V/O"))
    6
    """
    _check_name(kind)
    model = model if isinstance(model, nn.Module) else model.model
    parts(model)
    chosen = _checked_layers(layers, len(model.blocks))
    users = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for layer in chosen:
        _check_block(model.blocks[layer], layer, kind)
        if any(users[id(p)] > 1 for p, _, _ in _targets(model.blocks[layer], layer, kind, 1.0)):
            raise LayoutError(f"block {layer} shares a parameter that {kind} would change with another module")
    return chosen


@torch.inference_mode(False)
@torch.no_grad()
def verify_same_function(model: Any, other: Any, images: Tensor, *, tolerance: float = 1e-10) -> float:
    """`max over images of ||f(x) - g(x)|| / ||f(x)||`, f and g the outputs of two models, evaluated in float64.

    Weights in float32 that were rescaled by another factor than a power of two are rounded: allow about 1e-5 then.

    Parameters
    ----------
    model, other
        f and g: modules in evaluation mode, or instances of `LoadedModel`.
    images
        Normalised floats (N, C, H, W).
    tolerance
        Largest difference that passes.

    Raises
    ------
    HypothesisError
        If the difference is larger than `tolerance`, or an output is not finite.
    ShapeError
        If there are no images, or the outputs differ in shape.
    ModeError
        If a submodule is in training mode.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False).eval()
    >>> verify_same_function(model, rescale(model, "Q/K", 0.25), torch.ones(1, 3, 160, 160)) <= 1e-10
    True
    """
    if images.ndim != 4 or not len(images):
        raise ShapeError(f"images (N, C, H, W) are needed, got {tuple(images.shape)}")
    outputs = []
    for one in (model, other):
        one = one if isinstance(one, nn.Module) else one.model
        check_mode(one)
        twin = copy.deepcopy(one).double()
        outputs.append(torch.cat([twin(x[None].double()) for x in images]).flatten(1))
    if outputs[0].shape != outputs[1].shape:
        raise ShapeError(f"the outputs have shapes {tuple(outputs[0].shape)} and {tuple(outputs[1].shape)}")
    difference = relative_difference(*outputs)
    if not difference <= tolerance:
        raise HypothesisError(f"the two models differ: outputs by {difference:.3g} relatively, allowed {tolerance:g}")
    return difference


def relative_difference(logits: Tensor, others: Tensor) -> float:
    """`max_b ||f_b - g_b|| / ||f_b||` of (B, K) outputs; HypothesisError if one is not finite."""
    if not bool(torch.isfinite(logits).all() and torch.isfinite(others).all()):
        raise HypothesisError("an output is not finite")
    gap, size = (torch.linalg.vector_norm(t.double(), dim=1) for t in (logits - others, logits))
    return float(torch.where(gap == 0, 0.0, gap / size).max())


def _check_name(kind: str) -> None:
    if kind not in KINDS:
        raise UnknownNameError("kind of rescaling", str(kind), KINDS)


def _checked_layers(layers: Iterable[int] | None, depth: int) -> list[int]:
    chosen = list(range(depth)) if layers is None else list(layers)
    if not all(type(layer) is int and 0 <= layer < depth for layer in chosen) or len(set(chosen)) < len(chosen):
        raise InputError(f"layers must be different integers from 0 to {depth - 1}, got {chosen}")
    return chosen


def _check_block(block: nn.Module, layer: int, kind: str) -> None:
    """Whether c times what is multiplied really meets 1 / c in the forward pass of this block."""

    def refuse(why: str) -> LayoutError:
        return LayoutError(f"{kind} does not keep the function of block {layer}: {why}")

    if type(block).forward is not Block.forward:
        raise refuse(f"it is a {type(block).__name__}, not timm's pre-norm Block")
    attention = block.attn
    norm = {"LN2/FC1": "norm2", "LN1/qkv": "norm1"}.get(kind)
    if norm is not None and type(getattr(block, norm)) not in NORMS:
        raise refuse(f"its {norm} is a {type(getattr(block, norm)).__name__}")
    if kind == "LN2/FC1":
        if type(block.mlp) not in (timm.layers.Mlp, timm.layers.GluMlp) or type(block.mlp.fc1) is not nn.Linear:
            raise refuse(f"its MLP is a {type(block.mlp).__name__} with {type(block.mlp.fc1).__name__}")
    elif type(attention) is not timm.layers.Attention:
        raise refuse(f"its attention is a {type(attention).__name__}")
    elif type(attention.qkv) is not nn.Linear or type(attention.proj) is not nn.Linear:
        raise refuse("its projections are not linear layers")
    elif getattr(attention, "gate", None) is not None:
        raise refuse("its attention has a gate, which sees the same input")
    if kind == "V/O" and not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):
        raise refuse("a norm stands between the heads and the output map")
    if kind == "Q/K" and not all(isinstance(getattr(attention, n), nn.Identity) for n in ("q_norm", "k_norm")):
        raise refuse("queries and keys are normalised (QK-norm)")


def _targets(block: nn.Module, layer: int, kind: str, c: float) -> Iterator[tuple[nn.Parameter, Tensor, float]]:
    """Parameter, the view of it that changes, and its factor."""

    def whole(module: nn.Module, name: str) -> nn.Parameter | None:
        parameter = module._parameters.get(name)
        if parameter is None and (name == "weight" or getattr(module, name, None) is not None):
            raise LayoutError(f"{kind} needs a {name} of its own in {type(module).__name__} of block {layer}")
        return parameter

    attention, linear = block.attn, {"LN2/FC1": block.mlp.fc1}.get(kind, block.attn.qkv)
    everything = slice(None)
    if kind in ("LN2/FC1", "LN1/qkv"):
        norm = block.norm2 if kind == "LN2/FC1" else block.norm1
        found = [(norm, "weight", everything, c), (norm, "bias", everything, c), (linear, "weight", everything, 1 / c)]
    else:
        width = linear.out_features // 3
        query, key, value = (slice(k * width, (k + 1) * width) for k in range(3))
        rows = [(value, c)] if kind == "V/O" else [(query, c), (key, 1 / c)]
        found = [(linear, name, at, factor) for at, factor in rows for name in ("weight", "bias")]
        found += [(attention.proj, "weight", everything, 1 / c)] if kind == "V/O" else []
    for module, name, at, factor in found:
        parameter = whole(module, name)
        if parameter is not None:
            yield parameter, parameter.data[at], factor
