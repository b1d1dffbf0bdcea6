"""What the pages of the book share: opening results, naming their origin, and the line under every page.

Pages read results, they make none. Which profile is shown is decided by the environment variable VITPLAST_PROFILE
(default quick), in the part on experiments by VITPLAST_EXPERIMENTS (default laptop), unless a page asks for one by
name; results come from the store, else from the committed `data/`.
"""

from __future__ import annotations

import contextlib
import html
import json
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from vitplast import results
from vitplast.errors import VitplastError
from vitplast.results.netcdf import load
from vitplast.results.provenance import git_state
from vitplast.runs import project_root, runlog, store_folder
from vitplast.shown import LAPTOP, MADE_UP, alike, experiments, places, profile, study

__all__ = ["LAPTOP", "MADE_UP", "experiments", "profile", "study"]  # for the pages, beside what is here

_shown = profile  # where an argument is called so too

KINDS = (
    "plasticity", "bounds", "theory", "gradients", "probe", "finetune", "depth", "landscape", "criteria", "pretrain",
)  # fmt: skip


def gathered_path(kind: str, profile: str | None = None) -> Path:
    """The gathered results of a kind, in the store or in `data/`; `profile`: None for the one that the book shows.

    Raises
    ------
    VitplastError
        If there are none; the message says how to make them.
    """
    for place in places(profile):
        path = place / f"{kind}.nc"
        if path.is_file():
            return path
    name = profile or _shown()
    raise VitplastError(f"no {kind} results of profile {name!r}; make them with: make book PROFILE={name}")


def profile_text(profile: str | None = None) -> str:
    """The file of the profile, as it was when the results were gathered."""
    folder = next((f for f in places(profile) if (f / "profile.yaml").is_file()), None)
    if folder is None:
        name = profile or _shown()
        raise VitplastError(f"nothing was gathered of profile {name!r}; do it with: make gather PROFILE={name}")
    return (folder / "profile.yaml").read_text(encoding="utf-8")


def open_results(kind: str, profile: str | None = None) -> xr.Dataset:
    """All runs of a kind, along `run`; `profile`: None for the one that the book shows.

    The attribute `of_profile` names the profile. Runs of the profile of the part on experiments have a coordinate
    `experiment`.
    """
    gathered = results.read(gathered_path(kind, profile)).assign_attrs(of_profile=profile or _shown())
    if (profile or _shown()) in alike(experiments()):
        gathered = study().label(gathered, kind)
    return gathered


def kinds(profile: str | None = None) -> list[str]:
    """The kinds of which a profile has results; None: the profile that the book shows."""
    return [kind for kind in KINDS if any((place / f"{kind}.nc").is_file() for place in places(profile))]


def open_or_none(kind: str, profile: str | None = None) -> xr.Dataset | None:
    """All runs of a kind along `run`, as `open_results`; None if there are no results of it yet.

    `profile`: None for that of the part on experiments.
    """
    try:
        path = gathered_path(kind, profile or experiments())
    except VitplastError:
        return None
    return open_results(kind, profile or experiments()) if path.is_file() else None


def open_probes(profile: str | None = None) -> xr.Dataset | None:
    """The linear probes behind relative gains, along `run`: of kind probe, else of kind depth at the reported place.

    `profile`: None for that of the part on experiments; None is returned if there are neither.
    """
    from vitplast.analysis.depth_table import as_probes

    found = open_or_none("probe", profile)
    if found is None and (depth := open_or_none("depth", profile)) is not None:
        found = as_probes(depth)
    return found


def command(profile: str | None = None) -> str:
    """The command that runs what is missing of a profile; None for that of the part on experiments."""
    return f"make sweep keep PROFILE={profile or experiments()}"


def commands(*lines: str) -> Any:
    """A block of commands, `{profile}` in them replaced by the profile of the part on experiments."""
    from IPython.display import Markdown

    return Markdown("```bash\n" + "\n".join(line.replace("{profile}", experiments()) for line in lines) + "\n```")


