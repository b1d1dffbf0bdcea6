"""Predictions of plasticity: what the rate of change should be, from weights and a few numbers of the inputs.

Unlike a bound a prediction may be exceeded; it says where the mean rate lies, not what it never passes.
"""

from vitplast.predictions.attention import entropy, pooling, pooling_gap, score_spread
from vitplast.predictions.layernorm import inverse_scale, token_ratio
from vitplast.predictions.linear import (
    isotropic,
    isotropic_floor,
    isotropic_gaussian,
    jensen_floor,
    participation,
    permuted_padded,
    second_moment,
    second_moment_prediction,
)

__all__ = [
    "entropy",
    "inverse_scale",
    "isotropic",
    "isotropic_floor",
    "isotropic_gaussian",
    "jensen_floor",
    "participation",
    "permuted_padded",
    "pooling",
    "pooling_gap",
    "score_spread",
    "second_moment",
    "second_moment_prediction",
    "token_ratio",
]
