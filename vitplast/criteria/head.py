"""The head that a gradient needs: with the new head of zeros no gradient would reach any component."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError, UnknownNameError
from vitplast.task_head import logistic_rows

#: probe: logistic regression on the frozen features; steps: a few gradient steps from zero; random: as it was drawn.
HEADS = ("probe", "steps", "random")
#: Gradient steps of "steps", each of length 1 / L, L the largest curvature of the cross-entropy in the head.
STEPS = 10
#: Most iterations of "probe"; a head that has not converged by then serves as well.
_MOST = 1000


def fit_head(model: nn.Module, features: Tensor, labels: Tensor, how: str = "probe") -> None:
    """Sets `model.head` so that its logits say something about the labels; nothing else changes.

    "probe", linear probing before finetuning: `vitplast.task_head.logistic_rows` (C = 1), classes without a label have
    logit 0. "steps": `STEPS` steps of full-batch gradient descent from zero, as the beginning of a finetuning of the
    head alone; no class is ever sure, so that gradients keep their size. "random": the head stays as it is.

    Parameters
    ----------
    features
        From `vitplast.task_head.head_features`, of images other than those whose gradients are taken: a head that fits
        them perfectly leaves no gradient.
    labels
        Shape (N,), classes of the head.

    Raises
    ------
    UnknownNameError
        If `how` is none of `HEADS`.
    InputError
        If the model has no linear head, or all labels are equal.
    """
    if how not in HEADS:
        raise UnknownNameError("head", how, HEADS)
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        raise InputError("the model has no linear head; load it with num_classes")
    if how == "random":
        return
    labels = torch.as_tensor(labels).cpu().numpy()
    if len(np.unique(labels)) < 2:
        raise InputError(f"all {len(labels)} labels of the head's images are {labels[0]}: there is nothing to learn")
    x = features.detach().cpu().numpy()
    weight, bias = (_probe if how == "probe" else _steps)(x, labels, head.out_features)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        if head.bias is not None:
            head.bias.copy_(torch.from_numpy(bias))


def _probe(x: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rows = logistic_rows(x, labels, max_iter=_MOST)
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    weight[rows.classes], bias[rows.classes] = rows.weight, rows.bias
    return weight, bias


def _steps(x: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import softmax

    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    target = np.eye(classes)[labels]
    # the Hessian of the cross-entropy in the logits is at most 1/2
    rate = 2 * len(x) / np.linalg.norm(x, 2) ** 2
    weight = np.zeros((classes, x.shape[1]))
    for _ in range(STEPS):
        weight += rate * (target - softmax(x @ weight.T, axis=1)).T @ x / len(x)
    return weight[:, :-1], weight[:, -1]
