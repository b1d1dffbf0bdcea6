"""Cases of self-attention on a ball (Theorems 10 and 12), the sharp example, and the forms that are no bounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.bounds.attention import (
    HeadNorms,
    attention_paper_bias,
    attention_quoted,
    column_heads,
    column_norms,
    row_norms,
)
from vitplast.bounds.attention_ball import attention_bound, sharp_example
from vitplast.bounds.canonical import Canonical, recentre, score_norms
from vitplast.search.maps import Attention, grouped_mixing
from vitplast.search.problems import VIOLATED, Case, Problem, Version
from vitplast.search.sets import Ball, RmsBall, normal

#: n, d, H, r and, from an earlier search in such settings, the tightness of the quoted form and of the new ones.
SIZES = {
    "n4-d8-H2": (4, 8, 2, 1.0, {"quoted": 0.103, "stacked": 0.382}),
    "n8-d8-H1": (8, 8, 1, 2.0, {"quoted": 0.054, "stacked": 0.395}),
    "n8-d16-H4": (8, 16, 4, 2.0, {"quoted": 0.024, "sum": 0.099, "stacked": 0.149}),
    "n32-d8-H2": (32, 8, 2, 2.0, {"quoted": 0.054, "stacked": 0.303}),
    "n32-d8-H2-tiny": (32, 8, 2, 0.05, {"quoted": 0.061, "stacked": 0.885}),
    "n64-d16-H4": (64, 16, 4, 4.0, {"quoted": 0.042, "stacked": 0.294}),
}
#: Tokens of the sharp example: tightness of Theorem 10 and the quoted bound over the true value.
SHARP = {8: (0.571, 5.81), 32: (0.767, 5.13), 197: (0.896, 4.97), 1024: (0.948, 4.95), 4096: (0.969, 4.95)}


def random_attention(
    width: int, n_heads: int, generator: torch.Generator, *, biases: bool = False, mask: Tensor | None = None
) -> Attention:
    """Normal weights of variance 1 / width; biases, if any, standard normal."""
    qkv = normal(3 * width, width, generator=generator) / math.sqrt(width)
    out = normal(width, width, generator=generator) / math.sqrt(width)
    given = [normal(k * width, generator=generator) if biases else None for k in (3, 1)]
    return Attention(qkv, out, n_heads, *given, mask=mask)


def shared_attention(form: Canonical, tokens: int, radius: float) -> Tensor:
    """Pairs near the sharp example of Theorem 10, built for each head: shape (2, B, n, d).

    All tokens but two stand where the head reacts most, so that they look along one direction `up`. The two lie
    opposite in what the head mixes, lifted along `up` to win the attention; moving them apart along `up` shifts it.
    """
    found = []
    for head in range(len(form.shift)):
        score = form.key[head].T @ form.query[head]
        mixing = form.output[head] @ form.value[head]
        if not bool(mixing.any()) or not bool(score.any() or form.shift[head].any()):
            continue
        for sign in (1, -1):
            rest = sign * torch.linalg.svd(score).Vh[0]
            look = radius * score @ rest + form.shift[head]
            up = look / look.norm()
            side = torch.linalg.svd(mixing - (mixing @ up)[:, None] * up).Vh[0]
            for lift in (0.2, 0.5, 0.8):
                x = rest.repeat(tokens, 1)
                x[0], x[1] = (math.sqrt(1 - lift**2) * s * side + lift * up for s in (1, -1))
                move = torch.zeros_like(x)
                move[0], move[1] = up, -up
                found.append(torch.stack([x - 1e-3 * move, x + 1e-3 * move]))
    return 0.99 * radius * torch.stack(found, dim=1)


def plain(tokens: int, width: int, n_heads: int, radius: float) -> Problem:
    """No biases, random weights: the quoted form and Theorem 12 with heads summed or stacked."""
    layer = random_attention(width, n_heads, torch.Generator().manual_seed(200 + tokens + width))
    bounds = {c: attention_bound(layer.form, tokens=tokens, radius=radius, combine=c) for c in ("sum", "stacked")}
    norms = row_norms(layer.slices, layer.score_scale)
    bounds["quoted"] = attention_quoted(norms, tokens=tokens, radius=radius)
    return Problem(Ball(tokens, width, radius), bounds, layer, starts=shared_attention(layer.form, tokens, radius))


def sharp(tokens: int) -> Problem:
    """The sharp example of Theorem 10, its equal tokens merged into one row; the search starts from its pair."""
    example = sharp_example(tokens, strength=1e3, step=0.1)
    counts = torch.tensor([1.0, 1.0, tokens - 2.0]).double()
    root, one = counts.sqrt(), torch.ones(1).double()
    where = Ball(3, 3, tuple((example.radius * root).tolist()))
    bounds = {
        "new": attention_bound(example.form, tokens=tokens, radius=example.radius),
        "quoted": attention_quoted(HeadNorms(one, one, score_norms(example.form), 0 * one), tokens=tokens, radius=1.0),
    }
    pair = torch.stack([root[:, None] * side[:3] for side in (example.x, example.y)])[:, None]
    return Problem(where, bounds, grouped_mixing(example.form, counts), starts=pair)


def all_biases(tokens: int = 16, radius: float = 1.0) -> Problem:
    """Every bias random."""
    layer = random_attention(8, 2, torch.Generator().manual_seed(231), biases=True)
    bounds = {"stacked": attention_bound(layer.form, tokens=tokens, radius=radius)}
    return Problem(Ball(tokens, 8, radius), bounds, layer, starts=shared_attention(layer.form, tokens, radius))


def query_bias(tokens: int = 16, width: int = 8, strength: float = 10.7) -> Problem:
    """Queries that are their bias alone, `W_Q = 0` and `r ||c|| = 10.7`; the quoted form does not see it."""
    generator = torch.Generator().manual_seed(232)
    layer = random_attention(width, 1, generator)
    layer.qkv[:width] = 0
    bias = torch.zeros(3 * width).double()
    bias[:width] = normal(width, generator=generator)
    key = layer.qkv[width : 2 * width]
    bias *= strength / (layer.score_scale * (key.T @ bias[:width]).norm())
    layer = Attention(layer.qkv, layer.out, 1, bias)
    norms = row_norms(layer.slices, layer.score_scale, layer.query_bias)
    bounds = {
        "stacked": attention_bound(layer.form, tokens=tokens, radius=1.0),
        "quoted with bias": attention_paper_bias(norms, tokens=tokens, radius=1.0),
        "quoted": attention_quoted(norms, tokens=tokens, radius=1.0),
    }
    return Problem(Ball(tokens, width, 1.0), bounds, layer, starts=shared_attention(layer.form, tokens, 1.0))


def structured(tokens: int = 4, radius: float = 2.5) -> Problem:
    """Two heads of width 4 whose queries read features 0 to 3 and whose keys read features 4 to 7.

    Sliced along input features, every product of queries and keys vanishes. The true `||A||` is 8.
    """
    width = 8
    query, key, value = (torch.zeros(width, width).double() for _ in range(3))
    query[0, 0], key[0, 4], value[0, 0] = 4.0, 4.0, 1.0
    layer = Attention(torch.cat([query, key, value]), torch.eye(width).double(), 2)
    norms = row_norms(layer.slices, layer.score_scale)
    bounds = {
        "stacked": attention_bound(layer.form, tokens=tokens, radius=radius),
        "quoted": attention_quoted(norms, tokens=tokens, radius=radius),
        "column slices": attention_quoted(
            column_norms(column_heads(layer.qkv, layer.out, 2)), tokens=tokens, radius=radius
        ),
    }
    return Problem(Ball(tokens, width, radius), bounds, layer, starts=shared_attention(layer.form, tokens, radius))


def averaged_radius(tokens: int = 197, strength: float = 8.0) -> Problem:
    """`A = 8 I` and the root mean square radius 1: two tokens may be far longer than the rest."""
    width = 4
    query = math.sqrt(strength) * torch.eye(width).double()
    layer = Attention(torch.cat([query, query, torch.eye(width).double()]), torch.eye(width).double(), 1, scale=1.0)
    quoted = attention_quoted(row_norms(layer.slices, 1.0), tokens=tokens, radius=1.0)
    # Two long tokens, nearly opposite, share the attention of the others; one of these moves along their difference.
    long = math.sqrt(0.49 * tokens)
    x = 0.1 * torch.eye(width).double()[1].repeat(tokens, 1)
    lift = (math.log(tokens) + 4) / (strength * long * 0.1 * long)
    x[0] = long * (math.sqrt(1 - lift**2) * torch.eye(width)[0] + lift * torch.eye(width)[1])
    x[1] = long * (-math.sqrt(1 - lift**2) * torch.eye(width)[0] + lift * torch.eye(width)[1])
    x[2, 1] = 1.0
    y = x.clone()
    y[2, 0] += 1e-2
    return Problem(RmsBall(tokens, width, 1.0), {"RMS radius": quoted}, layer, starts=torch.stack([x, y])[:, None])


def recentred(tokens: int = 8, width: int = 8, radius: float = 0.4, offset: float = 2.8) -> Problem:
    """Tokens within 0.4 of one centre of norm 2.8."""
    generator = torch.Generator().manual_seed(236)
    layer = random_attention(width, 2, generator)
    centre = normal(width, generator=generator)
    centre *= offset / centre.norm()
    bounds = {
        "recentred": attention_bound(recentre(layer.form, centre), tokens=tokens, radius=radius),
        "not recentred": attention_bound(layer.form, tokens=tokens, radius=radius + offset),
    }
    return Problem(Ball(tokens, width, radius, tuple(centre.tolist())), bounds, layer)


def causal(tokens: int = 16, width: int = 8, radius: float = 1.0) -> Problem:
    """Causal mask, all biases random: only the first branch of Theorem 10 holds."""
    mask = torch.full((tokens, tokens), -torch.inf).double().triu(1)
    layer = random_attention(width, 2, torch.Generator().manual_seed(241), biases=True, mask=mask)
    bound = attention_bound(layer.form, tokens=tokens, radius=radius, fixed_bias=True)
    starts = shared_attention(layer.form, tokens, radius)
    return Problem(Ball(tokens, width, radius), {"first branch": bound}, layer, starts=starts)


def cases() -> tuple[Case, ...]:
    """All of them, in the order of the statements."""
    found = [
        Case(
            f"A1-{name}",
            "A1",
            "Theorem 12",
            f"MHA, n = {n}, d = {d}, H = {h}, r = {r:g}",
            tuple(Version(formula, reference=value) for formula, value in earlier.items()),
            lambda a=(n, d, h, r): plain(*a),
        )
        for name, (n, d, h, r, earlier) in SIZES.items()
    ]
    found += [
        Case(
            f"A2-n{n}",
            "A2",
            "Theorem 10",
            f"sharp example, n = {n}",
            (Version("new", reference=tight), Version("quoted", reference=1 / loose)),
            lambda n=n: sharp(n),
        )
        for n, (tight, loose) in SHARP.items()
    ]
    bias = (
        Version("stacked", reference=0.983),
        Version("quoted with bias", reference=0.107),
        Version("quoted", VIOLATED, 2.31),
    )
    heads = (
        Version("stacked", reference=0.590),
        Version("quoted", reference=0.162),
        Version("column slices", VIOLATED, 20.9),
    )
    moved = (Version("recentred", reference=0.545), Version("not recentred", reference=0.046))
    first = (Version("first branch", reference=0.254),)
    return (
        *found,
        Case(
            "A3-biases",
            "A3",
            "Theorem 12",
            "all biases random, n = 16",
            (Version("stacked", reference=0.246),),
            all_biases,
        ),
        Case("A3-query-bias", "A3", "Theorem 12", "queries of bias alone, n = 16", bias, query_bias),
        Case("A4", "A4", "Theorem 12", "structured heads, n = 4", heads, structured),
        Case(
            "A5", "A5", "Theorem 10", "mean radius, n = 197", (Version("RMS radius", VIOLATED, 1.90),), averaged_radius
        ),
        Case("A6", "A6", "Theorem 10", "ball of 0.4 around a centre of norm 2.8", moved, recentred),
        Case("A11", "A11", "Theorem 10", "causal mask, all biases, n = 16", first, causal),
    )
