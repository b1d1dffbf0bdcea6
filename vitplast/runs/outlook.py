"""What a sweep would do: units and results that are done, units that are left, and how long they take.

Of a profile whose entries name experiments, each experiment has rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitplast.places import store_folder
from vitplast.runs import runlog
from vitplast.runs.guard import done_keys, known_keys
from vitplast.runs.plan import Profile
from vitplast.runs.unit import Unit

if TYPE_CHECKING:
    from vitplast.cost.plan import Plan

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
#: A dry run names the units that are left if there are not more of them, or if asked to.
MOST_NAMED = 100
#: Columns of the table that are numbers and have a sum.
COUNTS = ("units", "units done", "results", "results done")


@dataclass(frozen=True)
class Outlook:
    """`rows`: one a kind (of an experiment) and one for all; the units that are `left`; whether a time is borrowed;
    of a profile for GPUs what it `needs` of them and of disk, in words."""

    rows: list[dict[str, Any]]
    left: list[Unit]
    borrowed: bool
    needs: str = ""

    @property
    def labels(self) -> list[str]:
        """Labels of the units that are left."""
        return [unit.label for unit in self.left]


def dry_run(profile: Profile, *, store: str | Path = "", data: str | Path | None = None) -> Outlook:
    """Units and results of a profile, how many are done, which are left, and the time that the rest takes.

    The time is for one unit after the other, from the pace of the units done in this store; of a kind without any it
    is an estimate from another machine, and says so. A profile for GPUs has GPU hours instead, from
    `vitplast.cost`.
    """
    pace, known = runlog.pace(store_folder(store)), known_keys(data)
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in profile.units:
        groups.setdefault((unit.experiment, unit.kind), []).append(unit)
    named = bool(profile.experiments)
    plan = _cost(profile) if profile.gpu else None
    hours = {id(u): plan.seconds(n) / 3600 for n, u in enumerate(plan.units)} if plan else {}
    rows = []
    left: list[Unit] = []
    for (experiment, kind), own in groups.items():
        done = {id(unit): len(done_keys(unit, store, known)) for unit in own}
        open_ = [unit for unit in own if done[id(unit)] < len(unit.runs)]
        left += open_
        rows.append(
            {
                **({"experiment": experiment} if named else {}),
                "kind": kind,
                "units": len(own),
                "units done": len(own) - len(open_),
                "results": sum(len(unit.runs) for unit in own),
                "results done": sum(done.values()),
                **_outstanding(open_, pace, hours),
            }
        )
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name in COUNTS}
    rows.append({**({"experiment": "all"} if named else {}), "kind": "all", **total, **_outstanding(left, pace, hours)})
    borrowed = not hours and seconds(left, pace) is None
    return Outlook(rows, left, borrowed, _needs(plan) if plan else "")


def _cost(profile: Profile) -> Plan:
    from vitplast.cost.plan import plan

    return plan(profile.units)


def _outstanding(units: list[Unit], pace: dict[str, float], hours: Mapping[int, float]) -> dict[str, Any]:
    if not hours:
        return {"time left": _time(units, pace)}
    return {"GPU hours left": round(sum(hours[id(unit)] for unit in units), 1)}


def _needs(plan: Plan) -> str:
    disk = plan.disk_gb()
    known = ", ".join(f"{name} {size:,.1f} GB" for name, size in disk.items() if isinstance(size, float | int))
    unknown = f"; not known: {', '.join(map(str, disk['unknown']))}" if disk.get("unknown") else ""
    return f"hours on one {plan.gpu.name}, see vitplast cost; disk for all: {known}{unknown}"


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
