"""Linear layers (Theorem 4): the rate of change that the weight and the second moment of the differences predict.

With `D = X - Y` and `C = E[D^T D / ||D||^2]` the mean square rate is exactly `tr(W^T W C)`. The bound `||W||_2` sees
the worst direction, this law the directions that occur. All that it needs of the inputs is one d x d matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.errors import HypothesisError, InputError, ShapeError

#: Quadrature of Theorem 4: `t = e^s`, trapezoid nodes in s; the ends cut off less than 1e-11 of the integral.
NODES, REACH = 8001, 55.0
#: Nodes times singular values in memory at a time.
AT_ONCE = 2**22


def second_moment(x: Tensor, y: Tensor) -> Tensor:
    """`C = mean over pairs of D^T D / ||D||^2`, `D = X - Y` (Theorem 4): psd, of trace 1, float64 (d, d).

    One matrix serves every linear layer with these inputs. Tokens that are the same on both sides add nothing.

    Parameters
    ----------
    x, y
        Token sequences (B, n, d) of B pairs.

    Raises
    ------
    ShapeError
        If the shapes differ, are not (B, n, d), or are empty.
    HypothesisError
        If a value is not finite, or a pair coincides (its rate of change is 0/0, Definition 1).

    Examples
    --------
    >>> second_moment(torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2)).tolist()
    [[0.36, 0.48], [0.48, 0.64]]
    """
    if x.shape != y.shape or x.ndim != 3 or x.numel() == 0:
        raise ShapeError(f"pairs are two tensors (B, n, d), not empty, got {tuple(x.shape)} and {tuple(y.shape)}")
    moment = torch.zeros(x.shape[-1], x.shape[-1], dtype=torch.float64, device=x.device)
    for b, (one, other) in enumerate(zip(x.detach(), y.detach(), strict=True)):
        difference = one.double() - other.double()
        size = torch.linalg.vector_norm(difference)
        if not (bool(torch.isfinite(size)) and float(size) > 0):
            what = "coincides" if float(size) == 0 else "has values that are not finite"
            raise HypothesisError(f"pair {b} {what}: it has no rate of change")
        difference /= size
        moment.addmm_(difference.T, difference)
    return moment / len(x)


def second_moment_prediction(weight: Tensor, moment: Tensor) -> float:
    """`sqrt(tr(W^T W C))`: the root mean square rate of `X -> X W^T + b`, exact on the pairs behind C (Theorem 4).

    An upper limit of their mean rate and close to it where the rates vary little (`jensen_floor`). On other pairs it
    is a prediction, which may be exceeded. The bias plays no part.

    Parameters
    ----------
    weight
        Shape (out, d), as `nn.Linear` stores it.
    moment
        C, shape (d, d), from `second_moment`.

    Raises
    ------
    ShapeError
        If `weight` is empty or has not two dimensions, or `moment` is not (d, d).
    HypothesisError
        If a value is not finite, or the trace of `moment` is not 1.

    Examples
    --------
    >>> second_moment_prediction(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.diag(torch.tensor([1.0, 0.0])))
    3.0
    """
    weight = _weight(weight)
    moment = _moment(moment, weight.shape[1], weight.device)
    return math.sqrt(max(0.0, float(((weight @ moment) * weight).sum())))


def isotropic(weight: Tensor) -> float:
    """`||W||_F / sqrt(d)`: the root mean square rate where no direction is preferred, `C = I/d` (Theorem 4).

    Errors as `second_moment_prediction`.

    Examples
    --------
    >>> round(isotropic(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) ** 2, 12)
    12.5
    """
    weight = _weight(weight)
    return float(torch.linalg.vector_norm(weight)) / math.sqrt(weight.shape[1])


def isotropic_gaussian(weight: Tensor, tokens: int) -> float:
    """`P = E sqrt(Q) / E||g||`, `Q = ||D W^T||^2`, for D with `tokens` independent isotropic Gaussian rows (Theorem 4).

    `E sqrt(Q) = 1/(2 sqrt(pi)) int (1 - prod_k (1 + 2 t s_k^2)^(-n/2)) t^(-3/2) dt` over the singular values s_k, by
    the trapezoid rule in log t after scaling to `E Q = 1`, and for a standard Gaussian g of n d numbers
    `E||g|| = sqrt(2) Gamma((n d + 1)/2) / Gamma(n d / 2)`. A mean, not a root mean square, and exact for any n.

    Raises
    ------
    ShapeError, HypothesisError
        As `second_moment_prediction`.
    InputError
        If `tokens` is not a whole number of at least 1.

    Examples
    --------
    >>> isotropic_gaussian(torch.eye(3), tokens=2)
    1.0
    """
    weight, tokens = _weight(weight), _tokens(tokens)
    size = float(torch.linalg.vector_norm(weight))
    if size == 0.0:
        return 0.0
    shares = torch.linalg.svdvals(_tall(weight / size)).square() / tokens
    s = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64, device=weight.device)
    powers = torch.cat([torch.log1p(2 * part.exp()[:, None] * shares).sum(dim=1) for part in s.split(_step(shares))])
    values = -torch.expm1(-0.5 * tokens * powers) * torch.exp(-0.5 * s)
    root = float(torch.trapezoid(values, s)) / (2 * math.sqrt(math.pi))
    half = 0.5 * tokens * weight.shape[1]
    gaussian_norm = math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))
    return math.sqrt(tokens) * size * root / gaussian_norm


def permuted_padded(weight: Tensor, moment: Tensor) -> float:
    """`sqrt(tr(C) a + (1^T C 1 - tr C) b)`: P_2 of a layer fed E features and zeros, over all orders of its inputs.

    a and b are the mean diagonal and off-diagonal entries of `W^T W`. The order of the hidden units is no property of
    the network, but the columns that FC2 is fed under common input depend on it; this root mean square over
    all orders does not (remark to Theorem 4).

    Errors as `second_moment_prediction`, with `weight` (out, hidden) and `moment` (E, E) of the unpadded input; a
    ShapeError also if `hidden` is smaller than E.

    Examples
    --------
    >>> permuted_padded(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0]])) ** 2
    12.5
    """
    weight = _weight(weight)
    hidden, width = weight.shape[1], moment.shape[-1] if moment.ndim else 0
    if width > hidden:
        raise ShapeError(f"{width} features cannot be padded to the {hidden} inputs of this layer")
    moment = _moment(moment, width, weight.device)
    trace, total = float(moment.trace()), float(moment.sum())
    squares = float(weight.square().sum())
    diagonal = squares / hidden
    across = (float(weight.sum(dim=1).square().sum()) - squares) / (hidden * (hidden - 1)) if hidden > 1 else 0.0
    return math.sqrt(max(0.0, trace * diagonal + (total - trace) * across))


def participation(weight: Tensor) -> float:
    """`r_4 = ||W||_F^4 / sum_k s_k^4`: how many singular values carry the weight, from 1 to the rank (Prop. 2).

    Raises
    ------
    ShapeError
        If `weight` is empty or has not two dimensions.
    HypothesisError
        If a value is not finite, or `weight` is 0.

    Examples
    --------
    >>> round(participation(torch.eye(5)), 12)
    5.0
    """
    weight = _weight(weight)
    size = torch.linalg.vector_norm(weight)
    if float(size) == 0.0:
        raise HypothesisError("a weight of zeros has no participation ratio")
    thin = _tall(weight / size)
    return 1.0 / float((thin.T @ thin).square().sum())


def isotropic_floor(weight: Tensor, tokens: int = 1) -> float:
    """`||W||_F / sqrt(d) * max(1 - 1/(n r_4), sqrt(2/pi))`: floor of the isotropic mean rate (Prop. 2, Theorem 4).

    With a Jacobian for `weight` and one token: a lower limit of its mean rate over all directions. Errors as
    `isotropic_gaussian`.

    Examples
    --------
    >>> isotropic_floor(torch.eye(5))
    0.8
    """
    weight, tokens = _weight(weight), _tokens(tokens)
    if not bool(weight.any()):
        return 0.0
    return isotropic(weight) * max(1.0 - 1.0 / (tokens * participation(weight)), math.sqrt(2 / math.pi))


def jensen_floor(rates: Tensor) -> float:
    """`P_2 (1 - Var(rho^2) / (2 P_2^4))`, at least 0: how far the mean rate can lie below P_2 (Theorem 4).

    `rates` has shape (B,); the variance has ddof 0, so that the limit is exact for these pairs.

    Raises
    ------
    ShapeError
        If there is no rate, or more than one dimension.
    HypothesisError
        If a rate is negative or not finite.

    Examples
    --------
    >>> jensen_floor(torch.tensor([2.0, 2.0]))
    2.0
    """
    if rates.ndim != 1 or rates.numel() == 0:
        raise ShapeError(f"rates have one dimension and are not empty, got shape {tuple(rates.shape)}")
    rates = rates.detach().double()
    if not (bool(rates.isfinite().all()) and bool((rates >= 0).all())):
        raise HypothesisError("rates of change are finite and not negative")
    top = float(rates.max())
    if top == 0.0:
        return 0.0
    squares = (rates / top).square()
    mean = float(squares.mean())
    return top * math.sqrt(mean) * max(0.0, 1.0 - float(squares.var(correction=0)) / (2 * mean**2))


def _weight(weight: Tensor) -> Tensor:
    if weight.ndim != 2 or weight.numel() == 0:
        raise ShapeError(f"a linear weight has two dimensions and is not empty, got shape {tuple(weight.shape)}")
    weight = weight.detach().double()
    if not bool(weight.isfinite().all()):
        raise HypothesisError("the weight holds values that are not finite")
    return weight


def _moment(moment: Tensor, width: int, device: torch.device) -> Tensor:
    if moment.shape != (width, width):
        raise ShapeError(f"the second moment must have shape ({width}, {width}), got {tuple(moment.shape)}")
    moment = moment.detach().to(device, torch.float64)
    trace = float(moment.trace())
    # not a number is not close either
    if not (bool(moment.isfinite().all()) and abs(trace - 1.0) <= 1e-4):
        raise HypothesisError(f"a second moment of differences of norm 1 is finite and of trace 1, got trace {trace:g}")
    return moment


def _tokens(tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens must be a whole number of at least 1, got {tokens!r}")
    return tokens


def _tall(weight: Tensor) -> Tensor:
    return weight if weight.shape[0] >= weight.shape[1] else weight.T


def _step(shares: Tensor) -> int:
    return max(1, AT_ONCE // len(shares))
