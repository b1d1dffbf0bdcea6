"""Statistics that the rules on measurements and bounds stand on: simultaneous limits and rank correlation by block."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def simultaneous_limits(mean: np.ndarray, drawn: np.ndarray, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """`mean_k -+ c se_k`, c the 1 - alpha quantile of `max_k |t_k|`: limits that hold for all k at once (max-t).

    `mean` (K,) is the estimate, `drawn` (draws, K) its bootstrap copies. A k that never varies has limits `mean_k`.
    """
    error = drawn.std(axis=0, ddof=1)
    t = np.divide(np.abs(drawn - mean), error, out=np.zeros_like(drawn), where=error > 0)
    reach = np.quantile(t.max(axis=1), 1 - alpha) * error
    return mean - reach, mean + reach


def common_permutation(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """Mean over blocks of tau_b between rows of (blocks, K), and its exact p when all blocks share a relabelling."""
    orders = np.array(list(permutations(range(predicted.shape[1]))))
    taus = np.array([kendall(predicted, measured[:, order]).mean() for order in orders])
    # itertools yields the order as it is first.
    return float(taus[0]), float((taus >= taus[0] - 1e-12).mean())


def thirds(layers: int) -> np.ndarray:
    """0, 1 or 2 for each block: the third of the depth it is in."""
    return np.concatenate([np.full(len(part), i) for i, part in enumerate(np.array_split(np.arange(layers), 3))])


def kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """tau_b of each row; 0 where one of the two rows is constant."""
    i, j = np.triu_indices(a.shape[1], k=1)
    x, y = np.sign(a[:, i] - a[:, j]), np.sign(b[:, i] - b[:, j])
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), size, out=np.zeros(len(a)), where=size > 0)
