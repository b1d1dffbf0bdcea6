"""Local rates: `||J_f(X) u||` along directions, and `||J_f(X)||_2` by power iteration on `J^T J` (Theorem 2).

The Jacobian is never formed: `J u` comes from forward mode, `J^T w` from backward mode. What comes out is the gain of a
direction that was found, so a **lower estimate** of `||J||_2`; over a grid of points it estimates a supremum from
below. Neither is a bound.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp

from vitplast.errors import HypothesisError, InputError, ModeError, ShapeError
from vitplast.forward_mode import Function, in_precision, math_attention, push_forward

__all__ = [
    "FLOAT64_LIMIT",
    "Local",
    "directional_rate",
    "local_lipschitz",
    "math_attention",
    "push_forward",
    "segment_gains",
    "segment_lipschitz",
]

#: Largest n d for which all iterations run in float64; above it only the last pass does.
FLOAT64_LIMIT = 200_000
#: Numbers in the inputs worked on at a time.
_CHUNK = 2**21


class Local(NamedTuple):
    """What the power iteration found for each of B samples: `||J u|| = norm` for the unit `direction` u."""

    norm: Tensor  # (B,), a lower estimate of ||J||_2
    direction: Tensor  # (B, n, d)
    iterations: int
    converged: Tensor  # (B,), bool


def local_lipschitz(
    f: Function,
    x: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 200,
    seed: int = 0,
) -> Local:
    """`max_u ||J_f(X) u||` over the directions reached by `u <- J^T J u / ||J^T J u||`: at most `||J_f(X)||_2`.

    Each sample starts from one random direction and from `start`, if given; the larger result is kept. A sample has
    converged when its value has twice in a row changed by less than `tolerance`, relatively.

    Parameters
    ----------
    f
        Maps (B, n, d) to (B, ...), each sample on its own and differentiably. A module is evaluated with its weights
        in the precision of the iteration; a plain function must take float64 (and float32 where n d > 2e5).
        Attention modules want `math_attention`.
    x
        Shape (B, n, d).
    start
        Shape (B, n, d), for pairs `Y - X`; its length does not matter, but must not be 0.
    tolerance, max_iterations, seed
        When to stop, and the seed of the random direction.

    Raises
    ------
    ModeError
        If `f` is a module and a part of it is in training mode.
    ShapeError
        If `x` has not three dimensions, or `start` or the output does not fit it.
    HypothesisError
        If inputs, outputs or derivatives are not finite, or a start is zero.
    InputError
        If `tolerance` is negative, `max_iterations` below 1, or `f` has no forward derivative (see `push_forward`).

    Examples
    --------
    >>> W = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    >>> local_lipschitz(lambda x: x @ W.T, torch.zeros(1, 4, 2)).norm.item()
    3.0
    """
    if not tolerance >= 0 or max_iterations < 1:
        raise InputError(f"need tolerance >= 0 and max_iterations >= 1, got {tolerance} and {max_iterations}")
    x = _checked(f, x)
    generator = torch.Generator().manual_seed(seed)
    starts = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)]
    if start is not None:
        starts.append(_same_shape(start, x, "start"))
    starts = [_unit(s, "start") for s in starts]
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, _CHUNK // (len(starts) * x[0].numel()))):
        points = x[rows].repeat(len(starts), 1, 1)
        parts.append(_iterate(f, points, torch.cat([s[rows] for s in starts]), tolerance, max_iterations))
    found = [torch.cat([p[i].unflatten(0, (len(starts), -1)) for p in parts], dim=1) for i in (0, 1, 3)]
    norm, direction, converged = found
    best = norm.argmax(dim=0)
    each = torch.arange(len(x), device=x.device)
    return Local(norm[best, each], direction[best, each], max(p[2] for p in parts), converged[best, each])


def segment_lipschitz(f: Function, x: Tensor, y: Tensor, *, points: int = 11, **options: object) -> Tensor:
    """`||J_f(Z_t)||_2` from below at `Z_t = (1 - t) X + t Y`, `t = 0 ... 1` in `points` steps; shape (B, points).

    Its largest value estimates the supremum of Theorem 2 from below, so it is no bound on the rate of the pair.
    The iteration starts from `Y - X`; `options` are those of `local_lipschitz`.

    Raises
    ------
    HypothesisError
        If a pair coincides. Else as `local_lipschitz`.

    Examples
    --------
    >>> x, y = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> segment_lipschitz(lambda z: z**2, x, y, points=3).tolist()
    [[0.0, 1.0, 2.0]]
    """
    z, u = _segment(f, x, y, points)
    found = local_lipschitz(f, z.flatten(0, 1), start=u.flatten(0, 1), **options)
    return found.norm.unflatten(0, (len(x), points))


def segment_gains(f: Function, x: Tensor, y: Tensor, *, points: int = 11) -> Tensor:
    """`||J_f(Z_t) u||`, `u = (Y - X) / ||Y - X||`, on the grid of `segment_lipschitz`; shape (B, points) (Theorem 2).

    Their mean over t is at least the rate of the pair, and none exceeds `||J_f(Z_t)||_2`. Errors as there.

    Examples
    --------
    >>> x, y = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    >>> segment_gains(lambda z: z**2, x, y, points=3).mean().item()
    1.0
    """
    z, u = _segment(f, x, y, points)
    return _gains(f, z.flatten(0, 1), u.flatten(0, 1)).unflatten(0, (len(x), points))


def directional_rate(f: Function, x: Tensor, *, draws: int = 16, seed: int = 0) -> Tensor:
    """`mean_u ||J_f(X) u||` over random unit directions u (Definition 1, directional plasticity); shape (B,).

    By Prop. 2 its expectation lies between 0.79 and 1 times `||J||_F / sqrt(n d)`. Every sample gets the same
    `draws` directions. Arguments and errors as `local_lipschitz`.

    Examples
    --------
    >>> round(directional_rate(lambda x: 2 * x, torch.zeros(1, 3, 2), draws=4).item(), 12)
    2.0
    """
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}")
    x = _checked(f, x)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for _ in range(draws):
        u = torch.randn(x.shape[1:], generator=generator, dtype=torch.float64).to(x.device)
        total += _gains(f, x, _unit(u.expand(x.shape), "direction"))
    return total / draws


def _iterate(
    f: Function, x: Tensor, u: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor, int, Tensor]:
    """Norm, direction, iterations and convergence of the power iteration from unit `u`, in the precision it needs."""
    wide = x[0].numel() <= FLOAT64_LIMIT
    dtype = torch.float64 if wide else torch.float32
    g, points = in_precision(f, dtype), x.to(dtype)
    u = u.to(dtype)
    norm = torch.full((len(x),), -1.0, dtype=torch.float64, device=x.device)
    calm = torch.zeros(len(x), dtype=torch.long, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    pullback, pulled = None, None
    iteration = 0
    while len(rows) and iteration < max_iterations:
        iteration += 1
        if pulled is None or len(pulled) != len(rows):
            _, pullback = vjp(g, points[rows])
            pulled = rows
        forward = push_forward(g, points[rows], u[rows])
        size = _sizes(forward, "derivative of f")
        change = (size - norm[rows]).abs() <= tolerance * size
        calm[rows] = torch.where(change, calm[rows] + 1, 0)
        norm[rows] = size
        rows = rows[calm[rows] < 2]
        if len(rows) and iteration < max_iterations:
            going = calm[pulled] < 2
            back = pullback(forward)[0][going]
            length = _sizes(back, "derivative of f")
            moved = back / torch.where(length > 0, length, 1.0).to(dtype)[:, None, None]
            u[rows] = torch.where((length > 0)[:, None, None], moved, u[rows])
    if not wide:
        u = _unit(u.double(), "direction")
        norm = _gains(f, x, u)
    return norm, u, iteration, calm >= 2


def _gains(f: Function, x: Tensor, u: Tensor) -> Tensor:
    """`||J_f(X) u||` in float64, shape (B,)."""
    g = in_precision(f, torch.float64)
    rows = max(1, _CHUNK // x[0].numel())
    parts = [push_forward(g, a, b) for a, b in zip(x.double().split(rows), u.double().split(rows), strict=True)]
    return torch.cat([_sizes(p, "derivative of f") for p in parts])


def _segment(f: Function, x: Tensor, y: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """`Z_t` and the direction, both of shape (B, points, n, d)."""
    if points < 2:
        raise InputError(f"a segment needs two points or more, got {points}")
    x = _checked(f, x)
    y = _same_shape(y, x, "y")
    t = torch.linspace(0, 1, points, dtype=torch.float64, device=x.device)[:, None, None]
    z = (1 - t) * x[:, None] + t * y[:, None]
    return z, _unit(y - x, "difference of the pair")[:, None].expand_as(z)


def _checked(f: Function, x: Tensor) -> Tensor:
    owner = f if isinstance(f, nn.Module) else getattr(f, "__self__", None)
    if isinstance(owner, nn.Module):
        training = next((name or type(m).__name__ for name, m in owner.named_modules() if m.training), None)
        if training is not None:
            raise ModeError(f"{training} is in training mode; call eval() first")
    if x.ndim != 3 or not x.numel():
        raise ShapeError(f"inputs have shape (samples, tokens, width), none of them 0, got {tuple(x.shape)}")
    return _finite(x.detach().double(), "input")


def _same_shape(y: Tensor, x: Tensor, name: str) -> Tensor:
    if y.shape != x.shape:
        raise ShapeError(f"{name} must have the shape of x, {tuple(x.shape)}, got {tuple(y.shape)}")
    return _finite(y.detach().to(x), name)


def _finite(values: Tensor, name: str) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise HypothesisError(f"the {name} holds values that are not finite")
    return values


def _sizes(values: Tensor, name: str) -> Tensor:
    """Norm of each sample, in float64."""
    return torch.linalg.vector_norm(_finite(values.detach(), name).flatten(1).double(), dim=1)


def _unit(values: Tensor, name: str) -> Tensor:
    largest = values.abs().amax(dim=(1, 2), keepdim=True)
    if not bool((largest > 0).all()):
        raise HypothesisError(f"the {name} of sample {int((largest == 0).flatten().nonzero()[0])} is zero")
    values = values / largest
    return values / torch.linalg.vector_norm(values, dim=(1, 2), keepdim=True)
