"""One call for a model and two image sets: every bound, every prediction and every measured value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.bounds.canonical import Canonical
from vitplast.bounds.tokens import token_statistics
from vitplast.components import parts
from vitplast.errors import InputError, NoBoundError
from vitplast.measure import measure
from vitplast.measure.sides import Side
from vitplast.pairs import pair_indices
from vitplast.theory.forecasts import forecasts
from vitplast.theory.limits import Block, limits
from vitplast.theory.locally import local_norms
from vitplast.theory.rates import mapped_rates
from vitplast.theory.table import Table
from vitplast.theory.walk import walk

Progress = Callable[[int, int], None]


def survey(
    model: Any,
    source: Any,
    target: Any,
    *,
    source_name: str = "source",
    target_name: str = "target",
    source_index: np.ndarray | None = None,
    target_index: np.ndarray | None = None,
    pairs: int | None = None,
    design: str = "disjoint",
    conventions: Sequence[str] = ("common", "in_situ"),
    local_pairs: int = 2,
    local_points: int = 3,
    batch_size: int = 16,
    precision: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`tightness = max rho / bound`, and all that it is made of, for every part of every block (Theorems 1 to 14).

    Rates are measured on all pairs. Radius and deviation are taken over all tokens of both sides, so every bound
    holds for every pair measured. Predictions see half of the pairs only, and are to be compared with the mean over
    others (`measured_test`): even and odd pairs of a disjoint design, else pairs that share no image with them.
    A crossed design takes time for every pair, not for every image.

    Parameters
    ----------
    model : nn.Module or LoadedModel
        A plain timm vision transformer in evaluation mode.
    source, target : Tensor or split
        As in `vitplast.measure.measure`, as are source_index, target_index, pairs, design, precision and seed.
    conventions
        Which of "common" and "in_situ".
    local_pairs, local_points
        Pairs between which `||J||_2` is taken by power iteration, and points on each segment; 0 pairs: not at all.
    batch_size
        Images in the model at a time.
    progress
        Called with the images seen and their number, over all passes.

    Returns
    -------
    Dataset of kind "theory": bound, tightness (statement, convention, layer, component), prediction (law, ...),
    measured_mean, measured_rms, measured_max, measured_test, local_norm, local_mean, local_bound, norms and
    deviations of the tokens (convention, layer, component), entropy (convention, layer). NaN where nothing applies;
    why a bound is missing stands in the attribute no_bound.

    Raises
    ------
    InputError, ModeError, HypothesisError
        As `measure` and `token_statistics`.
    LayoutError
        If the blocks are not laid out as a plain vision transformer's.
    """
    network, prepare = (model, None) if isinstance(model, nn.Module) else (model.model, model.prepare)
    _check(network, conventions, local_pairs, local_points, source_index, target_index)
    x, y = Side("source", source, network, prepare), Side("target", target, network, prepare)
    if source_index is None or target_index is None:
        source_index, target_index = pair_indices(len(x), len(y), pairs, design, seed)
    source_index, target_index = np.asarray(source_index), np.asarray(target_index)
    count = len(source_index)
    passes = _passes(4, count, progress)
    measured = measure(
        model, source, target, conventions=conventions, design=design, source_index=source_index,
        target_index=target_index, batch_size=batch_size, precision=precision, seed=seed, progress=next(passes),
        source_name=source_name, target_name=target_name,
    )  # fmt: skip
    batches = (_batches(side, index, batch_size) for side, index in ((x, source_index), (y, target_index)))
    statistics = token_statistics(network, list(batches), conventions=conventions, progress=next(passes))
    blocks = _blocks(network, statistics)
    prenorm = [layer for layer, block in blocks.items() if _is_prenorm(block)]
    forms = _forms(blocks)
    kept = measured["pair"].values
    source_index, target_index = source_index[kept], target_index[kept]
    used, unseen = halves(source_index, target_index, kept, design)
    found = walk(
        network, x, y, source_index, target_index, forms, _eps(blocks), _centres(statistics), used,
        keep=local_pairs, batch_size=batch_size, progress=next(passes),
    )  # fmt: skip
    rates = mapped_rates(measured, prenorm)
    table, last = Table(list(conventions), list(blocks)), next(passes)
    for layer, block in blocks.items():
        for entry in limits(block, layer, statistics, found):
            table.compute("bound", layer, *entry)
        for entry in forecasts(block, layer, rates[..., used], found):
            table.compute("prediction", layer, *entry)
        if local_pairs and layer in prenorm:
            for name, *place, value in local_norms(
                block.module, layer, forms.get(layer), found, conventions, points=local_points
            ):
                table.put(name, layer, *place, value)
        last(layer + 1, len(blocks))
    ds = table.dataset(rates, unseen, statistics, found)
    ds.attrs = {
        **{k: measured.attrs[k] for k in ("design", "precision", "source", "target")},
        "pairs": int(measured.sizes["pair"]),
        "local_pairs": int(local_pairs),
        "local_points": int(local_points),
        "no_bound": json.dumps(table.reasons, sort_keys=True),
    }
    return ds


