"""The `vitplast` command. Results go to stdout or a file, messages to stderr; exit code 0 done, 1 failed, 2 refused.

The options of `measure`, `bounds`, `finetune` and `probe` are the fields of the notebooks' parameters, so the
command line, the notebooks and the profiles have one set of names, defaults and checks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitplast import __version__, parameters
from vitplast.errors import InputError, VitplastError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Which parts of a pretrained vision transformer should be finetuned, and why? "
    "Plasticity, bounds and component-wise finetuning.",
)


def main(argv: list[str] | None = None) -> None:
    """Runs the command line; never shows a traceback for an error that has a name (set VITPLAST_TRACEBACK to see one)."""
    arguments = sys.argv[1:] if argv is None else argv
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
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


def _print_table(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        return
    columns = list(rows[0])
    text = [[_cell(row[c]) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[i]) for line in text)) for i, c in enumerate(columns)]
    numbers = [all(isinstance(row[c], int | float) for row in rows) for c in columns]
    for line in [columns, *text]:
        cells = [v.rjust(w) if n else v.ljust(w) for v, w, n in zip(line, widths, numbers, strict=True)]
        print("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write a netCDF result file instead of a table.")]
Store = Annotated[str, typer.Option(help="Folder for results; default: $VITPLAST_STORE, else results/ of the project.")]
ProfileName = Annotated[str, typer.Option("--profile", help="Name of a profile, or the path of a YAML file.")]


@app.command()
def info(as_json: Json = False) -> None:
    """Versions, machine and folders, for a bug report.

    Example: vitplast info
    """
    from vitplast.provenance import environment

    facts = environment()
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print_table([{"what": k, "value": str(v)} for k, v in facts.items()], False)


@app.command()
def models(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as 'vit_base*' (default: all).")] = "*",
    as_json: Json = False,
) -> None:
    """Vision transformers of the plain family that can be loaded by name.

    Example: vitplast models 'vit_small*dinov2*'
    """
    from vitplast.models import catalogue

    _print_table([{"model": name} for name in catalogue(pattern)], as_json)


@app.command()
def datasets(as_json: Json = False) -> None:
    """Image sets, what they hold, their licence, and what they need.

    Example: vitplast datasets
    """
    from vitplast import images

    rows = [images.describe(name) for name in images.names()]
    if not as_json:
        rows = [{k: row[k] for k in ("name", "title", "classes", "images", "needs")} for row in rows]
    _print_table(rows, as_json)


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
    from vitplast.model_names import split
    from vitplast.model_weights import outline
    from vitplast.models import check_name

    check_name(model)
    net = outline(split(model)[0], num_classes=classes)
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    by_group = groups(net)
    trained = {}
    for configuration in CONFIGURATIONS:
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
    total = {"group": "all", "tensors": len(sizes), "parameters": sum(sizes.values()),
             "trained with head and norm": trained["all"], "for example": ""}
    _print_table([*rows, total], as_json)


def _single(kind: str, options: dict[str, Any]) -> parameters.Parameters:
    """Parameters from command-line options: single names back to the lists that the notebooks take."""
    plural = {single: name for name, single in parameters.KINDS[kind].swept.items()}
    plural |= {"convention": "conventions"} if kind == "plasticity" else {}
    values = {plural.get(name, name): value for name, value in options.items()}
    if values.pop("random", False):
        values["weights"] = "random"
    return parameters.make(kind, values)


def _compute(kind: str, output: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    p = _single(kind, options)
    runs = p.runs()
    if output is not None and len(runs) > 1 and output.suffix == ".nc":
        raise InputError(f"{len(runs)} results don't fit into one file {output.name!r}; give a folder, or one value each")
    if output is not None and not output.parent.is_dir():
        raise InputError(f"the folder of {str(output)!r} does not exist")
    from vitplast import results, units
    from vitplast.progress import bar

    for key, run in runs.items():
        with bar(f"{kind} {run.get('target', run.get('dataset', ''))}") as progress:
            dataset = units.compute(kind, run, progress)
        if output is None:
            _print_table(units.summary(kind, dataset), as_json)
        else:
            path = output if output.suffix == ".nc" else output / f"{kind}-{key}.nc"
            results.write(dataset, path, kind=kind, run=run)
            print(f"wrote {path}", file=sys.stderr)


def _add_compute_command(kind: str, name: str, doc: str) -> None:
    """A subcommand whose options are the fields of the notebook's parameters."""
    cls = parameters.KINDS[kind]
    single = {**cls.swept, "conventions": "convention"}
    signature = [
        inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD,
                          annotation=Annotated[str, typer.Argument(help="A timm name or the packaged model.")])
    ]
    for f in dataclasses.fields(cls):
        if f.name in ("model", "store", "profile"):
            continue
        option = single.get(f.name, f.name)
        base: Any = {"str": str, "int": int, "float": float, "bool": bool}.get(str(f.type))
        default = f.default
        text = f.metadata["help"]
        if base is None:
            default = f.default_factory()
            base = list[f.metadata.get("of", str)]
            text = f"{text.split(',')[0]} (may be repeated)"
        signature.append(
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default,
                              annotation=Annotated[base, typer.Option(help=text)])
        )
    extra = {
        "random": (bool, False, typer.Option("--random", help="Random weights, the same as --weights random.")),
        "output": (Path | None, None, typer.Option("-o", "--output", help="netCDF file (or folder) to write.")),
        "as_json": (bool, False, typer.Option("--json", help="Print JSON instead of a table.")),
    }
    signature += [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=Annotated[t, o])
        for n, (t, d, o) in extra.items()
    ]

    def command(**options: Any) -> None:
        output, as_json = options.pop("output"), options.pop("as_json")
        _compute(kind, output, as_json, options)

    command.__doc__ = doc
    command.__signature__ = inspect.Signature(signature)
    command.__annotations__ = {p.name: p.annotation for p in signature}
    app.command(name)(command)


