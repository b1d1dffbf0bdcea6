"""The value of one field of the parameters, checked against its type and its rule, with a refusal in words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from vitplast.errors import InputError, UnknownNameError


def checked(f: dataclasses.Field, value: Any) -> Any:
    """The value of field `f`, whole numbers for floats taken as floats.

    Raises
    ------
    InputError, UnknownNameError
        If it is of another type, out of range or none of the choices.
    """
    kind = {"str": str, "int": int, "float": float, "bool": bool, "list": list}[str(f.type)]
    rule = f.metadata
    if kind is not list:
        return _scalar(f.name, value, kind, rule)
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"{f.name} must be a list that is not empty, got {value!r}")
    item = {**rule, "choices": rule.get("each")}
    checked = [_scalar(f"{f.name}[{i}]", v, rule.get("of", str), item) for i, v in enumerate(value)]
    return unique(f.name, checked)


def unique(name: str, values: list) -> list:
    """The values, none of which may be there twice."""
    if len(set(values)) < len(values):
        raise InputError(f"{name} holds a value twice: {values!r}")
    return values


def _scalar(name: str, value: Any, kind: type, rule: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        hint = ""
        if isinstance(value, str) and kind in (int, float, bool):
            hint = " (YAML reads 1e-4 as text, write 1.0e-4; booleans are True and False)"
        raise InputError(f"{name} must be {kind.__name__}, got {value!r} of type {type(value).__name__}{hint}")
    if kind is float and not math.isfinite(value):
        raise InputError(f"{name} must be finite, got {value!r}")
    if rule.get("choices") and value not in rule["choices"]:
        raise UnknownNameError(name, value, rule["choices"])
    if kind in (int, float):
        if "low" in rule and value < rule["low"]:
            raise InputError(f"{name} must be at least {rule['low']}, got {value!r}")
        if "high" in rule and value > rule["high"]:
            raise InputError(f"{name} must be at most {rule['high']}, got {value!r}")
    return value
