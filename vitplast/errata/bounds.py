"""A1 to A4 and B10: heads by columns, queries without bias, a LayerNorm without 1/sigma, a typical radius, ranks.

Small attention layers on which each fault shows by hand, and the authors' steps written out. Valid versions are in
`vitplast.bounds`: `heads` and `row_norms`, `attention_paper_bias` and `attention_bound`, `layernorm_constant`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vitplast.bounds import (
    HeadNorms,
    attention_paper_bias,
    attention_quoted,
    column_heads,
    column_norms,
    heads,
    row_norms,
)
from vitplast.errors import HypothesisError, InputError, ShapeError


class Layer(NamedTuple):
    """A self-attention layer: fused weights (3 E, E), fused bias (3 E,), output weight (E, E), number of heads."""

    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    heads: int


def layer_of(attention: nn.Module) -> Layer:
    """The layer of a plain timm attention module, in float64; its output bias, which only shifts, is left out."""
    weight = attention.qkv.weight.detach().double()
    bias = attention.qkv.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().double()
    return Layer(weight, bias, attention.proj.weight.detach().double(), attention.num_heads)


def attend(layer: Layer, x: Tensor) -> Tensor:
    """`sum_h O_h softmax((Q_h x_i + b) . K_h x_j / sqrt(d)) V_h x_j`, written out; (n, E) or (B, n, E) in and out."""
    batch = x.double().reshape(-1, *x.shape[-2:])
    q, k, v = linear(batch, layer.qkv_weight, layer.qkv_bias).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return linear(mixed.transpose(1, 2).flatten(2), layer.proj_weight).reshape(x.shape)


def rate(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """`||f(x) - f(y)|| / ||x - y||` of one pair, in float64 (Definition 1).

    Raises
    ------
    HypothesisError
        If the two inputs are equal.

    Examples
    --------
    >>> rate(lambda x: -3 * x, torch.zeros(2), torch.ones(2))
    3.0
    """
    x, y = x.double(), y.double()
    distance = (x - y).norm()
    if distance == 0:
        raise HypothesisError("the two inputs are equal: they have no rate of change")
    return float((f(x) - f(y)).norm() / distance)


def coded_norms(layer: Layer) -> HeadNorms:
    """A1 as the authors' code does it: query, key and value cut along *columns*, which are input features."""
    return column_norms(column_heads(layer.qkv_weight, layer.proj_weight, layer.heads))


def true_norms(layer: Layer) -> HeadNorms:
    """The same norms for the heads of the forward pass, which are rows; with the query bias (Prop. 8)."""
    slices = heads(layer.qkv_weight, layer.proj_weight, layer.heads)
    width = slices.query.shape[1]
    return row_norms(slices, width**-0.5, layer.qkv_bias[: layer.heads * width])


def attention_as_coded(layer: Layer, *, tokens: int, radius: float) -> float:
    """A1: `sum_h ||O_h|| ||V_h|| sqrt(3 n + (12 n + 3) r^4 ||A_h||^2)` on the columns; no bound for this layer."""
    return attention_quoted(coded_norms(layer), tokens=tokens, radius=radius)


def attention_by_rows(layer: Layer, *, tokens: int, radius: float) -> float:
    """A2: the same formula on the real heads; a bound if the queries have no bias."""
    return attention_quoted(true_norms(layer), tokens=tokens, radius=radius)


def attention_with_bias(layer: Layer, *, tokens: int, radius: float) -> float:
    """The formula with the query bias put in (after Theorem 10): a bound for tokens of norm at most `radius`."""
    return attention_paper_bias(true_norms(layer), tokens=tokens, radius=radius)


def renumber_heads(layer: Layer, order: Sequence[int]) -> Layer:
    """The same function with its heads in another order: rows of query, key, value, columns of the output weight.

    Raises
    ------
    InputError
        If `order` is not a permutation of the heads.
    """
    if sorted(order) != list(range(layer.heads)):
        raise InputError(f"order must be a permutation of {layer.heads} heads, got {list(order)}")
    inner = layer.proj_weight.shape[1]
    rows = torch.arange(inner).reshape(layer.heads, -1)[list(order)].flatten()
    return Layer(
        layer.qkv_weight.unflatten(0, (3, inner))[:, rows].flatten(0, 1),
        layer.qkv_bias.unflatten(0, (3, inner))[:, rows].flatten(),
        layer.proj_weight[:, rows],
        layer.heads,
    )


