"""Table of kind "plasticity": rates of change, pair by pair."""

from __future__ import annotations

from vitplast.pairs import DESIGNS
from vitplast.results.tables.variable import COMPONENT, CONVENTION, LAYER, PARTS, Schema, Variable

PLASTICITY = Schema(
    "Rates of change of the components on pairs of images",
    coords={
        "convention": CONVENTION,
        "layer": LAYER,
        "component": COMPONENT,
        "pair": Variable(("pair",), "int64", "1", "number of the pair, from 0"),
        "pair_tokens": Variable(
            ("pair",), "int64", "1", "tokens of either text that are compared (models that read text)", required=False
        ),
        "source_id": Variable(("pair",), "str", "1", "image of the pretraining side"),
        "target_id": Variable(("pair",), "str", "1", "image of the downstream side"),
        "source_group": Variable(("pair",), "str", "1", "photo or object that the source image comes from"),
        "target_group": Variable(("pair",), "str", "1", "photo or object that the target image comes from"),
    },
    variables={
        "rate": Variable(
            (*PARTS, "pair"), "float64", "1", "rate of change: distance after over distance before", low=0.0
        ),
        "distance_in": Variable((*PARTS, "pair"), "float64", "1", "Frobenius distance of the two inputs", low=0.0),
        "distance_out": Variable((*PARTS, "pair"), "float64", "1", "Frobenius distance of the two outputs", low=0.0),
    },
    attrs={"design": f"how pairs are formed: {', '.join(DESIGNS)}", "dropped_pairs": "pairs left out"},
)
