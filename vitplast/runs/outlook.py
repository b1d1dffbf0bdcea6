"""What a sweep would do: units and results that are done, units that are left, and how long they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitplast.places import store_folder
from vitplast.runs import runlog
from vitplast.runs.guard import done_keys, known_keys
from vitplast.runs.plan import Profile
from vitplast.runs.unit import Unit

#: Kind to seconds per image (see `Unit.work`) with the packaged model at 56 pixels on two cores of another machine.
FOREIGN_PACE = {
    "plasticity": 0.12,
    "bounds": 0.14,
    "theory": 0.6,
    "gradients": 2.0,
    "search": 20.0,
    "finetune": 0.016,
    "probe": 0.034,
    "depth": 0.045,
    "landscape": 0.022,
    "pretrain": 0.004,
    "criteria": 0.07,
}
FOREIGN = "estimate from another machine"


@dataclass(frozen=True)
class Outlook:
    """`rows`: one a kind and one for all; `labels` of the units that are left; whether a time is borrowed."""

    rows: list[dict[str, Any]]
    labels: list[str]
    borrowed: bool


def dry_run(profile: Profile, *, store: str | Path = "", data: str | Path | None = None) -> Outlook:
    """Units and results of a profile, how many are done, which are left, and the time that the rest takes.

    The time is for one unit after the other, from the pace of the units done in this store; of a kind without any it
    is an estimate from another machine, and says so.
    """
    pace, known = runlog.pace(store_folder(store)), known_keys(data)
    rows = []
    left: list[Unit] = []
    for kind in dict.fromkeys(unit.kind for unit in profile.units):
        own = [unit for unit in profile.units if unit.kind == kind]
        done = {unit.key: len(done_keys(unit, store, known)) for unit in own}
        open_ = [unit for unit in own if done[unit.key] < len(unit.runs)]
        left += open_
        rows.append(
            {
                "kind": kind,
                "units": len(own),
                "units done": len(own) - len(open_),
                "results": sum(len(unit.runs) for unit in own),
                "results done": sum(done.values()),
                "time left": _time(open_, pace),
            }
        )
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name not in ("kind", "time left")}
    rows.append({"kind": "all", **total, "time left": _time(left, pace)})
    return Outlook(rows, [unit.label for unit in left], seconds(left, pace) is None)


def seconds(units: Iterable[Unit], pace: Mapping[str, float]) -> float | None:
    """Time that the units take one after the other; None if the pace of one of their kinds is not known."""
    units = list(units)
    if any(unit.kind not in pace for unit in units):
        return None
    return sum(unit.work * pace[unit.kind] for unit in units)


def duration(seconds: float) -> str:
    """`12 s`, `3 min` or `1.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _time(units: list[Unit], pace: dict[str, float]) -> str:
    own = seconds(units, pace)
    if own is not None:
        return duration(own)
    return f"{duration(seconds(units, FOREIGN_PACE | pace) or 0.0)} ({FOREIGN})"
