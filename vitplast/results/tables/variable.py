"""What describes one variable of a result file, and one kind of result; and the coordinates that kinds share."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitplast.components import COMPONENTS
from vitplast.parameters import CONVENTIONS


@dataclass(frozen=True)
class Variable:
    """One variable; `missing`: when a value may be absent, in words (empty: never); `timing`: it reads a clock."""

    dims: tuple[str, ...]
    dtype: str
    units: str
    meaning: str
    missing: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = True
    timing: bool = False


@dataclass(frozen=True)
class Schema:
    """All variables, coordinates and own attributes of one kind of result.

    `later`: attributes that were added after the first results, which lack them.
    """

    title: str
    coords: dict[str, Variable]
    variables: dict[str, Variable]
    attrs: dict[str, str] = field(default_factory=dict)
    later: dict[str, str] = field(default_factory=dict)


LAYER = Variable(("layer",), "int64", "1", "block of the model, from 0")
COMPONENT = Variable(("component",), "str", "1", "part of a block", choices=COMPONENTS)
CONVENTION = Variable(
    ("convention",), "str", "1", "inputs of the parts: the embeddings for all, or their own", choices=CONVENTIONS
)
PARTS = ("convention", "layer", "component")


def scalar(dtype: str, units: str, meaning: str, **rest) -> Variable:
    """A variable without dimensions."""
    return Variable((), dtype, units, meaning, **rest)


#: When an attribute on unseen classes says so.
UNSEEN = "labels tested (or validated) that no training image has, or none"
