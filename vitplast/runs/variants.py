"""Variants of a profile: the same units with some of its lists and defaults replaced, chosen by `NAME@VARIANT`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS
from vitplast.runs.reading import mapping, named_lists


def split_name(text: str) -> tuple[str, str]:
    """`paper@as-published` to `("paper", "as-published")`; the second is empty where no variant is named.

    The mark counts in the last part of a path only, so folders may have it in their names.
    """
    base = Path(text).name
    name, _, variant = base.partition("@")
    return text[: len(text) - len(base)] + name, variant


def laid_over(content: Mapping[str, Any], variant: str, name: str) -> dict[str, Any]:
    """The lists and defaults of a profile (the content of its file) in one of its variants, the first if none is named.

    Returns
    -------
    dict with `lists` (name to list) and `defaults` (kind, or `every`, to parameters and values); names of lists are
    not filled in yet.

    Raises
    ------
    UnknownNameError
        If there is no variant of that name; with the nearest.
    InputError
        If a variant is named and the profile has none, or a variant is no mapping of `lists` and `defaults`.
    """
    lists = named_lists(content.get("lists") or {}, f"{name}: lists")
    defaults = _defaults(content.get("defaults") or {}, f"{name}: defaults")
    variants = content.get("variants") or {}
    if not isinstance(variants, Mapping):
        raise InputError(f"{name}: variants must be a mapping of names, got {type(variants).__name__}")
    checked = {}
    for key, value in variants.items():
        where = f"{name}: variants: {key}"
        own = mapping(value or {}, where, ("lists", "defaults"))
        checked[str(key)] = (
            named_lists(own.get("lists") or {}, f"{where}: lists"),
            _defaults(own.get("defaults") or {}, f"{where}: defaults"),
        )
        for listed in checked[str(key)][0]:
            if listed not in lists:
                raise UnknownNameError(f"list in {where}", listed, lists)
    if variant and not checked:
        raise InputError(f"{name} has no variants, so {variant!r} names nothing; leave '@{variant}' out")
    if variant and variant not in checked:
        raise UnknownNameError(f"variant of {name}", variant, checked)
    if checked:
        own_lists, own_defaults = checked[variant or next(iter(checked))]
        lists |= own_lists
        for kind, values in own_defaults.items():
            defaults[kind] = defaults.get(kind, {}) | values
    return {"lists": lists, "defaults": defaults}


def _defaults(value: Any, where: str) -> dict[str, dict[str, Any]]:
    found = mapping(value, where, ("every", *KINDS))
    return {kind: mapping(own or {}, f"{where}: {kind}", parameters_of(kind)) for kind, own in found.items()}


def parameters_of(kind: str) -> list[str]:
    """Names of the parameters of a notebook, or for `every` those of any notebook."""
    kinds = KINDS.values() if kind == "every" else [KINDS[kind]]
    return list(dict.fromkeys(name for cls in kinds for name in cls.__dataclass_fields__))
