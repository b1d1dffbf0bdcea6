"""B6 and B7: the head inside the logged gradient norm, and a warm-up that no configuration file names.

Valid versions: finetuning results hold the component's norm, the head's and the total (`gradient_norm`,
`gradient_norm_head`, `gradient_norm_total`), and `Recipe.warmup` is a field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

from vitplast.components import groups
from vitplast.errors import InputError, UnknownNameError
from vitplast.training.recipe import multiplier


def gradient_norms(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Norm of the gradient of the mean cross-entropy over each group of parameters; the model is left as it was."""
    trains = [p.requires_grad for p in model.parameters()]
    try:
        model.requires_grad_(True)
        loss = cross_entropy(model(images), labels)
        names = {group: list(members) for group, members in groups(model).items()}
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        by_name = {n: g for n, g in zip(parameters, found, strict=True) if g is not None}
        return {k: float(get_total_norm([by_name[n].double() for n in v if n in by_name])) for k, v in names.items()}
    finally:
        for parameter, flag in zip(model.parameters(), trains, strict=True):
            parameter.requires_grad_(flag)


def logged_norm(norms: Mapping[str, float], component: str) -> float:
    """B6 as the authors' code does it: norm over all that trains, the component with head and final norm.

    Raises
    ------
    UnknownNameError
        If the component is not among the norms.

    Examples
    --------
    >>> logged_norm({"LN1": 3.0, "head": 4.0, "norm": 0.0}, "LN1")
    5.0
    """
    if component not in norms:
        raise UnknownNameError("component", component, norms)
    return math.sqrt(sum(norms.get(name, 0.0) ** 2 for name in {component, "norm", "head"}))


def outer_share(norms: Mapping[str, float], component: str) -> float:
    """B6: share of the squared logged norm that is the head's and the final norm's.

    Examples
    --------
    >>> round(outer_share({"LN1": 3.0, "head": 4.0, "norm": 0.0}, "LN1"), 12)
    0.64
    """
    return 1 - norms[component] ** 2 / total**2 if (total := logged_norm(norms, component)) else math.nan


def warmup_share(steps: int, warmup: int) -> float:
    """B7: share of the steps in which the rate still rises.

    Examples
    --------
    >>> warmup_share(4_000, 2_000)
    0.5
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"need one step or more and no negative warm-up, got {steps} and {warmup}")
    return min(1.0, warmup / steps)


def multipliers(steps: int, warmup: int) -> list[float]:
    """B7: the factor on the learning rate at every step, linear up and cosine down (`training.recipe.multiplier`).

    Examples
    --------
    >>> multipliers(4, 2)
    [0.0, 0.5, 1.0, 0.5]
    """
    return [multiplier(step, steps=steps, warmup=warmup) for step in range(steps)]
