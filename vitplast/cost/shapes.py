"""Shape of a vision transformer: the few numbers from which its cost follows, read from a model or from its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from vitplast.components import parse_components
from vitplast.errors import InputError, LayoutError, UnknownNameError

if TYPE_CHECKING:
    from torch import nn

#: Parts of a block in the order of the forward pass; LS1 and LS2 are the two LayerScales.
BLOCK_ORDER = ("LN1", "MHA", "LS1", "LN2", "FC1", "FC2", "LS2")
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Shape:
    """Width E, `depth` L, `heads`, `hidden` H, tokens n, `classes` C, `patch_inputs` (numbers in one patch).

    `prefix` tokens are no patches (class token, registers). `last_tokens` pass the last block's MLP: 1 where the class
    token alone is classified and `vitplast.training.stages` leaves out the others, 0 for all; `normed_tokens` are kept
    for the final norm (1 where it stands after the pooling, 0 for all). `gated` MLPs (SwiGLU)
    have two matrices of H x E before the activation. `counts` are the model's own numbers of parameters by group;
    empty: those of a plain ViT of this shape.
    """

    width: int
    depth: int
    heads: int
    hidden: int
    tokens: int
    classes: int
    patch_inputs: int
    prefix: int = 1
    last_tokens: int = 0
    normed_tokens: int = 0
    gated: bool = False
    layer_scale: bool = False
    counts: Mapping[str, int] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads", "hidden", "tokens"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        for name in ("classes", "patch_inputs", "prefix", "last_tokens", "normed_tokens"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise InputError(f"{name} must be a whole number of at least 0, got {getattr(self, name)!r}")

    @classmethod
    def of(cls, model: nn.Module) -> Shape:
        """The shape of a timm vision transformer (plain or of the Eva class), on any device, meta included.

        Raises
        ------
        LayoutError
            If the model has no blocks with attention and an MLP.
        """
        return _read(model)

    @classmethod
    def named(cls, name: str, img_size: int = 0, classes: int = 0) -> Shape:
        """The shape of the model that timm (or this project) has under `name`, built without memory for weights.

        Raises
        ------
        UnknownNameError, LayoutError
            See `vitplast.models.check_name`.
        InputError
            If the patch does not divide `img_size` (0: the model's own size), or `classes` is negative.
        """
        return replace(_named(name, img_size), classes=classes)

    @property
    def mlp_tokens(self) -> int:
        """Tokens through the MLPs of all blocks: (L - 1) n + n, or + `last_tokens` for the last block."""
        return (self.depth - 1) * self.tokens + (self.last_tokens or self.tokens)

    @property
    def patches(self) -> int:
        return self.tokens - self.prefix

    def parameters(self, group: str) -> int:
        """Parameters of a group over all blocks: 2E L of a norm, (4 E^2 + 4 E) L of MHA, C (E + 1) of the head."""
        if group == "head":
            return self.classes * (self.width + 1)
        if group in self.counts:
            return self.counts[group]
        e, h, layers = self.width, self.hidden, self.depth
        plain = {
            "emb": (self.patch_inputs + 1) * e + (self.tokens + self.prefix) * e,
            "LN1": 2 * e * layers,
            "MHA": (4 * e * e + 4 * e) * layers,
            "LN2": 2 * e * layers,
            "FC1": (e * h + h) * layers * (2 if self.gated else 1),
            "FC2": (e * h + e) * layers,
            "LayerScale": 2 * e * layers if self.layer_scale else 0,
            "norm": 2 * e,
        }
        return 0 if self.counts else plain.get(group, 0)

    @property
    def all_parameters(self) -> int:
        """Parameters of the model, head included."""
        own = self.counts or dict.fromkeys(("emb", "LN1", "MHA", "LN2", "FC1", "FC2", "LayerScale", "norm"))
        return sum(self.parameters(group) for group in own if group != "head") + self.parameters("head")

    def trained_parameters(
        self, components: str, lora_rank: int = 0, *, train_head: bool = True, train_norm: bool = True
    ) -> int:
        """Numbers that train: the groups of `components` with head and final norm; with LoRA r (in + out) a matrix."""
        wanted = parse_components(components)
        if wanted == ("all",):
            left = 0 if train_head else self.parameters("head")
            return self.all_parameters - left - (0 if train_norm else self.parameters("norm"))
        outer = {g for g, on in (("head", train_head), ("norm", train_norm)) if on or g in wanted}
        inner = [g for g in wanted if g not in ("head", "norm")]
        found = sum(self.parameters(g) for g in outer)
        if lora_rank:
            return found + sum(self._factors(g) for g in inner) * lora_rank
        return found + sum(self.parameters(g) for g in inner)

    def _factors(self, group: str) -> int:
        """Rows and columns of the linear layers of a component, over all blocks: size of LoRA's factors of rank 1."""
        e, h = self.width, self.hidden
        sides = {"MHA": 4 * e + 2 * e, "FC1": (e + h) * (2 if self.gated else 1), "FC2": e + h}
        if group not in sides:
            raise UnknownNameError("component for LoRA", group, sides)
        return sides[group] * self.depth


def _read(model: nn.Module) -> Shape:
    blocks = getattr(model, "blocks", None)
    if blocks is None or not len(blocks) or not all(hasattr(blocks[0], name) for name in ("attn", "mlp")):
        found = ", ".join(name for name, _ in model.named_children())
        raise LayoutError(f"{type(model).__name__} has no blocks with attn and mlp; its children are: {found}")
    block, width = blocks[0], int(model.embed_dim)
    mlp = block.mlp
    gated = hasattr(mlp, "fc1_g") or getattr(mlp, "gate_layer", None) is not None
    hidden = int(mlp.fc2.in_features)
    prefix = int(getattr(model, "num_prefix_tokens", 1))
    projection = model.patch_embed.proj
    head = getattr(model, "head", None)
    return Shape(
        width=width,
        depth=len(blocks),
        heads=int(block.attn.num_heads),
        hidden=hidden,
        tokens=int(model.patch_embed.num_patches) + prefix,
        classes=int(getattr(head, "out_features", 0)),
        patch_inputs=int(projection.weight[0].numel()),
        prefix=prefix,
        **_short(model),
        gated=gated,
        layer_scale=any(".ls1.gamma" in n or ".gamma_1" in n for n, _ in model.named_parameters()),
        counts=_counts(model),
    )


def _short(model: nn.Module) -> dict[str, int]:
    from vitplast.training.stages import Stages

    stages = Stages(model)
    alone = stages.short_last or (stages.pooled and not stages.class_token)
    return {"last_tokens": int(stages.short_last), "normed_tokens": int(alone)}


def _counts(model: nn.Module) -> dict[str, int]:
    from vitplast.components import groups

    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return {group: sum(sizes[name] for name in names) for group, names in groups(model).items()}


@lru_cache(maxsize=64)
def _named(name: str, img_size: int) -> Shape:
    from vitplast import models

    models.check_name(name, "random")
    models.check_size(name, img_size)
    architecture = models.split(name)[0]
    size = img_size or models.weights.outline(architecture).pretrained_cfg["input_size"][-1]
    return _read(models.outline(architecture, img_size=size))
