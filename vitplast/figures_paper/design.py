"""Which runs a profile asks for, and which files they leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from vitplast.runs import Profile, Unit

#: Pages of the part "Experiments" on which an experiment shows, by its name in the profile.
PAGES: Mapping[str, tuple[str, ...]] = {
    "main": ("accuracy", "robustness", "training", "tests", "verdicts"),
    "adamw": ("adamw",),
    "sizes": ("sizes",),
    "components": ("lora",),
    "lora": ("lora",),
    "low_data": ("low_data",),
    "plasticity": ("plasticity",),
    "plasticity_others": ("plasticity",),
    "probing": ("probing",),
    "landscape": ("landscape",),
    "bounds": ("plasticity",),
}


def values_of(units: Iterable[Unit], name: str) -> list[Any]:
    """The different values of a parameter, in the order of the units; of a list parameter those of its items."""
    found: dict[Any, None] = {}
    for unit in units:
        value = unit.parameters.to_dict().get(name)
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found[one] = None
    return list(found)


def experiments(profile: Profile) -> dict[tuple[str, str], list[Unit]]:
    """Units by experiment and kind, in the order of the file."""
    found: dict[tuple[str, str], list[Unit]] = {}
    for unit in profile.units:
        found.setdefault((unit.experiment, unit.kind), []).append(unit)
    return found


def counts(profile: Profile) -> pd.DataFrame:
    """One row an experiment and kind: what it varies, results, files that they leave in the store, pages that show it.

    Columns: experiment, kind, models, sets, configurations, rates, seeds, results, files. A result is one netCDF file;
    a unit leaves an executed notebook too, so files = results + units.
    """
    rows = []
    for (experiment, kind), units in experiments(profile).items():
        results = sum(len(unit.runs) for unit in units)
        sets = {s for role in ("dataset", "targets") for s in values_of(units, role)}
        rows.append({
            "experiment": experiment,
            "kind": kind,
            "models": len(values_of(units, "model")),
            "sets": len(sets),
            "configurations": len(values_of(units, "components")),
            "rates": len(values_of(units, "lrs")),
            "seeds": len(values_of(units, "seeds")),
            "results": results,
            "files": results + len(units),
        })  # fmt: skip
    return pd.DataFrame(rows)


def gathered(profile: Profile) -> dict[str, int]:
    """Kind to results in the file that gathers them, `KIND.nc`."""
    found: dict[str, int] = {}
    for unit in profile.units:
        found[unit.kind] = found.get(unit.kind, 0) + len(unit.runs)
    return found


def training_of(profile: Profile, experiment: str = "main") -> pd.DataFrame:
    """How each image set is trained in an experiment: steps, batch, warm-up, rates, validations, runs; a row a set.

    Sets with the same values share a row.
    """
    rows: dict[tuple, list] = {}
    for unit in profile.units:
        p = unit.parameters.to_dict()
        if unit.experiment != experiment or unit.kind != "finetune":
            continue
        points = p["steps"] // p["validate_every"] if p["validate_every"] else p["evaluations"]
        key = (p["steps"], p["batch_size"], p["warmup"], points, p["log_every"])
        rows.setdefault(key, []).append((p["dataset"], p["lrs"], len(unit.runs)))
    return pd.DataFrame([
        {
            "sets": ", ".join(f"`{s}`" for s in dict.fromkeys(s for s, _, _ in own)),
            "steps": steps,
            "batch": batch,
            "warm-up": warmup,
            "warm-up, % of steps": 100 * warmup / steps,
            "validations": points,
            "logged every": every,
            "rates": ", ".join(f"{r:g}" for r in dict.fromkeys(r for _, lrs, _ in own for r in lrs)),
            "runs": sum(n for _, _, n in own),
        }
        for (steps, batch, warmup, points, every), own in rows.items()
    ])  # fmt: skip
