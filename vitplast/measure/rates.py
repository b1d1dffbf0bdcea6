"""Rates of change of all components: distance of the outputs of a pair over the distance of its inputs (paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.errors import InputError, ShapeError, UnknownNameError
from vitplast.layouts import layout_of
from vitplast.measure import texts
from vitplast.measure.common_input import CommonInput
from vitplast.measure.in_situ import InSitu
from vitplast.measure.rate_table import RateTable, joined
from vitplast.measure.sides import Side, check_mode
from vitplast.pairs import DESIGNS, pair_indices, product_sides

#: Input conventions (Definition 2).
CONVENTIONS = {"common": CommonInput, "in_situ": InSitu}
#: Precision of the forward pass; float32 means the precision of the weights.
PRECISIONS = ("float32", "bfloat16", "float16")

Progress = Callable[[int, int], None]


def rates_of_change(
    model: Any,
    source: Any,
    targets: Any,
    *,
    convention: str,
    design: str = "disjoint",
    pairs: int | None = None,
    seed: int = 0,
    source_index: np.ndarray | None = None,
    target_index: np.ndarray | Mapping[str, np.ndarray] | None = None,
    batch_size: int = 16,
    precision: str = "float32",
    gated: str = "both",
    mha_input: str = "embedding",
    setup: CommonInput | None = None,
    progress: Progress | None = None,
) -> xr.Dataset | dict[str, xr.Dataset]:
    """`rho_f(X, Y) = ||f(X) - f(Y)|| / ||X - Y||` of every component f of every block (Definitions 1 and 2).

    Parameters
    ----------
    model : nn.Module, LoadedModel or LoadedText
        A model of one of the families of `vitplast.layouts`, in evaluation mode; the work is done on its device.
    source, targets : Tensor or split
        Float images (N, C, H, W), normalised; or an image split, whose uint8 images the `prepare` of a loaded model
        normalises. For a model that reads text, a `TextSplit`: both texts of a pair are cut to the number of tokens of
        the shorter one, and distances are over these tokens. A mapping of several targets shares the work on the
        source, and gives one result each.
    convention : {"common", "in_situ"}
        common feeds every component the pair of embeddings (paper; FC2 zero-padded), in situ what really reaches it.
    design, pairs, seed
        Passed to `pair_indices`; `pairs=None` takes the images in the order in which they come.
    source_index, target_index : int array, optional
        The pairs themselves, instead of `pairs` and `seed` (a mapping of target indices for several targets).
    batch_size : int
        Images in the model at a time, of both sides together.
    precision : {"float32", "bfloat16", "float16"}
        Below float32 through autocast. Distances are always differences in float32 or more, summed in float64.
    gated : {"both", "up"}
        FC1 of a gated MLP: gate and up projection, stacked, or the up projection alone (the authors' choice).
    mha_input : {"embedding", "normed"}
        In the common convention normed measures MHA after LN1 of the same block, still relative to the distance of the
        embeddings (the authors' choice for GPT-2). In situ nothing changes.
    setup : CommonInput, optional
        `CommonInput(model, ...)`, to be shared by several calls while the weights stay.
    progress : callable, optional
        Called with (pairs done, pairs in all).

    Returns
    -------
    Dataset with rate, distance_in, distance_out (layer, component, pair), float64 without unit; a dict for a mapping.
    Of texts the coordinate pair_tokens (pair) is the number of tokens compared.

    Raises
    ------
    InputError
        If an argument is not allowed, or the images are not normalised floats (`ShapeError`, `UnknownNameError`).
    ModeError
        If a submodule is in training mode.
    HypothesisError
        If pixels or outputs are not finite, or more than 1 % of the pairs coincide.
    """
    network, prepare = (model, None) if isinstance(model, nn.Module) else (model.model, getattr(model, "prepare", None))
    for kind, value, known in (
        ("convention", convention, CONVENTIONS),
        ("design", design, DESIGNS),
        ("precision", precision, PRECISIONS),
    ):
        if value not in known:
            raise UnknownNameError(kind, value, known)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    check_mode(network)
    several = targets if isinstance(targets, Mapping) else {"target": targets}
    if not several:
        raise InputError("no targets given")
    x = _side("source", source, network, prepare)
    ys = {
        name: _side(f"target {name}" if targets is several else "target", t, network, prepare)
        for name, t in several.items()
    }
    of_text = isinstance(x, texts.TextSide)
    index = {}
    for name, y in ys.items():
        if (source_index is None) != (target_index is None):
            raise InputError("give both source_index and target_index, or neither")
        if source_index is None:
            index[name] = pair_indices(len(x), len(y), pairs, design, seed)
        else:
            chosen = target_index[name] if isinstance(target_index, Mapping) else target_index
            index[name] = _given(source_index, x), _given(chosen, y)
            if len(index[name][0]) != len(index[name][1]):
                raise ShapeError(f"{len(index[name][0])} source images for {len(index[name][1])} target images")
    if of_text and design == "crossed":
        raise InputError("texts of a crossed design differ in their tokens from pair to pair; take disjoint or cycled")
    with _computing(x, precision) as used_precision:
        shared = convention == "common" and setup is not None
        engine = setup if shared else CONVENTIONS[convention](network, gated=gated, mha_input=mha_input)
        walk = texts.walk if of_text else _crossed if design == "crossed" else _pairwise
        tables = {name: RateTable(engine.name, engine.shape, len(index[name][0])) for name in ys}
        done, total = 0, sum(len(source) for source, _ in index.values())
        for name, places, measured in walk(engine, x, ys, index, batch_size):
            tables[name].put(places, *measured)
            done += len(places)
            if progress is not None:
                progress(done, total)
    attrs = {"design": design, "convention": convention, "precision": used_precision, "seed": int(seed)}
    found = {name: tables[name].dataset(x, ys[name], index[name], attrs) for name in ys}
    if of_text:
        found = {name: _with_tokens(ds, texts.compared(x, ys[name], *index[name])) for name, ds in found.items()}
    return found if targets is several else found["target"]


def measure(
    model: Any,
    source: Any,
    targets: Any,
    *,
    conventions: Sequence[str] = tuple(CONVENTIONS),
    source_name: str = "source",
    target_name: str = "target",
    **options: Any,
) -> xr.Dataset | dict[str, xr.Dataset]:
    """Rates of change in several input conventions on the same pairs; `options` are those of `rates_of_change`.

    Returns
    -------
    Dataset as of `rates_of_change` with a first dimension convention, and attributes source and target (the name,
    or the key in the mapping of targets). A pair that is dropped in one convention is dropped in all.
    """
    if not conventions:
        raise InputError(f"no convention named; choose from {', '.join(CONVENTIONS)}")
    for convention in conventions:
        if convention not in CONVENTIONS:
            raise UnknownNameError("convention", convention, CONVENTIONS)
    several = isinstance(targets, Mapping)
    parts = [rates_of_change(model, source, targets, convention=c, **options) for c in conventions]
    if not several:
        return joined(conventions, parts, source_name, target_name)
    return {name: joined(conventions, [p[name] for p in parts], source_name, name) for name in targets}


def _side(name: str, data: Any, network: nn.Module, prepare: Any) -> Side | texts.TextSide:
    """Images or texts, whatever the model takes."""
    if hasattr(data, "lengths"):
        return texts.TextSide(name, data, network)
    if layout_of(network).text:
        raise InputError(f"the {name} are no texts (TextSplit), but {type(network).__name__} reads text")
    return Side(name, data, network, prepare)


def _with_tokens(ds: xr.Dataset, tokens: np.ndarray) -> xr.Dataset:
    words = {"units": "1", "long_name": "tokens of either text that are compared"}
    return ds.assign_coords(pair_tokens=("pair", tokens[ds["pair"].values].astype(np.int64), words))


Walk = Iterator[tuple[str, np.ndarray, tuple[Tensor, Tensor, Tensor]]]
Index = dict[str, tuple[np.ndarray, np.ndarray]]


def _pairwise(engine: Any, x: Side, ys: dict[str, Side], index: Index, batch_size: int) -> Walk:
    source_index = next(iter(index.values()))[0]
    step = engine.pairs_at_once(len(ys), batch_size)
    for start in range(0, len(source_index), step):
        places = np.arange(start, min(start + step, len(source_index)))
        images = x(source_index[places])
        others = [_alike(images, y(index[name][1][places])) for name, y in ys.items()]
        for name, (d_in, d_out, same) in zip(ys, engine.pairwise(images, others), strict=True):
            yield name, places, (d_in, d_out, same)


def _crossed(engine: Any, x: Side, ys: dict[str, Side], index: Index, batch_size: int) -> Walk:
    sides = {name: product_sides(*pair) for name, pair in index.items()}
    rows = next(iter(sides.values()))[0]
    row_step, col_step = engine.tile_sizes(x(rows[:1]), batch_size)
    for r in range(0, len(rows), row_step):
        tile_rows = np.arange(r, min(r + row_step, len(rows)))
        images = x(rows[tile_rows])
        kept = engine.image(images)
        for name, (_, cols) in sides.items():
            for c in range(0, len(cols), col_step):
                tile_cols = np.arange(c, min(c + col_step, len(cols)))
                others = engine.image(_alike(images, ys[name](cols[tile_cols])))
                places = (tile_rows[:, None] * len(cols) + tile_cols).ravel()
                yield name, places, engine.tile(kept, others)


@contextmanager
def _computing(side: Side, precision: str) -> Iterator[str]:
    """No gradients, and autocast to `precision` or none at all; gives the precision that is really used."""
    kind = str(side.dtype).removeprefix("torch.")
    if precision != "float32" and kind != "float32":
        raise InputError(f"precision {precision} needs a model with float32 weights, these are {kind}")
    half = precision != "float32"
    cast = torch.autocast(side.device.type, dtype=getattr(torch, precision) if half else None, enabled=half)
    with torch.inference_mode(False), torch.no_grad(), cast:
        yield precision if half else kind


def _alike(images: Tensor, others: Tensor) -> Tensor:
    if images.shape[1:] != others.shape[1:]:
        raise ShapeError(f"source images are {tuple(images.shape[1:])}, target images {tuple(others.shape[1:])}")
    return others


def _given(index: Any, side: Side) -> np.ndarray:
    index = np.asarray(index)
    if index.ndim != 1 or not len(index) or index.dtype.kind not in "iu":
        raise InputError(f"the index of the {side.name} must be a list of integers, got {index!r}")
    if index.min() < 0 or index.max() >= len(side):
        raise InputError(
            f"the index of the {side.name} goes from {index.min()} to {index.max()}, but there are {len(side)} images"
        )
    return index.astype(np.int64)
