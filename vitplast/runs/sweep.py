"""All units of a profile on this machine: what is left to do, a few at a time, and the results gathered.

Nothing is remembered between sweeps but the results themselves: a sweep that was stopped, killed or started twice
goes on with what is missing. Each unit is a process of its own (`vitplast run`), so other schedulers can do the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vitplast.runs import runlog
from vitplast.runs.plan import Profile, expected
from vitplast.runs.unit import Unit, done_keys, known_keys, result_path, store_folder, terminate_as_interrupt

__all__ = ["dry_run", "gather", "gathered_path", "sweep"]

COMMAND = (sys.executable, "-m", "vitplast")
#: Seconds that a stopped unit has to end its kernel before it is killed.
GRACE = 20.0


def gathered_path(profile: Profile, kind: str, store: str | Path = "") -> Path:
    """File of a kind's gathered results."""
    return store_folder(store) / "gathered" / profile.name / f"{kind}.nc"


def dry_run(profile: Profile, *, store: str | Path = "", data: str | Path | None = None) -> list[dict[str, Any]]:
    """One row a kind and one for all: units and results, how many are done, and the time that the rest takes.

    The time is for one unit after the other, from the pace of the units done in this store; unknown without any.
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
                "time left": duration(_seconds(open_, pace)),
            }
        )
    total = {name: sum(row[name] for row in rows) for name in rows[0] if name not in ("kind", "time left")}
    return [*rows, {"kind": "all", **total, "time left": duration(_seconds(left, pace))}]


def gather(profile: Profile, *, store: str | Path = "", data: str | Path | None = None) -> list[str]:
    """Writes one file a kind with all results of the profile that are there; returns the missing ones in words.

    Raises
    ------
    IntegrityError
        If results are damaged or contradict each other; nothing is written then.
    """
    from vitplast import results

    wanted = expected(profile.units)
    paths = [p for kind, keys in wanted.items() for key in keys if (p := result_path(store, kind, key)).exists()]
    if data and Path(data).is_dir():
        paths += sorted(Path(data).rglob("*.nc"))
    gathered = results.gather(paths, wanted)
    for kind, ds in gathered.items():
        if kind in wanted:
            own = ds.isel(run=ds.run_key.isin(list(wanted[kind])).values)
            results.write_gathered(own, gathered_path(profile, kind, store))
    place = store_folder(store) / "gathered" / profile.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "profile.yaml").write_text(profile.text, encoding="utf-8")  # the book shows what made the results
    return [
        f"{wanted[kind][key]} ({key})" for kind, keys in results.missing(gathered, wanted).items() for key in keys
    ]


def sweep(
    profile: Profile,
    *,
    jobs: int = 2,
    store: str | Path = "",
    data: str | Path | None = None,
    command: Sequence[str] = COMMAND,
    stream: IO[str] | None = None,
) -> bool:
    """Runs all units that are not done, `jobs` at a time, longest first; returns whether all are done at the end.

    A failed unit does not stop the others. Each process gets its share of the cores (unless OMP_NUM_THREADS is set).
    On a signal the running units are ended and KeyboardInterrupt is raised; the same call goes on with the rest.
    """
    folder = store_folder(store)
    loop = _Loop(folder, tuple(command), max(1, jobs), stream or sys.stderr)
    known = known_keys(data)
    loop.todo = [u for u in profile.units if done_keys(u, folder, known) < set(u.runs)]
    pace = runlog.pace(folder)
    loop.todo.sort(key=lambda u: u.work * pace.get(u.kind, 1.0 if not pace else max(pace.values())), reverse=True)
    before = len(profile.units) - len(loop.todo)
    loop.total = len(loop.todo)
    loop.say(f"{profile.name}: {loop.total} units to run, {before} done before, {loop.jobs} at a time{loop.eta()}")
    with terminate_as_interrupt():
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.say("stopping; finished results are kept")
            loop.stop()
            loop.say(f"stopped with {loop.finished} of {loop.total} units done; the same command goes on with the rest")
            raise
    for label, message in loop.failed.items():
        loop.say(f"failed: {label}\n{message}")
    loop.say(f"{profile.name}: {loop.finished} units done, {before} done before, {len(loop.failed)} failed")
    return not loop.failed


@dataclass
class _Child:
    unit: Unit
    process: subprocess.Popen
    errors: IO[bytes]
    start: float


@dataclass
class _Loop:
    folder: Path
    command: tuple[str, ...]
    jobs: int
    stream: IO[str]
    todo: list[Unit] = field(default_factory=list)
    running: list[_Child] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    finished: int = 0
    total: int = 0

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def run(self) -> None:
        while self.todo or self.running:
            while self.todo and len(self.running) < self.jobs:
                self.running.append(self.start(self.todo.pop(0)))
            time.sleep(0.05)
            for child in [c for c in self.running if c.process.poll() is not None]:
                self.running.remove(child)
                self.end(child)

    def start(self, unit: Unit) -> _Child:
        from vitplast.results.provenance import cores

        threads = str(max(1, cores() // self.jobs))
        shared = {name: threads for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the child has ended)
        process = subprocess.Popen(
            [*self.command, *unit.command(self.folder)],
            env=shared | dict(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends the others in order
        )
        return _Child(unit, process, errors, time.time())

    def end(self, child: _Child) -> None:
        code = child.process.returncode
        with child.errors:
            child.errors.seek(0)
            words = child.errors.read().decode(errors="replace").strip()
        if code == 0:
            self.finished += 1
        else:
            reason = words[-2000:] or (f"ended by signal {-code}" if code < 0 else f"exit code {code}")
            self.failed[child.unit.label] = reason
        done = self.finished + len(self.failed)
        self.say(
            f"[{done}/{self.total}] {'done' if code == 0 else 'FAILED'} {child.unit.label} "
            f"{duration(time.time() - child.start)}{self.eta()}"
        )

    def eta(self) -> str:
        seconds = _seconds([*self.todo, *(c.unit for c in self.running)], runlog.pace(self.folder))
        if not seconds:
            return ""
        passed = sum(time.time() - c.start for c in self.running)
        return f", about {duration(max(0.0, seconds - passed) / self.jobs)} left"

    def stop(self) -> None:
        for child in self.running:
            child.process.terminate()
        limit = time.time() + GRACE
        for child in self.running:
            try:
                child.process.wait(max(0.1, limit - time.time()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
            child.errors.close()


def _seconds(units: Iterable[Unit], pace: dict[str, float]) -> float | None:
    units = list(units)
    if any(unit.kind not in pace for unit in units):
        return None
    return sum(unit.work * pace[unit.kind] for unit in units)


def duration(seconds: float | None) -> str:
    """`12 s`, `3 min` or `1.5 h`; `unknown` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
