"""Several modules that are one component: they are fed the same input, and their outputs stand one after the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Stacked(nn.Module):
    """`x -> (f_1(x), f_2(x), ...)` along the last axis. It is no part of the model: hooks belong on its members.

    Examples
    --------
    >>> both = Stacked({"gate": nn.Linear(2, 3), "up": nn.Linear(2, 3)})
    >>> both(torch.ones(1, 2)).shape, list(both.members)
    (torch.Size([1, 6]), ['gate', 'up'])
    """

    def __init__(self, members: dict[str, nn.Module]) -> None:
        super().__init__()
        self.members = dict(members)  # a plain dictionary: the modules stay children of the model alone
        self.training = any(module.training for module in self.members.values())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x) for module in self.members.values()], dim=-1)
