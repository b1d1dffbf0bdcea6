"""`||J||_2` of the maps of one block along segments between real pairs, and what bounds it there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from vitplast.bounds.attention_ball import combine_heads
from vitplast.bounds.attention_local import local_attention_bound
from vitplast.bounds.canonical import Canonical
from vitplast.local import math_attention, segment_lipschitz
from vitplast.theory.walk import Walk

#: Relative change at which a power iteration stops: enough digits for an estimate.
TOLERANCE = 1e-3
#: Name of the variable, convention, component, value.
Value = tuple[str, str, str, float]


def local_norms(
    block: nn.Module, layer: int, form: Canonical | None, walk: Walk, conventions: Sequence[str], *, points: int
) -> Iterator[Value]:
    """Largest and mean `||J(Z_t)||_2` over the segments between the kept pairs, found from below (Theorem 2).

    For MHA the bound of Theorem 11 at the same points as well. Left out are linear layers, whose Jacobian is their
    weight everywhere, and layer norms, whose exact constant is known (Theorem 6). Tokens that are the same in all these
    inputs (class token and registers of the embedding) stay as they are: no pair differs there.
    """
    block = copy.deepcopy(block).double().eval()
    with math_attention(block):
        for convention, component, f, key in _maps(block, layer, conventions):
            x, y = walk.inputs(key)
            norms = segment_lipschitz(_moving(f, x, y), x, y, points=points, tolerance=TOLERANCE)
            yield "local_norm", convention, component, float(norms.max())
            yield "local_mean", convention, component, float(norms.mean())
            if component == "MHA" and form is not None:
                yield "local_bound", convention, component, _bound(form, x, y, points)


def _maps(
    block: nn.Module, layer: int, conventions: Sequence[str]
) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor], tuple[str, int, str]]]:
    if "common" in conventions:
        yield "common", "MHA", block.attn, ("common", 0, "MHA")
    if "in_situ" in conventions:
        yield "in_situ", "MHA", block.attn, ("in_situ", layer, "MHA")
        yield "in_situ", "MHA(LN1)", lambda z: block.attn(block.norm1(z)), ("in_situ", layer, "LN1")
        yield "in_situ", "MLP(LN2)", lambda z: block.mlp(block.norm2(z)), ("in_situ", layer, "LN2")
        yield "in_situ", "block", block, ("in_situ", layer, "LN1")


def _moving(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """`f` with the tokens held fixed that are the same in all of `x` and `y`."""
    both = torch.cat([x, y])
    moves = (both != both[:1]).any(dim=-1).any(dim=0)[:, None]
    return lambda z: f(torch.where(moves, z, both[0]))


def _bound(form: Canonical, x: Tensor, y: Tensor, points: int) -> float:
    found = 0.0
    for t in torch.linspace(0, 1, points, dtype=torch.float64):
        for heads in local_attention_bound(form, (1 - t) * x + t * y):
            found = max(found, combine_heads(form, heads))
    return found
