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

from vitplast.bounds.token_record import Record
from vitplast.components import COMPONENTS, Part, parts
from vitplast.errors import HypothesisError, InputError, ModeError, ShapeError, UnknownNameError
from vitplast.layouts import Layout, layout_of
from vitplast.measure.sides import check_pixels

if TYPE_CHECKING:
    from vitplast.images import ImageSplit
    from vitplast.models import LoadedModel
    from vitplast.texts import TextSplit

#: One side of the pairs: images, batches of images, some images of a split (needs a `LoadedModel`), or some texts.
Side = Tensor | Iterable[Tensor] | tuple["ImageSplit | TextSplit", Sequence[int]]

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
        A model of one of the families of `vitplast.layouts` in evaluation mode, or a `LoadedModel` that holds one.
    sides
        Both sides of the pairs (a bound holds only for tokens that were looked at), each one of: normalised float
        images (N, C, H, W); an iterable of such batches; `(split, indices)`, where an index that comes twice counts
        once and the images are prepared by the `LoadedModel`. Texts come as `(split, indices)` alone, each with all its
        tokens, so that what is compared of a pair is among them.
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
    (convention, layer, feature), the mean token at the input of MHA; attributes tokens (of the longest text), width (of
    the embedding) and images.

    Raises
    ------
    ModeError
        If a part of the model is in training mode.
    HypothesisError
        If there are no images, a token is not finite, or all tokens are the same for all images.
    ShapeError
        If images have not four dimensions or their number of tokens changes.
    PixelError, InputError
        If a pixel is not finite, images look like 0..255, not normalised, or a side is of texts and the model of
        images or the other way round.
    """
    prepare = getattr(model, "prepare", None)
    model = model if isinstance(model, nn.Module) else model.model
    for name in conventions:
        if name not in CONVENTIONS:
            raise UnknownNameError("convention", name, CONVENTIONS)
    if any(module.training for module in model.modules()):
        raise ModeError("the model is in training mode; call model.eval() first")
    family, layout = layout_of(model), parts(model)
    varying = family.text
    embedding, inputs = Record(varying), {(p.layer, p.component): Record(varying) for p in layout}
    in_situ = "in_situ" in conventions
    place = next(model.parameters())
    known = sum(len(np.unique(s[1])) if _is_split(s) else len(s) if isinstance(s, Tensor) else 0 for s in sides)
    with _listening(model, family, layout, embedding, inputs if in_situ else {}):
        for batch in _batches(sides, batch_size, prepare, family):
            batch = batch.to(place.device) if family.text else batch.to(place.device, place.dtype)
            # The forward pass of features leaves out the head, which no component needs.
            with suppress(_EmbeddingSeen):
                family.features(model, batch)
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


def _is_split(side: Side) -> bool:
    return isinstance(side, tuple) and len(side) == 2 and (hasattr(side[0], "images") or _is_text(side))


def _is_text(side: Side) -> bool:
    return isinstance(side, tuple) and len(side) == 2 and hasattr(side[0], "lengths")


def _batches(
    sides: Sequence[Side], batch_size: int, prepare: Callable[[Tensor], Tensor] | None, family: Layout
) -> Iterator[Tensor]:
    names = ("source", "target") if len(sides) == 2 else ("given",) * len(sides)
    for number, side in enumerate(sides):
        if _is_text(side) != family.text:
            raise InputError(
                f"the {names[number]} are {'texts' if _is_text(side) else 'images'}, but the model takes "
                f"{'texts, given as (split, indices)' if family.text else 'images'}"
            )
        if family.text:
            yield from side[0].batches(side[1], batch_size)
            continue
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
    model: nn.Module, family: Layout, layout: list[Part], embedding: Record, inputs: dict[tuple[int, str], Record]
) -> Iterator[None]:
    """Feeds the records from forward pre-hooks, which are gone when the block ends, whatever happened in it."""

    def hook(record: Record) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            record.add(args[0] if args else next(iter(kwargs.values())))
            if not inputs:
                raise _EmbeddingSeen

        return note

    watched = [(family.first_block(model), embedding)]
    if inputs:
        # several modules that are one component are fed the same input
        watched += [(next(iter(p.members.values())), inputs[p.layer, p.component]) for p in layout]
    handles = []
    try:
        for module, record in watched:
            handles.append(module.register_forward_pre_hook(hook(record), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
