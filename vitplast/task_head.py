"""What a head fitted to a task is made of: the features that it reads, and its logistic regression without scaling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError
from vitplast.probe import logistic


class Rows(NamedTuple):
    """One row of `weight` (K, E) and number of `bias` (K,) for each of the K `classes` that have a label."""

    classes: np.ndarray
    weight: np.ndarray
    bias: np.ndarray


@torch.no_grad()
def head_features(model: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """What the head of a timm model takes in, float64 (N, E)."""
    return torch.cat([model.forward_head(model.forward_features(b), pre_logits=True).double() for b in batches])


def logistic_rows(features: np.ndarray, labels: np.ndarray, *, c: float = 1.0, max_iter: int = 5000) -> Rows:
    """`W = A / s`, `b = a - W m`: logistic regression `A (z - m) / s + a` of `vitplast.probe.logistic`, unscaled.

    m and s are mean and deviation of the features z, so `W z + b` takes them as they are. Of two classes each gets half
    of the one row that is fitted. The problem is convex: the result depends on no seed.

    Parameters
    ----------
    features, labels
        Shapes (N, E) and (N,).
    c, max_iter
        Inverse strength of the penalty, and most iterations of the solver.

    Raises
    ------
    InputError
        If all labels are equal.

    Examples
    --------
    >>> rows = logistic_rows(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 3, 3]))
    >>> rows.classes.tolist(), (rows.weight @ [2.5] + rows.bias).round(9).tolist()
    ([0, 3], [0.0, 0.0])
    """
    if len(np.unique(labels)) < 2:
        raise InputError(f"all {len(labels)} labels are {int(labels[0])}: there is no head to fit")
    scaler, fit = (step for _, step in logistic(features, labels, max_iter, c)[0].steps)
    weight, bias = fit.coef_, fit.intercept_
    if len(fit.classes_) == 2:
        weight, bias = (np.concatenate([-one, one]) / 2 for one in (weight, bias))
    weight = weight / scaler.scale_
    return Rows(fit.classes_, weight, bias - weight @ scaler.mean_)
