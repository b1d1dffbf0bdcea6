"""A head for the task: logistic regression on the pooled features of the model, as a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitplast.task_head import head_features, logistic_rows
from vitplast.training.batches import Images
from vitplast.training.origin import classes

#: Images in the model at a time.
_BATCH = 64


def fitted_head(model: nn.Module, inputs: Images, labels: Tensor, *, c: float = 1.0, max_iter: int = 5000) -> nn.Linear:
    """`z -> W z + b`: `vitplast.task_head.logistic_rows` on the features z that the head of `model` reads.

    A class without an image gets weights of 0 and the smallest bias of all.

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
    rows = torch.arange(len(inputs)).split(_BATCH)
    features = head_features(model, (inputs.at(one) for one in rows)).numpy(force=True)
    fitted = logistic_rows(features, labels.numpy(force=True), c=c, max_iter=max_iter)
    like = model.head.weight
    head = nn.Linear(features.shape[1], outputs, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(float(fitted.bias.min()))
        head.weight[fitted.classes] = torch.from_numpy(fitted.weight).to(like)
        head.bias[fitted.classes] = torch.from_numpy(fitted.bias).to(like)
    return head.requires_grad_(False)
