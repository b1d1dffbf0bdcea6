"""What several commands are given: their common options, and parameters as papermill takes them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vitplast.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Data = Annotated[
    str | None,
    typer.Option(help="Folder of gathered results that count as done; default: data/ of the project; '': none."),
]
Store = Annotated[str, typer.Option(help="Folder for results; default: $VITPLAST_STORE, else results/ of the project.")]
ProfileName = Annotated[str, typer.Option("--profile", help="Name of a profile, or the path of a YAML file.")]


def data_folder(data: str | None) -> str | Path:
    """The folder that the option `data` means; empty for none."""
    from vitplast.runs import project_root

    return project_root() / "data" if data is None else data


def given_values(json_text: str, pairs: list[str]) -> dict[str, Any]:
    """Name to value of both; the pairs win, their values are read as YAML.

    Raises
    ------
    InputError
        If the text is no JSON object, or a pair no `name=value`.
    """
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
