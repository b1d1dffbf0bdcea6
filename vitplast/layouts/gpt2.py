"""GPT-2 of the package transformers: causal attention over text, linear layers stored as `Conv1D` (inputs first)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitplast.layouts.layout import Embedded, Layout

if TYPE_CHECKING:
    from torch import Tensor, nn

_BLOCK = r"(transformer\.)?h\.\d+\."


def embed(model: nn.Module, ids: Tensor) -> Embedded:
    """Token plus position: `wte(ids) + wpe(0, 1, ...)`, for ids (B, n) without padding on the left."""
    import torch

    backbone = getattr(model, "transformer", model)
    positions = torch.arange(ids.shape[1], device=ids.device)
    return Embedded(backbone.drop(backbone.wte(ids) + backbone.wpe(positions)))


def attend(module: nn.Module, x: Tensor, passed: Mapping[str, Any]) -> Tensor:
    """Causal attention: token i sees tokens 0 to i.

    The written-out implementation masks only what it is told to; the fused ones do so by themselves.
    """
    import torch

    mask = None
    if module.config._attn_implementation == "eager":
        n = x.shape[1]
        mask = torch.full((n, n), -torch.inf, dtype=x.dtype, device=x.device).triu(1)[None, None]
    return module(x, attention_mask=mask)[0]


def features(model: nn.Module, ids: Tensor) -> Any:
    """The forward pass, without the cache that generation needs."""
    return getattr(model, "transformer", model)(input_ids=ids, use_cache=False)


GPT2 = Layout(
    name="gpt2",
    words="a GPT-2 of the package transformers",
    classes=("transformers.models.gpt2.modeling_gpt2.GPT2PreTrainedModel",),
    blocks=("h", "transformer.h"),
    paths={
        "LN1": (("ln_1",),),
        "MHA": (("attn",),),
        "LN2": (("ln_2",),),
        "FC1": (("mlp.c_fc",),),
        "FC2": (("mlp.c_proj",),),
    },
    groups={
        "emb": r"(transformer\.)?(wte|wpe)\.weight",
        "LN1": _BLOCK + r"ln_1\.(weight|bias)",
        "MHA": _BLOCK + r"attn\.(c_attn|c_proj)\.(weight|bias)",
        "LN2": _BLOCK + r"ln_2\.(weight|bias)",
        "FC1": _BLOCK + r"mlp\.c_fc\.(weight|bias)",
        "FC2": _BLOCK + r"mlp\.c_proj\.(weight|bias)",
        "norm": r"(transformer\.)?ln_f\.(weight|bias)",
        "head": r"(lm_head|score)\.(weight|bias)",
    },
    embed=embed,
    attend=attend,
    features=features,
    reading=lambda model: {"causal": True},
    width=lambda model: int(model.config.hidden_size),
    text=True,
)