def experiments_note() -> Any:
    """What the pages of the part on experiments show, for the top of each: profile, scale, models, sets and steps.

    It gives `profile_shown` and `scale_shown` to the text, for captions.
    """
    from IPython.display import Markdown

    from vitplast.analysis.selection import model_name, models_of

    shown = study()
    plan, sets = shown.main, len(set(shown.main["dataset"]))
    glue(profile_shown=shown.name, scale_shown=shown.scale)
    about = (
        "The models and image sets are those of the paper, run by this project; *the paper's numbers* are the "
        "published ones."
        if shown.at_paper_scale
        else "This is not the paper's experiment."
    )
    models = ", ".join(map(model_name, models_of(plan))) or "no model"
    warning = f":::{{admonition}} Made-up data\n:class: warning\n{MADE_UP}\n:::\n\n" if made_up() else ""
    facts = (
        f"{models}, {shown.span('img_size')} px; {sets} image set{'s' if sets != 1 else ''}; "
        f"{shown.span('steps')} steps of {shown.span('batch_size')} images."
    )
    return Markdown(
        f"{warning}:::{{admonition}} Profile `{shown.name}`, {shown.scale}\n:class: note\n"
        f"Main experiment: {facts} {about}\n:::"
    )


def made_up(profile: str | None = None) -> bool:
    """Whether results of a profile say that made-up images were allowed; None: that of the part on experiments."""
    paths = [gathered_path(kind, profile or experiments()) for kind in kinds(profile or experiments())]
    return any(_made_up(load(path, ("attr_made_up_images",))) for path in paths)


def _made_up(gathered: xr.Dataset) -> bool:
    return any(value.startswith("yes") for value in values_of(gathered, "made_up_images"))


def not_run(kind: str, profile: str | None = None) -> Any:
    """A note in place of what needs results of a kind that are not there: what is missing, and the command for it.

    A kind that the profile does not ask for is said to be no part of it.

    `profile`: None for that of the part on experiments.
    """
    from IPython.display import Markdown

    profile = profile or experiments()
    if profile == experiments() and kind not in study().tables:
        return Markdown(
            f":::{{admonition}} Not part of this profile\n:class: note\nProfile `{profile}` asks for no `{kind}` "
            "results.\n:::"
        )
    return Markdown(
        f":::{{admonition}} Not run yet\n:class: note\nThere are no `{kind}` results of profile `{profile}`. "
        f"This computes them:\n\n```bash\n{command(profile)}\n```\n:::"
    )


def missing_runs(gathered: xr.Dataset) -> list[str]:
    """Keys of the profile's runs that were not there when the results were gathered."""
    return list(json.loads(gathered.attrs.get("missing_runs", "[]")))


def open_search() -> xr.Dataset:
    """The search for counterexamples, one row a formula: along `case`, as `vitplast.search.table_of` makes it.

    The profile's own where it has one, else the long one that is kept in `data/search/`.
    """
    own = [*places(), project_root() / "data" / "search"]
    path = next((f / "search.nc" for f in own if (f / "search.nc").is_file()), None)
    if path is None:
        raise VitplastError("no results of the search; make them with: make search")
    from vitplast.search.stored import as_table

    return as_table(results.read(path))


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
    found = matching(gathered, **values)
    if found.sizes["run"] != 1:
        raise VitplastError(f"{found.sizes['run']} runs match {values}")
    return results.singles(found)[0]


def matching(gathered: xr.Dataset, **values: Any) -> xr.Dataset:
    """The runs whose parameters have these values, gathered as they were."""
    given = [json.loads(text) for text in gathered.params_json.values.tolist()]
    chosen = [i for i, one in enumerate(given) if all(one.get(name) == v for name, v in values.items())]
    return gathered.isel(run=chosen)


def provenance(gathered: xr.Dataset, notebook: str) -> Any:
    """Margin note: which notebook made the numbers, with what profile, model, weights, data and machine."""
    from IPython.display import Markdown

    facts = facts_of(gathered)
    shown = gathered.attrs.get("of_profile", profile())
    lines = [f"**Made by** {{doc}}`{notebook} </notebooks/{notebook}>`, profile `{shown}`"]
    if missing_runs(gathered):
        lines.append(f"not there yet: {_counted(len(missing_runs(gathered)))} of the profile")
    lines += [f"{name}: {value}" for name, value in facts.items()]
    return Markdown("<br>".join(lines))


def _counted(runs: int) -> str:
    return f"{runs:,} run{'s' if runs != 1 else ''}"


def facts_of(gathered: xr.Dataset) -> dict[str, str]:
    """Model, weights, data, machine, versions and dates of gathered results, in words."""
    return {name: ", ".join(values) for name, values in _facts(gathered).items() if values}


