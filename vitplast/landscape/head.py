"""A head for the task: logistic regression on the pooled features of the model, as a linear layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.errors import InputError
from vitplast.probe import logistic
from vitplast.training.batches import Images
from vitplast.training.origin import classes

#: Images in the model at a time.
_BATCH = 64


def fitted_head(model: nn.Module, inputs: Images, labels: Tensor, *, c: float = 1.0, max_iter: int = 5000) -> nn.Linear:
    """`z -> W z + b`: logistic regression (C = `c`) on the standardised features z that the head of `model` reads.

    The scaling is folded into W and b, so the layer takes the features as they are. The problem is convex: the head
    depends on no seed. Of two classes each gets half of the one row that is fitted. A class without an image gets
    weights of 0 and the smallest bias of all.

    Parameters
    ----------
    model
        In evaluation mode, with a linear head, whose place and number of outputs count; its weights do not.
    inputs, labels
        Images and their labels, shape (N,).

    Returns
    -------
    torch.nn.Linear
        On the device and in the precision of the model. The model itself is left alone.

    Raises
    ------
    InputError
        If the model has no linear head, or all labels are equal.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False, num_classes=2).eval()
    >>> images = torch.cat([torch.zeros(3, 3, 160, 160), torch.ones(3, 3, 160, 160)])
    >>> inputs = Images(images, None, torch.device("cpu"), torch.float32)
    >>> model.head = fitted_head(model, inputs, torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> model(images).argmax(1).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    outputs = classes(model)
    y = labels.numpy(force=True)
    if len(np.unique(y)) < 2:
        raise InputError(f"all {len(y)} labels are {int(y[0])}: there is no head to fit")
    with torch.no_grad():
        found = [
            model.forward_head(model.forward_features(inputs.at(rows)), pre_logits=True).double()
            for rows in torch.arange(len(inputs)).split(_BATCH)
        ]
    scaler, fit = (step for _, step in logistic(torch.cat(found).numpy(force=True), y, max_iter, c)[0].steps)
    rows, biases = fit.coef_, fit.intercept_
    if len(fit.classes_) == 2:
        rows, biases = np.concatenate([-rows, rows]) / 2, np.concatenate([-biases, biases]) / 2
    rows = rows / scaler.scale_
    biases = biases - rows @ scaler.mean_
    like = model.head.weight
    head = nn.Linear(rows.shape[1], outputs, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(float(biases.min()))
        head.weight[fit.classes_] = torch.from_numpy(rows).to(like)
        head.bias[fit.classes_] = torch.from_numpy(biases).to(like)
    return head.requires_grad_(False)
