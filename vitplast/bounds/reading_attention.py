"""What an attention layer computes, up to an added constant: heads, scale, biases, norms (Prop. 8, Theorem 13).

The class of the layer decides which statement covers it. Classes are matched exactly, and one that is not listed has no
bound: nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitplast.bounds.attention import Heads, heads
from vitplast.bounds.canonical import Canonical, canonical
from vitplast.bounds.reading_layers import (
    ReadLinear,
    ReadNorm,
    class_of,
    is_identity,
    is_linear,
    read_linear,
    read_norm,
    refuse_changes,
)
from vitplast.errors import NoBoundError


@dataclass(frozen=True)
class ReadAttention:
    """Attention up to an added constant: `sum_h O_h sum_j softmax_j(s q_i^T k_j + mu_ij) V_h x_j`.

    Queries and keys are `Q x + b_q` and `K x + b_k`, then normalised (`qk_norm`: by the two norms, over each head;
    `cosine`: to length one, with `temperature` instead of s), then rotated by position (`rotated`).
    """

    kind: str
    heads: Heads
    scale: float
    query_bias: Tensor | None = None  # (H d,)
    key_bias: Tensor | None = None  # (H d,)
    fixed_bias: bool = False  # a position bias or mask that is the same for all inputs may be added to the scores
    position_bias: Tensor | None = None  # (H, n, n), where the module holds it
    tokens: int | None = None  # of a window, where the module fixes it
    query_norm: ReadNorm | None = None
    key_norm: ReadNorm | None = None
    rotated: bool = False
    temperature: Tensor | None = None  # (H,)

    @property
    def form(self) -> Canonical:
        """The canonical form (Prop. 8), which plain attention alone has.

        Raises
        ------
        NoBoundError
            For the other kinds, which are the business of Theorem 13.
        """
        reasons = {
            "rope": "may rotate queries and keys by position (RoPE), which this bound does not cover",
            "qk_norm": "normalises queries and keys (QK-norm), which this bound does not cover",
            "cosine": "takes cosines of queries and keys, which this bound does not cover",
        }
        if self.kind in reasons:
            raise NoBoundError(reasons[self.kind])
        return canonical(self.heads, self.scale, self.query_bias)


def read_attention(module: nn.Module, *, causal: bool = False, rotary: bool = True) -> ReadAttention:
    """Heads, scale, biases and kind of a timm attention layer: "plain", "rope", "qk_norm" or "cosine".

    Parameters
    ----------
    module
        The layer.
    causal
        True if the model passes a causal or padding mask: the same for all inputs, so it counts as a fixed bias.
    rotary
        False if the model passes no rotary embedding to a layer that could use one.

    Raises
    ------
    NoBoundError
        If no statement covers the class, or this setting of it (a gate, a norm of the output, a norm of the queries
        alone, dropout in training mode, something else in its place), or it carries hooks or adapters. The message
        gives the reason.

    Examples
    --------
    >>> from timm.layers import Attention
    >>> read = read_attention(Attention(8, num_heads=2))
    >>> read.kind, read.form.query.shape
    ('plain', torch.Size([2, 4, 8]))
    """
    name = class_of(module)
    if name not in ATTENTION_CLASSES:
        reason = NO_STATEMENT.get(name, "no bound is known for this class of attention")
        raise NoBoundError(f"is a {type(module).__name__}: {reason}")
    if getattr(module, "gate", None) is not None:
        raise NoBoundError("gates its output by a function of the input, so no constant bounds it")
    if not is_identity(getattr(module, "norm", nn.Identity())):
        raise NoBoundError("normalises the attention output before the projection, which this bound does not cover")
    refuse_changes(module)
    read = _normed(module, ATTENTION_CLASSES[name](module))
    if name in _ROTARY and rotary:
        read = replace(read, kind="rope" if read.kind == "plain" else read.kind, rotated=True)
    return replace(read, fixed_bias=read.fixed_bias or causal)


def _read(module: nn.Module, bias: Tensor | None = None) -> ReadAttention:
    """Heads and biases of a layer with one weight for queries, keys and values; `bias` is one kept beside it."""
    qkv, out = (_projection(module, name) for name in ("qkv", "proj"))
    bias = qkv.bias if bias is None else bias
    parts = (None, None) if bias is None else bias.chunk(3)[:2]
    return _made(module, heads(qkv.weight, out.weight, module.num_heads), *parts)


def _read_beside(module: nn.Module) -> ReadAttention:
    """BEiT, EVA: `qkv` has no bias, the three lie beside it."""
    if getattr(module, "q_bias", None) is None:
        return _read(module)
    return _read(module, torch.cat([module.q_bias, module.k_bias, module.v_bias]).detach().double())


def _read_apart(module: nn.Module) -> ReadAttention:
    """EVA, AttentionRope: one weight for all, or three; keys and values may serve several heads."""
    if module.qkv is not None:
        return _read_beside(module)
    query, key, value, out = (_projection(module, f"{name}proj") for name in ("q_", "k_", "v_", ""))
    groups = getattr(module, "num_kv_groups", 1)
    width = query.weight.shape[0] // module.num_heads

    def repeated(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, width)).repeat_interleave(groups, dim=0).flatten(0, 1)

    weight = torch.cat([query.weight, repeated(key.weight), repeated(value.weight)])
    key_bias = None if key.bias is None else repeated(key.bias)
    return _made(module, heads(weight, out.weight, module.num_heads), query.bias, key_bias)


def _read_table(module: nn.Module) -> ReadAttention:
    """BEiT, Swin: a table of biases by relative position; BEiT may be handed another one at the call."""
    read = replace(_read_beside(module), fixed_bias=True)
    if module.relative_position_bias_table is None:
        return read
    index = module.relative_position_index
    bias = module.relative_position_bias_table.detach().double()[index.flatten()].unflatten(0, index.shape)
    return replace(read, position_bias=bias.permute(2, 0, 1), tokens=len(index))


def _read_relative(module: nn.Module) -> ReadAttention:
    read = replace(_read(module), fixed_bias=True)
    if module.rel_pos is None:
        return read
    with torch.no_grad():
        bias = module.rel_pos.get_bias()[0].double()
    return replace(read, position_bias=bias, tokens=bias.shape[-1])


def _read_cosine(module: nn.Module) -> ReadAttention:
    """Swin-v2: cosines times a factor that is at most 100, biases from a small network of relative positions."""
    read = _read_beside(module)
    n_heads, index = module.num_heads, module.relative_position_index
    with torch.no_grad():
        table = module.cpb_mlp(module.relative_coords_table).reshape(-1, n_heads).double()
    return replace(
        read,
        kind="cosine",
        scale=1.0,
        temperature=module.logit_scale.detach().double().clamp(max=math.log(100.0)).exp().flatten(),
        fixed_bias=True,
        position_bias=16 * torch.sigmoid(table[index.flatten()].unflatten(0, index.shape).permute(2, 0, 1)),
        tokens=len(index),
    )


def _read_gpt2(module: nn.Module) -> ReadAttention:
    """transformers' GPT-2: one `Conv1D` for queries, keys and values, and a causal mask that is always there."""
    if module.is_cross_attention:
        raise NoBoundError("attends to the tokens of another sequence (cross attention)")
    qkv, out = (_projection(module, name) for name in ("c_attn", "c_proj"))
    slices = heads(qkv.weight, out.weight, module.num_heads)
    parts = (None, None) if qkv.bias is None else qkv.bias.chunk(3)[:2]
    return ReadAttention("plain", slices, float(module.scaling), *parts, fixed_bias=True)


