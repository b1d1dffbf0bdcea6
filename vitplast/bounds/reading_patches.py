"""What a patch embedding or convolutional stem computes, as the stages that `patch_stem_bound` takes (Prop. 16)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vitplast.bounds.activations import activation_name
from vitplast.bounds.patch_embedding import Stage
from vitplast.bounds.reading_layers import ReadNorm, class_of, is_identity, read_norm, refuse_changes
from vitplast.errors import NoBoundError

#: Classes with their convolutions in `proj` and a norm of the tokens, if any, in `norm`.
PATCH_CLASSES = (
    "timm.layers.patch_embed.PatchEmbed",
    "timm.layers.patch_embed.PatchEmbedWithSize",
    "timm.models.pvt_v2.OverlapPatchEmbed",
    "timm.models.xcit.ConvPatchEmbed",
)


@dataclass(frozen=True)
class ReadPatchEmbedding:
    """Convolutions with zero padding, batch norms folded in, and the norm of the tokens that follows (or None)."""

    stages: tuple[Stage, ...]
    biases: tuple[Tensor | None, ...]
    paddings: tuple[int | tuple[int, int] | str, ...]
    norm: ReadNorm | None = None


def read_patch_embedding(module: nn.Module) -> ReadPatchEmbedding:
    """The convolutions of a patch embedding or stem, as `patch_stem_bound` takes them, and the norm that follows.

    Raises
    ------
    NoBoundError
        If it holds anything but ungrouped convolutions with zero padding, batch norms in evaluation mode and known
        activations; or carries hooks.

    Examples
    --------
    >>> from timm.layers import PatchEmbed
    >>> [(stage[0].shape, stage[1]) for stage in read_patch_embedding(PatchEmbed(56, 14, embed_dim=8)).stages]
    [(torch.Size([8, 3, 14, 14]), (14, 14))]
    """
    refuse_changes(module)
    norm = None
    if class_of(module) in PATCH_CLASSES:
        norm = getattr(module, "norm", None)
        norm = None if norm is None or is_identity(norm) else read_norm(norm)
        parts = _flat(module.proj)
    elif isinstance(module, nn.Conv2d | nn.Sequential):
        parts = _flat(module)
    else:
        raise NoBoundError(f"is a {type(module).__name__}: no bound is known for this class of patch embedding")
    stages: list[list] = []
    for part in parts:
        if class_of(part) == "torch.nn.modules.conv.Conv2d":
            stages.append(_convolution(part))
        elif not stages:
            raise NoBoundError(f"starts with a {type(part).__name__}, not with a convolution")
        elif isinstance(part, nn.BatchNorm2d) and stages[-1][2] is None:
            _fold(stages[-1], read_norm(part))
        elif stages[-1][2] is None:
            stages[-1][2] = activation_name(part)
        else:
            raise NoBoundError(f"has a {type(part).__name__} after an activation, which is not covered")
    if not stages:
        raise NoBoundError("has no convolution")
    return ReadPatchEmbedding(
        tuple((weight, stride, activation) for weight, stride, activation, _, _ in stages),
        tuple(stage[3] for stage in stages),
        tuple(stage[4] for stage in stages),
        norm,
    )


def _flat(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [part for child in module for part in _flat(child)]
    if isinstance(module, nn.Sequential | nn.Identity) and not is_identity(module):
        raise NoBoundError(f"has a {type(module).__name__}, a subclass that may compute anything")
    return [] if is_identity(module) else [module]


def _convolution(conv: nn.Conv2d) -> list:
    """Weight, stride, activation still to come, bias, padding."""
    if conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros":
        raise NoBoundError(
            f"has a convolution with groups={conv.groups}, dilation={conv.dilation}, padding {conv.padding_mode!r}; "
            "the bound is for plain convolutions with zero padding"
        )
    bias = None if conv.bias is None else conv.bias.detach().double()
    return [conv.weight.detach().double(), conv.stride, None, bias, conv.padding]


def _fold(stage: list, norm: ReadNorm) -> None:
    stage[0] = stage[0] * norm.weight[:, None, None, None]
    stage[3] = norm.bias if stage[3] is None else stage[3] * norm.weight + norm.bias
