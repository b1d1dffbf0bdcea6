"""Which profiles the book shows: names from the environment, folders with their gathered results, and the study."""

from __future__ import annotations

import dataclasses
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from vitplast.runs import load_profile, project_root, store_folder
from vitplast.runs.plan import PROFILES, read_yaml
from vitplast.runs.variants import split_name

if TYPE_CHECKING:
    from vitplast.analysis.study import Study

#: The profile of the part on experiments where VITPLAST_EXPERIMENTS names no other.
LAPTOP = "laptop"
#: What every page says of results that were made while made-up images were allowed.
MADE_UP = (
    "The images behind these numbers are made up, for a rehearsal: nothing here says anything about finetuning, and no "
    "number may be used."
)


def profile() -> str:
    """Name of the profile whose results the book shows."""
    return _name_of(os.environ.get("VITPLAST_PROFILE") or "quick")


def experiments() -> str:
    """Name of the profile whose results the part on experiments shows, with its variant: `laptop`, `paper@corrected`.

    The environment variable VITPLAST_EXPERIMENTS is a name or the path of a profile.
    """
    return _name_of(os.environ.get("VITPLAST_EXPERIMENTS") or LAPTOP)


def study() -> Study:
    """The profile of the part on experiments, as its planned runs by experiment.

    A profile in a file of one's own is read from the copy beside its gathered results, where the file is not found.

    Raises
    ------
    VitplastError
        If it is no profile.
    """
    return _study(os.environ.get("VITPLAST_EXPERIMENTS") or LAPTOP)


@lru_cache(maxsize=4)
def _study(text: str) -> Study:
    from vitplast.analysis.study import Study

    name, variant = split_name(text)
    file = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    if not file.is_file():
        found = next((f for f in places(_name_of(text)) if (f / "profile.yaml").is_file()), None)
        if found is not None:
            at = "@" * bool(variant) + variant
            read = load_profile(f"{found / 'profile.yaml'}{at}")
            return Study(dataclasses.replace(read, name=_name_of(text)))
    return Study(load_profile(text))


def _name_of(text: str) -> str:
    """`folder/mine.yaml@variant` to `mine@variant`, as `vitplast.runs.plan.Profile.name`."""
    name, variant = split_name(text)
    stem = Path(name).name.removesuffix(".yaml").removesuffix(".yml")
    return f"{stem}@{variant}" if variant else stem


def alike(name: str) -> list[str]:
    """The name of a profile, and the other one of the same runs: without a variant a profile is its first one."""
    stem, variant = split_name(name)
    variants = _variants(stem)
    if not variants or variant not in ("", variants[0]):
        return [name]
    return [name, stem if variant else f"{stem}@{variants[0]}"]


@lru_cache(maxsize=16)
def _variants(stem: str) -> tuple[str, ...]:
    """The variants of a profile that comes with the project; none of any other."""
    file = PROFILES / f"{stem}.yaml"
    return tuple(map(str, read_yaml(file).get("variants") or ())) if file.is_file() else ()


def places(name: str | None = None) -> list[Path]:
    """Folders with the gathered results of a profile, the first one that has a file counts.

    Results beside the file that VITPLAST_EXPERIMENTS names, as `vitplast rehearse` makes them, come before all others.

    What the store gathered comes first for the profile of this book, since it was just made, and for one that does not
    come with the project; for others, whose results in the store may be old or few, those that come with it do.
    """
    names = alike(name or profile())
    own = [folder / n for folder in (store_folder() / "gathered", project_root() / "data") for n in names]
    file = Path(split_name(os.environ.get("VITPLAST_EXPERIMENTS", ""))[0])
    beside = [file.parent / "results" / "gathered" / n for n in names if name == experiments() and file.is_file()]
    return [*beside, *(own if name in (None, profile()) else sorted(own, key=lambda f: f.parent.name != "data"))]
