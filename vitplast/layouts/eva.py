"""timm's Eva class: EVA, EVA-02, DINOv3, RoPE-ViT, Perception Encoder, Sapiens.

What differs from a plain vision transformer: queries and keys are rotated by position (RoPE; the model makes the
rotation from the size of the image and hands it to every block), biases of queries and values lie beside the fused
weight, LayerScale is a parameter of the block (`gamma_1`, `gamma_2`), and the MLP may be gated.

FC1 of a gated MLP `W3 (phi(W1 x + b1) * (W2 x + b2))` (Prop. 15) is all that is linear before the activation, as in an
MLP that is not gated: the outputs of gate and up projection one after the other, `x -> (W1 x + b1, W2 x + b2)`. That is
what timm's packed `fc1` computes anyway. The authors measured the up projection `W2` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitplast.layouts.layout import Embedded, Layout
from vitplast.layouts.plain import GROUP_RULES, PATHS, features

if TYPE_CHECKING:
    from torch import Tensor, nn

_OWN_RULES = {
    "MHA": r"blocks\.\d+\.attn\.((qkv|q_proj|k_proj|v_proj|proj)\.(weight|bias)|[qv]_bias)",
    "FC1": r"blocks\.\d+\.mlp\.fc1(_g|_x)?\.(weight|bias)",
    "LayerScale": r"blocks\.\d+\.gamma_[12]",
    "gate": r"blocks\.\d+\.attn\.gate\.(weight|bias)",
    "RoPE": r"rope\.freqs",
}


def embed(model: nn.Module, images: Tensor) -> Embedded:
    """Patches, class token, registers and learned positions where there are any; the rotation goes to the attention."""
    x, rotation = model._pos_embed(model.patch_embed(images))
    x = model.norm_pre(x)
    if rotation is not None and getattr(model, "rope_mixed", False):
        return Embedded(x, tuple({"rope": of_layer} for of_layer in rotation))
    return Embedded(x, {"rope": rotation})


def attend(module: nn.Module, x: Tensor, passed: Mapping[str, Any]) -> Tensor:
    """Attention with the rotation of its block."""
    return module(x, **passed)


EVA = Layout(
    name="eva",
    words="a vision transformer of timm's Eva class",
    classes=("timm.models.eva.Eva",),
    blocks=("blocks",),
    paths={c: ((path,),) for c, path in PATHS.items()} | {"FC1": (("mlp.fc1",), ("mlp.fc1_g", "mlp.fc1_x"))},
    up="mlp.fc1_x",
    groups=GROUP_RULES | _OWN_RULES,
    embed=embed,
    attend=attend,
    features=features,
    reading=lambda model: {"rotary": model.rope is not None},
    width=lambda model: int(model.embed_dim),
)
