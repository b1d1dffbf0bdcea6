"""The head that a gradient needs: with the new head of zeros no gradient would reach any component."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError, UnknownNameError

#: probe: logistic regression on the frozen features; steps: a few gradient steps from zero; random: as it was drawn.
HEADS = ("probe", "steps", "random")
#: Gradient steps of "steps", each of length 1 / L, L the largest curvature of the cross-entropy in the head.
STEPS = 10


@torch.no_grad()
def head_features(model: nn.Module, batches: Iterator[Tensor]) -> Tensor:
    """What the head of a timm model takes in, float64 (N, E)."""
    return torch.cat([model.forward_head(model.forward_features(b), pre_logits=True).double() for b in batches])


def fit_head(model: nn.Module, features: Tensor, labels: Tensor, how: str = "probe") -> None:
    """Sets `model.head` so that its logits say something about the labels; nothing else changes.

    "probe", linear probing before finetuning: scikit-learn's logistic regression (C = 1) on standardised features, the
    standardisation folded into the head. "steps": `STEPS` steps of full-batch gradient descent from zero, as the
    beginning of a finetuning of the head alone; no class is ever sure, so that gradients keep their size. "random": the
    head stays as it is. Classes without a label have logit 0 under "probe".

    Parameters
    ----------
    features
        From `head_features`, of images other than those whose gradients are taken: a head that fits them perfectly
        leaves no gradient.
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
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a head that has not converged serves as well
        fitted = LogisticRegression(C=1.0, max_iter=1000).fit(scaler.transform(x), labels)
    coefficients, intercept = fitted.coef_, fitted.intercept_
    if len(fitted.classes_) == 2:  # one row for the second class
        coefficients, intercept = (np.concatenate([-v, v]) / 2 for v in (coefficients, intercept))
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    weight[fitted.classes_] = coefficients / scaler.scale_
    bias[fitted.classes_] = intercept - weight[fitted.classes_] @ scaler.mean_
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