def halves(
    source_index: np.ndarray, target_index: np.ndarray, pair: np.ndarray, design: str
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs for predictions and pairs to test them on, bool, without an image in common.

    Disjoint: even and odd pairs. Crossed and cycled: pairs of even images on both sides, and of odd ones.

    Examples
    --------
    >>> used, unseen = halves(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.arange(4), "crossed")
    >>> used.tolist(), unseen.tolist()
    ([True, False, False, False], [False, False, False, True])
    """
    if design == "disjoint":
        return pair % 2 == 0, pair % 2 == 1
    sides = [np.unique(index, return_inverse=True)[1] % 2 for index in (source_index, target_index)]
    return (sides[0] == 0) & (sides[1] == 0), (sides[0] == 1) & (sides[1] == 1)


def _check(
    network: nn.Module, conventions: Sequence[str], local_pairs: Any, local_points: Any, source: Any, target: Any
) -> None:
    parts(network)
    if (source is None) != (target is None):
        raise InputError("give both source_index and target_index, or neither")
    if len(set(conventions)) < len(conventions):
        raise InputError(f"conventions holds a value twice: {list(conventions)!r}")
    for name, value, low in (("local_pairs", local_pairs, 0), ("local_points", local_points, 2)):
        if not isinstance(value, int) or value < low:
            raise InputError(f"{name} must be a whole number of at least {low}, got {value!r}")


def _is_prenorm(block: Block) -> bool:
    try:
        block.check_prenorm()
    except NoBoundError:
        return False
    return True


def _blocks(network: nn.Module, statistics: xr.Dataset) -> dict[int, Block]:
    width, tokens = int(statistics.attrs["width"]), int(statistics.attrs["tokens"])
    return {layer: Block(module, width, tokens) for layer, module in enumerate(network.blocks)}


def _forms(blocks: dict[int, Block]) -> dict[int, Canonical]:
    """Layer to its attention in canonical form, where that has one without fixed biases."""
    forms = {}
    for layer, block in blocks.items():
        try:
            read = block.attention()
        except NoBoundError:
            continue
        if not read.fixed_bias:
            forms[layer] = read.form
    return forms


def _eps(blocks: dict[int, Block]) -> dict[tuple[int, str], float]:
    found = {}
    for layer, block in blocks.items():
        for component in ("LN1", "LN2"):
            try:
                found[layer, component] = block.norm(component).eps
            except NoBoundError:
                continue
    return found


def _centres(statistics: xr.Dataset) -> dict[tuple[str, int], Tensor]:
    """The mean token at the input of MHA; any point would do (Theorem 10)."""
    found = {}
    for convention in statistics["convention"].values.tolist():
        for layer in [0] if convention == "common" else statistics["layer"].values.tolist():
            found[convention, layer] = torch.from_numpy(
                statistics["centre"].sel(convention=convention, layer=layer).values
            )
    return found


def _batches(side: Side, index: np.ndarray, batch_size: int) -> Iterator[Tensor]:
    unique = np.unique(index)
    for start in range(0, len(unique), batch_size):
        yield side(unique[start : start + batch_size])


def _passes(number: int, size: int, report: Progress | None) -> Iterator[Progress]:
    """Progress of each pass, as a share of all of them."""
    for k in range(number):

        def note(done: int, total: int, k: int = k) -> None:
            if report is not None:
                report(k * size + size * done // max(1, total), number * size)

        yield note
