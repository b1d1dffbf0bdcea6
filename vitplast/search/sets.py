"""The sets on which statements hold, as the search uses them: random members, and the way back for what left.

Every set is a frozen dataclass with `draw(count, generator)`, which gives sequences (count, tokens, width) in float64,
and `project(x)`, which moves each sequence into the set and leaves members where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitplast.errors import HypothesisError

#: Keeps projected points inside, against rounding.
_INSIDE = 1 - 1e-15


class Set(Protocol):
    """What the search needs to know about a hypothesis."""

    tokens: int
    width: int

    def draw(self, count: int, generator: torch.Generator) -> Tensor: ...

    def project(self, x: Tensor) -> Tensor: ...


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Everything:
    """All sequences; random ones are normal with standard deviation `scale`."""

    tokens: int
    width: int
    scale: float = 1.0

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return self.scale * normal(count, self.tokens, self.width, generator=generator)

    def project(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Ball:
    """Every token within `radius` of `centre`, `||x_i - b|| <= r` (Theorem 10); a radius per token is allowed.

    Random tokens are uniform in the ball.

    Examples
    --------
    >>> Ball(tokens=1, width=2, radius=1.0).project(torch.tensor([[[3.0, 4.0]]])).round(decimals=9).tolist()
    [[[0.6, 0.8]]]
    """

    tokens: int
    width: int
    radius: float | tuple[float, ...]
    centre: tuple[float, ...] | None = None

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        direction = normal(count, self.tokens, self.width, generator=generator)
        share = torch.rand(count, self.tokens, 1, generator=generator, dtype=torch.float64) ** (1 / self.width)
        return self._middle() + self._radii() * share * direction / direction.norm(dim=-1, keepdim=True)

    def project(self, x: Tensor) -> Tensor:
        middle = self._middle()
        return middle + _shortened(x - middle, self._radii(), dim=-1)

    def _radii(self) -> Tensor:
        return _number(self.radius).reshape(-1, 1)

    def _middle(self) -> Tensor:
        return _number(self.centre or 0.0)


@dataclass(frozen=True)
class RmsBall:
    """Root mean square of the token norms at most `radius`: what an averaged radius knows about a sequence.

    Random sequences have a few tokens that are much longer than the others.
    """

    tokens: int
    width: int
    radius: float

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        sizes = torch.exp(1.5 * normal(count, self.tokens, 1, generator=generator))
        return self.project(1e3 * sizes * normal(count, self.tokens, self.width, generator=generator))

    def project(self, x: Tensor) -> Tensor:
        return _shortened(x, _number(self.radius * math.sqrt(self.tokens)), dim=(-2, -1))


@dataclass(frozen=True)
class Spread:
    """Every token of standard deviation (`centred`) or root mean square at least `floor` (Theorem 6). Not convex.

    Random tokens have deviations from `floor` upwards, of the order of `scale`.

    Examples
    --------
    >>> Spread(tokens=1, width=2, floor=3.0).project(torch.tensor([[[1.0, 3.0]]])).tolist()
    [[[-1.0, 5.0]]]
    """

    tokens: int
    width: int
    floor: float
    scale: float = 1.0
    centred: bool = True

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        x = self._part(normal(count, self.tokens, self.width, generator=generator))
        size = self.floor + self.scale * torch.rand(count, self.tokens, 1, generator=generator, dtype=torch.float64)
        mean = normal(count, self.tokens, 1, generator=generator) if self.centred else 0.0
        return mean + size * math.sqrt(self.width) * x / x.norm(dim=-1, keepdim=True)

    def project(self, x: Tensor) -> Tensor:
        part = self._part(x)
        size = part.norm(dim=-1, keepdim=True) / math.sqrt(self.width)
        flat = size == 0
        direction = self._part(torch.eye(self.width, dtype=x.dtype)[0])
        direction = direction / direction.norm() * math.sqrt(self.width)
        unit = torch.where(flat, direction, part / torch.where(flat, 1.0, size))
        return x + (self.floor / _INSIDE - size).clamp_min(0) * unit

    def _part(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x


@dataclass(frozen=True)
class NormedBall:
    """A ball whose tokens have `||C_k x_i|| >= floor_k` for given maps `C_k`: measured floors of queries and keys.

    `maps` has shape (k, rows, width). Projection repeats: lengthen what is too short in each map, shorten tokens that
    left the ball. It may not arrive; `contains` tells.
    """

    tokens: int
    width: int
    radius: float
    maps: Tensor
    floors: tuple[float, ...]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        x = self.project(Ball(self.tokens, self.width, self.radius).draw(2 * count + 16, generator))
        x = x[self.contains(x)]
        if len(x) < count:
            raise HypothesisError(f"found {len(x)} of {count} random members of a ball with floors {self.floors}")
        return x[:count]

    def project(self, x: Tensor) -> Tensor:
        inverse = torch.linalg.pinv(self.maps)
        for _ in range(12):
            for one, back, floor in zip(self.maps, inverse, self.floors, strict=True):
                seen = x @ one.T
                size = seen.norm(dim=-1, keepdim=True).clamp_min(1e-12)
                x = x + ((1.01 * floor / size - 1).clamp_min(0) * seen) @ back.T
            x = _shortened(x, _number(self.radius), dim=-1)
        return x

    def contains(self, x: Tensor) -> Tensor:
        """Which sequences (B, n, d) are members, shape (B,)."""
        sizes = torch.einsum("kre,bne->bknr", self.maps, x).norm(dim=-1)
        floors = _number(self.floors)[:, None]
        inside = x.norm(dim=-1) <= self.radius * (1 + 1e-12)
        return (sizes >= floors).all(dim=(1, 2)) & inside.all(dim=1)


def _number(value: float | tuple[float, ...]) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _shortened(x: Tensor, radius: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    size = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return torch.where(size > radius, x * (_INSIDE * radius / torch.where(size > 0, size, 1.0)), x)
