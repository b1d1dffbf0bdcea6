"""The maps that the search attacks, written out as plain tensor functions, apart from the code of the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitplast.bounds.attention import Heads, heads
from vitplast.bounds.canonical import Canonical, canonical


@dataclass(frozen=True)
class Attention:
    """`f(X)_i = sum_h O_h sum_j softmax_j(s <q_i, k_j> + mask_ij) v_j + b_O`, heads as in a vision transformer."""

    qkv: Tensor  # (3 D, E)
    out: Tensor  # (F, D)
    n_heads: int
    qkv_bias: Tensor | None = None  # (3 D,)
    out_bias: Tensor | None = None  # (F,)
    scale: float | None = None  # 1 / sqrt(D / H) if None
    mask: Tensor | None = None  # (n, n), added to the scores
    inner: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None  # acts on q and k, shape (B, H, n, d)

    def __call__(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        if self.inner is not None:
            query, key = self.inner(query, key)
        scores = self.score_scale * query @ key.mT
        if self.mask is not None:
            scores = scores + self.mask
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return F.linear(mixed, self.out, self.out_bias)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, shape (B, H, n, d) each."""
        stacked = F.linear(x, self.qkv, self.qkv_bias)
        query, key, value = stacked.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key, value

    @property
    def score_scale(self) -> float:
        return (self.out.shape[1] // self.n_heads) ** -0.5 if self.scale is None else self.scale

    @property
    def slices(self) -> Heads:
        return heads(self.qkv, self.out, self.n_heads)

    @property
    def query_bias(self) -> Tensor | None:
        return None if self.qkv_bias is None else self.qkv_bias[: self.out.shape[1]]

    @property
    def key_bias(self) -> Tensor | None:
        return None if self.qkv_bias is None else self.qkv_bias[self.out.shape[1] : 2 * self.out.shape[1]]

    @property
    def form(self) -> Canonical:
        return canonical(self.slices, self.score_scale, self.query_bias)


def grouped_mixing(form: Canonical, counts: Tensor) -> Callable[[Tensor], Tensor]:
    """`m(X)` of one head for sequences with repeated tokens, seen isometrically: row k stands for `counts_k` tokens.

    Row k of the argument is `sqrt(counts_k)` times the token, so norms and rates are those of the whole sequence, at
    the price of a short one.
    """
    root = counts.double().sqrt()[:, None]
    score = form.key[0].T @ form.query[0]

    def mixing(z: Tensor) -> Tensor:
        x = z / root
        scores = x @ score.T @ x.mT + (x @ form.shift[0])[:, None, :] + counts.double().log()
        return root * (scores.softmax(dim=-1) @ x)

    return mixing


def layernorm(gamma: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """`gamma * (x - mean) / sqrt(var + eps)`."""
    return lambda x: F.layer_norm(x, gamma.shape, gamma, None, eps)


def rmsnorm(gamma: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """`gamma * x / sqrt(mean square + eps)`."""
    return lambda x: gamma * x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def rotations(tokens: int, width: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """RoPE: features 2k and 2k + 1 of token i turned by the angle `i 100^(-2k/width)`."""
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * 100.0 ** (
        -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    cos, sin = angle.cos(), angle.sin()

    def turned(q: Tensor) -> Tensor:
        even, odd = q[..., ::2], q[..., 1::2]
        return torch.stack([cos * even - sin * odd, sin * even + cos * odd], dim=-1).flatten(-2)

    return lambda query, key: (turned(query), turned(key))


def patches(weight: Tensor, stride: int) -> Callable[[Tensor], Tensor]:
    """Patch embedding of square images given as (B, channels, height * width)."""
    channels = weight.shape[1]

    def embed(x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[-1])
        return F.conv2d(x.reshape(-1, channels, side, side), weight, stride=stride).flatten(2).mT

    return embed
