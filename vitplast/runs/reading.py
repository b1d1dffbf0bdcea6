"""Profile files as plain data: a small, safe part of YAML, and the checks that a mapping has known names only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vitplast.errors import InputError, UnknownNameError

LARGEST_FILE = 100_000


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


def mapping(value: Any, where: str, known: Iterable[str]) -> dict[str, Any]:
    """`value` as a dict, if it is a mapping of which all names are `known`; InputError naming `where` otherwise."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a mapping of names and values, got {type(value).__name__}")
    for name in value:
        if name not in known:
            raise UnknownNameError(f"key in {where}", str(name), known)
    return dict(value)


def named_lists(value: Any, where: str) -> dict[str, list]:
    """The named lists of a profile: text to a list of plain values."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a mapping of names and lists, got {type(value).__name__}")
    for key, items in value.items():
        if not isinstance(key, str) or not isinstance(items, list) or not items:
            raise InputError(f"{where}: {key} must be a list that is not empty, got {items!r}")
    return dict(value)


def filled(value: Any, lists: Mapping[str, list], name: str) -> Any:
    """`value` with every text `$NAME` replaced by that list."""
    if isinstance(value, Mapping):
        return {key: filled(one, lists, name) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, lists, name) for one in value]
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in lists:
            raise UnknownNameError(f"list in {name}", value[1:], lists)
        return list(lists[value[1:]])
    return value
