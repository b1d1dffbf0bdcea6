"""The command `rehearse`: a whole profile in miniature with made-up data, before the real one costs anything."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from vitplast.cli.compute import print_table
from vitplast.cli.given import Json, ProfileName
from vitplast.errors import InputError


def add_rehearsing_commands(app: typer.Typer) -> None:
    """Adds `rehearse`."""
    app.command()(rehearse)


def rehearse(
    folder: Annotated[Path, typer.Option("--folder", help="Folder for made-up data, tiny models and results.")],
    profile: ProfileName = "paper",
    variant: Annotated[str, typer.Option(help="Variant of the profile; default: its first.")] = "",
    on: Annotated[str, typer.Option("--on", help="sweep, or laptop: through Snakemake.")] = "sweep",
    jobs: Annotated[int, typer.Option(min=1, help="Units at a time.")] = 2,
    sets: Annotated[list[str] | None, typer.Option("--set", help="An image set that stays; default: six.")] = None,
    rates: Annotated[int, typer.Option(min=1, help="Learning rates that stay of each list.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that stay of each list.")] = 2,
    components: Annotated[
        list[str] | None, typer.Option("--components", help="A configuration that stays; default: all.")
    ] = None,
    write_only: Annotated[bool, typer.Option("--write-only", help="Write profile and data, run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run a profile in miniature: its entries and options, tiny random models, made-up images and texts.

    Every kind of run goes through the same code as in the real profile; the numbers mean nothing.

    Example: vitplast rehearse --profile paper --folder rehearsal
    """
    from vitplast import rehearsal

    if variant and "@" in profile:
        raise InputError(f"--profile {profile} names a variant; leave --variant {variant} out")
    kept = {"rates": rates, "seeds": seeds, "configurations": tuple(components or ())}
    choice = rehearsal.Choice(**kept, **({"sets": tuple(sets)} if sets else {}))
    start = time.monotonic()
    found = rehearsal.prepare(f"{profile}@{variant}" if variant else profile, folder, choice=choice)
    print(f"profile: {found.file}", file=sys.stderr)
    if write_only:
        return
    try:
        rows = rehearsal.run(found, on=on, jobs=jobs)
    except rehearsal.RehearsalError as error:
        print_table(error.rows, as_json)
        raise
    print_table(rows, as_json)
    minutes = (time.monotonic() - start) / 60
    print(f"{minutes:.1f} minutes with {jobs} units at a time; the pages:\n{found.pages()}", file=sys.stderr)
