"""Components as maps of the embedded tokens, cut in two where the second half is linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vitplast.layouts import Embedded
from vitplast.layouts.linear import inputs_of
from vitplast.measure.distances import wide

#: The first half of a component, from the tokens and what the attention is passed beside them.
First = Callable[[Tensor, Mapping[str, Any]], Tensor]


@dataclass(frozen=True)
class Map:
    """A component as `last` (linear, no bias) after `first`: `f(x) - f(y) = last(first(x) - first(y))`.

    `first` also gets what the model passes to the attention of the block (a rotation, say).
    """

    layer: int
    column: int
    first: First
    last: Callable[[Tensor], Tensor]

    def __call__(self, x: Embedded) -> Tensor:
        """`first` of the tokens, in float32 at least."""
        return wide(self.first(x.tokens, x.beside(self.layer)))


def heads(attention: nn.Module) -> Callable[[Tensor], Tensor]:
    """timm's attention up to its output projection: (B, n, E) to (B, n, heads * head width)."""

    def heads(x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = attention.qkv(x).reshape(batch, tokens, 3, attention.num_heads, attention.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = attention.q_norm(q), attention.k_norm(k)
        # timm's own `scale` is used in its unfused path only
        scale = None if attention.fused_attn else attention.scale
        z = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).reshape(batch, tokens, -1)
        z = getattr(attention, "norm", nn.Identity())(z)
        gate = getattr(attention, "gate", None)
        return z if gate is None else z * gate(x).sigmoid()

    return heads


def projection(attention: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda z: F.linear(z, wide(attention.proj.weight))


def padded(module: nn.Module, width: int) -> Callable[[Tensor], Tensor]:
    """A module fed the embedding in its first inputs and zeros in the others."""
    return lambda x: module(F.pad(x, (0, inputs_of(module, width) - width)))


def alone(module: Callable[[Tensor], Tensor]) -> First:
    """What takes the tokens and nothing beside them."""
    return lambda x, passed: module(x)


def same(x: Tensor) -> Tensor:
    return x
