"""Norms and deviations of the tokens of many sequences, summed up as they come."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitplast.errors import HypothesisError, ShapeError


class Record:
    """Running statistics of one kind of token sequences, fed batch by batch.

    `varying`: the number of tokens may change from batch to batch; what belongs to a place in the sequence is then
    taken over the sequences that reach it.

    Raises
    ------
    ShapeError
        If a sequence does not fit those before it.
    HypothesisError
        If a token is not finite, or (from `summary`) all tokens are the same for all sequences.
    """

    def __init__(self, varying: bool = False) -> None:
        self.varying = varying
        self.images = self.tokens = self.width = self.tokens_seen = 0
        self.radius_sum, self.radius_max = 0.0, 0.0

    def add(self, sequences: Tensor) -> None:
        if sequences.ndim != 3:
            raise ShapeError(f"components take (images, tokens, features), got {tuple(sequences.shape)}")
        count, tokens, width = sequences.shape
        x = sequences.detach().double()
        norms = torch.linalg.vector_norm(x, dim=-1)
        if not bool(norms.isfinite().all()):
            raise HypothesisError("a token that enters a component is not finite")
        std = x.std(dim=-1, correction=0)
        if self.images and (width != self.width or (tokens != self.tokens and not self.varying)):
            raise ShapeError(f"{tokens} tokens of width {width} after {self.tokens} of width {self.width}")
        if tokens > self.tokens:
            self._reach(x, std)
        self.same[:tokens] &= (x == self.first[:tokens]).all(dim=-1).all(dim=0)
        self.images += count
        self.tokens_seen += count * tokens
        self.radius_sum += float(norms.square().mean(dim=-1).sqrt().sum())
        self.radius_max = max(self.radius_max, float(norms.max()))
        self.token_sum += x.sum(dim=(0, 1))
        self.std_min[:tokens] = torch.minimum(self.std_min[:tokens], std.amin(dim=0))
        self.std_sum[:tokens] += std.sum(dim=0)
        self.seen[:tokens] += count

    def _reach(self, x: Tensor, std: Tensor) -> None:
        """Makes room for the places of the sequence that no earlier one had."""
        new, old = x[0], self.tokens
        if not self.images:
            self.width, self.token_sum = x.shape[-1], torch.zeros_like(new[0])
            self.first, self.std_min, self.std_sum = new[:0], std[0, :0], std[0, :0]
            self.same = torch.ones(0, dtype=torch.bool, device=x.device)
            self.seen = torch.zeros(0, dtype=torch.int64, device=x.device)
        self.first = torch.cat([self.first, new[old:]])
        self.std_min = torch.cat([self.std_min, std[0, old:]])
        self.std_sum = torch.cat([self.std_sum, torch.zeros_like(std[0, old:])])
        self.same = torch.cat([self.same, self.same.new_ones(len(new) - old)])
        self.seen = torch.cat([self.seen, self.seen.new_zeros(len(new) - old)])
        self.tokens = len(new)

    @property
    def centre(self) -> np.ndarray:
        """The mean of all tokens, (width,)."""
        return (self.token_sum / self.tokens_seen).cpu().numpy()

    def summary(self, include_constant: bool) -> dict[str, float]:
        counted = torch.ones_like(self.same) if include_constant else ~self.same
        if not bool(counted.any()):
            raise HypothesisError("all tokens are the same for all images: give two different images or more")
        sums, images = self.std_sum[counted], self.images
        mean = float((sums / self.seen[counted]).mean()) if self.varying else float(sums.mean()) / images
        return {
            "radius_rms": self.radius_sum / images,
            "radius_max": self.radius_max,
            "sigma_min": float(self.std_min[counted].min()),
            "sigma_mean": mean,
        }
