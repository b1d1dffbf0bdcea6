"""The command `cost`: what a profile needs in GPU hours, memory and disk, before anything runs."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from vitplast.cli.compute import print_table
from vitplast.cli.given import Json, ProfileName


def add_planning_commands(app: typer.Typer) -> None:
    """Adds `cost`."""
    app.command()(cost)


def cost(
    profile: ProfileName = "paper",
    gpu: Annotated[str, typer.Option(help="Name of a GPU, as H100 or A100-40GB, or its memory, as 40GB.")] = "H100",
    gpus: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    utilisation: Annotated[
        float, typer.Option(help="Share of the peak rate that is reached, in (0, 1]; 0: what is assumed by precision.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """GPU hours, memory and disk of a profile, by experiment, from formulas; loads no weights and no images.

    Example: vitplast cost --profile paper --gpu H100 --gpus 8
    """
    from vitplast.cost.devices import gpu_named
    from vitplast.cost.plan import plan
    from vitplast.runs import load_profile

    device = gpu_named(gpu)
    if utilisation:
        device.rate("float32", utilisation)
    found = plan(load_profile(profile).units, gpu=device, utilisation=utilisation or None)
    rows = found.table.to_dict("records")
    if not any(row["experiment"] for row in rows[:-1]):
        rows = [{k: v for k, v in row.items() if k != "experiment"} for row in rows]
    hours, space = found.hours_with(gpus), found.disk_gb()
    if as_json:
        summary = {
            "profile": profile, "gpu": device.name, "gpu source": device.source, "gpus": gpus,
            "utilisation": dict(found.utilisation), "hours": round(hours, 3), "disk GB": space,
        }  # fmt: skip
        print(json.dumps({"rows": rows, "summary": summary}, indent=2))
        return
    print_table(rows, False)
    shares = ", ".join(f"{share:.0%} in {name}" for name, share in found.utilisation.items() if name != "float16")
    sets = f"{space['archives']:g} GB of archives, {space['unpacked']:g} GB unpacked"
    print(
        f"{hours:,.1f} hours with {gpus} x {device.name} ({device.memory_gib:g} GiB), assumed to reach {shares} of its "
        f"peak ({device.source})",
        f"disk: results {space['results']:g} GB, weights {space['weights']:g} GB, image sets {sets}"
        + (f"; of unknown size: {', '.join(space['unknown'])}" if space["unknown"] else ""),
        sep="\n",
        file=sys.stderr,
    )
    for why in dict.fromkeys(cost.why for cost in found.costs if not cost.fits):
        print(f"does not fit: {why}", file=sys.stderr)
