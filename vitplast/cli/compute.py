"""Commands that compute one result: their options are the fields of the notebooks' parameters.

So the command line, the notebooks and the profiles have one set of names, defaults and checks.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitplast import parameters
from vitplast.errors import InputError

#: Kind of result to the name of its command and its help.
COMMANDS = {
    "plasticity": (
        "measure",
        "Rates of change of every component on pairs of images.",
        "Example: vitplast measure vit_small_patch14_dinov2.packaged --source photos --target mnist5k -o rates.nc",
    ),
    "bounds": (
        "bounds",
        "Bounds of every component: the authors' as coded, with heads cut right, and valid ones.",
        "Example: vitplast bounds vit_small_patch16_224 --random --img-size 224 -o bounds.nc",
    ),
    "theory": (
        "theory",
        "Every bound, prediction and measured value of a model on pairs of images.",
        "Example: vitplast theory vit_small_patch14_dinov2.packaged --target mnist5k -o theory.nc",
    ),
    "gradients": (
        "gradients",
        "Gradient norms of the components, and rescalings that leave the function of the model.",
        "Example: vitplast gradients vit_small_patch14_dinov2.packaged --target mnist5k -o gradients.nc",
    ),
    "search": (
        "search",
        "Search for counterexamples to the bounds.",
        "Example: vitplast search --case L1-tall --starts 16 --steps 200",
    ),
    "finetune": (
        "finetune",
        "Finetune one configuration and report accuracy, gradient norms and checks.",
        "Example: vitplast finetune vit_small_patch14_dinov2.packaged --dataset mnist5k --components MHA --lr 3e-2",
    ),
    "probe": (
        "probe",
        "Linear probe of the frozen model, the baseline of the relative gain.",
        "Example: vitplast probe vit_small_patch14_dinov2.packaged --dataset mnist5k",
    ),
    "depth": (
        "depth",
        "Linear probes after each point of every block.",
        "Example: vitplast depth vit_small_patch14_dinov2.packaged --dataset mnist5k -o depth.nc",
    ),
    "criteria": (
        "criteria",
        "Which component to finetune first, by every criterion, from a sample of training images.",
        "Example: vitplast criteria vit_small_patch14_dinov2.packaged --dataset mnist5k -o criteria.nc",
    ),
    "landscape": (
        "landscape",
        "Loss over a plane of weights and rate of change over a plane of inputs, done right and as published.",
        "Example: vitplast landscape vit_small_patch14_dinov2.packaged --dataset mnist5k -o landscape.nc",
    ),
    "pretrain": (
        "pretrain",
        "Pretrain the project's own small model from random weights.",
        "Example: vitplast pretrain --dataset fashion_mnist --epochs 8",
    ),
}


def add_compute_commands(app: typer.Typer) -> None:
    """Adds one command for each kind of result."""
    for kind, (name, *doc) in COMMANDS.items():
        app.command(name, help="\n\n".join(doc))(_command(kind))


def _single(kind: str, options: dict[str, Any]) -> parameters.Parameters:
    """Parameters from command-line options: single names back to the lists that the notebooks take."""
    plural = {single: name for name, single in parameters.KINDS[kind].swept.items()}
    listed = {f.name for f in dataclasses.fields(parameters.KINDS[kind])}
    plural |= {"convention": "conventions"} if "conventions" in listed else {}
    values = {plural.get(name, name): value for name, value in options.items()}
    if values.pop("random", False):
        values["weights"] = "random"
    return parameters.make(kind, values)


def _compute(kind: str, output: Path | None, as_json: bool, options: dict[str, Any]) -> None:
    p = _single(kind, options)
    runs = p.runs()
    if output is not None and len(runs) > 1 and output.suffix == ".nc":
        raise InputError(
            f"{len(runs)} results don't fit into one file {output.name!r}; give a folder, or one value each"
        )
    if output is not None and not output.parent.is_dir():
        raise InputError(f"the folder of {str(output)!r} does not exist")
    if output is not None and output.suffix not in ("", ".nc") and not output.is_dir():
        raise InputError(
            f"{str(output)!r} is neither a folder that exists nor a file ending in .nc; "
            f"for one file write {str(output.with_suffix('.nc'))!r}"
        )
    from vitplast.runs.sets import check_sets

    check_sets(runs.values())
    from vitplast import results, units
    from vitplast.progress import bar

    for key, run in runs.items():
        with bar(f"{kind} {next((run[n] for n in ('target', 'dataset', 'case') if n in run), '')}") as progress:
            dataset = units.compute(kind, run, progress)
        if output is None:
            print_table(units.summary(kind, dataset), as_json)
        else:
            path = output if output.suffix == ".nc" else output / f"{kind}-{key}.nc"
            results.write(dataset, path, kind=kind, run=run)
            print(f"wrote {path}", file=sys.stderr)


def _command(kind: str) -> Any:
    """A function whose signature is the parameters of the notebook `kind`, each with typer's option."""
    cls = parameters.KINDS[kind]
    single = {**cls.swept, "conventions": "convention"}
    of_model = issubclass(cls, parameters.ModelParameters)
    signature = []
    if of_model:
        signature.append(
            inspect.Parameter(
                "model",
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=Annotated[str, typer.Argument(help="A timm name or the packaged model.")],
            )
        )
    for f in dataclasses.fields(cls):
        if f.name in ("model", "store", "profile", "table"):
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
            inspect.Parameter(
                option,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[base, typer.Option(help=text)],
            )
        )
    random = (bool, False, typer.Option("--random", help="Random weights, the same as --weights random."))
    extra = {
        **({"random": random} if of_model else {}),
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

    command.__signature__ = inspect.Signature(signature)
    command.__annotations__ = {p.name: p.annotation for p in signature}
    return command


def print_table(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows as aligned columns, or as JSON, on stdout."""
    if as_json:
        finite = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
        print(json.dumps(finite, indent=2, allow_nan=False))
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
