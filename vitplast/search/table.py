"""Running the search: one case at a time, and the table of all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from vitplast.errors import InputError, UnknownNameError
from vitplast.local import local_lipschitz
from vitplast.search.ascent import Pairs, ascend, climb, pairs_of
from vitplast.search.problems import VIOLATED, Case, Problem

Progress = Callable[[int, int], None]

#: Numbers in the random sequences that are mapped at a time.
_CHUNK = 2**18
#: Distances of close pairs, relative to the norm of the point.
_CLOSE = 1e-3


def search_case(
    case: Case,
    *,
    starts: int = 16,
    steps: int = 200,
    seed: int = 0,
    draws: int = 2000,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The largest rate found for one case, at random and by attack, beside each of its bounds.

    `draws` random pairs are measured. Of `starts` pairs a half are the best of these, a half close pairs along the top
    direction of the Jacobian at random members; known constructions come on top. `ascend` runs for half the `steps`
    from all, and for the other half from the best few and from close pairs at their ends.

    Parameters
    ----------
    case
        From `cases`.
    starts, steps, draws, seed
        The budget, and the seed of all that is random; the same arguments give the same result.
    progress
        Called with (steps done, steps).

    Returns
    -------
    dict of case, random, adversarial, seconds and bounds (formula to value), fit for JSON.

    Raises
    ------
    InputError
        If `starts` or `draws` is below 2, or `steps` negative.

    Examples
    --------
    >>> from vitplast.search import cases_named
    >>> found = search_case(cases_named(["L1-tall"])[0], starts=2, steps=40, draws=50)
    >>> 0.9 < found["adversarial"] / found["bounds"]["exact constant"] <= 1 + 1e-12
    True
    """
    if starts < 2 or draws < 2 or steps < 0:
        raise InputError(f"need starts and draws of 2 or more and steps of 0 or more, got {starts}, {draws}, {steps}")
    begun = time.perf_counter()
    problem = case.build()
    attack = _attack_pairs if problem.score is None else _attack_points
    random, adversarial = attack(problem, starts, steps, seed, draws, progress or _silent)
    return {
        "case": case.name,
        "random": random,
        "adversarial": adversarial,
        "seconds": time.perf_counter() - begun,
        "bounds": problem.bounds,
    }


