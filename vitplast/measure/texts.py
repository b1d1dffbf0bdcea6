"""Texts as the two sides of the pairs: each pair is cut to the tokens that both of its texts have.

Under a causal mask a token does not depend on those after it, so cutting a text changes nothing of what is left; and
because pairs of the same number of tokens go through the model together, there is no padding in any distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitplast.errors import InputError, IntegrityError
from vitplast.layouts import layout_of


class TextSide:
    """The source or target texts of a measurement; `side(index, length)` are their first tokens, on the device.

    Raises
    ------
    InputError
        If the model takes images, or has fewer positions than a text has tokens.
    IntegrityError
        If a token id is outside the model's vocabulary: another model's tokenizer.
    """

    def __init__(self, name: str, split: Any, model: nn.Module) -> None:
        if not layout_of(model).text:
            raise InputError(f"the {name} are texts, but {type(model).__name__} takes images")
        self.name, self.split = name, split
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.ids, self.groups, self.lengths = split.ids, split.groups, split.lengths
        positions, vocabulary = model.config.max_position_embeddings, model.get_input_embeddings().num_embeddings
        if int(self.lengths.max()) > positions:
            raise InputError(f"the {name} has texts of {int(self.lengths.max())} tokens, the model takes {positions}")
        if split.largest >= vocabulary:
            raise IntegrityError(f"the {name} has token {split.largest}, the model knows {vocabulary} tokens")

    def __len__(self) -> int:
        return len(self.split)

    def __call__(self, index: np.ndarray, length: int) -> Tensor:
        return self.split.tokens(index, length).to(self.device)


def compared(x: TextSide, y: TextSide, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Tokens of each side that are compared in each pair: the smaller of the two numbers of tokens, int64 (pairs,)."""
    return np.minimum(x.lengths[source], y.lengths[target])


def walk(
    engine: Any, x: TextSide, ys: dict[str, TextSide], index: dict[str, tuple[np.ndarray, np.ndarray]], batch_size: int
) -> Iterator[tuple[str, np.ndarray, tuple[Tensor, Tensor, Tensor]]]:
    """Pairs of the same number of tokens together, at most `batch_size` texts in the model at a time."""
    step = engine.pairs_at_once(1, batch_size)
    for name, y in ys.items():
        source, target = index[name]
        lengths = compared(x, y, source, target)
        for length in np.unique(lengths):
            same = np.flatnonzero(lengths == length)
            for start in range(0, len(same), step):
                places = same[start : start + step]
                texts = x(source[places], int(length)), [y(target[places], int(length))]
                (measured,) = engine.pairwise(*texts)
                yield name, places, measured
