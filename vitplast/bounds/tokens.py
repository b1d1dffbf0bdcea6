"""What the bounds assume about the inputs of a component, measured: token norms and token deviations.

Statistics are taken over *both* sides of the pairs, image batch by image batch, so memory does not grow with the
number of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.errors import HypothesisError, ModeError, ShapeError, UnknownNameError
from vitplast.measure.sides import check_pixels

if TYPE_CHECKING:
    from vitplast.images import ImageSplit
    from vitplast.models import LoadedModel

#: One side of the pairs: images, batches of images, or some images of a split (needs a `LoadedModel`).
Side = Tensor | Iterable[Tensor] | tuple["ImageSplit", Sequence[int]]

CONVENTIONS = ("common", "in_situ")
_LONG_NAMES = {
    "radius_rms": "root mean square token norm, averaged over images (authors' radius)",
    "radius_max": "largest token norm",
    "sigma_min": "smallest standard deviation of a token that is not the same for all images",
    "sigma_mean": "mean standard deviation of the tokens that are not the same for all images",
}


@torch.no_grad()
def token_statistics(
    model: nn.Module | LoadedModel,
    sides: Sequence[Side],
    *,
    conventions: Sequence[str] = CONVENTIONS,
    batch_size: int = 16,
    include_constant: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """`r = max ||x_i||` and `sigma = min std(x_i)` over the tokens that enter each component, and their averages.

    "common": the tokens of the embedding (input of block 0), the same numbers for all components. "in_situ": the
    tokens that reach each component in the forward pass. Everything is summed up in float64, std with ddof 0.

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode, or a `LoadedModel` that holds one.
    sides
        Both sides of the pairs (a bound holds only for tokens that were looked at), each one of: normalised float
        images (N, C, H, W); an iterable of such batches; `(split, indices)`, where an index that comes twice counts
        once and the images are prepared by the `LoadedModel`.
    conventions
        Which of "common" and "in_situ"; "common" alone runs the embedding only.
    batch_size
        Images at a time, where they do not come in batches.
    include_constant
        By default tokens that are the same for all images (class token and registers at the embedding; found by
        comparing, not by index) do not count for sigma: they have no weight in `||X - Y||` (after Prop. 1).
        True counts them, as in the stored reference values.
    progress
        Called with the images done and their total (as far as known) after each batch.

    Returns
    -------
    Dataset of radius_rms, radius_max, sigma_min, sigma_mean with dims convention, layer, component; centre
    (convention, layer, feature), the mean token at the input of MHA; attributes tokens, width (of the embedding) and
    images.

    Raises
    ------
    ModeError
        If a part of the model is in training mode.
    HypothesisError
        If there are no images, a token is not finite, or all tokens are the same for all images.
    ShapeError
        If images have not four dimensions or the number of tokens changes.
    PixelError, InputError
        If a pixel is not finite, or images look like 0..255, not normalised.
    """
    prepare = getattr(model, "prepare", None)
    model = model if prepare is None else model.model
    for name in conventions:
        if name not in CONVENTIONS:
            raise UnknownNameError("convention", name, CONVENTIONS)
    if any(module.training for module in model.modules()):
        raise ModeError("the model is in training mode; call model.eval() first")
    layout = parts(model)
    embedding, inputs = _Record(), {(p.layer, p.component): _Record() for p in layout}
    in_situ = "in_situ" in conventions
    place = next(model.parameters())
    known = sum(len(np.unique(s[1])) if _is_split(s) else len(s) if isinstance(s, Tensor) else 0 for s in sides)
    with _listening(model, layout, embedding, inputs if in_situ else {}):
        for batch in _batches(sides, batch_size, prepare):
            # The forward pass of features leaves out the head, which no component needs.
            with suppress(_EmbeddingSeen):
                getattr(model, "forward_features", model)(batch.to(place.device, place.dtype))
            if progress:
                progress(embedding.images, max(known, embedding.images))
    if not embedding.images:
        raise HypothesisError("no images were given")
    records = {"common": dict.fromkeys(inputs, embedding), "in_situ": inputs}
    layers = sorted({p.layer for p in layout})
    centre = np.array([[records[c][layer, "MHA"].centre for layer in layers] for c in conventions])
    summaries = {c: {key: r.summary(include_constant) for key, r in records[c].items()} for c in conventions}
    table = {
        name: (
            ("convention", "layer", "component"),
            np.array([[[summaries[c][layer, k][name] for k in COMPONENTS] for layer in layers] for c in conventions]),
            {"units": "1", "long_name": long_name},
        )
        for name, long_name in _LONG_NAMES.items()
    }
    table["centre"] = (("convention", "layer", "feature"), centre, {"units": "1", "long_name": "mean token"})
    return xr.Dataset(
        table,
        coords={
            "convention": list(conventions),
            "layer": np.array(layers, dtype=np.int64),
            "component": list(COMPONENTS),
        },
        attrs={
            "tokens": embedding.tokens,
            "width": embedding.width,
            "images": embedding.images,
            "constant_tokens": "included" if include_constant else "left out of sigma",
        },
    )


class _EmbeddingSeen(Exception):
    """Ends a forward pass after the embedding, when no block has to run."""


class _Record:
    """Running statistics of one kind of token sequences, fed batch by batch."""

    def __init__(self) -> None:
        self.images = self.tokens = self.width = 0
        self.radius_sum, self.radius_max = 0.0, 0.0
        self.first: Tensor | None = None

    def add(self, sequences: Tensor) -> None:
        if sequences.ndim != 3:
            raise ShapeError(f"components take (images, tokens, features), got {tuple(sequences.shape)}")
        count, tokens, width = sequences.shape
        x = sequences.detach().double()
        norms = torch.linalg.vector_norm(x, dim=-1)
        if not bool(norms.isfinite().all()):
            raise HypothesisError("a token that enters a component is not finite")
        std = x.std(dim=-1, correction=0)
        if not self.images:
            self.tokens, self.width, self.first = tokens, width, x[0].clone()
            self.token_sum = torch.zeros_like(x[0, 0])
            self.same = torch.ones(tokens, dtype=torch.bool, device=x.device)
            self.std_min, self.std_sum = std[0].clone(), torch.zeros_like(std[0])
        elif (tokens, width) != (self.tokens, self.width):
            raise ShapeError(f"{tokens} tokens of width {width} after {self.tokens} of width {self.width}")
        if self.first is not None:
            self.same &= (x == self.first).all(dim=-1).all(dim=0)
            if not bool(self.same.any()):
                self.first = None
        self.images += count
        self.radius_sum += float(norms.square().mean(dim=-1).sqrt().sum())
        self.radius_max = max(self.radius_max, float(norms.max()))
        self.token_sum += x.sum(dim=(0, 1))
        self.std_min = torch.minimum(self.std_min, std.amin(dim=0))
        self.std_sum += std.sum(dim=0)

    @property
    def centre(self) -> np.ndarray:
        """The mean of all tokens, (width,)."""
        return (self.token_sum / (self.images * self.tokens)).cpu().numpy()

    def summary(self, include_constant: bool) -> dict[str, float]:
        counted = torch.ones_like(self.same) if include_constant else ~self.same
        if not bool(counted.any()):
            raise HypothesisError("all tokens are the same for all images: give two different images or more")
        return {
            "radius_rms": self.radius_sum / self.images,
            "radius_max": self.radius_max,
            "sigma_min": float(self.std_min[counted].min()),
            "sigma_mean": float(self.std_sum[counted].mean()) / self.images,
        }


def _is_split(side: Side) -> bool:
    return isinstance(side, tuple) and len(side) == 2 and hasattr(side[0], "images")


def _batches(sides: Sequence[Side], batch_size: int, prepare: Callable[[Tensor], Tensor] | None) -> Iterator[Tensor]:
    names = ("source", "target") if len(sides) == 2 else ("given",) * len(sides)
    for number, side in enumerate(sides):
        if isinstance(side, Tensor):
            side = side.split(batch_size)
        elif _is_split(side):
            if prepare is None:
                raise ShapeError("images of a split must be prepared for the model: give a LoadedModel, not a module")
            side = _prepared(*side, batch_size, prepare)
        for batch in side:
            if batch.ndim != 4 or not batch.is_floating_point():
                raise ShapeError(
                    f"images must be normalised floats (N, C, H, W), got {batch.dtype} of shape {tuple(batch.shape)}"
                )
            if len(batch):
                check_pixels(batch, names[number])
                yield batch


def _prepared(
    split: ImageSplit, indices: Sequence[int], batch_size: int, prepare: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    unique = np.unique(np.asarray(indices, dtype=np.int64))
    for start in range(0, len(unique), batch_size):
        yield prepare(split.images(unique[start : start + batch_size]))


@contextmanager
def _listening(
    model: nn.Module, layout: list[Part], embedding: _Record, inputs: dict[tuple[int, str], _Record]
) -> Iterator[None]:
    """Feeds the records from forward pre-hooks, which are gone when the block ends, whatever happened in it."""

    def hook(record: _Record) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            record.add(args[0] if args else next(iter(kwargs.values())))
            if not inputs:
                raise _EmbeddingSeen

        return note

    watched = [(model.blocks[0], embedding)]
    watched += [(p.module, inputs[p.layer, p.component]) for p in layout] if inputs else []
    handles = []
    try:
        for module, record in watched:
            handles.append(module.register_forward_pre_hook(hook(record), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
