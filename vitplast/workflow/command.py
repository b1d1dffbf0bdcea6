"""The command line of Snakemake for a plan, on a laptop, on one machine with GPUs, on Slurm or on Kubernetes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from vitplast.errors import MissingDependencyError, UnknownNameError

HERE = Path(__file__).parent
#: Where a workflow can run, each with a folder of Snakemake options in `profiles/`, and whether jobs ask for a GPU.
PLACES = {"laptop": False, "gpus": True, "slurm": True, "kubernetes": True}
#: Executor plugins that a place needs beside Snakemake.
PLUGINS = {"slurm": "snakemake-executor-plugin-slurm", "kubernetes": "snakemake-executor-plugin-kubernetes"}


def snakemake() -> list[str]:
    """The words that start Snakemake: that of this environment, else the one on the PATH.

    Raises
    ------
    MissingDependencyError
        If there is none.
    """
    if importlib.util.find_spec("snakemake"):
        return [sys.executable, "-m", "snakemake"]
    beside = Path(sys.executable).with_name("snakemake")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("snakemake")
    if not found:
        raise MissingDependencyError(
            "Snakemake is not installed: pip install 'vitplast[cluster]', or put a snakemake of version 9 from an "
            "environment of its own on the PATH"
        )
    return [found]


def arguments(
    place: str, folder: str | Path, *, jobs: int = 0, slots: int = 0, dry_run: bool = False, more: Sequence[str] = ()
) -> list[str]:
    """Options of Snakemake for the plan in `folder`.

    Parameters
    ----------
    place : str
        One of `PLACES`.
    folder : path
        That of the plan (`plan_folder`).
    jobs : int
        Jobs at a time; 0: all cores (laptop), one a slot (gpus), what the place's options say (slurm, kubernetes).
    slots : int
        GPU slots of the machine, for `gpus`.
    dry_run : bool
        Only say what would run.
    more : sequence of str
        Further options of Snakemake; they come last, so they count.

    Raises
    ------
    UnknownNameError
        If there is no such place; with the nearest.
    """
    if place not in PLACES:
        raise UnknownNameError("place for --on", place, PLACES)
    line = ["--snakefile", str(HERE / "Snakefile"), "--directory", str(folder)]
    line += ["--profile", str(HERE / "profiles" / place), "--config", f"plan={Path(folder) / 'plan.json'}"]
    if place in ("laptop", "gpus"):
        line += ["--cores", "all", "--jobs", str(jobs)] if jobs and place == "gpus" else ["--cores", str(jobs or "all")]
    elif jobs:
        line += ["--jobs", str(jobs)]
    if place == "gpus":
        line += ["--resources", f"gpu={slots}"]
    quiet = ["--dry-run", "--quiet", "rules", "reason", "host"]  # counts, not a paragraph for each job
    return [*line, *(quiet if dry_run else []), *more]