def search_table(
    cases: Sequence[Case],
    *,
    starts: int = 16,
    steps: int = 200,
    seed: int = 0,
    draws: int = 2000,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`search_case` for all cases, as `table_of`; `progress` is called with (cases done, cases)."""
    found = []
    for case in cases:
        found.append(search_case(case, starts=starts, steps=steps, seed=seed, draws=draws))
        if progress is not None:
            progress(len(found), len(cases))
    return table_of(cases, found, starts=starts, steps=steps, seed=seed, draws=draws)


def table_of(cases: Sequence[Case], found: Iterable[dict[str, Any]], **attrs: int) -> xr.Dataset:
    """One row for each version of each case.

    Parameters
    ----------
    cases
        Which cases, in the order of the table.
    found
        Results of `search_case` for these cases, in any order.
    attrs
        starts, steps, seed, draws.

    Returns
    -------
    Dataset along `case` (coordinates id, statement, setting, formula). `bound` is NaN for versions that are violated,
    `claimed` for those that hold; `tight = adversarial / bound` or `/ claimed`: at most 1 if the formula holds, above
    1 if it is violated. `reference_tight` is that of an earlier search in such a setting, NaN if there is none.

    Raises
    ------
    UnknownNameError
        If a case has no result.
    """
    results = {one["case"]: one for one in found}
    rows = []
    for case in cases:
        if case.name not in results:
            raise UnknownNameError("search result", case.name, results)
        one = results[case.name]
        for version in case.versions:
            value = one["bounds"][version.formula]
            violated = version.expected == VIOLATED
            rows.append(
                {
                    "case": f"{case.name}: {version.formula}",
                    "id": version.id or case.id,
                    "statement": case.statement,
                    "setting": case.setting,
                    "formula": version.formula,
                    "bound": math.nan if violated else value,
                    "random": one["random"],
                    "adversarial": one["adversarial"],
                    "tight": one["adversarial"] / value,
                    "claimed": value if violated else math.nan,
                    "expected": version.expected,
                    "exact": version.exact,
                    "reference_tight": version.reference,
                    "seconds": one["seconds"],
                }
            )
    columns = {name: ("case", np.array([row[name] for row in rows])) for name in rows[0]} if rows else {}
    names = ("case", "id", "statement", "setting", "formula")
    table = xr.Dataset(
        {k: v for k, v in columns.items() if k not in names},
        coords={k: v for k, v in columns.items() if k in names},
        attrs=attrs,
    )
    for name, (units, words) in _MEANING.items():
        if name in table:
            table[name].attrs.update(units=units, long_name=words)
    return table


_MEANING = {
    "bound": ("1", "bound that holds"),
    "claimed": ("1", "value of a formula that is no bound"),
    "random": ("1", "largest rate of the random pairs"),
    "adversarial": ("1", "largest rate found by the search"),
    "tight": ("1", "largest rate found over the bound or the claimed value"),
    "reference_tight": ("1", "tightness in an earlier search of such a setting"),
    "seconds": ("s", "time of the search of the case"),
}


def _attack_pairs(
    problem: Problem, starts: int, steps: int, seed: int, draws: int, progress: Progress
) -> tuple[float, float]:
    f, where = problem.f, problem.where
    contains = getattr(where, "contains", None)
    generator = torch.Generator().manual_seed(seed)
    random = _random_pairs(problem, draws, generator)
    members = where.draw(max(1, starts // 2), generator)
    chosen = [random.best(starts - len(members)), _close_pairs(problem, members, seed)]
    if problem.starts is not None:
        chosen.append(pairs_of(f, *problem.starts, contains=contains))
    pairs = Pairs(*(torch.cat(parts) for parts in zip(*chosen, strict=True)))

    def run(pairs: Pairs, done: int, todo: int) -> Pairs:
        return ascend(
            f, pairs.x, pairs.y, where.project, steps=todo, seed=seed + 1, contains=contains,
            progress=lambda step, _: progress(done + step, steps),
        )  # fmt: skip

    first = run(pairs, 0, steps // 2)
    few = first.best(max(1, starts // 4))
    again = Pairs(*(torch.cat(parts) for parts in zip(few, _close_pairs(problem, few.x, seed + 2), strict=True)))
    second = run(again, steps // 2, steps - steps // 2)
    best = max(float(part.rate.max()) for part in (random, first, second))
    return float(random.rate.max()), best


def _random_pairs(problem: Problem, draws: int, generator: torch.Generator) -> Pairs:
    where = problem.where
    contains = getattr(where, "contains", None)
    rows = max(1, _CHUNK // (where.tokens * max(where.width, where.tokens)))
    found: Pairs | None = None
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        x, y = (where.draw(count, generator) for _ in range(2))
        kept = min(len(x), len(y))
        new = pairs_of(problem.f, x[:kept], y[:kept], contains=contains)
        parts = new if found is None else Pairs(*(torch.cat(both) for both in zip(found, new, strict=True)))
        found = parts.best(64)
    return found


def _close_pairs(problem: Problem, x: Tensor, seed: int) -> Pairs:
    """Each point and a near one, along the direction in which the map reacts most."""
    direction = local_lipschitz(problem.f, x, max_iterations=30, seed=seed).direction
    size = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    contains = getattr(problem.where, "contains", None)
    project = problem.where.project
    sides = [pairs_of(problem.f, x, project(x + s * _CLOSE * size * direction), contains=contains) for s in (1, -1)]
    better = sides[0].rate >= sides[1].rate
    return Pairs(
        torch.where(better, sides[0].rate, sides[1].rate), x, torch.where(better[:, None, None], sides[0].y, sides[1].y)
    )


def _attack_points(
    problem: Problem, starts: int, steps: int, seed: int, draws: int, progress: Progress
) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(seed)
    points = problem.where.project(problem.where.draw(draws, generator))
    with torch.no_grad():
        scores = problem.score(points)
    chosen = points[scores.argsort(descending=True)[:starts]]
    if problem.starts is not None:
        chosen = torch.cat([chosen, problem.starts])
    found = climb(problem.score, chosen, problem.where.project, steps=steps)
    progress(steps, steps)
    return float(scores.max()), max(float(scores.max()), float(found.score.max()))


def _silent(done: int, total: int) -> None:
    """Tells nobody."""
