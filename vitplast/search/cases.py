"""All cases of the search, and those cheap enough for a quick run."""

from __future__ import annotations

from collections.abc import Iterable

from vitplast.errors import UnknownNameError
from vitplast.search import attention, inequalities, layers, tokenwise
from vitplast.search.problems import Case

#: Cases that take a fraction of a second each: all exact constants, violated versions, one attention layer.
CHEAP = (
    "L1-tall", "L1-ill", "N1-positive", "N1-signed", "N1-epsilon", "N1-global", "N5", "N7", "A0-i", "A0-iii-0.5",
    "A1-n4-d8-H2", "A2-n32", "A3-query-bias", "A4", "M2", "E1-patches", "E1-overlap", "G1-gamma",
)  # fmt: skip

_ORDER = ("L", "N", "A", "M", "E", "G")


def cases() -> tuple[Case, ...]:
    """Every case, sorted by the id of its statement: linear, normalisation, attention, MLP, embedding, gradients.

    Examples
    --------
    >>> [case.name for case in cases()[:3]]
    ['L1-tall', 'L1-ill', 'N1-positive']
    """
    found = (*tokenwise.cases(), *inequalities.cases(), *attention.cases(), *layers.cases())
    return tuple(sorted(found, key=lambda case: (_ORDER.index(case.id[0]), int(case.id[1:]))))


def cases_named(names: Iterable[str]) -> tuple[Case, ...]:
    """The cases of these names, in the order given.

    Raises
    ------
    UnknownNameError
        If there is no case of such a name; the message gives the nearest ones.

    Examples
    --------
    >>> cases_named(["N7"])[0].statement
    'Theorem 6'
    """
    known = {case.name: case for case in cases()}
    found = []
    for name in names:
        if name not in known:
            raise UnknownNameError("search case", name, known)
        found.append(known[name])
    return tuple(found)