def values_of(gathered: xr.Dataset, name: str) -> list[str]:
    """The different values of an attribute or parameter of the runs, as text."""
    coordinate = next((n for n in (name, f"attr_{name}") if n in gathered.coords), None)
    if coordinate:
        return [str(v) for v in pd.unique(gathered[coordinate].values.ravel())]
    return [str(gathered.attrs[name])] if name in gathered.attrs else []


def _facts(gathered: xr.Dataset) -> dict[str, list[str]]:
    def values(*names: str, form: str = "{}") -> list[str]:
        return list(dict.fromkeys(form.format(v) for name in names for v in values_of(gathered, name)))

    made = sorted(values("created"))
    return {
        "model": _models(gathered),
        "weights": values("weights_source"),
        "data": [v for name in ("source", "target", "dataset") if name in gathered.coords for v in values(name)]
        + (["MADE UP, not the real images"] if _made_up(gathered) else []),
        "machine": values("machine"),
        "device": values("device") + values("threads", form="threads a process: {}"),
        "precision": values("precision_resolved", "precision")[:1],
        "software": values("vitplast_version", form="vitplast {}")
        + values("torch_version", form="torch {}")
        + values("timm_version", form="timm {}"),
        "commit": [c[:12] for c in values("commit")],
        "made": [made[0] if made[0] == made[-1] else f"{made[0]} to {made[-1]}"] if made else [],
    }


def _models(gathered: xr.Dataset) -> list[str]:
    """Each model at each size in pixels that some run has, in the order of the runs."""
    columns = [
        gathered[name].values.ravel().tolist() if name in gathered.coords else [gathered.attrs.get(name)]
        for name in ("model", "img_size")
    ]
    longest = max(map(len, columns))
    pairs = zip(*(column * longest if len(column) == 1 else column for column in columns), strict=True)
    return list(dict.fromkeys(f"{model}, {size} px" for model, size in pairs if model is not None))


def main_run(gathered: xr.Dataset) -> dict[str, Any]:
    """What singles out the run that the pages look at first: the profile's first one with pretrained weights."""
    every = (json.loads(text) for text in gathered.params_json.values.tolist())
    given = next(given for given in every if given["weights"] != "random")
    return {name: given[name] for name in ("target", "model", "weights", "img_size")}


def cost(kind: str, profile: str | None = None) -> str:
    """Time that the units behind a kind's results took, kernels included, one after the other; from the run log.

    Where the log of this store does not know them, the time in the results themselves, if they record one.
    """
    gathered = open_results(kind, profile)
    keys = set(values_of(gathered, "run_key"))
    done = {
        e["key"]: e["end"] - e["start"]
        for e in runlog.entries(store_folder())
        if e["status"] == "done" and keys & set(e["results"])
    }
    if done:
        return f"{sum(done.values()) / 60:.1f} min"
    return (
        f"{float(gathered.seconds.sum()) / 60:.1f} min (without kernels)"
        if "seconds" in gathered
        else "not recorded here"
    )


def glue(**values: Any) -> None:
    """Gives numbers and words to the text of the page (`{glue:text}`), as plain Python values."""
    from myst_nb import glue as glue_

    for name, value in values.items():
        value = value.item() if hasattr(value, "item") else value
        glue_(name, value, display=False)


def footer() -> str:
    """One line that says where the numbers of the book come from, and whether the code has changed since."""
    seen: dict[str, dict[str, None]] = {}
    left = 0
    for kind in KINDS:
        with contextlib.suppress(VitplastError):
            gathered = open_results(kind)
            left += len(missing_runs(gathered))
            for name, values in _facts(gathered).items():
                seen.setdefault(name, {}).update(dict.fromkeys(values))
    invented = f" Part on experiments, profile {experiments()}: {MADE_UP}" if made_up() else ""
    if not seen:
        return f"Numbers: profile {profile()}; no results yet.{invented}"
    words = "; ".join(f"{name} {', '.join(seen[name])}" for name in ("model", "weights", "data", "machine", "commit"))
    commit, _ = git_state()
    older = (
        " Some results were made by another commit than that of these pages."
        if {commit[:12]} != set(seen["commit"])
        else ""
    )
    gaps = f" Not there yet: {_counted(left)} of the profile." if left else ""
    return f"Numbers: profile {profile()}; {words}.{gaps}{older}{invented}"


def setup(app: Any) -> dict[str, Any]:
    """Sphinx extension: the footer line on every page."""
    line = html.escape(footer())

    def add(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
        if "body" in context:
            context["body"] += f'<p class="vitplast-provenance"><small>{line}</small></p>'

    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
