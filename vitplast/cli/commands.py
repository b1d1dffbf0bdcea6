"""The `vitplast` command. Results go to stdout or a file, messages to stderr; exit code 0 done, 1 failed, 2 refused.

The commands that compute one result (`measure`, `bounds`, `finetune` and so on) are made in `vitplast.cli.compute`,
those about results that are there already (`gather`, `manifest`, `rerun`) in `vitplast.cli.kept`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Annotated

import typer

from vitplast import __version__, parameters
from vitplast.cli.cluster import add_cluster_commands
from vitplast.cli.compute import add_compute_commands, print_table
from vitplast.cli.data import add_data_commands
from vitplast.cli.given import Data, Json, ProfileName, Store, data_folder, given_values
from vitplast.cli.kept import add_kept_commands
from vitplast.cli.planning import add_planning_commands
from vitplast.cli.rehearsing import add_rehearsing_commands
from vitplast.errors import UnknownNameError, VitplastError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which parts of a pretrained vision transformer should be finetuned, and why? "
    "Plasticity, bounds and component-wise finetuning.",
)


def main(argv: list[str] | None = None) -> None:
    """Runs the command line; an error that has a name shows no traceback, unless VITPLAST_TRACEBACK is set."""
    arguments = sys.argv[1:] if argv is None else argv
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; the error that follows says it all
    try:
        app(args=arguments, prog_name="vitplast")  # usage errors end here, with exit code 2 and a suggestion
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)
    except VitplastError as error:
        if "VITPLAST_TRACEBACK" in os.environ:
            logging.exception("traceback")
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


@app.command()
def info(as_json: Json = False) -> None:
    """Versions, machine and folders, for a bug report.

    Example: vitplast info
    """
    from vitplast.results import environment

    facts = environment()
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        print_table([{"what": k, "value": str(v)} for k, v in facts.items()], False)


@app.command()
def models(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as 'vit_base*' (default: all).")] = "*",
    as_json: Json = False,
) -> None:
    """Vision transformers that can be loaded by name; models that read text are gpt2, gpt2-medium, ... and hf:PATH.

    Example: vitplast models 'vit_small*dinov2*'
    """
    from vitplast.models import catalogue

    found = catalogue(pattern)
    if not found:
        raise UnknownNameError("pattern of models", pattern, catalogue("*"))
    print_table([{"model": name} for name in found], as_json)


@app.command()
def datasets(as_json: Json = False) -> None:
    """Image sets, what they hold, their licence, and what they need.

    Example: vitplast datasets
    """
    from vitplast import images

    rows = [images.describe(name) for name in images.names()]
    if not as_json:
        rows = [{k: row[k] for k in ("name", "title", "classes", "images", "needs")} for row in rows]
    print_table(rows, as_json)


@app.command()
def components(
    model: Annotated[str, typer.Argument(help="A timm name or the packaged model.")],
    classes: Annotated[int, typer.Option(help="Outputs of the new head.")] = 10,
    as_json: Json = False,
) -> None:
    """Groups of a model's parameters and what trains in each configuration. Loads no weights.

    Example: vitplast components vit_base_patch16_224
    """
    from vitplast.components import CONFIGURATIONS, groups
    from vitplast.components import select as select_
    from vitplast.models import check_name, outline, split

    check_name(model)
    net = outline(split(model)[0], num_classes=classes)
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    by_group = groups(net)
    trained = {}
    for configuration in CONFIGURATIONS:
        if configuration == "head" and "head" not in by_group:  # a model that reads text comes without one
            continue
        names = [n for group in select_(net, configuration).values() for n in group]
        trained[configuration] = sum(sizes[n] for n in names)
    rows = [
        {
            "group": group,
            "tensors": len(names),
            "parameters": sum(sizes[n] for n in names),
            "trained with head and norm": trained.get(group, 0),
            "for example": names[0],
        }
        for group, names in by_group.items()
    ]
    total = {
        "group": "all",
        "tensors": len(sizes),
        "parameters": sum(sizes.values()),
        "trained with head and norm": trained["all"],
        "for example": "",
    }
    print_table([*rows, total], as_json)


add_compute_commands(app)


@app.command()
def run(
    kind: Annotated[str, typer.Argument(help=f"Notebook: {', '.join(parameters.KINDS)}.")],
    parameter: Annotated[list[str] | None, typer.Option("-p", help="name=value, as papermill's -p.")] = None,
    json_: Annotated[str, typer.Option("--json", help="All parameters as a JSON object.")] = "{}",
    store: Store = "",
    data: Data = None,
    force: Annotated[bool, typer.Option(help="Compute again even if valid results are there.")] = False,
) -> None:
    """Run one unit of work: its notebook, guarded by a lock, skipped when valid results are there.

    Example: vitplast run finetune -p dataset=photocrops -p components=MHA -p 'lrs=[0.01, 0.03]'
    """
    values = given_values(json_, parameter or [])
    if store:
        values["store"] = store
    checked = parameters.make(kind, values)
    from vitplast.runs import Unit, run_unit

    print(run_unit(Unit(kind, checked), force=force, data=data_folder(data)))


@app.command()
def sweep(
    profile: ProfileName = "quick",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and what is done.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Units at a time; the cores are shared out between them.")] = 2,
    list_: Annotated[bool, typer.Option("--list", "-v", help="Dry run: name every unit that is left.")] = False,
    store: Store = "",
    data: Data = None,
) -> None:
    """Run all units of a profile that are not done yet; may be stopped at any time.

    Example: vitplast sweep --profile quick --dry-run
    """
    from vitplast.runs import load_profile, outlook
    from vitplast.runs import sweep as sweep_

    loaded, folder = load_profile(profile), data_folder(data)
    if dry_run:
        found = outlook.dry_run(loaded, store=store, data=folder)
        print_table(found.rows, False)
        short = len(found.labels) > outlook.MOST_NAMED and not list_
        said = f"{len(found.labels)} units to run"
        print("\n".join([f"{said}; --list names them" if short else said, *([] if short else found.labels)]))
        if found.needs:
            print(f"({found.needs})")
        if found.borrowed:
            print(
                f"({outlook.FOREIGN}: made with the packaged model at 56 pixels on two cores, for kinds that this "
                "store has no times of; other models and sizes differ by much)"
            )
        return
    if not sweep_.sweep(loaded, jobs=jobs, store=store, data=folder):
        raise VitplastError("some units failed; the same command runs just those again")


add_cluster_commands(app)
add_kept_commands(app)
add_planning_commands(app)
add_rehearsing_commands(app)


add_data_commands(app)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Options of the command itself."""
    if version:
        print(__version__)
        raise typer.Exit