_add_compute_command("plasticity", "measure", """Rates of change of every component on pairs of images.

Example: vitplast measure vit_small_patch14_dinov2.packaged --source photos --target mnist5k -o rates.nc
""")
_add_compute_command("bounds", "bounds", """Bounds of every component: the authors' as coded, with heads cut right, and valid ones.

Example: vitplast bounds vit_small_patch16_224 --random --img-size 224 -o bounds.nc
""")
_add_compute_command("finetune", "finetune", """Finetune one configuration and report accuracy, gradient norms and checks.

Example: vitplast finetune vit_small_patch14_dinov2.packaged --dataset mnist5k --components MHA --lr 3e-2
""")
_add_compute_command("probe", "probe", """Linear probe of the frozen model, the baseline of the relative gain.

Example: vitplast probe vit_small_patch14_dinov2.packaged --dataset mnist5k
""")


@app.command()
def run(
    kind: Annotated[str, typer.Argument(help="Notebook: plasticity, bounds, finetune or probe.")],
    parameter: Annotated[list[str] | None, typer.Option("-p", help="name=value, as papermill's -p.")] = None,
    json_: Annotated[str, typer.Option("--json", help="All parameters as a JSON object.")] = "{}",
    store: Store = "",
    force: Annotated[bool, typer.Option(help="Compute again even if valid results are there.")] = False,
) -> None:
    """Run one unit of work: its notebook, guarded by a lock, skipped when valid results are there.

    Example: vitplast run finetune -p dataset=photocrops -p components=MHA -p 'lrs=[0.01, 0.03]'
    """
    values = _values(json_, parameter or [])
    if store:
        values["store"] = store
    checked = parameters.make(kind, values)
    from vitplast.runs import Unit, run_unit

    status = run_unit(Unit(kind, checked), force=force)
    print(status)


def _values(json_text: str, pairs: list[str]) -> dict[str, Any]:
    import yaml

    try:
        values = json.loads(json_text)
    except json.JSONDecodeError as error:
        raise InputError(f"--json is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"--json must be an object of names and values, got {json_text!r}")
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"-p takes name=value, got {pair!r}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(f"-p {pair}: {error}") from None
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)  # 1e-4 is a number to papermill's -p, text to YAML
        values[name] = value
    return values


@app.command()
def sweep(
    profile: ProfileName = "quick",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run and what is done.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Units at a time; the cores are shared out between them.")] = 2,
    store: Store = "",
) -> None:
    """Run all units of a profile that are not done yet; may be stopped at any time.

    Example: vitplast sweep --profile quick --dry-run
    """
    from vitplast import sweep as sweep_

    loaded = sweep_.load_profile(profile)
    if dry_run:
        _print_table(sweep_.dry_run(loaded, store=store), False)
        return
    if not sweep_.sweep(loaded, jobs=jobs, store=store):
        raise VitplastError("some units failed; the same command runs just those again")


@app.command()
def gather(profile: ProfileName = "quick", store: Store = "") -> None:
    """Check all results of a profile and gather them into one file a kind.

    Example: vitplast gather --profile quick
    """
    from vitplast import sweep as sweep_

    missing = sweep_.gather(sweep_.load_profile(profile), store=store)
    if missing:
        raise VitplastError(f"{len(missing)} results are missing: {', '.join(missing[:5])}; run `vitplast sweep` first")


@app.command("check-data")
def check_data(
    names: Annotated[list[str], typer.Argument(help="Image sets, as in `vitplast datasets`.")],
    size: Annotated[int, typer.Option(help="Side in pixels at which images are read.")] = 56,
    download: Annotated[bool, typer.Option(help="Allow downloads.")] = False,
    as_json: Json = False,
) -> None:
    """Read every image of the named sets and list what is found, missing or bad.

    Example: vitplast check-data mnist5k photocrops
    """
    from vitplast import images

    for name in names:
        images.check_name(name)
    rows, bad = [], []
    for name in names:
        report = images.open_images(name, size=size, download=download).check()
        bad += report["bad"]
        rows += [{"name": name, **row} for row in report["splits"]]
    _print_table(rows, as_json)
    for line in bad:
        print(f"bad: {line}", file=sys.stderr)
    if bad:
        raise VitplastError(f"{len(bad)} bad files")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Options of the command itself."""
    if version:
        print(__version__)
        raise typer.Exit
