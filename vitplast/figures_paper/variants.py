"""Two variants of a profile, option by option: what differs, in which runs, and to which erratum it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from vitplast.errors import UnknownNameError
from vitplast.figures_paper.design import experiments
from vitplast.runs import Profile, Unit

#: Parameters that say nothing about how a run is made.
NEUTRAL = ("profile", "store", "workers", "memory_gib", "download", "device", "threads")
#: Option (of a kind, where kinds differ) to the erratum that it repeats or corrects; empty: a choice without one.
ERRATA: Mapping[tuple[str, str], str] = {
    ("", "normalization"): "A5",
    ("", "order"): "A6",
    ("", "drop_last"): "A6",
    ("", "targets"): "A4",
    ("", "conventions"): "A7",
    ("finetune", "accuracy_batch"): "B1",
    ("finetune", "last_batch"): "B3",
    ("depth", "view"): "B3",
    ("landscape", "variants"): "B9",
    ("landscape", "model"): "B9",
    ("landscape", "lr"): "B9",
    ("finetune", "per_class"): "C",
    ("finetune", "train_head"): "C",
    ("finetune", "train_norm"): "C",
    ("plasticity", "fc1"): "C",
    ("plasticity", "padding"): "C",
    ("plasticity", "mha_input"): "C",
    ("finetune", "precision"): "",
    ("finetune", "accumulation"): "",
    ("finetune", "validate_every"): "",
}
#: Errata that are in no variant: the results of both hold what is needed for either reading.
IN_THE_RESULTS: Mapping[str, str] = {
    "A1": "a result of kind `bounds` holds the formula as coded beside the one with heads cut right and valid bounds",
    "A2": "as A1",
    "A3": "as A1",
    "B2": "validation and test accuracy of every rate are stored, so the choice can be made on either",
    "B4": "gains are computed from the probes and runs that are there; nothing is typed in",
    "B5": "tests are computed from the accuracies, with one alternative and Holm's correction",
    "B6": "gradient norms are stored by group, head and final norm apart, and all together",
    "B7": "2,000 steps of warm-up in both variants, now a parameter that every result names",
    "B8": "results hold every pair and every seed; intervals are computed from them",
    "B10": "ranks are computed from the bounds",
}


def erratum_of(kind: str, option: str) -> str:
    """Number of the erratum that an option belongs to; empty for a choice that is none.

    Raises
    ------
    UnknownNameError
        If the option differs between variants and is not sorted yet.
    """
    for key in ((kind, option), ("", option)):
        if key in ERRATA:
            return ERRATA[key]
    raise UnknownNameError("option that differs between variants", option, [name for _, name in ERRATA])


def differences(one: Profile, other: Profile) -> pd.DataFrame:
    """What differs between two variants, a row an option, experiment and pair of values.

    Units are compared in the order of the file, within an experiment and kind; where one variant has more of them, by
    model and image sets.

    Returns
    -------
    DataFrame with the columns experiment, kind, option, `one.name`, `other.name` (values as they stand in the
    profile), results (of the units of `one` that differ), of (results of `one` in that experiment and kind), erratum.
    """
    mine, theirs = experiments(one), experiments(other)
    found: dict[tuple, int] = {}
    totals: dict[tuple[str, str], int] = {}
    for key in dict.fromkeys([*mine, *theirs]):
        units, others = mine.get(key, []), theirs.get(key, [])
        totals[key] = sum(len(u.runs) for u in units)
        pairs, lonely = _paired(units, others)
        for left, right in pairs:
            a, b = left.parameters.to_dict(), right.parameters.to_dict()
            for option in a:
                if option not in NEUTRAL and a[option] != b[option] and not _idle(option, a, b):
                    row = (*key, option, _text(a[option]), _text(b[option]))
                    found[row] = found.get(row, 0) + len(left.runs)
        if lonely:
            row = (*key, "targets", _named(units), _named(others))
            found[row] = sum(len(u.runs) for u in lonely)
    names = ["experiment", "kind", "option", one.name, other.name]
    return pd.DataFrame([
        {
            **dict(zip(names, row, strict=True)),
            "results": count,
            "of": totals[row[:2]],
            "erratum": erratum_of(row[1], row[2]),
        }
        for row, count in found.items()
    ])  # fmt: skip


def by_option(table: pd.DataFrame) -> pd.DataFrame:
    """`differences`, a row an option and value of the first variant; values of the other one after the other.

    Columns: option, the two variants, erratum, in (experiments; `n of m` where not all of its results differ), results.
    """
    one, other = (c for c in table.columns if c not in ("experiment", "kind", "option", "results", "of", "erratum"))
    rows = []
    for (option, value, erratum), group in table.groupby(["option", one, "erratum"], sort=False):
        own = group.groupby(["experiment", "of"], sort=False)["results"].sum()
        places = [name if n == of else f"{name} ({n} of {of})" for (name, of), n in own.items()]
        rows.append({
            "option": option,
            one: value,
            other: " or ".join(dict.fromkeys(group[other])),
            "in": ", ".join(places),
            "results": int(group["results"].sum()),
            "erratum": erratum,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _idle(option: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether an option says nothing beside the others: the number of validations where their distance is given."""
    return option == "evaluations" and bool(a["validate_every"] or b["validate_every"])


def _paired(units: list[Unit], others: list[Unit]) -> tuple[list[tuple[Unit, Unit]], list[Unit]]:
    """Pairs of units, and the units of the longer side that have no partner."""
    if len(units) == len(others):
        return list(zip(units, others, strict=True)), []
    known = {_place(u): u for u in others}
    mine = {_place(u) for u in units}
    pairs = [(u, known[_place(u)]) for u in units if _place(u) in known]
    lonely = [u for u in units if _place(u) not in known] + [u for u in others if _place(u) not in mine]
    return pairs, lonely


def _place(unit: Unit) -> tuple:
    p = unit.parameters.to_dict()
    return p.get("model"), str(p.get("dataset") or p.get("targets")), p.get("components"), str(p.get("lrs"))


def _named(units: list[Unit]) -> str:
    sets = {t for u in units for t in u.parameters.to_dict().get("targets", [])}
    return f"{len(sets)} sets" if len(sets) > 1 else ", ".join(sets)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
