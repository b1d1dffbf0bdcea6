"""Which source image is paired with which target image: the designs of Definition 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitplast.errors import InputError, UnknownNameError

#: disjoint: each image once; crossed: every source with every target image; cycled: target images used again in turn.
DESIGNS = ("disjoint", "crossed", "cycled")
#: random: each side in an order drawn from the seed; file: both in the order of their files, as an unshuffled loader.
ORDERS = ("random", "file")


def pair_indices(
    n_source: int,
    n_target: int,
    pairs: int | None,
    design: str = "disjoint",
    seed: int = 0,
    *,
    order: str = "random",
    drop_last: int = 0,
    restart: bool = False,
    in_file: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) of the source and target image of each pair; Definition 3.

    disjoint takes `pairs` images a side, each used once. crossed takes `pairs` images a side and makes all
    combinations, source by source. cycled takes `pairs` source images, and goes round the target images.
    Each side is shuffled by its own stream of `seed`, so that the source images do not depend on the target set
    (nor the first of them on `pairs`). With `pairs=None` all images are used in the order in which they come.

    Parameters
    ----------
    order
        "file" leaves both sides in the order of `in_file` (positions of the images in the order of their files, by
        default 0, 1, ...). In the cycled design both sides then start again when they are exhausted, as loaders do:
        pair i has source `i mod n_s` and target `i mod n_t` of the sides as they are cut.
    drop_last
        Each side is cut to a multiple of this many images after it is put in order; 0 cuts nothing.
    restart
        Lets the source start again in the cycled design also in random order.

    Raises
    ------
    UnknownNameError
        If the design is unknown.
    InputError
        If there are too few images; the message has the number there is.

    Examples
    --------
    >>> pair_indices(2, 3, None, "crossed")
    (array([0, 0, 0, 1, 1, 1]), array([0, 1, 2, 0, 1, 2]))
    """
    if design not in DESIGNS:
        raise UnknownNameError("design", design, DESIGNS)
    if order not in ORDERS:
        raise UnknownNameError("order", order, ORDERS)
    if pairs is not None and pairs < 1:
        raise InputError(f"pairs must be at least 1, got {pairs}")
    if min(n_source, n_target) < 1:
        raise InputError(f"no images to pair: {n_source} source and {n_target} target images")
    whole = n_source, n_target
    n_source, n_target = (_cut(n, drop_last, side) for n, side in ((n_source, "source"), (n_target, "target")))
    if pairs is None:
        if design == "disjoint" and n_source != n_target:
            raise InputError(
                f"{n_source} source images can't be paired one by one with {n_target} target images; "
                f"give pairs=, at most {min(n_source, n_target)}"
            )
        source, target = _ordered((n_source, n_target), (np.arange(n_source), np.arange(n_target)), in_file, order)
    else:
        again = design == "cycled" and (restart or order == "file")
        available = n_source if design == "cycled" else min(n_source, n_target)
        if pairs > available and not again:
            raise InputError(
                f"{pairs} pairs in the {design} design need as many images "
                f"{'of the source' if design == 'cycled' else 'a side'}, but {available} are available "
                f"({n_source} source, {n_target} target images)"
            )
        drawn = tuple(np.random.default_rng([seed, side]).permutation(n) for side, n in enumerate(whole))
        source, target = _ordered((n_source, n_target), drawn, in_file, order)
        source = np.resize(source, pairs) if again else source[:pairs]
        target = target if design == "cycled" else target[:pairs]
    source, target = source.astype(np.int64), target.astype(np.int64)
    if design == "crossed":
        return np.repeat(source, len(target)), np.tile(target, len(source))
    return source, np.resize(target, len(source))


def pairs_of(
    run: Mapping[str, Any], n_source: int, n_target: int, in_file: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`pair_indices` for the parameters of a run; texts in the cycled design start again on both sides."""
    from vitplast.texts import is_text

    return pair_indices(
        n_source,
        n_target,
        run["pairs"],
        run.get("design", "disjoint"),
        run.get("seed", 0),
        order=run.get("order", "random"),
        drop_last=run.get("drop_last", 0),
        restart=is_text(run.get("source", "")),
        in_file=in_file,
    )


def _cut(count: int, multiple: int, side: str) -> int:
    if multiple < 0:
        raise InputError(f"drop_last must be at least 0, got {multiple}")
    if multiple > count:
        raise InputError(f"drop_last={multiple} leaves nothing of the {side}, which has {count} images")
    return count - count % multiple if multiple else count


def _ordered(
    counts: tuple[int, int],
    drawn: tuple[np.ndarray, ...],
    in_file: tuple[np.ndarray, np.ndarray] | None,
    order: str,
) -> tuple[np.ndarray, np.ndarray]:
    """The positions of both sides in their order, cut to `counts`."""
    if order == "file":
        drawn = in_file or tuple(np.arange(n) for n in counts)
    source, target = (np.asarray(positions)[:n] for positions, n in zip(drawn, counts, strict=True))
    return source, target


def product_sides(source_index: np.ndarray, target_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The source and the target images of a crossed design, from its pairs source by source.

    Raises
    ------
    InputError
        If the pairs are not all combinations of two lists, source by source.
    """
    rows, cols = source_index, target_index
    if len(source_index):
        width = len(target_index) // len(np.unique(source_index))
        rows, cols = source_index[:: max(width, 1)], target_index[: max(width, 1)]
    crossed = np.array_equal(np.repeat(rows, len(cols)), source_index) and np.array_equal(
        np.tile(cols, len(rows)), target_index
    )
    if not crossed:
        raise InputError("these pairs are not a crossed design: all combinations of two lists, source by source")
    return rows, cols
