"""Profiles: YAML files that say which units of work to run.

A profile has a `description`, `lists` (names for lists that are used often), `defaults` (for `every` kind, and by
kind) and `units`. `$tasks` in place of a value stands for the list `tasks`. Each entry of `units` names its
`kind` and parameters of that notebook. A list given for a parameter that takes one value stands for one unit a value;
several such lists for all their combinations. A list given for a list parameter (`targets`, `lrs`, `seeds`,
`conventions`) is that parameter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS, make
from vitplast.runs.unit import Unit

PROFILES = Path(__file__).parent.parent / "profiles"
LARGEST_FILE = 100_000
MOST_UNITS = 20_000


@dataclass(frozen=True)
class Profile:
    """A named list of units, no two of which make the same result; `text` is its file."""

    name: str
    description: str
    units: tuple[Unit, ...]
    text: str


def names() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of that name, or in that YAML file, with all names, types and ranges checked.

    Raises
    ------
    InputError
        UnknownNameError among them; the message names file, entry, value and what is allowed.
    """
    text = str(name_or_path)
    path = Path(text) if text.endswith((".yaml", ".yml")) else PROFILES / f"{text}.yaml"
    if path.parent == PROFILES and not path.is_file():
        raise UnknownNameError("profile", text, names(), "Or give the path of a YAML file.")
    content = _mapping(read_yaml(path), f"{path.name}", ("description", "lists", "defaults", "units"))
    content = _filled(content, _lists(content.get("lists") or {}, path.name), path.name)
    defaults = _mapping(content.get("defaults") or {}, f"{path.name}: defaults", ("every", *KINDS))
    entries = content.get("units")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path.name}: units must be a list that is not empty")
    known = {kind: [f.name for f in fields(cls)] for kind, cls in KINDS.items()}
    anywhere = list(dict.fromkeys(itertools.chain(*known.values())))
    every = _mapping(defaults.get("every") or {}, f"{path.name}: defaults: every", anywhere)
    by_kind = {k: _mapping(defaults.get(k) or {}, f"{path.name}: defaults: {k}", known[k]) for k in KINDS}
    made: list[Unit] = []
    for number, entry in enumerate(entries, 1):
        where = f"{path.name}: entry {number} of units"
        if not isinstance(entry, dict) or "kind" not in entry:
            raise InputError(f"{where} must be a mapping with the key kind, got {entry!r}")
        kind = entry["kind"]
        if kind not in KINDS:
            raise UnknownNameError(f"kind in {where}", str(kind), KINDS)
        own = _mapping(entry, where, ("kind", *known[kind]))
        values = {n: v for n, v in every.items() if n in known[kind]} | by_kind[kind] | own | {"profile": path.stem}
        values.pop("kind")
        made += _expand(kind, values, where, MOST_UNITS - len(made))
    _refuse_repeats(made, path.name)
    text = path.read_text(encoding="utf-8")
    return Profile(path.stem, str(content.get("description", "")).strip(), tuple(made), text)


def expected(units: Iterable[Unit]) -> dict[str, dict[str, str]]:
    """Kind to key to the unit's label, of every result that the units make."""
    found: dict[str, dict[str, str]] = {}
    for unit in units:
        found.setdefault(unit.kind, {}).update(dict.fromkeys(unit.runs, unit.label))
    return found


def read_yaml(path: Path) -> Any:
    """Plain YAML: no tags, no anchors, no key twice, not over 100 kB; InputError otherwise."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"profile {str(path)!r} can't be read: {error}") from None
    if len(text) > LARGEST_FILE:
        raise InputError(f"{path.name} is larger than {LARGEST_FILE // 1000} kB, which no profile needs")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not a profile: {error}") from None
    except RecursionError:
        raise InputError(f"{path.name} is not a profile: it is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """The safe loader, without anchors (which can grow without end) and with keys that may stand once only."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError(f"anchors and aliases are not allowed, line {event.start_mark.line + 1}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} stands twice, line {key.start_mark.line + 1}")
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


def _mapping(value: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a mapping of names and values, got {type(value).__name__}")
    for name in value:
        if name not in known:
            raise UnknownNameError(f"key in {where}", str(name), known)
    return dict(value)


def _lists(value: Any, name: str) -> dict[str, list]:
    """The named lists of a profile: text to a list of plain values."""
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: lists must be a mapping of names and lists, got {type(value).__name__}")
    for key, items in value.items():
        if not isinstance(key, str) or not isinstance(items, list) or not items:
            raise InputError(f"{name}: lists: {key} must be a list that is not empty, got {items!r}")
    return dict(value)


def _filled(value: Any, lists: Mapping[str, list], name: str) -> Any:
    """`value` with every text `$NAME` replaced by that list."""
    if isinstance(value, Mapping):
        return {key: _filled(one, lists, name) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, lists, name) for one in value]
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in lists:
            raise UnknownNameError(f"list in {name}", value[1:], lists)
        return list(lists[value[1:]])
    return value


def _expand(kind: str, values: dict[str, Any], where: str, room: int) -> list[Unit]:
    lists = {f.name for f in fields(KINDS[kind]) if str(f.type) == "list"}
    axes = {n: v for n, v in values.items() if isinstance(v, list) and n not in lists}
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
        found.append(Unit(kind, chosen))
    return found


def _refuse_repeats(made: list[Unit], name: str) -> None:
    owner: dict[tuple[str, str], str] = {}
    for unit in made:
        for key in unit.runs:
            if (unit.kind, key) in owner:
                raise InputError(
                    f"{name}: the same result is asked for twice, by {owner[unit.kind, key]} and {unit.label}"
                )
            owner[unit.kind, key] = unit.label
