"""Commands about image sets on the disk: `check-data`, and `made-up` for rehearsals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vitplast.cli.compute import print_table
from vitplast.cli.given import Json
from vitplast.errors import InputError, VitplastError


def add_data_commands(app: typer.Typer) -> None:
    """Adds `check-data` and `made-up`."""
    app.command("check-data")(check_data)
    app.command("made-up")(made_up)


def check_data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Image sets, as in `vitplast datasets`; default: those of the paper.")
    ] = None,
    profile: Annotated[str, typer.Option("--profile", help="All sets of a profile, or of a YAML file.")] = "",
    size: Annotated[int, typer.Option(help="Side in pixels at which images are read.")] = 56,
    read: Annotated[bool, typer.Option(help="Read every picture; without, only files and lists.")] = True,
    jobs: Annotated[int, typer.Option(min=1, help="Pictures read at a time.")] = 1,
    download: Annotated[bool, typer.Option(help="Allow downloads.")] = False,
    as_json: Json = False,
) -> None:
    """Say of every image set whether it is there, laid out rightly and whole; exit code 1 if one is not.

    All sets are looked at, whatever is wrong with the first. The table is on stdout, what is wrong on stderr.

    Example: vitplast check-data cifar10 cifar10_c:motion_blur:5 domainnet_sketch
    """
    from vitplast.images.checking import GOOD, PAPER_SETS, check_set, spelled_out
    from vitplast.progress import bar

    if names and profile:
        raise InputError("give image sets or --profile, not both")
    chosen = spelled_out(_sets_of(profile) if profile else names or PAPER_SETS)
    reports = []
    for name in chosen:
        with bar(name) as progress:
            reports.append(check_set(name, size=size, download=download, read=read, jobs=jobs, progress=progress))
    if as_json:
        print(json.dumps([report.values() for report in reports], indent=2))
    else:
        print_table([row for report in reports for row in report.rows()], False)
    for report in reports:
        for line in report.problems:
            print(f"bad: {report.name}: {line}", file=sys.stderr)
        for line in report.notes:
            print(f"note: {report.name}: {line}", file=sys.stderr)
    wrong = [f"{report.name} ({report.state})" for report in reports if report.state != GOOD]
    if wrong:
        raise VitplastError(f"{len(wrong)} of {len(reports)} image sets are not in order: {', '.join(wrong)}")


def made_up(
    folder: Annotated[Path, typer.Argument(help="New data folder, for VITPLAST_DATA.")],
    sets: Annotated[list[str] | None, typer.Option("--set", help="A set to make; default: all.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Classes at most; default: as many as are real.")] = None,
    pool: Annotated[int, typer.Option(min=2, help="Training images of a class.")] = 8,
    test: Annotated[int, typer.Option(min=2, help="Test images of a class.")] = 4,
) -> None:
    """Write tiny invented image sets in the true formats, to rehearse a profile without the real ones.

    They are read only with VITPLAST_MADE_UP=1, which every result then says.

    Example: vitplast made-up rehearsal --classes 5
    """
    from vitplast.images import made_up as writer

    for name, facts in writer.write(folder, sets or writer.SETS, classes=classes, pool=pool, test=test).items():
        print(f"{name}: {facts.classes} classes, {', '.join(f'{part} {n}' for part, n in facts.images.items())}")
    print(f"use them with VITPLAST_DATA={folder} VITPLAST_MADE_UP=1", file=sys.stderr)


def _sets_of(profile: str) -> list[str]:
    """Image sets of the runs of a profile; sets of text are no matter of this check."""
    from vitplast.images.registry import REGISTRY
    from vitplast.runs import load_profile
    from vitplast.runs.sets import ROLES

    runs = [run for unit in load_profile(profile).units for run in unit.runs.values()]
    named = dict.fromkeys(run[role] for run in runs for role in ROLES if role in run)
    return [name for name in named if name.partition(":")[0] in (*REGISTRY, "folder")]
