"""What the jobs of a workflow run and need, written down once: `STORE/workflow/PROFILE/plan.json` and the stamps."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vitplast.errors import InputError
from vitplast.places import store_folder
from vitplast.runs.guard import done_keys, known_keys
from vitplast.runs.plan import Profile
from vitplast.runs.unit import Unit

COMMAND = (sys.executable, "-m", "vitplast")


@dataclass(frozen=True)
class Needs:
    """What one job asks the scheduler for: memory of the machine (MB), minutes, cores."""

    mem_mb: int = 16_000
    runtime: int = 240
    threads: int = 1


def plan_folder(profile: Profile, store: str | Path = "") -> Path:
    """Folder of a profile's plan, stamps and logs, in which Snakemake works."""
    return store_folder(store) / "workflow" / profile.name


def write_plan(
    profile: Profile,
    given: str,
    *,
    store: str | Path = "",
    data: str | Path | None = None,
    gpus: bool = False,
    needs: Callable[[Unit], Needs] | None = None,
    command: Sequence[str] = COMMAND,
    wrapper: Sequence[str] = (),
) -> Path:
    """Writes the plan of all units, done or not, so that it is the same whenever it is written; returns its path.

    Parameters
    ----------
    profile, given
        The profile, and how it was named (name or path), for the job that gathers.
    store, data
        As `run_unit` takes them.
    gpus
        Whether each job asks for a GPU.
    needs
        What a unit's job asks for; None: `Needs()` for all.
    command, wrapper
        The words that run `vitplast`, and words before them in the jobs of units.

    Raises
    ------
    InputError
        If two units have the same label.
    """
    folder, place = store_folder(store), plan_folder(profile, store)
    units: dict[str, dict] = {}
    for unit in profile.units:
        name = f"{unit.kind}/{unit.label}"
        if name in units:
            raise InputError(f"two units of {profile.name} are called {name}")
        chosen = needs(unit) if needs else Needs()
        units[name] = {"arguments": unit.command(folder, str(data or "")), **asdict(chosen)}
    where = str(Path(given).absolute()) if Path(given).parent != Path(".") or ".yaml" in given else given
    gather = [*command, "gather", "--profile", where, "--store", str(folder), "--data", str(data or "")]
    plan = {
        "profile": profile.name,
        "store": str(folder),
        "gpus": gpus,
        "command": [*wrapper, *command],
        "gather": gather,
        "units": units,
    }
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f".plan.{os.getpid()}.json"
    temporary.write_text(json.dumps(plan, indent=1), encoding="utf-8")
    os.replace(temporary, place / "plan.json")
    return place / "plan.json"


def settle(
    profile: Profile,
    *,
    store: str | Path = "",
    data: str | Path | None = None,
    known: Mapping[str, Collection[str]] | None = None,
) -> list[Unit]:
    """Makes the stamps say what the store says, and returns the units that are left.

    A unit whose results are all there and valid gets a stamp, so that no job is made for it; the stamp of a unit whose
    results were lost or damaged is removed. A sweep that goes on at the same time is not disturbed: a stamp that was
    there before the results were looked at was there for good reason or none.
    """
    place = plan_folder(profile, store)
    known = known_keys(data) if known is None else known
    left = []
    for unit in profile.units:
        stamp = place / "done" / unit.kind / f"{unit.label}.ok"
        stamped = stamp.exists()
        if done_keys(unit, store, known) >= set(unit.runs):
            if not stamped:
                stamp.parent.mkdir(parents=True, exist_ok=True)
                stamp.touch()
            continue
        if stamped:
            stamp.unlink(missing_ok=True)
        left.append(unit)
    if left:
        (place / "gathered.ok").unlink(missing_ok=True)
    return left
