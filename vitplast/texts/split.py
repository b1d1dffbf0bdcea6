"""A text set as token ids: what a text is cut to, and with what it is padded if it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitplast.errors import InputError, IntegrityError, MissingDependencyError, UnknownNameError
from vitplast.images.folders import data_folder
from vitplast.images.marker import VARIABLE, allowed
from vitplast.images.marker import read as read_marker
from vitplast.images.problems import MadeUpError
from vitplast.texts.files import Texts
from vitplast.texts.registry import REGISTRY, check_name

if TYPE_CHECKING:
    import torch

#: excluded: a text has its own tokens; counted: every text is filled up with the end token, which counts as a token.
PADDING = ("excluded", "counted")


def open_texts(
    name: str,
    tokenizer: Any,
    *,
    tokens: int = 128,
    padding: str = "excluded",
    root: str | Path | None = None,
) -> TextSplit:
    """The text set `name` through a tokenizer of transformers; at most `tokens` tokens of each text.

    `root` is the data folder, in place of that of the environment variable VITPLAST_DATA.

    Raises
    ------
    UnknownNameError, InputError
        If name, number of tokens or padding is not allowed.
    MissingDependencyError
        If the file is not on this machine; says where it is expected.
    IntegrityError
        If the file is not what it should be (MadeUpError: its texts are invented and that is not allowed).
    """
    return TextSplit(name, read_texts(name, root), tokenizer, tokens=tokens, padding=padding)


def read_texts(name: str, root: str | Path | None = None) -> Texts:
    """The texts of a set as they are in its file; errors as `open_texts`."""
    entry = REGISTRY[check_name(name)]
    folder = data_folder() if root is None else Path(root)
    path = folder / entry.file
    if not allowed() and name in read_marker(folder):
        raise MadeUpError(
            f"text set {name!r} in {folder} is made up: nothing was read. For a test or a rehearsal set {VARIABLE}=1"
        )
    if not path.is_file():
        raise MissingDependencyError(
            f"text set {name!r} is not on this machine: expected {path}. Get it ({entry.origin}) and put the file "
            "there; the environment variable VITPLAST_DATA names another folder."
        )
    return entry.read(path)


class TextSplit:
    """Texts in the order of their file, tokenised when they are first asked for; `len` is the number of texts."""

    def __init__(
        self, name: str, texts: Texts, tokenizer: Any, *, tokens: int = 128, padding: str = "excluded"
    ) -> None:
        if padding not in PADDING:
            raise UnknownNameError("padding", padding, PADDING)
        if type(tokens) is not int or tokens < 2:
            raise InputError(f"tokens must be a whole number from 2, got {tokens!r}")
        self.name, self.texts, self.ids, self.groups = name, texts.texts, texts.ids, texts.units
        self.most, self.padding, self._tokenizer = tokens, padding, tokenizer

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def _all(self) -> list[list[int]]:
        found = self._tokenizer(self.texts, add_special_tokens=False, truncation=True, max_length=self.most)
        ids = [list(map(int, one)) for one in found["input_ids"]]
        empty = [name for name, one in zip(self.ids, ids, strict=True) if not one]
        if empty:
            raise IntegrityError(f"the tokenizer makes no token of {self.name}, {empty[0]}: does it fit the model?")
        if self.padding == "counted":
            end = self._tokenizer.eos_token_id
            if end is None:
                raise InputError("the tokenizer has no end token to pad texts with; take padding='excluded'")
            ids = [one + [int(end)] * (self.most - len(one)) for one in ids]
        return ids

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 (N,): its own, at most `tokens`; with padding counted always `tokens`."""
        return np.array([len(one) for one in self._all], dtype=np.int64)

    @cached_property
    def largest(self) -> int:
        """The largest token id of all texts."""
        return max(max(one) for one in self._all)

    def tokens(self, index: Sequence[int], length: int) -> torch.Tensor:
        """The first `length` tokens of the texts at these positions, int64 (B, length).

        Raises
        ------
        InputError
            If one of the texts has fewer tokens.
        """
        import torch

        short = [self.ids[i] for i in index if self.lengths[i] < length]
        if short:
            raise InputError(f"{self.name}, {short[0]} has fewer than {length} tokens")
        return torch.tensor([self._all[i][:length] for i in index], dtype=torch.int64).reshape(len(index), length)

    def batches(self, index: Sequence[int], batch_size: int) -> Iterator[torch.Tensor]:
        """Each text of `index` once with all its tokens: batches (b <= batch_size, n) of texts of the same length n."""
        unique = np.unique(np.asarray(index, dtype=np.int64))
        for length in np.unique(self.lengths[unique]):
            same = unique[self.lengths[unique] == length]
            for start in range(0, len(same), batch_size):
                yield self.tokens(same[start : start + batch_size], int(length))

    def file_order(self) -> np.ndarray:
        """Positions of the texts in the order of the file, int64 (N,)."""
        return np.arange(len(self), dtype=np.int64)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} texts of at most {self.most} tokens>"
