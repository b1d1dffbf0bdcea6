"""One unit of work: a notebook run by papermill, safe to start twice, to kill and to start again.

A unit is skipped when all its results are there and valid. Otherwise its notebook runs in a kernel of this very
interpreter; the notebook itself claims each result (`vitplast.results.claim`), so no crash makes one twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from vitplast.errors import AlreadyRunningError, InputError, UnknownNameError, VitplastError
from vitplast.parameters import KINDS, Parameters
from vitplast.runs.runlog import append
from vitplast.runs.sets import check_sets

PACKAGE = Path(__file__).parent.parent
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unit:
    """One notebook with its parameters, and all results that it makes."""

    kind: str
    parameters: Parameters

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError("notebook", self.kind, KINDS)
        if self.parameters.kind != self.kind:
            raise InputError(f"a {self.kind} unit can't have the parameters of {self.parameters.kind}")

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Key to parameters of each result."""
        return self.parameters.runs()

    @property
    def key(self) -> str:
        """Sixteen hex digits that stand for the unit's set of results."""
        return hashlib.sha256(" ".join(sorted(self.runs)).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A name for people and for files: what is run, then the start of the key."""
        p = self.parameters.to_dict()
        names = ("dataset", "targets", "components", "lrs", "seeds")
        parts = ["+".join(map(str, p[n])) if isinstance(p[n], list) else str(p[n]) for n in names if n in p]
        parts += ["random"] if p["weights"] == "random" else []
        text = re.sub(r"[^A-Za-z0-9.+]+", "-", "-".join([self.kind, *parts])).strip("-.")
        return f"{text[:80]}-{self.key[:8]}"

    @property
    def work(self) -> float:
        """Images passed through the model, training counted three times: a measure of how long the unit takes."""
        p = self.parameters.to_dict()
        if self.kind == "finetune":
            seen = 3 * p["steps"] * p["batch_size"] + p["evaluations"] * p["validation_images"] + p["test_images"]
        elif self.kind == "probe":
            seen = (p["train_images"] or 2000) + (p["test_images"] or 1000)
        else:
            seen = 2 * p["pairs"]
        return float(seen * len(self.runs))

    def values(self) -> dict[str, Any]:
        """The parameters that differ from their defaults, without the store."""
        chosen = {}
        for f in fields(self.parameters):
            default = f.default if f.default is not MISSING else f.default_factory()  # type: ignore[misc]
            if f.name != "store" and getattr(self.parameters, f.name) != default:
                chosen[f.name] = getattr(self.parameters, f.name)
        return chosen

    def command(self, store: str | Path = "", data: str | Path | None = None) -> list[str]:
        """Arguments of `vitplast` that run this unit; `data`: None for the command's own, empty for nothing known."""
        folders = [*(["--store", str(store)] if store else []), *(["--data", str(data)] if data is not None else [])]
        return ["run", self.kind, "--json", json.dumps(self.values()), *folders]


def project_root() -> Path:
    """The folder of the project: the nearest one, from here upwards, with vitplast's pyproject.toml, else here."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        try:
            text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if re.search(r'^name\s*=\s*"vitplast"\s*$', text, re.MULTILINE):
            return folder
    return here


def store_folder(store: str | Path = "") -> Path:
    """Where results go: `store`, else $VITPLAST_STORE, else `results/` of the project. Not created here."""
    chosen = str(store) or os.environ.get("VITPLAST_STORE", "")
    return Path(chosen).expanduser().absolute() if chosen else project_root() / "results"


def result_path(store: str | Path, kind: str, key: str) -> Path:
    """File of the result `key`; `store` as in `store_folder`."""
    return store_folder(store) / kind / f"{key}.nc"


def notebook_path(kind: str) -> Path:
    """The notebook of a kind: in $VITPLAST_NOTEBOOKS, else in `notebooks/` beside the package or of the project."""
    if kind not in KINDS:
        raise UnknownNameError("notebook", kind, KINDS)
    given = os.environ.get("VITPLAST_NOTEBOOKS", "")
    folders = [Path(given)] if given else [PACKAGE.parent / "notebooks", project_root() / "notebooks"]
    for folder in folders:
        if (folder / f"{kind}.ipynb").is_file():
            return folder / f"{kind}.ipynb"
    raise InputError(
        f"no {kind}.ipynb in {' or '.join(map(str, folders))}; run from a checkout of the project, or set "
        "VITPLAST_NOTEBOOKS to its notebooks folder"
    )


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
