"""Table of kind "search": the largest rate found in one setting, by chance and by attack, against its bounds."""

from __future__ import annotations

from vitplast.results.tables.variable import Schema, Variable, scalar

_HOLDS, _FALLS = "the formula is expected to be violated", "the formula is expected to hold"


def _of_formula(dtype: str, meaning: str, **rest) -> Variable:
    return Variable(("formula",), dtype, "1", meaning, **rest)


SEARCH = Schema(
    "Search for counterexamples in one setting",
    coords={
        "formula": _of_formula("str", "formula for the bound"),
        "id": _of_formula("str", "group of statements"),
        "expected": _of_formula("str", "whether the formula holds", choices=("holds", "violated", "")),
        "case": scalar("str", "1", "name of the setting", required=False),
        "statement": scalar("str", "1", "what is attacked"),
        "setting": scalar("str", "1", "sizes and hypotheses of the instance"),
    },
    variables={
        "bound": _of_formula("float64", "bound that holds", missing=_HOLDS, low=0.0),
        "claimed": _of_formula("float64", "value of a formula that is no bound", missing=_FALLS, low=0.0),
        "tight": _of_formula("float64", "largest rate found over the bound or the claimed value", low=0.0),
        "reference_tight": _of_formula("float64", "the same of another instance", missing="none is known", low=0.0),
        "exact": _of_formula("int64", "1 where the formula is proved to be the exact constant, else 0", low=0, high=1),
        "random": scalar("float64", "1", "largest rate of random pairs", low=0.0),
        "adversarial": scalar("float64", "1", "largest rate found at all", low=0.0),
        "seconds": scalar("float64", "s", "wall-clock time", low=0.0, timing=True),
    },
)
