"""The parameters of each notebook, checked: names, types, ranges and choices, before any work starts.

One frozen dataclass a notebook. Its fields, defaults and comments are those of the notebook's `parameters` cell
(a test holds them equal). `runs()` splits a unit of work into the single results that it writes, each with the key
under which the result is stored: a hash of everything that decides the numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from vitplast.errors import UnknownNameError
from vitplast.parameters.base import (
    CONVENTIONS,
    PACKAGED_SIZE,
    PRECISIONS,
    SCHEMA_VERSION,
    ModelParameters,
    Parameters,
    key_for,
    run_key,
)
from vitplast.parameters.choosing import CriteriaParameters
from vitplast.parameters.experiments import VARIANTS, DepthParameters, LandscapeParameters
from vitplast.parameters.measuring import (
    BoundsParameters,
    GradientsParameters,
    PlasticityParameters,
    TheoryParameters,
)
from vitplast.parameters.pretraining import PretrainParameters
from vitplast.parameters.searching import SearchParameters
from vitplast.parameters.training import FinetuneParameters, ProbeParameters

__all__ = [
    "CONVENTIONS", "KINDS", "PACKAGED_SIZE", "PRECISIONS", "SCHEMA_VERSION", "VARIANTS",
    "BoundsParameters", "CriteriaParameters", "DepthParameters", "FinetuneParameters", "GradientsParameters",
    "LandscapeParameters", "ModelParameters", "Parameters", "PlasticityParameters", "PretrainParameters",
    "ProbeParameters", "SearchParameters", "TheoryParameters",
    "added_defaults", "from_namespace", "key_for", "key_of", "make", "run_key",
]  # fmt: skip

#: Notebook name to its parameters.
KINDS: dict[str, type[Parameters]] = {
    cls.kind: cls
    for cls in (
        PlasticityParameters,
        BoundsParameters,
        TheoryParameters,
        GradientsParameters,
        SearchParameters,
        FinetuneParameters,
        ProbeParameters,
        DepthParameters,
        LandscapeParameters,
        PretrainParameters,
        CriteriaParameters,
    )
}


def make(kind: str, values: dict[str, Any]) -> Parameters:
    """The checked parameters of notebook `kind`; unknown names are refused with the nearest ones."""
    if kind not in KINDS:
        raise UnknownNameError("notebook", kind, KINDS)
    known = [f.name for f in dataclasses.fields(KINDS[kind])]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"parameter of {kind}", name, known)
    return KINDS[kind](**values)


def from_namespace(kind: str, namespace: dict[str, Any]) -> Parameters:
    """The checked parameters of notebook `kind` from the variables of its `parameters` cell (pass `globals()`)."""
    return make(kind, {f.name: namespace[f.name] for f in dataclasses.fields(KINDS[kind])})


def key_of(kind: str, run: dict[str, Any]) -> str:
    """`key_for` the parameters of notebook `kind`."""
    return key_for(KINDS[kind], run)


def added_defaults(kind: str) -> dict[str, Any]:
    """Default of each option of notebook `kind` that is younger than its first results, which do not name it."""
    return {f.name: f.default for f in dataclasses.fields(KINDS[kind]) if f.metadata.get("added")}
