"""A rehearsal from the folder to the table: write what it needs, check the data, run, gather, count."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vitplast.errors import InputError, VitplastError
from vitplast.images.marker import VARIABLE
from vitplast.places import result_path
from vitplast.rehearsal import material
from vitplast.rehearsal.miniature import Choice, miniature, profile_file
from vitplast.runs import load_profile, runlog
from vitplast.runs.guard import done_keys
from vitplast.runs.plan import Profile
from vitplast.runs.variants import split_name

#: Where a rehearsal runs: the sweep of this project, or Snakemake as `vitplast cluster --on laptop`.
PLACES = ("sweep", "laptop")


@dataclass(frozen=True)
class Rehearsal:
    """A folder with `data`, `models`, a profile file and `results`; `variant` is empty for the profile's first one."""

    folder: Path
    file: Path
    variant: str = ""

    @property
    def name(self) -> str:
        """How the profile is named to the commands."""
        return f"{self.file}@{self.variant}" if self.variant else str(self.file)

    @property
    def store(self) -> Path:
        """Folder of results."""
        return self.folder / "results"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every command that works on the rehearsal."""
        return {"VITPLAST_DATA": str(self.folder / "data"), VARIABLE: "1", "HF_HUB_OFFLINE": "1"}

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """`variables` in this process and those that it starts; what was there before comes back."""
        before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})

    def profile(self) -> Profile:
        """The small profile; call it in `environment`, on which its keys depend."""
        return load_profile(self.name)

    def pages(self) -> str:
        """The command that shows its results in the book."""
        words = [f"{name}='{value}'" for name, value in self.variables.items()]
        return " ".join([*words, f"make pages EXPERIMENTS='{self.name}'"])


def prepare(profile: str, folder: str | Path, *, choice: Choice | None = None) -> Rehearsal:
    """Writes the small profile, its made-up images and texts and its text model into the folder; runs nothing.

    Parameters
    ----------
    profile : str
        Name or file of the real profile, with `@VARIANT` for another than its first variant.
    folder : path
        Made if it is not there. What an earlier rehearsal wrote stays, so that its results count.
    choice : Choice, optional
        Image sets, rates and seeds that stay.

    Raises
    ------
    InputError
        If profile, variant or choice is not allowed, or the folder holds real sets.
    MissingDependencyError
        If the profile needs transformers and it is not installed.
    """
    load_profile(profile)  # every name in it is right, its variant too
    name, variant = split_name(profile)
    real, folder = profile_file(name), Path(folder).expanduser().absolute()
    found = Rehearsal(folder, folder / f"{real.stem}-rehearsal.yaml", variant)
    model = folder / "models" / "gpt2"
    text = miniature(real, model, choice)
    if str(model) in text:
        material.write_text_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    found.file.write_text(text, encoding="utf-8")
    with found.environment():
        variants = found.profile().variants or ("",)
        runs = [run for one in variants for run in _runs(load_profile(f"{found.file}{'@' * bool(one)}{one}"))]
        images, texts = _sets(runs)
        material.write_images(folder / "data", images)
        if texts:
            material.write_texts(folder / "data")
    return found


def run(rehearsal: Rehearsal, *, on: str = "sweep", jobs: int = 2, stream: IO[str] | None = None) -> list[dict]:
    """Checks the data, runs the units that are left, gathers the results; returns `table` at the end.

    Parameters
    ----------
    on : str
        One of `PLACES`.
    jobs : int
        Units at a time.
    stream : file, optional
        Where progress goes; stderr if there is none.

    Raises
    ------
    VitplastError
        If a set is not in order, a unit failed, or results are missing after all; the table is in its `rows`.
    """
    if on not in PLACES:
        raise InputError(f"on must be {' or '.join(PLACES)}, got {on!r}")
    with rehearsal.environment():
        profile = rehearsal.profile()
        images, _ = _sets(_runs(profile))
        check_images(images)
        ended = _swept(profile, rehearsal, jobs, stream) if on == "sweep" else _clustered(rehearsal, jobs)
        from vitplast.runs.sweep import gather

        left = gather(profile, store=rehearsal.store, data="")
        rows = table(profile, rehearsal.store)
        if not ended or left:
            raise RehearsalError(f"{len(left)} results of {profile.name} are missing", rows)
    return rows


class RehearsalError(VitplastError):
    """A rehearsal that did not get to its end; `rows`: the table as far as it got."""

    def __init__(self, message: str, rows: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.rows = rows


def check_images(names: Iterable[str]) -> None:
    """Reads every picture of the sets, as `vitplast check-data`.

    Raises
    ------
    VitplastError
        If one is not in order; names all that are not.
    """
    from vitplast.images.checking import GOOD, check_set

    reports = [check_set(name) for name in names]
    wrong = [f"{one.name} ({one.state}): {'; '.join(one.problems)}" for one in reports if one.state != GOOD]
    if wrong:
        raise VitplastError("image sets are not in order: " + "\n".join(wrong))


def table(profile: Profile, store: Path) -> list[dict[str, Any]]:
    """A row an experiment and kind, and one for all.

    Returns
    -------
    list of dict: `experiment`, `kind`, `units`, `done`, `results`, `results done`, `seconds` (of the units that the log
    of the store knows, one after the other, kernels included), `kB` of result files.
    """
    took = {
        (line["kind"], line["key"]): line["end"] - line["start"]
        for line in runlog.entries(store)
        if line["status"] == "done"
    }
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    counted = ("units", "done", "results", "results done", "seconds", "kB")
    for unit in profile.units:
        names = {"experiment": unit.experiment, "kind": unit.kind}
        row = rows.setdefault((unit.experiment, unit.kind), names | dict.fromkeys(counted, 0))
        done = done_keys(unit, store, {})
        files = [result_path(store, unit.kind, key) for key in unit.runs if key in done]
        row["units"] += 1
        row["done"] += done >= set(unit.runs)
        row["results"] += len(unit.runs)
        row["results done"] += len(done)
        row["seconds"] += took.get((unit.kind, unit.key), 0.0)
        row["kB"] += sum(file.stat().st_size for file in files if file.is_file()) / 1000
    total = {"experiment": "all", "kind": ""} | {n: sum(row[n] for row in rows.values()) for n in counted}
    return [row | {n: round(row[n]) for n in ("seconds", "kB")} for row in (*rows.values(), total)]


def _runs(profile: Profile) -> list[dict[str, Any]]:
    return [run for unit in profile.units for run in unit.runs.values()]


def _sets(runs: Iterable[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Names of image sets and of text sets."""
    from vitplast.runs.sets import ROLES
    from vitplast.texts import is_text

    names = dict.fromkeys(run[role] for run in runs for role in ROLES if role in run)
    return [n for n in names if not is_text(n)], [n for n in names if is_text(n)]


def _swept(profile: Profile, rehearsal: Rehearsal, jobs: int, stream: IO[str] | None) -> bool:
    from vitplast.runs.sweep import sweep

    return sweep(profile, jobs=jobs, store=rehearsal.store, data="", stream=stream or sys.stderr)


def _clustered(rehearsal: Rehearsal, jobs: int) -> bool:
    from vitplast.cli.cluster import waited

    folders = ["--store", str(rehearsal.store), "--data", ""]
    line = ["cluster", "--profile", rehearsal.name, "--on", "laptop", "--jobs", str(jobs), *folders]
    return waited([sys.executable, "-m", "vitplast", *line]) == 0
