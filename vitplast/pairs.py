"""Which source image is paired with which target image: the designs of Definition 3."""

from __future__ import annotations

import numpy as np

from vitplast.errors import InputError, UnknownNameError

#: disjoint: each image once; crossed: every source with every target image; cycled: target images used again in turn.
DESIGNS = ("disjoint", "crossed", "cycled")


def pair_indices(
    n_source: int, n_target: int, pairs: int | None, design: str = "disjoint", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) of the source and target image of each pair; Definition 3.

    disjoint takes `pairs` images a side, each used once. crossed takes `pairs` images a side and makes all
    combinations, source by source. cycled takes `pairs` source images, and goes round the target images.
    Each side is shuffled by its own stream of `seed`, so that the source images do not depend on the target set
    (nor the first of them on `pairs`). With `pairs=None` all images are used in the order in which they come.

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
    if pairs is not None and pairs < 1:
        raise InputError(f"pairs must be at least 1, got {pairs}")
    if min(n_source, n_target) < 1:
        raise InputError(f"no images to pair: {n_source} source and {n_target} target images")
    if pairs is None:
        if design == "disjoint" and n_source != n_target:
            raise InputError(
                f"{n_source} source images can't be paired one by one with {n_target} target images; "
                f"give pairs=, at most {min(n_source, n_target)}"
            )
        source, target = np.arange(n_source), np.arange(n_target)
    else:
        available = n_source if design == "cycled" else min(n_source, n_target)
        if pairs > available:
            raise InputError(
                f"{pairs} pairs in the {design} design need as many images "
                f"{'of the source' if design == 'cycled' else 'a side'}, but {available} are available "
                f"({n_source} source, {n_target} target images)"
            )
        source = np.random.default_rng([seed, 0]).permutation(n_source)[:pairs]
        target = np.random.default_rng([seed, 1]).permutation(n_target)
        target = target if design == "cycled" else target[:pairs]
    source, target = source.astype(np.int64), target.astype(np.int64)
    if design == "crossed":
        return np.repeat(source, len(target)), np.tile(target, len(source))
    return source, np.resize(target, len(source))


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
