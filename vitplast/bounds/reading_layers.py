"""What the linear, normalising and MLP layers of a timm model compute, as tensors in float64; else NoBoundError.

Types are matched exactly: a subclass, a hook or a forward method replaced on the object may compute anything. A
parametrised layer (`torch.nn.utils.parametrize`) keeps its forward pass and is welcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitplast.bounds.activations import activation_constant, activation_name
from vitplast.errors import NoBoundError
from vitplast.layouts.linear import is_conv1d

_LAYER_NORMS = (
    "torch.nn.modules.normalization.LayerNorm",
    *(f"timm.layers.norm.{name}" for name in ("LayerNorm", "LayerNormFp32", "LayerNorm2d", "LayerNorm2dFp32")),
)
_RMS_NORMS = (
    "torch.nn.modules.normalization.RMSNorm",
    *(f"timm.layers.norm.{name}" for name in ("RmsNorm", "RmsNormFp32", "RmsNorm2d", "RmsNorm2dFp32")),
)
#: Norms over the features of one token, and batch norm.
NORM_CLASSES = (
    *_LAYER_NORMS,
    *_RMS_NORMS,
    *(f"torch.nn.modules.batchnorm.BatchNorm{k}d" for k in (1, 2, 3)),
)
LAYERSCALE_CLASSES = ("timm.layers.layer_scale.LayerScale", "timm.layers.layer_scale.LayerScale2d")
#: Where timm keeps what drops values in training, and does nothing in evaluation mode.
_DROPOUTS = ("attn_drop", "proj_drop", "drop", "drop1", "drop2")
_SPATIAL = "normalises over several tokens at once, which no statement here covers"


class ReadLinear(NamedTuple):
    """`x -> W x + b`."""

    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)


@dataclass(frozen=True)
class ReadNorm:
    """`kind` "layernorm" or "rmsnorm" (Theorem 6), or "affine": `x -> weight * x + bias` (Theorem 3)."""

    kind: str
    weight: Tensor  # (d,)
    bias: Tensor  # (d,)
    eps: float


@dataclass(frozen=True)
class ReadMlp:
    """`kind` "mlp": `second(phi(first(x)))`; "gated": `second(phi(gate(x)) * first(x))` (Prop. 15)."""

    kind: str
    first: ReadLinear
    second: ReadLinear
    activation: nn.Module
    constant: float  # greatest slope of phi
    gate: ReadLinear | None = None


def read_linear(module: nn.Module) -> ReadLinear:
    """Weight (outputs, inputs) and bias of a linear layer, or of a convolution of one pixel that acts as one.

    A `Conv1D` of transformers, whose weight is stored as (inputs, outputs), is a linear layer.

    Raises
    ------
    NoBoundError
        If it is neither, or carries hooks.

    Examples
    --------
    >>> read_linear(nn.Linear(3, 2)).weight.shape
    torch.Size([2, 3])
    """
    if is_linear(module):
        weight = module.weight.T if is_conv1d(module) else module.weight
    elif class_of(module) == "torch.nn.modules.conv.Conv2d" and _acts_on_pixels(module):
        weight = module.weight.flatten(1)
    else:
        raise NoBoundError(f"is a {type(module).__name__}, not a linear layer")
    refuse_changes(module)
    return ReadLinear(weight.detach().double(), None if module.bias is None else module.bias.detach().double())


def read_norm(module: nn.Module) -> ReadNorm:
    """Kind, scales, shifts and eps of a layer norm, RMS norm or batch norm in evaluation mode.

    A missing scale is one, a missing shift zero. Where an RMS norm leaves eps to the data type it is read as 0, which
    can only raise the bound.

    Raises
    ------
    NoBoundError
        If it is another class, normalises over more than the features of one token, is a batch norm that uses the
        statistics of the batch, or carries hooks.

    Examples
    --------
    >>> read_norm(nn.LayerNorm(3)).kind, read_norm(nn.BatchNorm1d(3).eval()).kind
    ('layernorm', 'affine')
    """
    name, short = class_of(module), type(module).__name__
    if isinstance(module, nn.GroupNorm):
        raise NoBoundError(f"is a {short}: it {_SPATIAL}")
    if name not in NORM_CLASSES:
        raise NoBoundError(
            f"is a {short}; only layer norm, RMS norm and batch norm in evaluation mode have a bound here"
        )
    if name not in (*_LAYER_NORMS, *_RMS_NORMS):
        return _batch_norm(module)
    if len(module.normalized_shape) != 1:
        raise NoBoundError(f"is a {short} over {tuple(module.normalized_shape)}: it {_SPATIAL}")
    refuse_changes(module)
    shift = getattr(module, "bias", None)
    weight = torch.ones(module.normalized_shape) if module.weight is None else module.weight
    weight = weight.detach().double()
    bias = torch.zeros_like(weight) if shift is None else shift.detach().double()
    kind = "layernorm" if name in _LAYER_NORMS else "rmsnorm"
    return ReadNorm(kind, weight, bias, 0.0 if module.eps is None else float(module.eps))


def read_mlp(module: nn.Module, given: float | None = None) -> ReadMlp:
    """The linear maps and the activation of timm's `Mlp`, `GluMlp` (`SwiGLUPacked`) or `SwiGLU`.

    Parameters
    ----------
    module
        The MLP.
    given
        Greatest slope of an activation that is not known here, as in `activation_constant`.

    Raises
    ------
    NoBoundError
        If it is another class, normalises its hidden features, has an unknown activation, drops values at random or
        carries hooks.

    Examples
    --------
    >>> from timm.layers import Mlp
    >>> read_mlp(Mlp(2, 8)).first.weight.shape
    torch.Size([8, 2])
    """
    name = class_of(module)
    if name not in MLP_CLASSES:
        reason = NO_MLP.get(name, "no bound is known for this class of MLP")
        raise NoBoundError(f"is a {type(module).__name__}: {reason}")
    refuse_changes(module)
    if not is_identity(module.norm):
        raise NoBoundError(
            f"normalises its hidden features by a {type(module.norm).__name__}; the deviation of those features, "
            "which a bound needs, is not an input of any component"
        )
    constant = activation_constant(module.act, given)
    return MLP_CLASSES[name](module, constant)


def read_layerscale(module: nn.Module | Tensor | None) -> Tensor | None:
    """The factors of a LayerScale (module or parameter), shape (E,); None where there is none.

    Raises
    ------
    NoBoundError
        If it is another class, or carries hooks.

    Examples
    --------
    >>> read_layerscale(nn.Identity()) is None
    True
    """
    if module is None or is_identity(module):
        return None
    if isinstance(module, Tensor):
        return module.detach().double()
    if class_of(module) not in LAYERSCALE_CLASSES:
        raise NoBoundError(f"is a {type(module).__name__}, not a LayerScale")
    refuse_changes(module)
    return module.gamma.detach().double()


def class_of(module: nn.Module) -> str:
    """Where the class of a module is defined, and its name; for a parametrised module that of the class it was."""
    cls = type(module)
    if parametrize.is_parametrized(module):
        cls = cls.__bases__[0]
    return f"{cls.__module__}.{cls.__qualname__}"


def is_linear(module: nn.Module) -> bool:
    """Whether the forward pass is that of `nn.Linear` (a subclass may add to the weight: adapters) or of `Conv1D`."""
    return is_conv1d(module) or (isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward)


def is_identity(module: nn.Module) -> bool:
    """Whether it is `nn.Identity` itself: a subclass may compute anything."""
    return type(module) is nn.Identity


def refuse_changes(module: nn.Module) -> None:
    """Raises NoBoundError if the object, or one inside, does not compute what its class says, or draws at random."""
    for inner in module.modules():
        name = type(inner).__name__
        if inner._forward_hooks or inner._forward_pre_hooks:
            raise NoBoundError(f"carries a hook on its {name}, which may change what it computes")
        if "forward" in vars(inner):
            raise NoBoundError(f"had the forward method of its {name} replaced")
        if inner.training and isinstance(inner, nn.modules.dropout._DropoutNd) and inner.p > 0:
            raise NoBoundError(f"drops values at random (p={inner.p}) in training mode")
        for slot in _DROPOUTS:
            _refuse_dropout(slot, getattr(inner, slot, None))


def _refuse_dropout(slot: str, module: object) -> None:
    if not isinstance(module, nn.Module) or is_identity(module) or type(module) is nn.Dropout:
        return
    name = type(module).__name__
    if class_of(module) != "timm.layers.drop.DropPath":
        raise NoBoundError(f"has a {name} as {slot}, where only dropout that is inactive has a bound")
    if module.training:
        raise NoBoundError(f"drops whole branches at random ({name} as {slot}) in training mode")


def _batch_norm(module: nn.Module) -> ReadNorm:
    if module.training or module.running_var is None:
        mode = "in training mode" if module.training else "without stored statistics"
        raise NoBoundError(
            f"is a {type(module).__name__} {mode}: it divides by statistics of the batch, so its output for one image "
            "depends on the others"
        )
    refuse_changes(module)
    mean, scale = module.running_mean.double(), (module.running_var.double() + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * module.weight.detach().double()
    shift = 0.0 if module.bias is None else module.bias.detach().double()
    return ReadNorm("affine", scale, shift - mean * scale, 0.0)


def _mlp(module: nn.Module, constant: float) -> ReadMlp:
    return ReadMlp("mlp", read_linear(module.fc1), read_linear(module.fc2), module.act, constant)


def _packed(module: nn.Module, constant: float) -> ReadMlp:
    activation_name(module.act)
    both = read_linear(module.fc1)
    halves = [ReadLinear(w, None) for w in both.weight.chunk(2)]
    if both.bias is not None:
        halves = [h._replace(bias=b) for h, b in zip(halves, both.bias.chunk(2), strict=True)]
    value, gate = halves if module.gate_last else halves[::-1]
    return ReadMlp("gated", value, read_linear(module.fc2), module.act, constant, gate)


def _split(module: nn.Module, constant: float) -> ReadMlp:
    activation_name(module.act)
    gate, value = read_linear(module.fc1_g), read_linear(module.fc1_x)
    return ReadMlp("gated", value, read_linear(module.fc2), module.act, constant, gate)


def _acts_on_pixels(conv: nn.Conv2d) -> bool:
    return (*conv.kernel_size, *conv.stride, conv.groups) == (1, 1, 1, 1, 1) and conv.padding in ((0, 0), 0)


#: Which function reads which class.
MLP_CLASSES = {"timm.layers.mlp.Mlp": _mlp, "timm.layers.mlp.GluMlp": _packed, "timm.layers.mlp.SwiGLU": _split}
#: MLPs that no statement covers, and why.
NO_MLP = {
    "timm.layers.mlp.GlobalResponseNormMlp": "global response norm divides by a statistic of all tokens",
    "timm.layers.mlp.GatedMlp": "its gate mixes tokens, which no statement here covers",
    "timm.layers.mlp.ConvMlp": "it is laid out for images, not tokens",
}
