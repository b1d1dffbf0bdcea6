"""Attention in its queries, keys and values (Theorem 13): `sqrt(n) L_v + sqrt(n/2) R Phi L_k + R Psi L_q`.

`F(q, k, v)_i = sum_j softmax_j(q_i^T k_j + mu_ij) v_j` where queries have norm at most Phi, keys and values lie within
Psi and R of fixed points, and queries, keys and values are L_q, L_k, L_v Lipschitz in the tokens. It needs no score
matrix that is common to all positions, so it serves where Prop. 8 does not. A fixed bias or mask `b` changes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.bounds.attention import Heads, refuse_infinite
from vitplast.bounds.layernorm import euclidean_norms
from vitplast.errors import HypothesisError, ShapeError, UnknownNameError

#: What queries and keys are divided by: standard deviation, root mean square, Euclidean norm.
KINDS = ("layernorm", "rmsnorm", "cosine")


def three_argument_bound(
    *,
    tokens: int,
    query_radius: float | Tensor,
    key_radius: float | Tensor,
    value_radius: float | Tensor,
    query_constant: float | Tensor,
    key_constant: float | Tensor,
    value_constant: float | Tensor = 1.0,
) -> Tensor:
    """`sqrt(n) L_v + sqrt(n/2) R Phi L_k + R Psi L_q` (Theorem 13); `L_v` for a single token.

    Parameters
    ----------
    tokens
        n.
    query_radius, key_radius, value_radius
        `Phi >= ||q_i||`, `Psi >= ||k_j - k||` and `R >= ||v_j - v||` for all tokens of both inputs, with fixed points
        k and v. The score scale belongs to the queries.
    query_constant, key_constant, value_constant
        Lipschitz constants of the maps from the tokens to queries, keys and values.

    Returns
    -------
    Tensor in float64, of the shape the arguments broadcast to.

    Raises
    ------
    ShapeError
        If there are no tokens.
    HypothesisError
        If a radius or constant is negative or not finite.

    Examples
    --------
    >>> float(three_argument_bound(tokens=4, query_radius=1, key_radius=1, value_radius=1, query_constant=0,
    ...     key_constant=0))
    2.0
    """
    if tokens < 1:
        raise ShapeError(f"attention needs one token or more, got {tokens}")
    phi, psi = sizes_of("query_radius", query_radius), sizes_of("key_radius", key_radius)
    query, key = sizes_of("query_constant", query_constant), sizes_of("key_constant", key_constant)
    value, radius = sizes_of("value_constant", value_constant), sizes_of("value_radius", value_radius)
    moved = math.sqrt(tokens) * value + math.sqrt(tokens / 2) * radius * phi * key + radius * psi * query
    return moved if tokens > 1 else value.expand(moved.shape).clone()


def query_key_floors(
    slices: Heads, x: Tensor, kind: str, *, query_bias: Tensor | None = None, key_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Smallest std ("layernorm"), rms ("rmsnorm") or norm ("cosine") of the queries and of the keys of each head.

    Parameters
    ----------
    slices
        From `heads`.
    x
        Tokens of both inputs of all pairs, shape (B, n, E): what was not looked at is not covered.
    kind
        "layernorm", "rmsnorm" or "cosine".
    query_bias, key_bias
        Shape (H d,), or None for zero.

    Returns
    -------
    Two tensors of shape (H,).

    Raises
    ------
    ShapeError, UnknownNameError
        If tokens or biases do not fit the heads; if the kind is another one.
    HypothesisError
        If a token, weight or bias is not finite.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> layer = heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1)
    >>> [floor.tolist() for floor in query_key_floors(layer, torch.tensor([[[3.0, 4.0]]]), "cosine")]
    [[5.0], [5.0]]
    """
    if kind not in KINDS:
        raise UnknownNameError("norm", kind, KINDS)
    width, inner = slices.query.shape[1:]
    if x.ndim != 3 or x.shape[-1] != inner or not x.numel():
        raise ShapeError(f"tokens must have shape (B, n, {inner}), none of them empty, got {tuple(x.shape)}")
    refuse_infinite(query=slices.query, key=slices.key, tokens=x)
    floors = []
    for rows, bias, name in ((slices.query, query_bias, "query_bias"), (slices.key, key_bias, "key_bias")):
        shift = bias_of(slices, bias, name)
        seen = torch.einsum("bne,hde->bnhd", x.to(rows), rows) + shift
        if kind == "layernorm":
            seen = seen - seen.mean(dim=-1, keepdim=True)
        norms = euclidean_norms(seen).amin(dim=(0, 1))
        floors.append(norms if kind == "cosine" else norms / math.sqrt(width))
    return floors[0], floors[1]


def bias_of(slices: Heads, bias: Tensor | None, name: str) -> Tensor:
    """The bias in the shape (H, d) of the heads, zero for None. Raises ShapeError, HypothesisError."""
    n_heads, width, _ = slices.query.shape
    if bias is None:
        return slices.query.new_zeros(n_heads, width)
    if bias.shape != (n_heads * width,):
        raise ShapeError(f"{name} must have shape ({n_heads * width},), got {tuple(bias.shape)}")
    refuse_infinite(**{name: bias})
    return bias.detach().to(slices.query).reshape(n_heads, width)


def sizes_of(name: str, value: float | Tensor) -> Tensor:
    """`value` in float64. Raises HypothesisError unless it is finite and not negative."""
    sizes = torch.as_tensor(value).detach().double()
    if not bool((torch.isfinite(sizes) & (sizes >= 0)).all()):
        raise HypothesisError(f"{name} must be finite and not negative, got {sizes.tolist()}")
    return sizes
