"""Profiles: YAML files that say which units of work to run.

A profile has a `description`, `gpu: true` if it is made for GPUs, `lists` (names for lists that are used often),
`defaults` (for `every` kind, and by kind), `variants` and `units`. `$tasks` in place of a value stands for the list
`tasks`. Each entry of `units` names its `kind` and parameters of that notebook. A list given for a parameter that takes
one value stands for one unit a value; several such lists for all their combinations. A list given for a list parameter
(`targets`, `lrs`, `seeds`, `conventions`) is that parameter; `each: [...]` there stands for one unit a value.
`experiment` names the part of a study that an entry belongs to; it decides no number.

`variants` maps names to `lists` and `defaults` that are laid over those of the profile: `NAME@VARIANT` is that
variant, `NAME` alone the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS, make
from vitplast.runs.reading import LARGEST_FILE, filled, mapping, read_yaml
from vitplast.runs.unit import Unit
from vitplast.runs.variants import laid_over, parameters_of, split_name

__all__ = ["LARGEST_FILE", "MOST_UNITS", "PROFILES", "Profile", "expected", "load_profile", "names", "read_yaml"]

PROFILES = Path(__file__).parent.parent / "profiles"
MOST_UNITS = 20_000
KEYS = ("description", "gpu", "lists", "defaults", "variants", "units")


@dataclass(frozen=True)
class Profile:
    """A named list of units, no two of which make the same result; `text` is its file, `variants` their names; `gpu`:
    whether it is made for GPUs, so that its cost is told in GPU hours."""

    name: str
    description: str
    units: tuple[Unit, ...]
    text: str
    variants: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the parts of the study, in the order of the file; empty if entries name none."""
        return tuple(dict.fromkeys(unit.experiment for unit in self.units if unit.experiment))


def names() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of that name, or in that YAML file, with all names, types and ranges checked.

    `NAME@VARIANT` (or `FILE.yaml@VARIANT`) is one of its variants. Neither weights nor images are needed.

    Raises
    ------
    InputError
        UnknownNameError among them; the message names file, entry, value and what is allowed.
    """
    text, variant = split_name(str(name_or_path))
    path = Path(text) if text.endswith((".yaml", ".yml")) else PROFILES / f"{text}.yaml"
    if path.parent == PROFILES and not path.is_file():
        raise UnknownNameError("profile", text, names(), "Or give the path of a YAML file.")
    content = mapping(read_yaml(path), path.name, KEYS)
    if not isinstance(content.get("gpu", False), bool):
        raise InputError(f"{path.name}: gpu must be true or false, got {content['gpu']!r}")
    chosen = laid_over(content, variant, path.name)
    defaults = filled(chosen["defaults"], chosen["lists"], path.name)
    entries = filled(content.get("units"), chosen["lists"], path.name)
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path.name}: units must be a list that is not empty")
    name = f"{path.stem}@{variant}" if variant else path.stem
    made: list[Unit] = []
    for number, entry in enumerate(entries, 1):
        where = f"{path.name}: entry {number} of units"
        if not isinstance(entry, dict) or "kind" not in entry:
            raise InputError(f"{where} must be a mapping with the key kind, got {entry!r}")
        kind = entry["kind"]
        if kind not in KINDS:
            raise UnknownNameError(f"kind in {where}", str(kind), KINDS)
        known = parameters_of(kind)
        own = mapping(entry, where, ("kind", "experiment", *known))
        experiment = own.pop("experiment", "")
        if not isinstance(experiment, str):
            raise InputError(f"{where}: experiment must be a name, got {experiment!r}")
        every = {n: v for n, v in defaults.get("every", {}).items() if n in known}
        values = every | defaults.get(kind, {}) | own | {"profile": name}
        values.pop("kind")
        made += _expand(kind, values, experiment, where, MOST_UNITS - len(made))
    _refuse_repeats(made, path.name)
    return Profile(
        name,
        str(content.get("description", "")).strip(),
        tuple(made),
        path.read_text(encoding="utf-8"),
        tuple(map(str, content.get("variants") or ())),
        content.get("gpu", False),
    )


def expected(units: Iterable[Unit]) -> dict[str, dict[str, str]]:
    """Kind to key to the unit's label, of every result that the units make."""
    found: dict[str, dict[str, str]] = {}
    for unit in units:
        found.setdefault(unit.kind, {}).update(dict.fromkeys(unit.runs, unit.label))
    return found


def _expand(kind: str, values: dict[str, Any], experiment: str, where: str, room: int) -> list[Unit]:
    lists = {f.name for f in fields(KINDS[kind]) if str(f.type) == "list"}
    axes = {n: v for n, v in values.items() if isinstance(v, list) and n not in lists}
    axes |= {n: _each(v, f"{where}: {n}") for n, v in values.items() if isinstance(v, Mapping) and n in lists}
    size = 1
    for name, choices in axes.items():
        if not choices:
            raise InputError(f"{where}: {name} is an empty list")
        size *= len(choices)
    if size > room:
        raise InputError(f"{where}: more than {MOST_UNITS} units in one profile")
    found = []
    for combination in itertools.product(*axes.values()):
        try:
            chosen = make(kind, values | dict(zip(axes, combination, strict=True)))
        except InputError as error:
            raise InputError(f"{where} ({kind}): {error}") from error
        found.append(Unit(kind, chosen, experiment))
    return found


def _each(value: Mapping[str, Any], where: str) -> list[list]:
    """`{each: [a, b]}` to `[[a], [b]]`."""
    if set(value) != {"each"} or not isinstance(value["each"], list):
        raise InputError(f"{where} must be a list, or each: and a list for one unit a value, got {dict(value)!r}")
    return [[one] for one in value["each"]]


def _refuse_repeats(made: list[Unit], name: str) -> None:
    owner: dict[tuple[str, str], str] = {}
    for unit in made:
        for key in unit.runs:
            if (unit.kind, key) in owner:
                raise InputError(
                    f"{name}: the same result is asked for twice, by {owner[unit.kind, key]} and {unit.label}"
                )
            owner[unit.kind, key] = unit.label
