"""Gradient descent of some parameters, and the plane in which it mostly runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vitplast.errors import HypothesisError, InputError

#: Numbers of one displacement that are worked on at a time, in float64.
_CHUNK = 2**18
#: Second variance over the first below which a trajectory counts as straight.
STRAIGHT = 1e-14
#: Rates down to 2 to the power of minus this are tried.
SMALLEST = 40


class Descent(NamedTuple):
    """`w_t - w_0` for t = 0 ... T in `moves` (T + 1, P), and the loss at each w_t in nats, (T + 1,)."""

    moves: Tensor
    losses: np.ndarray


class Plane(NamedTuple):
    """Two orthonormal `directions` (2, P), and the share of the trajectory's variance along each, (2,)."""

    directions: Tensor
    explained: np.ndarray


def descend(
    loss: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    *,
    steps: int,
    lr: float,
    within: float = math.inf,
    falling: bool = False,
) -> Descent | None:
    """`w_{t+1} = w_t - lr grad L(w_t)`: plain gradient descent on one and the same loss; parameters are put back.

    Parameters
    ----------
    loss
        Returns the loss as a scalar that depends on `parameters`.
    parameters
        What moves. All `T + 1` displacements are kept, in the precision of the parameters: for the attention of all
        blocks of a ViT-S and 20 steps that is 0.6 GB.
    steps, lr
        At least 2 steps, and a rate above 0.
    within, falling
        None is returned, as soon as it is known, if a displacement exceeds `within`, or if `falling` and a step does
        not lower the loss.

    Raises
    ------
    InputError
        If `steps` is below 2 or `lr` not above 0.
    HypothesisError
        If the loss stops being finite.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([2.0]))
    >>> descend(lambda: w.square().sum() / 2, [w], steps=2, lr=0.5).moves.flatten().tolist()
    [0.0, -1.0, -1.5]
    """
    if steps < 2 or not lr > 0:
        raise InputError(f"a trajectory needs 2 steps or more and a rate above 0, got steps={steps} and lr={lr}")
    parameters = list(parameters)
    start = parameters_to_vector(parameters).detach().clone()
    moves = start.new_zeros(steps + 1, start.numel())
    losses = np.full(steps + 1, math.nan)
    optimizer = torch.optim.SGD(parameters, lr=lr)
    try:
        for step in range(steps + 1):
            with torch.enable_grad():
                value = loss()
            losses[step] = float(value.detach())
            if not math.isfinite(losses[step]) and not falling:
                raise HypothesisError(f"the loss is {losses[step]} after {step} steps of rate {lr}; take a lower rate")
            if falling and step and not losses[step] < losses[step - 1]:
                return None
            if step < steps:
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                torch.sub(parameters_to_vector(parameters).detach(), start, out=moves[step + 1])
                if not float(torch.linalg.vector_norm(moves[step + 1])) <= within:
                    return None
    finally:
        write(parameters, start)
        optimizer.zero_grad(set_to_none=True)
    return Descent(moves, losses)


def longest_descent(
    loss: Callable[[], Tensor], parameters: Sequence[nn.Parameter], *, steps: int, within: float
) -> tuple[Descent, float]:
    """`descend` with the largest rate `2^-k`, k = 0, 1, ..., whose every step lowers L and stays `within` of the start.

    So that the paths of components whose gradients differ by orders of magnitude can be seen in one picture, and are
    descents: no rate does both for LN1 and MHA. Beside the path comes the rate.

    Raises
    ------
    HypothesisError
        If there is none up to k = 40; the gradient is 0, or the start a minimum.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([1.0]))
    >>> longest_descent(lambda: 7 * w.square().sum(), [w], steps=3, within=2.0)[1]
    0.125
    """
    for k in range(SMALLEST + 1):
        found = descend(loss, parameters, steps=steps, lr=2.0**-k, within=within, falling=True)
        if found is not None:
            return found, 2.0**-k
    raise HypothesisError(f"no rate from 1 to 2^-{SMALLEST} lowers the loss in {steps} steps (a gradient of 0?)")


def write(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copies one long vector into the parameters, in their order."""
    with torch.no_grad():
        for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))


def plane_of(moves: Tensor, *, with_start: bool = True, seed: int = 0) -> Plane:
    """The two principal directions of the points w_t: top eigenvectors of their covariance, by the Gram matrix.

    Each direction points to where the last point lies. Of a straight trajectory the second direction is drawn at random
    from `seed`, orthogonal to the first, with a share of 0.

    Parameters
    ----------
    moves
        Displacements (T + 1, P), the first of them 0.
    with_start
        Whether the starting point is one of the points; the authors leave it out.

    Raises
    ------
    HypothesisError
        If all points are equal.

    Examples
    --------
    >>> moves = torch.tensor([[0.0, 0, 0], [0, 3, 0], [1, 6, 0], [0, 9, 0]])
    >>> plane = plane_of(moves)
    >>> plane.directions.abs().round(decimals=1).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    >>> plane.explained.round(3).tolist()
    [0.985, 0.015]
    """
    points = moves if with_start else moves[1:]
    gram = torch.zeros(len(points), len(points), dtype=torch.float64, device=points.device)
    for part in points.split(_CHUNK, dim=1):
        centred = part.double() - part.double().mean(dim=0)
        gram += centred @ centred.T
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    if not float(values[0]) > 0:
        raise HypothesisError("the parameters do not move, so there is no direction to show (a gradient of 0?)")
    straight = bool(values[1] <= STRAIGHT * values[0])
    # centred once more: then the points need not be, and rounding leaves nothing of their mean
    vectors = vectors[:, :2] - vectors[:, :2].mean(dim=0)
    directions = torch.cat([(vectors.T @ part.double()).to(part) for part in points.split(_CHUNK, dim=1)], dim=1)
    if straight:
        generator = torch.Generator().manual_seed(seed)
        directions[1] = torch.randn(directions.shape[1], generator=generator, dtype=torch.float64).to(directions)
    first = directions[0] / torch.linalg.vector_norm(directions[0])
    second = directions[1] - (directions[1] @ first) * first
    directions = torch.stack([first, second / torch.linalg.vector_norm(second)])
    signs = torch.where(directions @ moves[-1] < 0, -1.0, 1.0)
    total = values.sum()
    explained = [float(values[0] / total), 0.0 if straight else float(values[1] / total)]
    return Plane(directions * signs[:, None], np.array(explained))


def project(moves: Tensor, directions: Tensor) -> np.ndarray:
    """`<w_t - w_0, d_i>`, shape (T + 1, 2).

    Examples
    --------
    >>> project(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.eye(2)).tolist()
    [[0.0, 0.0], [3.0, 4.0]]
    """
    pairs = zip(moves.split(_CHUNK, dim=1), directions.split(_CHUNK, dim=1), strict=True)
    return sum((m.double() @ d.double().T for m, d in pairs), torch.zeros((), dtype=torch.float64)).numpy(force=True)
