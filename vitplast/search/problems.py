"""What is searched: a case names a statement and a setting, its problem holds the map, the set and the bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from vitplast.search.sets import Set

HOLDS, VIOLATED = "holds", "violated"


@dataclass(frozen=True)
class Problem:
    """A map `f` whose rate is to be made large on pairs of a set, or a `score` on its members, against `bounds`.

    Exactly one of `f` and `score` is given. `starts` are pairs (2, B, n, d), or points (B, n, d), that are tried
    besides random ones: where a construction is known, the search should not have to find it.
    """

    where: Set
    bounds: dict[str, float]
    f: Callable[[Tensor], Tensor] | None = None
    score: Callable[[Tensor], Tensor] | None = None
    starts: Tensor | None = None


@dataclass(frozen=True)
class Version:
    """One formula for the bound of a case. `reference` is the tightness, or factor, of an earlier search."""

    formula: str
    expected: str = HOLDS
    reference: float = math.nan
    exact: bool = False
    id: str | None = None  # where it differs from that of the case


@dataclass(frozen=True)
class Case:
    """A setting of one statement: `build()` makes the same problem each time, from its own fixed seed."""

    name: str
    id: str
    statement: str
    setting: str
    versions: tuple[Version, ...]
    build: Callable[[], Problem] = field(repr=False)
