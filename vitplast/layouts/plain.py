"""timm's plain vision transformers: ViT, DeiT, MAE (encoder, nothing masked), DINO, DINOv2, CLIP and SigLIP towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitplast.errors import LayoutError
from vitplast.layouts.layout import Embedded, Layout

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Where each component lives inside a block.
PATHS = {"LN1": "norm1", "MHA": "attn", "LN2": "norm2", "FC1": "mlp.fc1", "FC2": "mlp.fc2"}

#: Group of a parameter by its timm name; each pattern matches the whole name, so `norm1` never matches `norm10`.
GROUP_RULES = {
    "emb": r"(cls_token|reg_token|mask_token|pos_embed|patch_embed\..+)",
    "LN1": r"blocks\.\d+\.norm1\.(weight|bias)",
    "MHA": r"blocks\.\d+\.attn\.(qkv|proj)\.(weight|bias)",
    "LN2": r"blocks\.\d+\.norm2\.(weight|bias)",
    "FC1": r"blocks\.\d+\.mlp\.fc1\.(weight|bias)",
    "FC2": r"blocks\.\d+\.mlp\.fc2\.(weight|bias)",
    "LayerScale": r"blocks\.\d+\.ls[12]\.gamma",
    "QK-norm": r"blocks\.\d+\.attn\.[qk]_norm\.(weight|bias)",
    "inner-norm": r"blocks\.\d+\.(attn|mlp)\.norm\.(weight|bias)",
    "pre-norm": r"norm_pre\.(weight|bias)",
    "pool": r"attn_pool\..+",
    "norm": r"(norm|fc_norm)\.(weight|bias)",
    "head": r"head\.(weight|bias)",
}


def embed(model: nn.Module, images: Tensor) -> Embedded:
    """Patches, prefix tokens and positions.

    Raises
    ------
    LayoutError
        If the model does not make its tokens as a plain timm vision transformer does.
    """
    from torch import Tensor, nn

    missing = [name for name in ("patch_embed", "_pos_embed") if not hasattr(model, name)]
    if missing:
        raise LayoutError(f"{type(model).__name__} has no {' and no '.join(missing)}: its embedding is not known")
    x = model._pos_embed(model.patch_embed(images))
    if not isinstance(x, Tensor):
        raise LayoutError(f"{type(model).__name__} passes more than tokens to its blocks (rotary positions?)")
    for name in ("patch_drop", "norm_pre"):
        x = getattr(model, name, nn.Identity())(x)
    return Embedded(x)


def attend(module: nn.Module, x: Tensor, passed: Mapping[str, Any]) -> Tensor:
    """Attention takes the tokens and nothing else."""
    return module(x)


def features(model: nn.Module, images: Tensor) -> Any:
    """All but the head, which no component needs."""
    return getattr(model, "forward_features", model)(images)


PLAIN = Layout(
    name="plain",
    words="a plain vision transformer",
    classes=("timm.models.vision_transformer.VisionTransformer",),
    blocks=("blocks",),
    paths={component: ((path,),) for component, path in PATHS.items()},
    groups=GROUP_RULES,
    embed=embed,
    attend=attend,
    features=features,
    reading=lambda model: {},
    width=lambda model: int(model.embed_dim),
)
