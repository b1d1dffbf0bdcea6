"""The command `cluster`: the units of a profile as a Snakemake workflow."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
from typing import Annotated

import typer

from vitplast.cli.given import Data, ProfileName, Store, data_folder
from vitplast.errors import InputError, VitplastError


def add_cluster_commands(app: typer.Typer) -> None:
    """Adds `cluster`."""
    app.command()(cluster)


def cluster(
    options: Annotated[list[str] | None, typer.Argument(help="After --: more options of Snakemake.")] = None,
    profile: ProfileName = "quick",
    on: Annotated[str, typer.Option("--on", help="laptop, gpus (one machine), slurm or kubernetes.")] = "laptop",
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Show what is left, and Snakemake's plan.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Jobs at a time; 0: as many as the place has room for.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Cores of a job; 0: 1 without and 4 with a GPU.")] = 0,
    devices: Annotated[str, typer.Option(help="gpus: the GPUs, as in CUDA_VISIBLE_DEVICES; default: all.")] = "",
    per_gpu: Annotated[int, typer.Option(min=1, help="gpus: jobs on one GPU at a time, which share its memory.")] = 1,
    unlock: Annotated[bool, typer.Option("--unlock", help="Take over from a run that was killed (kill -9).")] = False,
    store: Store = "",
    data: Data = None,
) -> None:
    """Run the units of a profile that are left through Snakemake, here or on a cluster; may be stopped at any time.

    Results that are there are kept and never made twice, however often a job is submitted.

    Example: vitplast cluster --profile paper --on slurm -n -- --default-resources slurm_partition=gpu
    """
    from vitplast import workflow
    from vitplast.errors import UnknownNameError
    from vitplast.runs import load_profile
    from vitplast.runs.sets import check_sets
    from vitplast.workflow.devices import visible
    from vitplast.workflow.needs import Shared, needs_of

    if on not in workflow.PLACES:
        raise UnknownNameError("place for --on", on, workflow.PLACES)
    if on != "gpus" and (devices or per_gpu > 1):
        raise InputError(f"--devices and --per-gpu are for --on gpus, got --on {on}")
    loaded, folder = load_profile(profile), data_folder(data)
    program = workflow.snakemake()
    slots: list[str] = []
    if on == "gpus":
        named = [name.strip() for name in devices.split(",") if name.strip()] or visible()
        if not named:
            raise InputError("--on gpus: torch finds no GPU here; name them with --devices, or use --on laptop")
        slots = named * per_gpu
    shared = Shared(per_gpu, threads or (4 if workflow.PLACES[on] else 1))
    left = workflow.settle(loaded, store=store, data=folder)
    if not dry_run:
        check_sets(run for unit in left for run in unit.runs.values())
    place = workflow.plan_folder(loaded, store)
    workflow.write_plan(
        loaded,
        profile,
        store=store,
        data=folder,
        gpus=workflow.PLACES[on],
        needs=needs_of(loaded.units, gpu=workflow.PLACES[on], shared=shared),
        wrapper=shared.wrapper(slots, place.parent / "devices"),
    )
    print(f"{loaded.name}: {len(left)} of {len(loaded.units)} units are left", file=sys.stderr)
    line = workflow.arguments(on, place, jobs=jobs, slots=len(slots), dry_run=dry_run, more=options or ())
    if unlock:
        waited([*program, *line, "--unlock"])
    print(shlex.join([*program, *line]), file=sys.stderr, flush=True)
    code = waited([*program, *line])
    if code:
        again = f"vitplast cluster --profile {shlex.quote(profile)} --on {on}"
        raise VitplastError(
            f"Snakemake ended with exit code {code}; logs of the jobs are in {place / 'logs'}. The same command runs "
            f"only what is left. If it says that the folder is locked and no other run is going on: {again} --unlock"
            + (" (first cancel jobs of the old run: scancel --name RUN_ID)" if on == "slurm" else "")
        )


def waited(line: list[str]) -> int:
    """Exit code of a command. Ctrl-C is left to it, so that it can cancel its jobs; SIGTERM is passed on to it."""
    process = subprocess.Popen(line)
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
