"""B4, B5 and B8: gains, significance tests and error bars of the published table, and what changes when they are done
alike for all comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from vitplast.analysis.paper import paper_table
from vitplast.analysis.tests import holm, signed_rank
from vitplast.analysis.tests import least_signed_rank as least_signed_rank
from vitplast.errors import InputError

#: The components that the authors compare with MHA, in their order.
OTHERS = ("FC1", "FC2", "LN2", "LN1")


def read_paper_table(path: Path | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean and deviation of the published accuracies in percent, one row a data set, one column a configuration."""
    table = paper_table(path)
    mean, std = ((100 * table[name].to_pandas()).round(2) for name in ("mean", "std_printed"))
    return mean, std


def relative_gain(accuracy: pd.DataFrame, probe: str = "LP") -> pd.Series:
    """B4: mean over data sets of `(accuracy - probe) / probe` in percent, for every column but the probe.

    Examples
    --------
    >>> relative_gain(pd.DataFrame({"MHA": [60.0, 90.0], "LP": [50.0, 50.0]})).to_dict()
    {'MHA': 50.0}
    """
    rest = accuracy.drop(columns=probe)
    return 100 * (rest.div(accuracy[probe], axis=0) - 1).mean()


def merge_sets(accuracy: pd.DataFrame, together: Sequence[str], name: str) -> pd.DataFrame:
    """B5: data sets that share their images as one, their mean.

    Raises
    ------
    InputError
        If one of them is not there.
    """
    missing = [one for one in together if one not in accuracy.index]
    if missing:
        raise InputError(f"no rows {', '.join(missing)} among {', '.join(map(str, accuracy.index))}")
    merged = accuracy.loc[list(together)].mean().to_frame(name).T
    return pd.concat([accuracy.drop(index=list(together)), merged])


def compare(accuracy: pd.DataFrame, reference: str = "MHA", others: Sequence[str] = OTHERS) -> pd.DataFrame:
    """B5: `reference` against each of the others over the data sets, paired; one row an other.

    Columns: difference (mean), low and high (95% interval of the mean by t), wins, ties, losses, and the p-values t
    (paired t-test, two-sided), wilcoxon_greater (signed ranks, one-sided, the pair that the authors' script prints with
    `t`) and wilcoxon (two-sided), each also Holm-adjusted over the others (`_holm`).
    """
    rows = {}
    for other in others:
        # rounded, so that equal differences of printed numbers are equal
        gap = (accuracy[reference] - accuracy[other]).round(6).to_numpy()
        greater, two_sided = signed_rank(gap)
        half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / math.sqrt(len(gap))
        rows[other] = {
            "difference": gap.mean(),
            "low": gap.mean() - half,
            "high": gap.mean() + half,
            "wins": int((gap > 0).sum()),
            "ties": int((gap == 0).sum()),
            "losses": int((gap < 0).sum()),
            "t": float(stats.ttest_1samp(gap, 0).pvalue),
            "wilcoxon_greater": greater,
            "wilcoxon": two_sided,
        }
    table = pd.DataFrame(rows).T
    for name in ("t", "wilcoxon_greater", "wilcoxon"):
        table[f"{name}_holm"] = holm(table[name])
    return table


def mean_ranks(accuracy: pd.DataFrame, among: Sequence[str] = ("MHA", *OTHERS)) -> tuple[pd.Series, float]:
    """Mean rank over the data sets (1 best, ties shared), and the p-value of Friedman's test that all are equal."""
    chosen = accuracy[list(among)]
    p = float(stats.friedmanchisquare(*(chosen[c] for c in among)).pvalue)
    return chosen.rank(axis=1, ascending=False).mean().sort_values(), p


def spread_factor(values: int) -> float:
    """B8: `sqrt(n / (n - 1))`, what a deviation with ddof 0 lacks.

    Examples
    --------
    >>> spread_factor(2) ** 2
    2.0000000000000004
    """
    if values < 2:
        raise InputError(f"a deviation needs two values or more, got {values}")
    return math.sqrt(values / (values - 1))


def pooled_bar(std: pd.Series, seeds: int) -> float:
    """B8 as the authors' code does it: `sqrt(mean of the seed variances) / sqrt(seeds)`, the bar on a mean accuracy."""
    return float(np.sqrt(np.square(std).mean() / seeds))


def target_share(rates: np.ndarray) -> float:
    """B8: share of the variance of crossed rates (source, target) that belongs to the target image.

    From the two-way table with one value a cell: `(MS_target - MS_rest) / m` over the sum of the three components, each
    at least 0.

    Raises
    ------
    InputError
        If the table has fewer than two rows or columns.
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim != 2 or min(rates.shape) < 2:
        raise InputError(f"crossed rates need two source and two target images or more, got {rates.shape}")
    rows, cols = rates.shape
    of_row, of_col = rates.mean(axis=1), rates.mean(axis=0)
    rest = rates - of_row[:, None] - of_col + rates.mean()
    left = np.square(rest).sum() / ((rows - 1) * (cols - 1))
    source = max(0.0, of_row.var(ddof=1) - left / cols)
    target = max(0.0, of_col.var(ddof=1) - left / rows)
    total = source + target + left
    return float(target / total) if total > 0 else 0.0


def band_factor(share: float, uses: float) -> float:
    """B8: true over claimed deviation of a mean over pairs, `sqrt(1 + share (uses - 1))`.

    Each target image is used `uses` times, source images are new, and the target holds `share` of the variance.

    Examples
    --------
    >>> band_factor(1.0, 4.0)
    2.0
    """
    return math.sqrt(1 + share * (uses - 1))
