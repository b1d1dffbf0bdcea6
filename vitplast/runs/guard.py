"""Running a unit so that it is safe to start twice, to kill and to start again.

A unit is skipped when all its results are there and valid. Otherwise its notebook runs in a kernel of this very
interpreter; the notebook itself claims each result (`vitplast.results.claim`), so no crash makes one twice.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitplast.errors import AlreadyRunningError, VitplastError
from vitplast.places import notebook_path, result_path, store_folder
from vitplast.runs.runlog import append
from vitplast.runs.sets import check_sets
from vitplast.runs.unit import Unit

log = logging.getLogger(__name__)


def known_keys(data: str | Path | None) -> dict[str, set[str]]:
    """Kind to the keys in gathered files below `data` (None: nothing)."""
    from vitplast import results

    return results.known_keys(data) if data else {}


def done_keys(unit: Unit, store: str | Path = "", known: Mapping[str, Collection[str]] | None = None) -> set[str]:
    """Keys of the unit's results that are there and valid in the store, or among the `known` ones of its kind."""
    from vitplast.results import is_valid

    elsewhere = (known or {}).get(unit.kind, ())
    return {key for key in unit.runs if key in elsewhere or is_valid(result_path(store, unit.kind, key))}


def run_unit(
    unit: Unit,
    *,
    store: str | Path = "",
    data: str | Path | None = None,
    force: bool = False,
    wait: float | None = None,
    time_limit: int | None = None,
    start_limit: int = 120,
    progress: bool = False,
) -> str:
    """Runs one unit, or finds that nothing is left to do; returns "done" or "skipped".

    The store is `store`, else the unit's own parameter (see `store_folder`). Results in gathered files below `data`
    count as done, here and in the notebook, which makes the other ones only. `force`: compute again. `wait`: longest
    time in seconds to wait for another process with the same unit (None: for ever). `time_limit`: seconds a cell may
    take.

    Raises
    ------
    InputError
        Before a kernel starts, if the notebook does not take the unit's parameters, or an image set that is needed is
        not on this machine or too small (`check_sets`).
    AlreadyRunningError
        If another process holds the unit for longer than `wait`.
    VitplastError
        If the run failed; the message names the log and the line that runs it again. KeyboardInterrupt: it was
        stopped by a signal; its kernel has been ended.
    """
    from vitplast import results
    from vitplast.runs import execution

    folder = store_folder(store or unit.parameters.store)
    notebook = notebook_path(unit.kind)
    execution.check_names(unit, notebook)
    known = known_keys(data)
    with contextlib.ExitStack() as stack:
        unit_lock = folder / "locks" / f"{unit.kind}-{unit.key}.lock"
        try:
            stack.enter_context(results.lock(unit_lock, unit.label, 0))
        except AlreadyRunningError:
            if wait == 0:
                raise
            log.info("%s: another process is working on it, waiting", unit.label)
            stack.enter_context(results.lock(unit_lock, unit.label, wait))
        done = set() if force else done_keys(unit, folder, known)
        if done == set(unit.runs):
            return "skipped"
        check_sets(run for key, run in unit.runs.items() if key not in done)
        stack.enter_context(terminate_as_interrupt())
        start = time.time()
        append(folder, unit, "started", start)
        env = {
            "VITPLAST_STORE": str(folder),
            "VITPLAST_FORCE": "yes" if force else "no",
            "VITPLAST_GATHERED": str(Path(data).absolute()) if data else "",
        }
        try:
            execution.execute(unit, notebook, folder, env, time_limit, start_limit, progress)
            left = set(unit.runs) - done_keys(unit, folder, known)
            if left:
                raise VitplastError(f"the notebook ended well but made no valid result {', '.join(sorted(left))}")
        except KeyboardInterrupt:
            append(folder, unit, "stopped", start)
            log.error(
                "%s was stopped, finished results are kept; go on with: %s", unit.label, again(unit, folder, data)
            )
            raise
        except VitplastError as error:
            append(folder, unit, "failed", start)
            raise VitplastError(
                f"{unit.label} failed: {error}\nlog: {execution.log_path(folder, unit)}\n"
                f"run it again with: {again(unit, folder, data)}"
            ) from error
        append(folder, unit, "done", start)
    return "done"


def again(unit: Unit, store: str | Path = "", data: str | Path | None = None) -> str:
    """The line for a shell that runs the unit."""
    return shlex.join(["vitplast", *unit.command(store, data)])


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM stops the run as Ctrl-C does, so that the kernel is ended before this process is."""

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: its owner deals with signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