def _made(module: nn.Module, slices: Heads, query_bias: Tensor | None, key_bias: Tensor | None) -> ReadAttention:
    scale = 1 / math.sqrt(slices.query.shape[1])
    if not getattr(module, "fused_attn", True):
        # timm's fused kernel is called without the module's scale and takes 1/sqrt(d) whatever that says.
        scale = module.scale
    return ReadAttention("plain", slices, scale, query_bias, key_bias)


def _normed(module: nn.Module, read: ReadAttention) -> ReadAttention:
    norms = [getattr(module, name, nn.Identity()) for name in ("q_norm", "k_norm")]
    if all(is_identity(norm) for norm in norms):
        return read
    if any(is_identity(norm) for norm in norms):
        raise NoBoundError("normalises queries or keys alone, which this bound does not cover")
    query, key = (read_norm(norm) for norm in norms)
    if "affine" in (query.kind, key.kind):
        raise NoBoundError("puts a batch norm on queries and keys, which this bound does not cover")
    return replace(read, kind="qk_norm", query_norm=query, key_norm=key)


def _projection(module: nn.Module, name: str) -> ReadLinear:
    layer = getattr(module, name)
    if not is_linear(layer):
        raise NoBoundError(f"has a {type(layer).__name__} as {name}, not a linear layer")
    return read_linear(layer)


#: Which function reads which class.
ATTENTION_CLASSES: dict[str, Callable[[nn.Module], ReadAttention]] = {
    "timm.layers.attention.Attention": _read,
    "timm.layers.attention.AttentionRope": _read_apart,
    "timm.models.eva.EvaAttention": _read_apart,
    "timm.models.beit.Attention": _read_table,
    "timm.models.swin_transformer.WindowAttention": _read_table,
    "timm.models.swin_transformer_v2.WindowAttention": _read_cosine,
    "timm.models.vision_transformer_relpos.RelPosAttention": _read_relative,
    "transformers.models.gpt2.modeling_gpt2.GPT2Attention": _read_gpt2,
}
_ROTARY = ("timm.layers.attention.AttentionRope", "timm.models.eva.EvaAttention")
_POOLS = "pools all tokens into a few learned queries (attention pooling), a map that no statement here covers"
_CHANNELS = "lets channels attend to channels through a covariance over all tokens (XCA), not tokens to tokens"
_CONVOLVES = "mixes tokens by a convolution or a local mean, not by a softmax"
#: Token mixers that no statement covers, and why.
NO_STATEMENT = {
    "timm.models.cait.TalkingHeadAttn": "mixes scores and weights across heads (talking heads), so that no head is "
    "a softmax of its own scores",
    "timm.models.cait.ClassAttn": "lets the class token alone attend and returns one token (class attention)",
    "timm.models.xcit.XCA": _CHANNELS,
    "timm.models.edgenext.CrossCovarianceAttn": _CHANNELS,
    "timm.layers.attention_pool.AttentionPoolLatent": _POOLS,
    "timm.layers.attention_pool.AttentionPoolPrr": _POOLS,
    "timm.layers.attention_pool2d.AttentionPool2d": _POOLS,
    "timm.layers.attention_pool2d.RotAttentionPool2d": _POOLS,
    "timm.layers.diff_attention.DiffAttention": "subtracts one softmax from another and normalises what is left "
    "(differential attention)",
    "timm.models.metaformer.SepConv": _CONVOLVES,
    "timm.models.metaformer.Pooling": _CONVOLVES,
    "timm.models.xcit.LPI": _CONVOLVES,
    "timm.models.coat.FactorAttnConvRelPosEnc": _CONVOLVES,
}
