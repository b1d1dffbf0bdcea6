"""Few training images: the first ones of each class, in the fixed order of the split."""

from __future__ import annotations

import numpy as np

from vitplast.errors import InputError


def first_of_each_class(labels: np.ndarray, number: int, classes: tuple[str, ...] | list[str]) -> np.ndarray:
    """Positions i with `#{j < i : y_j = y_i} < number`, in order: at most `number` images of each class.

    A smaller number takes a part of what a larger one takes. A class with fewer images gives all that it has.

    Parameters
    ----------
    labels
        (N,) whole numbers from 0, one an image, in the order of the split.
    number
        Images a class, at least 1.
    classes
        Names of the classes.

    Returns
    -------
    int64, rising.

    Raises
    ------
    InputError
        If `number` is below 1, or a class has no image at all; names each such class.

    Examples
    --------
    >>> first_of_each_class(np.array([1, 1, 0, 1, 0]), 2, ["a", "b"])
    array([0, 1, 2, 4])
    """
    if number < 1:
        raise InputError(f"per_class must be at least 1 here, got {number}")
    labels = np.asarray(labels)
    counts = np.bincount(labels, minlength=len(classes))
    lacking = [str(name) for name, count in zip(classes, counts, strict=False) if count == 0]
    if lacking:
        raise InputError(
            f"per_class={number} needs a training image of every class; {len(lacking)} of {len(classes)} have 0 "
            f"of the {len(labels)}: {', '.join(lacking[:8])}{', ...' if len(lacking) > 8 else ''}"
        )
    chosen = [np.flatnonzero(labels == label)[:number] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
