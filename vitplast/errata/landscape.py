"""B9: directions and parameters of the loss-landscape figure.

Valid versions: `vitplast.local.local_lipschitz` finds the most sensitive direction, and a generator of its own seeds
every panel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitplast.components import groups
from vitplast.errors import HypothesisError
from vitplast.local import push_forward


def norm_direction(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """As the authors' code does it: the unit gradient of `||f(x)||`, called the most sensitive direction.

    It is `J^T f(x)` up to its length, which has nothing to do with the top singular vector of J: where `||f||` is
    constant it vanishes.

    Raises
    ------
    HypothesisError
        If the gradient is exactly zero.
    """
    x = x.detach().clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(f(x).norm(), x)
    if not gradient.any():
        raise HypothesisError("the norm of the output does not depend on the input: there is no such direction")
    return gradient / gradient.norm()


def gain(f: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> float:
    """`||J_f(x) u||` for the unit vector u along `direction`.

    Examples
    --------
    >>> gain(lambda x: 3 * x, torch.zeros(2), torch.ones(2))
    3.0
    """
    return float(push_forward(f, x, direction / direction.norm()).norm())


def seeded_once(shape: Sequence[int], components: Sequence[str], seed: int = 42) -> dict[str, Tensor]:
    """As the authors' code does it: one seed for all panels, so a panel's signs depend on how many came before it."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(0, 2, tuple(shape), generator=generator) * 2 - 1 for name in components}


def seeded_each(shape: Sequence[int], components: Sequence[str], seed: int = 42) -> dict[str, Tensor]:
    """One seed a panel: the same signs whatever was drawn before."""
    return {name: seeded_once(shape, [name], seed)[name] for name in components}


def moved_scalars(model: nn.Module, component: str) -> tuple[int, int]:
    """Scalars of a component in all blocks, which the loss surface moves, and in block 0, whose rate is shown.

    Examples
    --------
    >>> import timm
    >>> model = timm.models.vision_transformer.VisionTransformer(32, 16, embed_dim=8, depth=3, num_heads=2)
    >>> moved_scalars(model, "LN1")
    (48, 16)
    """
    parameters = dict(model.named_parameters())
    names = groups(model)[component]
    of_block = [name for name in names if name.startswith("blocks.0.")]
    return tuple(sum(parameters[name].numel() for name in chosen) for chosen in (names, of_block))