def blind_layer(width: int = 4, strength: float = 100.0) -> Layer:
    """A1: three heads; only the first works, and it asks, compares and carries disjoint thirds of the features.

    Every product of the authors' column slices has a zero factor, so the coded value is 0 whatever the strength.
    """
    eye, none = torch.eye(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
    idle = torch.zeros(2 * width, 3 * width, dtype=torch.float64)
    read = [[strength * eye, none, none], [none, eye, none], [none, none, eye]]
    weight = torch.cat([torch.cat([torch.cat(third, dim=1), idle]) for third in read])
    out = torch.cat([eye.repeat(3, 1), torch.zeros(3 * width, 2 * width, dtype=torch.float64)], dim=1)
    return Layer(weight, weight.new_zeros(len(weight)), out, 3)


def biased_layer(bias: float) -> Layer:
    """A2: one head on two features; the query is a constant, `bias`, the key the first feature, the value the second.

    Its query weight is zero, so the formula without the bias is `sqrt(3 n)` for any bias.
    """
    weight = torch.zeros(6, 2, dtype=torch.float64)
    weight[2, 0] = weight[5, 1] = 1.0
    shift = torch.zeros(6, dtype=torch.float64)
    shift[0] = bias
    return Layer(weight, shift, torch.eye(2, dtype=torch.float64), 1)


def outlier_layer(strength: float) -> Layer:
    """A4: one head on two features; the first is query and value, the second is the key."""
    weight = torch.zeros(6, 2, dtype=torch.float64)
    weight[0, 0], weight[2, 1], weight[4, 0] = strength, 1.0, 1.0
    return Layer(weight, weight.new_zeros(6), torch.eye(2, dtype=torch.float64), 1)


def swap_pair(
    tokens: int, width: int, *, key: int, value: int, query: int | None = None, step: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """A pair (n, E) whose first two tokens, of opposite values, swap a small lead `step` in the key feature.

    The others have key -1, so all rows look at these two and move together; all tokens have query 1 where there is a
    query feature.

    Raises
    ------
    ShapeError
        If there are fewer than two tokens or the features do not fit the width.
    """
    if tokens < 2 or not max(key, value, query or 0) < width:
        raise ShapeError(f"need two tokens or more and features below {width}, got {tokens} tokens, {key}, {value}")
    x = torch.zeros(tokens, width, dtype=torch.float64)
    x[2:, key] = -1.0
    x[0, value], x[1, value] = 1.0, -1.0
    if query is not None:
        x[:, query] = 1.0
    y = x.clone()
    x[0, key], x[1, key], y[0, key], y[1, key] = step, -step, -step, step
    return x, y


def outlier_pair(tokens: int, strength: float, step: float = 1e-4) -> tuple[Tensor, Tensor]:
    """A4: two tokens of norm about 1 (opposite values) that swap a lead in the key, all others at the origin.

    Both keys are raised so far that the first token, whose query is 1, looks at these two alone.
    """
    x = torch.zeros(tokens, 2, dtype=torch.float64)
    x[:2, 0] = torch.tensor([1.0, -1.0])
    x[:2, 1] = 2**0.5 * (torch.tensor(float(tokens)).log() + 6) / strength
    y = x.clone()
    x[:2, 1] += torch.tensor([step, -step], dtype=torch.float64)
    y[:2, 1] += torch.tensor([-step, step], dtype=torch.float64)
    return x, y


def radius_as_coded(tokens: Tensor) -> float:
    """A4: mean over images of the root mean square token norm; (N, n, E) to a number, which most bounds do not allow.

    Examples
    --------
    >>> radius_as_coded(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    3.5355339059327378
    """
    return float(_norms(tokens).square().mean(dim=1).sqrt().mean())


def radius_needed(tokens: Tensor) -> float:
    """The largest token norm of (N, n, E): what the theorem on attention assumes.

    Examples
    --------
    >>> radius_needed(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    5.0
    """
    return float(_norms(tokens).max())


def share_outside(tokens: Tensor, radius: float) -> float:
    """Share of the tokens of (N, n, E) whose norm is above the radius.

    Examples
    --------
    >>> share_outside(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]), 3.5)
    0.5
    """
    return float((_norms(tokens) > radius).double().mean())


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Rank 1 for the largest value, as computed; for B10, where the authors' code has a typed list.

    Examples
    --------
    >>> ranks({"FC1": 2.0, "MHA": 9.0, "LN1": 3.0})
    {'FC1': 3, 'MHA': 1, 'LN1': 2}
    """
    order = sorted(values, key=lambda name: -values[name])
    return {name: order.index(name) + 1 for name in values}


def _norms(tokens: Tensor) -> Tensor:
    if tokens.ndim != 3 or not tokens.numel():
        raise ShapeError(f"tokens must be (images, tokens, features), got {tuple(tokens.shape)}")
    return torch.linalg.vector_norm(tokens.detach().double(), dim=-1)
