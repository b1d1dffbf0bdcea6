"""From parts to blocks: MLP, gated MLP, LayerScale and residual connections (Prop. 15).

An MLP is bounded by its two norms and the greatest slope of its activation, a residual block by 1 + its branch, maps
that follow each other by the product. A gated MLP has a bound on a ball of tokens only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitplast.bounds.activations import (
    ACTIVATION_CONSTANTS,
    ACTIVATION_SLOPES,
    activation_constant,
    activation_name,
    activation_reach,
)
from vitplast.bounds.attention import refuse_infinite
from vitplast.bounds.folded import layernorm_linear
from vitplast.bounds.layernorm import deviation_floor
from vitplast.bounds.linear import spectral_norm
from vitplast.errors import HypothesisError, NoBoundError, ShapeError

__all__ = [
    "ACTIVATION_CONSTANTS",
    "activation_constant",
    "composition",
    "fold_linear",
    "gated_mlp_bound",
    "layernorm_mlp_bound",
    "layerscale_bound",
    "mlp_bound",
    "residual_bound",
]


def mlp_bound(
    w1: Tensor,
    w2: Tensor,
    activation: nn.Module | str,
    layerscale: Tensor | None = None,
    *,
    given: float | None = None,
    centred: bool = False,
) -> float:
    """`L ||D W2||_2 ||W1||_2` for `x -> D (W2 phi(W1 x + b1) + b2)`, `D = diag(layerscale)`, for all pairs (Prop. 15).

    With `centred` the never larger `|c| ||D W2 W1||_2 + h ||D W2||_2 ||W1||_2`, where the slopes of `phi` fill the
    interval from `c - h` to `c + h` and `|c| + h = L`. Dropout must be inactive.

    Parameters
    ----------
    w1, w2
        Shapes (hidden, E) and (F, hidden).
    activation, given
        As in `activation_constant`; `centred` works with known activations only.
    layerscale
        Shape (F,), or None.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    NoBoundError, HypothesisError
        As `activation_constant`; and if a weight is not finite.

    Examples
    --------
    >>> mlp_bound(torch.eye(2), 3 * torch.eye(2), "ReLU", layerscale=torch.tensor([0.5, -2.0]))
    6.0
    """
    steepest = activation_constant(activation, given)
    w2 = _scaled(w1, w2, layerscale)
    product = spectral_norm(w2) * spectral_norm(w1)
    return _centred(w1, w2, activation, product) if centred else steepest * product


def layernorm_mlp_bound(
    w1: Tensor,
    w2: Tensor,
    activation: nn.Module | str,
    gamma: Tensor,
    sigma: float,
    eps: float = 0.0,
    layerscale: Tensor | None = None,
    *,
    given: float | None = None,
    centred: bool = False,
) -> float:
    """`L ||D W2||_2 ||W1 G Pi||_2 / sqrt(sigma^2 + eps)` for MLP o LN2, `G = diag(gamma)` (Prop. 15, Theorem 14).

    Holds on tokens of std >= `sigma`. Arguments as `mlp_bound` and `layernorm_linear`, errors too.

    Examples
    --------
    >>> layernorm_mlp_bound(torch.eye(2), 3 * torch.eye(2), "ReLU", torch.ones(2), sigma=0.5)
    6.0
    """
    steepest = activation_constant(activation, given)
    w2 = _scaled(w1, w2, layerscale)
    product = spectral_norm(w2) * layernorm_linear(w1, gamma, sigma, eps)
    if not centred:
        return steepest * product
    folded, _ = fold_linear(w1, None, gamma, torch.zeros_like(gamma))
    return _centred(folded / deviation_floor(sigma, eps), w2, activation, product)


def gated_mlp_bound(
    gate: Tensor,
    value: Tensor,
    output: Tensor,
    activation: nn.Module | str,
    *,
    radius: float | None,
    gate_bias: Tensor | None = None,
    value_bias: Tensor | None = None,
    layerscale: Tensor | None = None,
) -> float:
    """`||D W3||_2 (L ||diag(g) W1||_2 + ||diag(a) W2||_2)` for `D W3 (phi(W1 x + b1) * (W2 x + b2))` (Prop. 15).

    On tokens of norm <= r: `g_k = r ||w2_k|| + |b2_k|` bounds the values and `a_k = phi(r ||w1_k|| + |b1_k|)` the
    gates. There is no bound for all tokens: the rate grows with the radius. Behind a LayerNorm take `fold_linear`,
    `radius=sqrt(d)` and divide by `sqrt(sigma^2 + eps)`.

    Parameters
    ----------
    gate, value
        W1 (the half that passes through the activation) and W2, shapes (hidden, E).
    output
        W3, shape (F, hidden).
    activation
        As in `activation_constant`; it must be a known one.
    radius
        r, the largest norm of a token of either input.
    gate_bias, value_bias
        Shape (hidden,), or None.
    layerscale
        Shape (F,), or None.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    NoBoundError
        If the activation is not known, or no radius is given.
    HypothesisError
        If the radius is not finite or negative, or a weight is not finite.

    Examples
    --------
    >>> one = torch.ones(1, 1)
    >>> gated_mlp_bound(one, one, one, "Identity", radius=3.0)
    6.0
    """
    name = activation_name(activation)
    if radius is None:
        raise NoBoundError("a gated MLP multiplies two functions of the token: it has a bound on a ball only")
    if not (math.isfinite(radius) and radius >= 0):
        raise HypothesisError(f"the largest token norm must be finite and not negative, got radius={radius!r}")
    if gate.shape != value.shape:
        raise ShapeError(f"gate and value weights differ in shape: {tuple(gate.shape)}, {tuple(value.shape)}")
    output = _scaled(gate, output, layerscale)
    values = _reach(value, value_bias, radius, "value_bias")
    gates = activation_reach(name, _reach(gate, gate_bias, radius, "gate_bias"))
    through_gate = ACTIVATION_CONSTANTS[name] * spectral_norm(values[:, None] * gate.detach().double())
    return spectral_norm(output) * (through_gate + spectral_norm(gates[:, None] * value.detach().double()))


def fold_linear(weight: Tensor, bias: Tensor | None, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """`(W G Pi, b + W beta)`, `G = diag(gamma)`: the linear map behind a LayerNorm, on its normalised tokens.

    Those tokens are centred and of norm at most `sqrt(d)` (Theorem 14). Shapes (out, d), (out,), (d,), (d,).

    Raises
    ------
    ShapeError
        If `gamma` or `beta` has not d entries.
    HypothesisError
        If a value is not finite.

    Examples
    --------
    >>> fold_linear(torch.eye(2), None, torch.ones(2), torch.zeros(2))[0].tolist()
    [[0.5, -0.5], [-0.5, 0.5]]
    """
    weight = weight.detach().double()
    for name, given in (("gamma", gamma), ("beta", beta)):
        if given.shape != weight.shape[1:]:
            raise ShapeError(f"{name} must have shape {tuple(weight.shape[1:])}, got {tuple(given.shape)}")
    refuse_infinite(weight=weight, gamma=gamma, beta=beta, **({} if bias is None else {"bias": bias}))
    scaled = weight * gamma.detach().double()
    shift = weight @ beta.detach().double()
    return scaled - scaled.mean(dim=1, keepdim=True), shift if bias is None else shift + bias.detach().double()


def layerscale_bound(gamma: Tensor) -> float:
    """`max_j |gamma_j|`: no branch is stretched more by its LayerScale (Prop. 1(e)); folding it in is sharper.

    Raises
    ------
    ShapeError
        If `gamma` has not one dimension or is empty.
    HypothesisError
        If a factor is not finite.

    Examples
    --------
    >>> layerscale_bound(torch.tensor([0.5, -2.0]))
    2.0
    """
    if gamma.ndim != 1 or gamma.numel() == 0:
        raise ShapeError(f"LayerScale has one dimension and is not empty, got shape {tuple(gamma.shape)}")
    refuse_infinite(gamma=gamma)
    return float(gamma.detach().double().abs().max())


def residual_bound(*branches: float) -> float:
    """`1 + sum of the branches`: `x -> x + f(x) + g(x) + ...`, one branch or several side by side (Prop. 15).

    Examples
    --------
    >>> residual_bound(0.5)
    1.5
    """
    return 1.0 + math.fsum(_constants(branches))


def composition(*bounds: float) -> float:
    """The product: maps one after the other. A block is the composition of its two residual halves (Prop. 1(d)).

    Raises
    ------
    HypothesisError
        If a bound is negative or NaN, or one is infinite and another 0: their product says nothing.

    Examples
    --------
    >>> composition(residual_bound(1.0), residual_bound(0.5))
    3.0
    """
    product = math.prod(_constants(bounds))
    if math.isnan(product):
        raise HypothesisError(f"a product of 0 and an infinite bound says nothing, got {bounds}")
    return product


def _constants(bounds: tuple[float, ...]) -> list[float]:
    for bound in bounds:
        if not bound >= 0:
            raise HypothesisError(f"a bound is a number that is not negative, got {bound!r}")
    return [float(bound) for bound in bounds]


def _scaled(w1: Tensor, w2: Tensor, layerscale: Tensor | None) -> Tensor:
    """`D W2` in float64, after checking that it takes what W1 gives."""
    if w1.ndim != 2 or w2.ndim != 2 or w2.shape[1] != w1.shape[0]:
        raise ShapeError(f"weights of shapes {tuple(w1.shape)} and {tuple(w2.shape)} do not follow each other")
    if layerscale is None:
        return w2.detach().double()
    if layerscale.shape != w2.shape[:1]:
        raise ShapeError(f"LayerScale must have shape {tuple(w2.shape[:1])}, got {tuple(layerscale.shape)}")
    return layerscale.detach().double()[:, None] * w2.detach().double()


def _centred(w1: Tensor, w2: Tensor, activation: nn.Module | str, product: float) -> float:
    low, high = ACTIVATION_SLOPES[activation_name(activation)]
    middle = spectral_norm(w2 @ w1.detach().double())
    return abs(low + high) / 2 * middle + (high - low) / 2 * product


def _reach(weight: Tensor, bias: Tensor | None, radius: float, name: str) -> Tensor:
    """The largest modulus of every output of a linear map on tokens of norm <= radius."""
    reach = radius * torch.linalg.vector_norm(weight.detach().double(), dim=1)
    if bias is None:
        return reach
    if bias.shape != reach.shape:
        raise ShapeError(f"{name} must have shape {tuple(reach.shape)}, got {tuple(bias.shape)}")
    return reach + bias.detach().double().abs()
