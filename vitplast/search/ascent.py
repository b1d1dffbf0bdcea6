"""Climbing: from given points towards pairs of larger rate, or points of larger score, without leaving a set.

Nothing here proves anything. A value found is a value attained, so it can refute a bound or show that it is nearly
reached; what is not found may still exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vitplast.errors import HypothesisError, ShapeError

Function = Callable[[Tensor], Tensor]

#: Pairs closer than this, relative to their norm, are not looked at: their rates would be rounding.
CLOSEST = 1e-7


class Pairs(NamedTuple):
    """B pairs and their rates of change."""

    rate: Tensor  # (B,)
    x: Tensor  # (B, n, d)
    y: Tensor  # (B, n, d)

    def best(self, count: int) -> Pairs:
        """The `count` pairs of largest rate, largest first."""
        rows = self.rate.argsort(descending=True)[:count]
        return Pairs(*(part[rows] for part in self))


class Points(NamedTuple):
    """B points and their scores."""

    score: Tensor  # (B,)
    z: Tensor  # (B, n, d)


def pairs_of(f: Function, x: Tensor, y: Tensor, *, contains: Function | None = None) -> Pairs:
    """`rho = ||f(X) - f(Y)|| / ||X - Y||` for each pair; -1 for pairs that nearly coincide or are not in the set.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 1)
    >>> pairs_of(lambda z: z**2, x, x + 3).rate.tolist()
    [3.0]
    """
    with torch.no_grad():
        apart = _norm(x - y)
        usable = apart > CLOSEST * torch.maximum(_norm(x), _norm(y))
        if contains is not None:
            usable &= contains(x) & contains(y)
        rate = _norm(f(x) - f(y)) / torch.where(usable, apart, 1.0)
    return Pairs(torch.where(usable & rate.isfinite(), rate, -1.0), x, y)


def ascend(
    f: Function,
    x: Tensor,
    y: Tensor,
    project: Function,
    *,
    steps: int,
    seed: int = 0,
    contains: Function | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Pairs:
    """Pairs of rate at least that of the given ones, by projected gradient ascent on `||f(X)-f(Y)|| / ||X-Y||`.

    With `w = f(X) - f(Y)`, `a = J(X)^T w`, `b = J(Y)^T w`, each step tries for every pair

    - to turn `X - Y` towards `a + b` with the middle kept: for close pairs the power iteration on `J^T J`;
    - to move the middle along `a - b` and stretch or shrink the distance;
    - to follow the gradient in both ends, `a / ||w||^2 - (X-Y) / ||X-Y||^2` and its counterpart;
    - a random change,

    projects both ends, and keeps the best of these if it is better. Step sizes grow on success and shrink on failure.

    Parameters
    ----------
    f
        Maps (B, n, d) to (B, ...), each sample on its own.
    x, y
        Shape (B, n, d), float64, members of the set.
    project
        Maps (B, n, d) into the set, see `vitplast.search.sets`.
    steps, seed
        Number of steps, and the seed of the random changes; the same arguments give the same result.
    contains
        Tells which sequences are members, where the projection may fail.
    progress
        Called with (steps done, steps).

    Raises
    ------
    ShapeError
        If `x` and `y` do not have one shape (B, n, d).
    HypothesisError
        If no pair can be used.

    Examples
    --------
    >>> W = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    >>> x, y = torch.zeros(1, 2, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64)
    >>> round(ascend(lambda z: z @ W, x, y, lambda z: z, steps=40).rate.item(), 6)
    3.0
    """
    if x.shape != y.shape or x.ndim != 3:
        raise ShapeError(f"both ends must have one shape (B, n, d), got {tuple(x.shape)} and {tuple(y.shape)}")
    pairs = pairs_of(f, project(x.double()), project(y.double()), contains=contains)
    if not bool((pairs.rate > 0).any()):
        raise HypothesisError("no pair to start from: all coincide, leave the set or are mapped to one point")
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([1.0, 0.1, 0.3, 0.1], dtype=torch.float64)[:, None].repeat(1, len(x))
    largest = torch.tensor([1.0, 0.7, 3.0, 1.0], dtype=torch.float64)[:, None]
    each = torch.arange(len(x))
    for step in range(steps):
        trials = [t.flatten(0, 1) for t in _trials(f, pairs, sizes, generator)]
        ends = _both_projected(*trials, project, together=2 * len(x))
        tried = pairs_of(f, *ends, contains=contains)
        rate = tried.rate.unflatten(0, (len(sizes), -1))
        better = rate > pairs.rate
        sizes = torch.minimum(torch.where(better, 1.5 * sizes, 0.6 * sizes), largest)
        sizes = torch.where(sizes < 1e-7, 0.1 * largest, sizes)
        rows = rate.argmax(dim=0) * len(x) + each
        kept = better.any(dim=0)
        pairs = Pairs(
            torch.where(kept, tried.rate[rows], pairs.rate),
            *(torch.where(kept[:, None, None], new[rows], old) for new, old in zip(ends, pairs[1:], strict=True)),
        )
        if progress is not None:
            progress(step + 1, steps)
    return pairs


def climb(score: Function, z: Tensor, project: Function, *, steps: int) -> Points:
    """Points of score at least that of the given ones, by projected gradient ascent with adapted step sizes.

    Parameters
    ----------
    score
        Maps (B, n, d) to (B,), differentiable.
    z
        Shape (B, n, d), float64.
    project, steps
        As for `ascend`.

    Examples
    --------
    >>> start = torch.ones(1, 1, 2, dtype=torch.float64)
    >>> round(climb(lambda z: -(z**2).sum(dim=(1, 2)), start, lambda z: z, steps=60).score.item(), 9)
    0.0
    """
    z = project(z.double())
    with torch.no_grad():
        best = score(z)
    size = torch.full((len(z),), 0.1, dtype=torch.float64)
    factors = torch.tensor([0.25, 1.0, 4.0], dtype=torch.float64)
    each = torch.arange(len(z))
    for _ in range(steps):
        slope = _gradient(lambda t: score(t).sum(), z)
        length = size * (_norm(z) + 1e-9) / _norm(slope).clamp_min(1e-300)
        trials = project((z + (factors[:, None] * length)[..., None, None] * slope).flatten(0, 1))
        with torch.no_grad():
            tried = score(trials).nan_to_num(-torch.inf).unflatten(0, (len(factors), -1))
        top = tried.argmax(dim=0)
        kept = tried[top, each] > best
        best = torch.where(kept, tried[top, each], best)
        z = torch.where(kept[:, None, None], trials[top * len(z) + each], z)
        size = torch.where(kept, size * factors[top], 0.1 * size).clamp(1e-12, 1.0)
        size = torch.where(size <= 1e-12, 1e-3, size)
    return Points(best, z)


def _trials(f: Function, pairs: Pairs, sizes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The four candidates for each pair, shapes (4, B, n, d)."""
    x, y = pairs.x, pairs.y
    with torch.no_grad():
        w = f(x) - f(y)
    a, b = (_gradient(lambda t: (f(t) * w).sum(), end) for end in (x, y))
    gap, middle = x - y, (x + y) / 2
    apart, moved = _norm(gap), _norm(w).clamp_min(1e-300)
    turn, move, both, noise = sizes[..., None, None]

    target = _unit(a + b) * _column(apart)
    turned = _unit((1 - turn) * gap + turn * target) * _column(apart)

    reach = torch.maximum(_norm(x), _norm(y))
    shifted = middle + move * _column(reach) * _unit(a - b)
    stretch = ((gap * (a + b) / 2).sum(dim=(1, 2)) / moved**2 - 1).sign()
    stretched = gap * torch.exp(move * _column(stretch))

    slope_x = a / _column(moved**2) - gap / _column(apart**2)
    slope_y = gap / _column(apart**2) - b / _column(moved**2)
    length = _column(apart / torch.sqrt(_norm(slope_x) ** 2 + _norm(slope_y) ** 2).clamp_min(1e-300))

    random = [noise * _column(apart) * _unit(_like(x, generator)) for _ in range(2)]
    trial_x = [middle + turned / 2, shifted + stretched / 2, x + both * length * slope_x, x + random[0]]
    trial_y = [middle - turned / 2, shifted - stretched / 2, y + both * length * slope_y, y + random[1]]
    return torch.stack(trial_x), torch.stack(trial_y)


def _both_projected(x: Tensor, y: Tensor, project: Function, together: int) -> tuple[Tensor, Tensor]:
    """Both ends projected; the first `together` pairs are first shifted token by token, so that their gap is kept.

    Two close ends that left a ball would else both land on its surface and lose the part of the gap across it.
    """
    moves = [project(end[:together]) - end[:together] for end in (x, y)]
    lengths = [move.norm(dim=-1, keepdim=True) for move in moves]
    shift = torch.where(lengths[0] > lengths[1], *moves)
    return tuple(project(torch.cat([end[:together] + shift, end[together:]])) for end in (x, y))


def _gradient(scalar: Function, z: Tensor) -> Tensor:
    z = z.detach().requires_grad_(True)
    with torch.enable_grad():
        found = torch.autograd.grad(scalar(z), z)[0]
    return found.nan_to_num(0.0, 0.0, 0.0)


def _like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]


def _unit(x: Tensor) -> Tensor:
    return x / _column(_norm(x).clamp_min(1e-300))
