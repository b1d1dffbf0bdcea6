"""Made-up sets and how they are told from real ones: a marker file, and a variable without which they are refused.

`vitplast.images.made_up` writes sets of the true formats for tests and rehearsals, with a file `made_up.json` beside
them that lists their classes, images and MD5s in place of the published ones. Such a set is read only where the
environment variable VITPLAST_MADE_UP is 1. Then keys of results that use it differ from those of real results, and
every result says so in its attributes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from vitplast.errors import IntegrityError
from vitplast.images.problems import MadeUpError
from vitplast.images.published import FACTS, Facts

VARIABLE, FILE = "VITPLAST_MADE_UP", "made_up.json"


def allowed() -> bool:
    """Whether the environment allows made-up sets: VITPLAST_MADE_UP is set, and not to 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def key_suffix(name: str) -> str:
    """What the key of a result has after the name of a set below the data folder while made-up sets are allowed."""
    return "#made-up" if name in FACTS and allowed() else ""


def attributes() -> dict[str, str]:
    """Attribute of every result that is made while made-up sets are allowed; nothing otherwise."""
    return {"made_up_images": f"yes: {VARIABLE} was set, sets with a {FILE} are invented"} if allowed() else {}


def facts_of(name: str, data: Path) -> Facts:
    """The published facts of a set, or those of the made-up set that lies in the data folder in its place.

    Raises
    ------
    MadeUpError
        If the set there is made up and VITPLAST_MADE_UP does not allow it.
    IntegrityError
        If the marker can't be read.
    """
    found = read(data).get(name)
    if found is None:
        return FACTS[name]
    if not allowed():
        raise MadeUpError(
            f"image set {name!r} in {data} is made up ({data / FILE} says so): nothing was read. For a test or a "
            f"rehearsal set {VARIABLE}=1; for real results name the folder of the real sets in VITPLAST_DATA"
        )
    return found


def read(data: Path) -> dict[str, Facts]:
    """Made-up sets of a data folder, by name; empty without a marker file.

    Raises
    ------
    IntegrityError
        If there is a marker that can't be read.
    """
    path = data / FILE
    if not path.is_file():
        return {}
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Facts(int(one["classes"]), dict(one["images"]), dict(one["md5"]), made_up=True)
            for name, one in listed.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path} can't be read as the marker of made-up sets: {error}") from error


def write(data: Path, sets: dict[str, Facts]) -> None:
    """Adds the facts of these made-up sets to the marker of a data folder."""
    all_sets = read(data) | sets
    text = json.dumps(
        {name: {"classes": f.classes, "images": f.images, "md5": f.md5} for name, f in sorted(all_sets.items())},
        indent=1,
    )
    (data / FILE).write_text(text + "\n", encoding="utf-8")
