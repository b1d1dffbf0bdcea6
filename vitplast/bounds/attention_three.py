"""Attention that is not of the canonical form: rotated, normalised or cosine queries and keys, by Theorem 13.

With RoPE the score matrix depends on the pair of positions; with QK-norm and cosine attention it depends on the
tokens. What is left is that queries and keys are bounded and Lipschitz in the tokens, which is all that
`three_argument_bound` asks for. Values stay the tokens themselves (R = r, L_v = 1), so the heads are put together with
`M_h = O_h V_h` as in Theorem 12. Fixed masks and position biases are allowed and change nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitplast.bounds.attention import Heads, checked_ball, slice_norms
from vitplast.bounds.attention_ball import combine_heads
from vitplast.bounds.canonical import canonical
from vitplast.bounds.layernorm import centred_norm, layernorm_constant
from vitplast.bounds.rmsnorm import rmsnorm_constant
from vitplast.bounds.three_argument import bias_of, sizes_of, three_argument_bound
from vitplast.errors import HypothesisError, ShapeError, UnknownNameError

__all__ = [
    "QKNorm",
    "attention_cosine_bound",
    "attention_qk_norm_bound",
    "attention_rope_bound",
    "three_argument_bound",
]


class QKNorm(NamedTuple):
    """A norm of the queries or keys of each head: `kind` "layernorm" or "rmsnorm", with its measured floor."""

    weight: Tensor  # (d,)
    floor: float | Tensor | None  # smallest std (rms for "rmsnorm") of a query or key; one number or (H,)
    eps: float = 0.0
    bias: Tensor | None = None  # (d,)
    kind: str = "layernorm"


def attention_rope_bound(
    slices: Heads,
    scale: float,
    *,
    tokens: int,
    radius: float | None,
    query_bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    combine: str = "stacked",
) -> float:
    """Theorem 13 with `Phi = s (r ||Q|| + ||b_q||)`, `Psi = r ||K|| + ||b_k||`, `L_q = s ||Q||`, `L_k = ||K||`.

    Queries and keys are turned by rotations that depend on the position (RoPE), which keep norms and distances. The
    score matrix then differs from pair to pair of positions, and the key bias no longer cancels. Any orthogonal maps
    will do, also the identity for tokens that are not turned at all.

    Parameters
    ----------
    slices
        From `heads`.
    scale
        s, the factor of the scores.
    tokens
        n.
    radius
        r, the largest norm of a token of either input.
    query_bias, key_bias
        Shape (H d,), or None for zero.
    combine
        "separate", "sum" or "stacked", as in `combine_heads`.

    Raises
    ------
    ShapeError
        If a bias does not fit the heads or there are no tokens.
    HypothesisError
        If the radius is missing, negative or not finite, or a bias is not finite.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> layer = heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1)
    >>> attention_rope_bound(layer, 1.0, tokens=2, radius=1.0)
    3.414213562373095
    """
    radius, scale = checked_ball(1, radius), abs(scale)
    query, key = slice_norms(slices.query.transpose(-1, -2)), slice_norms(slices.key.transpose(-1, -2))
    per_head = three_argument_bound(
        tokens=tokens,
        query_radius=scale * (radius * query + bias_of(slices, query_bias, "query_bias").norm(dim=-1)),
        key_radius=radius * key + bias_of(slices, key_bias, "key_bias").norm(dim=-1),
        value_radius=radius,
        query_constant=scale * query,
        key_constant=key,
    )
    return combine_heads(canonical(slices, scale), per_head, combine)


def attention_qk_norm_bound(
    slices: Heads,
    scale: float,
    query_norm: QKNorm,
    key_norm: QKNorm,
    *,
    tokens: int,
    radius: float | None,
    rotated: bool = False,
    combine: str = "stacked",
) -> float:
    """Theorem 13, `Phi = s (sqrt(d) g_q + ||beta_q||)`, `Psi = sqrt(d) g_k`, `L = g ||Pi W|| / sqrt(sigma^2 + eps)`.

    `g = ||diag(gamma) Pi||` for layer norms, and `Pi` is the identity for RMS norms (Theorem 6). The norms act on the
    d features of each head. Biases of queries and keys enter through the floors alone; `beta_k` cancels, unless RoPE
    follows the norm.

    Parameters
    ----------
    slices, scale, tokens, radius, combine
        As in `attention_rope_bound`.
    query_norm, key_norm
        Scales, shift, eps and the floor measured on the inputs. A floor of 0 leaves the one of eps.
    rotated
        True if rotations follow the norms.

    Raises
    ------
    ShapeError
        If scales, shifts or floors do not fit the heads.
    HypothesisError
        If a floor is missing, negative or not finite, a floor and its eps are both 0, or the radius is unusable.
    UnknownNameError
        If a kind is neither "layernorm" nor "rmsnorm".

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> layer = heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1)
    >>> norm = QKNorm(torch.ones(2), floor=1.0, kind="rmsnorm")
    >>> round(attention_qk_norm_bound(layer, 1.0, norm, norm, tokens=2, radius=1.0), 9)
    4.242640687
    """
    radius, scale = checked_ball(1, radius), abs(scale)
    query_size, query_shift, query_constant = _normalised(slices.query, query_norm, "query_norm")
    key_size, key_shift, key_constant = _normalised(slices.key, key_norm, "key_norm")
    per_head = three_argument_bound(
        tokens=tokens,
        query_radius=scale * (query_size + query_shift),
        key_radius=key_size + key_shift if rotated else key_size,
        value_radius=radius,
        query_constant=scale * query_constant,
        key_constant=key_constant,
    )
    return combine_heads(canonical(slices, scale), per_head, combine)


def attention_cosine_bound(
    slices: Heads,
    temperature: float | Tensor,
    *,
    tokens: int,
    radius: float | None,
    query_floor: float | Tensor | None,
    key_floor: float | Tensor | None,
    combine: str = "stacked",
) -> float:
    """Theorem 13 with `Phi = t`, `Psi = 1`, `L_q = t ||Q|| / min ||q_i||`, `L_k = ||K|| / min ||k_j||` (Swin-v2).

    Scores are `t cos(q_i, k_j) + mu_ij`, with the factor t of each head as it is used (after the clamp). Biases of
    queries and keys enter through the floors alone.

    Parameters
    ----------
    slices, tokens, radius, combine
        As in `attention_rope_bound`; n is the size of a window.
    temperature
        t, one number or (H,).
    query_floor, key_floor
        Smallest norm of a query and of a key of either input, one number or (H,). Where the division is by
        `max(||q||, eps)`, a floor of `eps` holds always.

    Raises
    ------
    ShapeError
        If temperatures or floors do not fit the heads.
    HypothesisError
        If a floor is missing, zero, negative or not finite, or the radius is unusable.

    Examples
    --------
    >>> from vitplast.bounds import heads
    >>> layer = heads(torch.eye(2).repeat(3, 1), torch.eye(2), 1)
    >>> attention_cosine_bound(layer, 1.0, tokens=2, radius=1.0, query_floor=1.0, key_floor=0.5)
    4.414213562373095
    """
    radius = checked_ball(1, radius)
    factor = _per_head(slices.query, temperature, "temperature").abs()
    query_floor, key_floor = _floor(slices.query, query_floor, "query"), _floor(slices.key, key_floor, "key")
    if not bool((torch.cat([query_floor, key_floor]) > 0).all()):
        raise HypothesisError(f"floors must be positive, got {query_floor.tolist()} and {key_floor.tolist()}")
    per_head = three_argument_bound(
        tokens=tokens,
        query_radius=factor,
        key_radius=1.0,
        value_radius=radius,
        query_constant=factor * slice_norms(slices.query.transpose(-1, -2)) / query_floor,
        key_constant=slice_norms(slices.key.transpose(-1, -2)) / key_floor,
    )
    return combine_heads(canonical(slices, 1.0), per_head, combine)


def _normalised(rows: Tensor, norm: QKNorm, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Largest norm without the shift, norm of the shift, and Lipschitz constant of each head."""
    if norm.kind not in (kinds := ("layernorm", "rmsnorm")):
        raise UnknownNameError("norm", norm.kind, kinds)
    width = rows.shape[-2]
    for part in (norm.weight, norm.bias):
        if part is not None and part.shape != (width,):
            raise ShapeError(f"{name} acts on heads of width {width}, got parameters of shape {tuple(part.shape)}")
    floors = _floor(rows, norm.floor, name).tolist()
    if norm.kind == "layernorm":
        size, constant = centred_norm(norm.weight), layernorm_constant
        rows = rows - rows.mean(dim=-2, keepdim=True)
    else:
        size, constant = float(norm.weight.detach().abs().max()), rmsnorm_constant
    steepness = rows.new_tensor([constant(norm.weight, floor, norm.eps) for floor in floors])
    shift = rows.new_zeros(()) if norm.bias is None else torch.linalg.vector_norm(norm.bias.detach().to(rows))
    return rows.new_tensor(math.sqrt(width) * size), shift, steepness * slice_norms(rows.transpose(-1, -2))


def _per_head(rows: Tensor, given: float | Tensor, name: str) -> Tensor:
    given = torch.as_tensor(given).detach().to(rows)
    if given.shape not in ((), rows.shape[:1]):
        raise ShapeError(f"{name} takes one number or one a head ({len(rows)}), got shape {tuple(given.shape)}")
    return given.expand(len(rows))


def _floor(rows: Tensor, floor: float | Tensor | None, name: str) -> Tensor:
    if floor is None:
        raise HypothesisError(f"the floor of {name} is missing: Theorem 13 needs a measured one (`query_key_floors`)")
    return sizes_of(f"the floor of {name}", _per_head(rows, floor, f"the floor of {name}"))
