"""Table of kind "bounds": upper bounds in several variants."""

from __future__ import annotations

from vitplast.results.tables.variable import COMPONENT, CONVENTION, LAYER, PARTS, Schema, Variable

BOUNDS = Schema(
    "Upper bounds on the rates of change of the components",
    coords={
        "convention": CONVENTION,
        "variant": Variable(
            ("variant",), "str", "1", "how the bound is computed", choices=("as_coded", "heads_fixed", "valid", "new")
        ),
        "layer": LAYER,
        "component": COMPONENT,
    },
    variables={
        "bound": Variable(
            ("convention", "variant", "layer", "component"),
            "float64",
            "1",
            "upper bound on the rate of change (the coded LayerNorm formula may be negative)",
            "no bound of this variant is known",
        ),
        "radius_rms": Variable(
            PARTS,
            "float64",
            "1",
            "root mean square of the token norms of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
        "radius_max": Variable(
            PARTS,
            "float64",
            "1",
            "largest token norm of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
        "sigma_min": Variable(
            PARTS,
            "float64",
            "1",
            "smallest standard deviation within a token of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
    },
)
