"""Activations (Prop. 15): `|phi(t) - phi(s)| <= L |t - s|` with the greatest slope L, known for the usual ones.

An activation turns a difference `t - s` into `delta (t - s)` with `delta` between its least and its greatest slope;
nothing else about it enters a bound. For GELU, its tanh form, SiLU and QuickGELU, `t s(t)` with `s(-t) = 1 - s(t)`, the
slopes lie symmetrically around 1/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitplast.errors import HypothesisError, NoBoundError, nearest

#: Least and greatest slope of each activation (Prop. 15).
ACTIVATION_SLOPES = {
    "GELU": (-0.12890414518515478, 1.1289041451851547),
    "GELUTanh": (-0.12899306865877178, 1.1289930686587717),
    "SiLU": (-0.09983932012886691, 1.099839320128867),
    "QuickGELU": (-0.09983932012886691, 1.099839320128867),
    "ReLU": (0.0, 1.0),
    "ReLU6": (0.0, 1.0),
    "Hardswish": (-0.5, 1.5),
    "Identity": (1.0, 1.0),
    "Tanh": (0.0, 1.0),
    "Sigmoid": (0.0, 0.25),
}
_FUNCTIONS = {
    "GELU": F.gelu,
    "GELUTanh": lambda t: F.gelu(t, approximate="tanh"),
    "SiLU": F.silu,
    "QuickGELU": lambda t: t * torch.sigmoid(1.702 * t),
    "ReLU": F.relu,
    "ReLU6": F.relu6,
    "Hardswish": F.hardswish,
    "Identity": lambda t: t,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
}
_ALIASES = {"swish": "SiLU"}
#: Where the classes named above come from; a class of the same name from elsewhere may compute something else.
_HOMES = ("torch.nn.modules.activation", "torch.nn.modules.linear", "timm.layers.activations")

#: `sup |phi'|` of each activation, in float64 (Prop. 15).
ACTIVATION_CONSTANTS = {name: max(-low, high) for name, (low, high) in ACTIVATION_SLOPES.items()}


def activation_name(activation: nn.Module | str) -> str:
    """The name of an activation as in `ACTIVATION_CONSTANTS`.

    Raises
    ------
    NoBoundError
        If it is none of them: the largest value found on a grid would be no proof.

    Examples
    --------
    >>> activation_name(nn.GELU(approximate="tanh")), activation_name("quick_gelu")
    ('GELUTanh', 'QuickGELU')
    """
    if isinstance(activation, str):
        given, home = activation, _HOMES[0]
    else:
        given, home = type(activation).__name__, type(activation).__module__
        if getattr(activation, "approximate", "none") == "tanh":
            given = "GELUTanh"
    plain = given.replace("_", "").lower()
    known = {name.lower(): name for name in ACTIVATION_CONSTANTS} | _ALIASES
    if plain not in known or home not in _HOMES:
        hint = nearest(given, ACTIVATION_SLOPES)
        raise NoBoundError(f"the greatest slope of activation {given!r} is not known here; give it. {hint}")
    return known[plain]


def activation_constant(activation: nn.Module | str, given: float | None = None) -> float:
    """`sup |phi'|`: no pair of numbers is stretched more by the activation (Prop. 15).

    Parameters
    ----------
    activation
        A module of torch or timm, or a name: GELU, GELUTanh, SiLU (Swish), QuickGELU, ReLU, Tanh, Sigmoid, ...
    given
        The constant of an activation that is not known here, proved by the caller.

    Raises
    ------
    NoBoundError
        If the activation is not known and no constant is given.
    HypothesisError
        If the given constant is not finite or negative, or less than the known one.

    Examples
    --------
    >>> activation_constant("ReLU"), round(activation_constant(nn.GELU()), 6)
    (1.0, 1.128904)
    >>> activation_constant("Mish", given=1.1)
    1.1
    """
    if given is None:
        return ACTIVATION_CONSTANTS[activation_name(activation)]
    if not (math.isfinite(given) and given >= 0):
        raise HypothesisError(f"the greatest slope of an activation is finite and not negative, got {given!r}")
    try:
        known = ACTIVATION_CONSTANTS[activation_name(activation)]
    except NoBoundError:
        return float(given)
    if given < known:
        raise HypothesisError(f"the greatest slope of this activation is {known!r}, more than the {given!r} given")
    return float(given)


def activation_reach(activation: nn.Module | str, at: Tensor) -> Tensor:
    """`phi(t)` for `t >= 0`: the largest `|phi|` on `[-t, t]` for every activation known here; shape of `at`.

    Raises
    ------
    NoBoundError
        If the activation is not known.
    HypothesisError
        If an entry of `at` is negative.

    Examples
    --------
    >>> activation_reach("Sigmoid", torch.tensor([0.0, 50.0])).tolist()
    [0.5, 1.0]
    """
    if bool((at < 0).any()):
        raise HypothesisError("the reach of an activation is asked for on [-t, t] with t >= 0")
    return _FUNCTIONS[activation_name(activation)](at)
