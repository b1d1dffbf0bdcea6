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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from vitplast.places import result_path, store_folder
from vitplast.runs import runlog
from vitplast.runs.gpu_share import share
from vitplast.runs.guard import done_keys, known_keys
from vitplast.runs.outlook import duration
from vitplast.runs.outlook import seconds as seconds_of
from vitplast.runs.plan import Profile, expected
from vitplast.runs.sets import check_sets
from vitplast.runs.unit import Unit

__all__ = ["gather", "gathered_path", "sweep"]

COMMAND = (sys.executable, "-m", "vitplast")
#: Seconds that a stopped unit has to end its kernel before it is killed.
GRACE = 20.0


def gathered_path(profile: Profile, kind: str, store: str | Path = "") -> Path:
    """File of a kind's gathered results."""
    return store_folder(store) / "gathered" / profile.name / f"{kind}.nc"


def gather(profile: Profile, *, store: str | Path = "", data: str | Path | None = None) -> list[str]:
    """Writes one file a kind with all results of the profile that are there; returns the missing ones in words.

    Where the store and the files below `data` hold other numbers for a run, the store's count, with a warning.

    Raises
    ------
    IntegrityError
        If results are damaged, or two of the store contradict each other; nothing is written then.
    """
    from vitplast import results

    wanted = expected(profile.units)
    paths = [p for kind, keys in wanted.items() for key in keys if (p := result_path(store, kind, key)).exists()]
    committed = sorted(Path(data).rglob("*.nc")) if data and Path(data).is_dir() else []
    gathered = results.gather(paths, wanted, behind=committed)
    for kind, ds in gathered.items():
        if kind in wanted:
            own = ds.isel(run=ds.run_key.isin(list(wanted[kind])).values)
            results.write_gathered(own, gathered_path(profile, kind, store))
    place = store_folder(store) / "gathered" / profile.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "profile.yaml").write_text(profile.text, encoding="utf-8")  # the book shows what made the results
    return [f"{wanted[kind][key]} ({key})" for kind, keys in results.missing(gathered, wanted).items() for key in keys]


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

    Results in gathered files below `data` count as done, for the units' own processes too. Nothing starts before all
    image sets are found (`check_sets`). A failed unit does not stop the others. Each process gets its share of the
    cores (unless OMP_NUM_THREADS is set) and of the memory of a GPU (unless VITPLAST_MEMORY_GIB is set). On a signal
    the running units are ended and KeyboardInterrupt is raised; the same call goes on with the rest.
    """
    folder = store_folder(store)
    loop = _Loop(folder, str(data or ""), tuple(command), max(1, jobs), stream or sys.stderr)
    loop.share = share(loop.jobs)
    known = known_keys(data)
    left = [(u, set(u.runs) - done_keys(u, folder, known)) for u in profile.units]
    check_sets(run for unit, keys in left for key, run in unit.runs.items() if key in keys)
    loop.todo = [unit for unit, keys in left if keys]
    pace = runlog.pace(folder)
    loop.todo.sort(key=lambda u: u.work * pace.get(u.kind, 1.0 if not pace else max(pace.values())), reverse=True)
    before = len(profile.units) - len(loop.todo)
    loop.total = len(loop.todo)
    loop.say(f"{profile.name}: {loop.total} units to run, {before} done before, {loop.jobs} at a time{loop.eta()}")
    with _noted_signals() as loop.signals:
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


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are listed, not raised, so that no child is lost between its start and its record."""
    noted: list[int] = []
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            with contextlib.suppress(ValueError):  # not the main thread: its owner deals with signals
                before[number] = signal.signal(number, lambda signum, frame: noted.append(signum))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Child:
    unit: Unit
    process: subprocess.Popen
    errors: IO[bytes]
    start: float


@dataclass
class _Loop:
    folder: Path
    data: str
    command: tuple[str, ...]
    jobs: int
    stream: IO[str]
    todo: list[Unit] = field(default_factory=list)
    running: list[_Child] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)
    share: dict[str, str] = field(default_factory=dict)
    finished: int = 0
    total: int = 0

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def run(self) -> None:
        while self.todo or self.running:
            while self.todo and len(self.running) < self.jobs:
                self.running.append(self.start(self.todo.pop(0)))
            time.sleep(0.05)
            if self.signals:
                raise KeyboardInterrupt
            for child in [c for c in self.running if c.process.poll() is not None]:
                self.running.remove(child)
                self.end(child)

    def start(self, unit: Unit) -> _Child:
        from vitplast.results.provenance import cores

        threads = str(max(1, cores() // self.jobs))
        shared = {name: threads for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the child has ended)
        process = subprocess.Popen(
            [*self.command, *unit.command(self.folder, self.data)],
            env=shared | self.share | dict(os.environ),
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
        seconds = seconds_of([*self.todo, *(c.unit for c in self.running)], runlog.pace(self.folder))
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
