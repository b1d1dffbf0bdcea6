"""Where things lie: the project, its notebooks, the store of results."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS

PACKAGE = Path(__file__).parent


def project_root() -> Path:
    """The folder of the project: the nearest one, from here upwards, with vitplast's pyproject.toml, else here."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        try:
            text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if re.search(r'^name\s*=\s*"vitplast"\s*$', text, re.MULTILINE):
            return folder
    return here


def store_folder(store: str | Path = "") -> Path:
    """Where results go: `store`, else $VITPLAST_STORE, else `results/` of the project. Not created here."""
    chosen = str(store) or os.environ.get("VITPLAST_STORE", "")
    return Path(chosen).expanduser().absolute() if chosen else project_root() / "results"


def result_path(store: str | Path, kind: str, key: str) -> Path:
    """File of the result `key`; `store` as in `store_folder`."""
    return store_folder(store) / kind / f"{key}.nc"


def notebook_path(kind: str) -> Path:
    """The notebook of a kind: in $VITPLAST_NOTEBOOKS, else in `notebooks/` beside the package or of the project."""
    if kind not in KINDS:
        raise UnknownNameError("notebook", kind, KINDS)
    given = os.environ.get("VITPLAST_NOTEBOOKS", "")
    folders = [Path(given)] if given else [PACKAGE.parent / "notebooks", project_root() / "notebooks"]
    for folder in folders:
        if (folder / f"{kind}.ipynb").is_file():
            return folder / f"{kind}.ipynb"
    raise InputError(
        f"no {kind}.ipynb in {' or '.join(map(str, folders))}; run from a checkout of the project, or set "
        "VITPLAST_NOTEBOOKS to its notebooks folder"
    )
