"""What the pages of the book share: opening results, naming their origin, and the line under every page.

Pages read results, they make none. Which profile is shown is decided by the environment variable VITPLAST_PROFILE
(default quick); results come from the store, else from the committed `data/`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from vitplast import results
from vitplast.errors import VitplastError
from vitplast.runs import project_root, store_folder

KINDS = ("plasticity", "bounds", "probe", "finetune")


def profile() -> str:
    """Name of the profile whose results the book shows."""
    return os.environ.get("VITPLAST_PROFILE", "quick")


def gathered_path(kind: str) -> Path:
    """The gathered results of a kind: the store's, else those in `data/`."""
    places = [store_folder() / "gathered" / profile(), project_root() / "data" / profile()]
    for place in places:
        path = place / f"{kind}.nc"
        if path.is_file():
            return path
    raise VitplastError(f"no {kind} results of profile {profile()!r}; make them with: make book PROFILE={profile()}")


def open_results(kind: str) -> xr.Dataset:
    """All runs of a kind, along `run`."""
    return results.read(gathered_path(kind))


def runs_of(gathered: xr.Dataset) -> list[tuple[dict[str, Any], xr.Dataset]]:
    """The single runs, as they were before gathering, each with its parameters."""
    return [(json.loads(one.attrs["params_json"]), one) for one in results.singles(gathered)]


def pick(gathered: xr.Dataset, **values: Any) -> xr.Dataset:
    """The one run whose parameters have these values.

    Raises
    ------
    VitplastError
        If not exactly one run matches.
    """
    found = [one for given, one in runs_of(gathered) if all(given.get(name) == v for name, v in values.items())]
    if len(found) != 1:
        raise VitplastError(f"{len(found)} runs match {values}")
    return found[0]


def provenance(gathered: xr.Dataset, notebook: str) -> Any:
    """Margin note: which notebook made the numbers, with what profile, model, weights, data and machine."""
    from IPython.display import Markdown

    facts = facts_of(gathered)
    lines = [f"**Made by** [{notebook}](../notebooks/{notebook}.ipynb), profile `{profile()}`"]
    lines += [f"{name}: {value}" for name, value in facts.items()]
    return Markdown("\n\n".join(lines))


def facts_of(gathered: xr.Dataset) -> dict[str, str]:
    """Model, weights, data, machine, versions and dates of gathered results, in words."""

    def values(*names: str) -> str:
        found: list[str] = []
        for name in names:
            varying = next((n for n in (name, f"attr_{name}") if n in gathered.coords), None)
            if varying:
                found += [str(v) for v in pd.unique(gathered[varying].values.ravel())]
            elif name in gathered.attrs:
                found.append(str(gathered.attrs[name]))
        return ", ".join(found) or "not recorded"

    size = values("img_size")
    return {
        "model": f"{values('model')}, {size} px",
        "weights": values("weights_source"),
        "data": values("source", "target", "dataset"),
        "machine": f"{values('machine')}; {values('device')}, {values('threads')} threads",
        "software": f"vitplast {values('vitplast_version')}, torch {values('torch_version')}, "
        f"timm {values('timm_version')}",
        "commit": values("commit"),
        "made": values("created"),
    }


def glue(**values: Any) -> None:
    """Gives numbers and words to the text of the page (`{glue:text}`), as plain Python values."""
    from myst_nb import glue as glue_

    for name, value in values.items():
        value = value.item() if hasattr(value, "item") else value
        glue_(name, value, display=False)


def footer() -> str:
    """One line of HTML that says where the numbers of the book come from."""
    seen: dict[str, list[str]] = {}
    for kind in KINDS:
        try:
            facts = facts_of(open_results(kind))
        except VitplastError:
            continue
        for name in ("model", "weights", "data", "machine"):
            for value in facts[name].split(", "):
                if value not in seen.setdefault(name, []):
                    seen[name].append(value)
    text = "; ".join(f"{name} {', '.join(values)}" for name, values in seen.items())
    return f"Numbers: profile {profile()}{'; ' + text if text else '; no results yet'}."


def setup(app: Any) -> dict[str, Any]:
    """Sphinx extension: the footer line on every page, and a warning for figures older than the results."""
    line = footer()

    def add(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        if "body" in context:
            context["body"] += f'<p class="vitplast-provenance"><small>{line}</small></p>'

    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
