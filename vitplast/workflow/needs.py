"""What a unit's job asks the scheduler for, from the cost plan where it knows the unit, else stated numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitplast.runs.gpu_share import share
from vitplast.runs.unit import Unit
from vitplast.workflow.planning import Needs

#: Memory of the machine, not of the GPU, in MB: pictures of a set, weights, libraries.
MEMORY_MB = {True: 32_000, False: 8_000}
#: The GPU that times are asked for; on a faster one jobs end before.
SLOWEST = "A100-40GB"
#: Minutes, where no estimate is known.
RUNTIME = {True: 24 * 60, False: 12 * 60}
#: A job may take this many times its estimate, and this many minutes more.
SLACK, START = 3.0, 30


@dataclass(frozen=True)
class Shared:
    """`per_gpu`: jobs on one GPU at a time; `threads`: cores of a job."""

    per_gpu: int = 1
    threads: int = 1

    def wrapper(self, slots: Sequence[str], folder: Path) -> list[str]:
        """Words before a job's command that wait for a GPU of this machine; none without slots."""
        if not slots:
            return []
        values = [f"{name}={value}" for name, value in share(self.per_gpu).items()]
        taken = ["--slots", ",".join(slots), "--folder", str(folder), "--"]
        return [*(["env", *values] if values else []), sys.executable, "-m", "vitplast.workflow.devices", *taken]


def needs_of(units: Iterable[Unit], *, gpu: bool, shared: Shared | None = None) -> Callable[[Unit], Needs]:
    """A function from a unit to what its job asks for.

    With a GPU the time is `SLACK` times the estimate of `vitplast.cost` for `SLOWEST` plus `START` minutes, times the
    jobs that share it; without one it is `RUNTIME`.
    """
    shared = shared or Shared()
    hours = gpu_hours(units) if gpu else {}

    def needs(unit: Unit) -> Needs:
        known = hours.get((unit.kind, unit.key))
        minutes = RUNTIME[gpu] if known is None else START + math.ceil(SLACK * 60 * known * shared.per_gpu)
        return Needs(mem_mb=MEMORY_MB[gpu], runtime=minutes, threads=shared.threads)

    return needs


def gpu_hours(units: Iterable[Unit], gpu: str = SLOWEST) -> dict[tuple[str, str], float]:
    """(kind, key of the unit) to the hours that the cost plan expects on a GPU, work on the processor included."""
    from vitplast.cost.plan import plan

    units = list(units)
    found = plan(units, gpu=gpu) if units else None
    return {(unit.kind, unit.key): found.seconds(n) / 3600 for n, unit in enumerate(units)}
