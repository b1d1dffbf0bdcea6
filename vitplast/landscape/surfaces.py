"""The two surfaces: loss over a plane of weights, rate of change over a plane of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vitplast.errors import HypothesisError, ShapeError
from vitplast.forward_mode import Function, in_precision
from vitplast.landscape.trajectory import write

#: Numbers in the inputs worked on at a time.
_CHUNK = 2**21

Progress = Callable[[], None]


def loss_surface(
    loss: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    directions: Tensor,
    grid: Sequence[float],
    progress: Progress | None = None,
) -> np.ndarray:
    """`L(w + u d_1 + v d_2)` in nats for all u, v of `grid`, float64 (u, v); parameters are put back.

    Parameters
    ----------
    loss
        Returns the loss for the parameters as they are.
    directions
        Shape (2, P), in the order of `parameters`.
    grid
        Values of u and of v, in the unit of the weights.
    progress
        Called after each point.

    Raises
    ------
    ShapeError
        If the directions do not fit the parameters.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([1.0, 0.0]))
    >>> loss_surface(lambda: w.square().sum(), [w], torch.eye(2), [0.0, 1.0]).tolist()
    [[1.0, 2.0], [4.0, 5.0]]
    """
    parameters = list(parameters)
    start = parameters_to_vector(parameters).detach().clone()
    if tuple(directions.shape) != (2, start.numel()):
        raise ShapeError(f"two directions of {start.numel()} numbers are needed, got shape {tuple(directions.shape)}")
    found = np.empty((len(grid), len(grid)))
    try:
        with torch.no_grad():
            moved = torch.empty_like(start)
            for i, u in enumerate(grid):
                row = torch.add(start, directions[0], alpha=float(u))
                for j, v in enumerate(grid):
                    torch.add(row, directions[1], alpha=float(v), out=moved)
                    write(parameters, moved)
                    found[i, j] = float(loss())
                    if progress is not None:
                        progress()
    finally:
        write(parameters, start)
    return found


def orthogonal_to(vectors: Tensor, directions: Tensor) -> Tensor:
    """`(s - <s, d> d) / ||s - <s, d> d||` for each pair of a vector s and a unit direction d, both (B, n, d).

    Raises
    ------
    HypothesisError
        If a vector has the direction d itself.

    Examples
    --------
    >>> orthogonal_to(torch.ones(1, 1, 2), torch.tensor([[[1.0, 0.0]]])).tolist()
    [[[0.0, 1.0]]]
    """
    rest = vectors - (vectors * directions).sum((1, 2), keepdim=True) * directions
    size = torch.linalg.vector_norm(rest, dim=(1, 2), keepdim=True)
    if bool((size <= 1e-9 * torch.linalg.vector_norm(vectors, dim=(1, 2), keepdim=True)).any()):
        raise HypothesisError("a vector is parallel to the direction that it must be made orthogonal to")
    return rest / size


def rate_surface(f: Function, x: Tensor, first: Tensor, second: Tensor, grid: Sequence[float]) -> np.ndarray:
    """`||f(x + h) - f(x)|| / ||h||`, `h = u d_1 + v d_2`, mean over the inputs; float64 (u, v).

    At u = v = 0 the rate depends on the direction in which 0 is reached: there it is NaN. A grid of an even number of
    points about 0 leaves it out.

    Parameters
    ----------
    f
        Maps (B, n, d) to (B, ...), each sample on its own; a module is evaluated in float64, itself untouched.
    x, first, second
        Inputs and the two directions of each, all (B, n, d).
    grid
        Values of u and of v, in the unit of the inputs.

    Raises
    ------
    ShapeError
        If the directions have another shape than the inputs.

    Examples
    --------
    >>> x, e = torch.zeros(1, 1, 2), torch.eye(2)[:, None, None]
    >>> rate_surface(lambda z: 3 * z, x, e[0], e[1], [-1.0, 1.0]).round(12).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    if first.shape != x.shape or second.shape != x.shape:
        raise ShapeError(f"directions must have the shape of the inputs, {tuple(x.shape)}")
    g = in_precision(f, torch.float64)
    u, v = torch.meshgrid(*[torch.as_tensor(grid, dtype=torch.float64, device=x.device)] * 2, indexing="ij")
    total = torch.zeros(u.numel(), dtype=torch.float64, device=x.device)
    with torch.no_grad():
        for one, d1, d2 in zip(x.double(), first.double(), second.double(), strict=True):
            here = g(one[None])
            for rows in torch.arange(u.numel(), device=x.device).split(max(1, _CHUNK // one.numel())):
                h = u.flatten()[rows, None, None] * d1 + v.flatten()[rows, None, None] * d2
                change = torch.linalg.vector_norm((g(one + h) - here).flatten(1), dim=1)
                total[rows] += change / torch.linalg.vector_norm(h, dim=(1, 2))
    return (total / len(x)).reshape(u.shape).numpy(force=True)
