"""Commands about results that are there already: gather and keep them, look at their manifest, compute them anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitplast.cli.compute import print_table
from vitplast.cli.given import Data, Json, ProfileName, Store, data_folder, given_values
from vitplast.errors import InputError, IntegrityError, VitplastError


def add_kept_commands(app: typer.Typer) -> None:
    """Adds `gather`, `manifest` and `rerun`."""
    app.command()(gather)
    app.command()(manifest)
    app.command()(rerun)


def gather(
    profile: ProfileName = "quick",
    store: Store = "",
    data: Data = None,
    keep: Annotated[bool, typer.Option("--keep", help="Write what is there to data/PROFILE, with a manifest.")] = False,
) -> None:
    """Check all results of a profile and gather them into one file a kind.

    Example: vitplast gather --profile quick
    """
    from vitplast.runs import load_profile

    loaded, folder = load_profile(profile), data_folder(data)
    if not keep:
        from vitplast.runs import sweep

        missing = sweep.gather(loaded, store=store, data=folder)
    elif not folder:
        raise InputError("--keep needs a folder of data; leave --data out, or name one")
    else:
        from vitplast.results import manifest as manifest_
        from vitplast.runs.keep import keep as keep_

        kept = keep_(loaded, store=store, data=folder)
        print_table(manifest_.rows(manifest_.read(kept.folder)), False)
        for kind, keys in kept.dropped.items():
            print(f"dropped: {len(keys)} {kind} results that are no longer of the profile", file=sys.stderr)
        if kept.missing:
            print(f"{len(kept.missing)} results are missing: {', '.join(kept.missing[:5])}", file=sys.stderr)
        missing = []
    if missing:
        raise VitplastError(f"{len(missing)} results are missing: {', '.join(missing[:5])}; run `vitplast sweep` first")


def manifest(
    folder: Annotated[Path, typer.Argument(help="Folder of kept results, such as data/laptop.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare it with the files; exit code 1 if they differ.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the manifest of kept results: files, runs, origin and hashes.

    Example: vitplast manifest --check data/laptop
    """
    from vitplast.results import manifest as manifest_

    print_table(manifest_.rows(manifest_.read(folder)), as_json)
    if check:
        faults = manifest_.faults(folder)
        if faults:
            raise IntegrityError(f"{folder}: {'; '.join(faults)}")
        print(f"{folder}: the files are those of the manifest", file=sys.stderr)


def rerun(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of finished runs, or how they begin.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Draw that many finished runs of the profile.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    profile: Annotated[str, typer.Option("--profile", help="Look at the runs of this profile only.")] = "",
    parameter: Annotated[list[str] | None, typer.Option("-p", help="name=value: the runs that have it.")] = None,
    store: Store = "",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Compute finished runs again and compare every number bit for bit (timings apart); exit code 1 if one differs.

    Example: vitplast rerun --sample 10 --profile laptop --seed 1
    """
    from vitplast.runs import load_profile
    from vitplast.runs.rerun import Finished, rerun_all
    from vitplast.runs.sets import check_sets

    if not (keys or sample or parameter):
        raise InputError("name runs by key, by -p name=value, or draw some with --sample")
    finished = Finished(store, data_folder(data), load_profile(profile) if profile else None)
    names = [finished.named(key) for key in keys or ()]
    names += finished.where(given_values("{}", parameter)) if parameter else []
    names += finished.sample(sample, seed) if sample else []
    names = list(dict.fromkeys(names))
    check_sets(finished.parameters(name) for name in names)
    rows, different = [], []
    for number, one in enumerate(rerun_all(finished, names), 1):
        rows.append(one.row())
        different += [] if one.equal else [f"{one.kind} {one.key}"]
        print(f"[{number}/{len(names)}] {one.kind} {one.key} {'equal' if one.equal else 'DIFFERS'}", file=sys.stderr)
    print_table(rows, as_json)
    if different:
        raise VitplastError(f"{len(different)} of {len(names)} runs differ: {', '.join(different)}")
