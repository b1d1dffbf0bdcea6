"""B1 to B3: means of batch means, learning rates chosen on test images, training images lost before the probe.

Valid versions: `vitplast.training.evaluate.evaluate` counts, `vitplast.accuracy.best_run` chooses by validation
accuracy, `vitplast.probe.linear_probe` takes all images with the test transform.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vitplast.errors import InputError


def batch_means(correct: np.ndarray, batch: int) -> float:
    """B1 as the authors' code does it: the mean over batches of the accuracy in each, a small last batch included.

    Examples
    --------
    >>> batch_means(np.array([0, 0, 0, 0, 1]), batch=4)
    0.5
    """
    correct = _hits(correct)
    return float(np.mean([correct[i : i + batch].mean() for i in range(0, len(correct), batch)]))


def counted(correct: np.ndarray) -> float:
    """Correct predictions over images.

    Examples
    --------
    >>> counted(np.array([0, 0, 0, 0, 1]))
    0.2
    """
    return float(_hits(correct).mean())


class LastBatch(NamedTuple):
    """Size of the last batch; accuracy that one error there costs, and should cost (1/N); the ratio of the two."""

    size: int
    cost: float
    fair: float
    weight: float


def last_batch(images: int, batch: int) -> LastBatch:
    """B1: what an image of the last of `ceil(N / batch)` batches weighs in a mean of batch means.

    Raises
    ------
    InputError
        If there are no images, or batches of none.

    Examples
    --------
    >>> last_batch(5, 4)
    LastBatch(size=1, cost=0.5, fair=0.2, weight=2.5)
    """
    if min(images, batch) < 1:
        raise InputError(f"need one image or more in batches of one or more, got {images} and {batch}")
    batches = math.ceil(images / batch)
    size = images - (batches - 1) * batch
    cost = 1 / (batches * size)
    return LastBatch(size, cost, 1 / images, cost * images)


def least_spread(mean: float, cost: float, seeds: int) -> float:
    """Smallest deviation (ddof 0) over seeds that have this mean, if one of them lost `cost` of a perfect score.

    That seed is at most `1 - cost`; with the others all equal the deviation is `(mean - (1 - cost)) / sqrt(seeds - 1)`.
    Not positive: such an error is possible with no spread at all.

    Examples
    --------
    >>> round(least_spread(0.99, cost=0.03, seeds=5), 12)
    0.01
    """
    return (mean - (1 - cost)) / math.sqrt(seeds - 1)


class Selection(NamedTuple):
    """Means over repetitions: accuracy and gap reported when test images choose the rate, and when others do."""

    reported: float
    gap: float
    honest: float


def select_rate(
    accuracy: float, images: int, *, rates: int, seeds: int, repetitions: int = 20_000, seed: int = 0
) -> Selection:
    """B2: the best of several learning rates that are all equally good, by test or by validation accuracy.

    Runs have the given true accuracy and independent binomial noise over `images` test images (and as many validation
    images). As the authors' code does it, the rate with the best mean test accuracy over the seeds is reported; the
    gap is the best such mean less the worst. Honest: the test accuracy at the rate that validation chose.

    Raises
    ------
    InputError
        If the accuracy is not between 0 and 1.
    """
    if not 0 <= accuracy <= 1:
        raise InputError(f"accuracy must be between 0 and 1, got {accuracy}")
    rng = np.random.default_rng(seed)
    draws = rng.binomial(images, accuracy, size=(2, repetitions, rates, seeds)).mean(axis=-1) / images
    test, validation = draws
    chosen = np.take_along_axis(test, validation.argmax(axis=1)[:, None], axis=1)
    best = test.max(axis=1)
    return Selection(float(best.mean()), float((best - test.min(axis=1)).mean()), float(chosen.mean()))


def images_used(images: int, batch: int) -> int:
    """B3: images that reach the probe when the last incomplete batch is dropped.

    Examples
    --------
    >>> images_used(1_020, 512)
    512
    """
    return images // batch * batch


def probe_accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, wanted: np.ndarray) -> float:
    """B3: share of test features (M, E) that a linear probe on the training features (N, E) gets right.

    The probe of `vitplast.probe`: features scaled to mean 0 and deviation 1, logistic regression with C = 1.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=5000)).fit(train, labels)
    return float((fitted.predict(test) == wanted).mean())


def _hits(correct: np.ndarray) -> np.ndarray:
    correct = np.asarray(correct, dtype=np.float64)
    if correct.ndim != 1 or not len(correct) or not np.isin(correct, (0, 1)).all():
        raise InputError(f"give one 0 or 1 an image, got an array of shape {correct.shape}")
    return correct
