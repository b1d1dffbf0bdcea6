"""Table of kind "theory": every bound, prediction and measured value."""

from __future__ import annotations

from vitplast.results.tables.variable import CONVENTION, LAYER, PARTS, Schema, Variable
from vitplast.statements import BOUNDS, LAWS, MAPS

_STATED, _PREDICTED = ("statement", *PARTS), ("law", *PARTS)
_COMPOSED = "on common input, components stand alone: what is composed is measured in situ only"


def _measured(meaning: str) -> Variable:
    return Variable(PARTS, "float64", "1", meaning, f"{_COMPOSED}; a block needs the one that follows", low=0.0)


def _input(meaning: str) -> Variable:
    return Variable(PARTS, "float64", "1", meaning, "not taken of this input", low=0.0)


THEORY = Schema(
    "Bounds, predictions and measured rates of change of the components and of what they make together",
    coords={
        "convention": CONVENTION,
        "layer": LAYER,
        "component": Variable(("component",), "str", "1", "part of a block, or parts put together", choices=MAPS),
        "statement": Variable(("statement",), "str", "1", "what bounds the rate", choices=tuple(BOUNDS)),
        "law": Variable(("law",), "str", "1", "what predicts the rate", choices=tuple(LAWS)),
    },
    variables={
        "bound": Variable(_STATED, "float64", "1", "upper bound on the rate of change", "none of this kind", low=0.0),
        "tightness": Variable(
            _STATED,
            "float64",
            "1",
            "largest measured rate over its bound (T6_pair: mean rate over its bound)",
            "nothing bounded or measured",
            low=0.0,
        ),
        "prediction": Variable(
            _PREDICTED, "float64", "1", "predicted mean rate, from the even pairs", "none of this kind", low=0.0
        ),
        "measured_mean": _measured("mean rate of change over all pairs (plasticity)"),
        "measured_rms": _measured("root mean square rate of change over all pairs"),
        "measured_max": _measured("largest rate of change of all pairs"),
        "measured_test": _measured("mean rate of change over the odd pairs, which no prediction has seen"),
        "local_norm": _input("largest ||J||_2 found on segments between pairs, from below (Theorem 2)"),
        "local_mean": _input("mean of ||J||_2 found on segments between pairs, from below (Theorem 2)"),
        "local_bound": _input("largest bound on ||J||_2 at the same points (Theorem 11)"),
        "entropy": Variable(
            ("convention", "layer"), "float64", "1", "attention entropy over ln n, mean of heads, tokens and images",
            "no attention of the plain kind", low=0.0, high=1.0 + 1e-9,
        ),
        "radius_max": _input("largest token norm of the inputs"),
        "radius_rms": _input("root mean square of the token norms of the inputs, mean over images"),
        "radius_centred": _input("largest distance of a token from a common centre"),
        "sigma_min": _input("smallest standard deviation within a token of the inputs"),
        "sigma_rms": _input("root mean square standard deviation within the tokens of the even pairs"),
    },
    attrs={
        "design": "how pairs are formed",
        "pairs": "pairs measured",
        "local_pairs": "pairs between which ||J||_2 was taken",
        "local_points": "points on the segment of each of these pairs",
        "no_bound": "why a bound is missing: JSON, component to reason to layers",
    },
)  # fmt: skip
