"""Paired tests of one configuration against others: one alternative, exact, adjusted, with effect sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.components import COMPONENTS
from vitplast.errors import InputError, UnknownNameError

ALPHA = 0.05
ALTERNATIVES = ("greater", "less", "two-sided")
#: Digits to which differences are rounded, so that equal differences of printed numbers are ties.
DIGITS = 9


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p-values: the k-th smallest of m times `m - k + 1`, made increasing, at most 1.

    A NaN (a test that could not be made) stays NaN but counts as one of the m.

    Examples
    --------
    >>> holm([0.04, 0.01, 0.03]).tolist()
    [0.06, 0.03, 0.06]
    """
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p)
    raised = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    adjusted = np.empty_like(raised)
    adjusted[order] = raised
    return adjusted


def signed_rank(gaps: Sequence[float]) -> tuple[float, float]:
    """Exact p-values of Wilcoxon's signed ranks, one-sided (above 0) and two-sided; zeros dropped, ties shared.

    All sign patterns are gone through, so equal gaps are dealt with exactly.

    Raises
    ------
    InputError
        If no gap, or more than 20, differ from zero.

    Examples
    --------
    >>> signed_rank([1.0, 2.0, -3.0, 0.0])
    (0.625, 1.0)
    """
    gaps = np.asarray(gaps, dtype=np.float64)
    gaps = gaps[gaps != 0]
    if not 1 <= len(gaps) <= 20:
        raise InputError(f"the exact test takes 1 to 20 gaps other than 0, got {len(gaps)}")
    weight = stats.rankdata(np.abs(gaps))
    sums = (np.arange(2 ** len(gaps))[:, None] >> np.arange(len(gaps)) & 1) @ weight
    above, below = float((sums >= weight[gaps > 0].sum()).mean()), float((sums <= weight[gaps > 0].sum()).mean())
    return above, min(1.0, 2 * min(above, below))


def least_signed_rank(gaps: int) -> float:
    """`2 / 2^n`, the smallest two-sided p-value of signed ranks: all n gaps have one sign.

    Raises
    ------
    InputError
        If there is no gap.

    Examples
    --------
    >>> least_signed_rank(7)
    0.015625
    """
    if gaps < 1:
        raise InputError(f"the test needs one gap or more, got {gaps}")
    return 2.0 ** (1 - gaps)


class Floor(NamedTuple):
    """What the exact signed-rank test can reach: smallest p, smallest after Holm, clusters needed, reachable or not."""

    p: float
    adjusted: float
    needed: int
    reachable: bool
    text: str


def power_floor(n_clusters: int, comparisons: int = 4, alpha: float = ALPHA, alternative: str = "greater") -> Floor:
    """`2^-G`, after Holm `m 2^-G` (twice that two-sided): below `alpha` only if `G >= log2(m / alpha)` (rule 1).

    Raises
    ------
    InputError
        If there is no cluster or no comparison.
    UnknownNameError
        If the alternative is none of `ALTERNATIVES`.

    Examples
    --------
    >>> power_floor(6).text
    'INCONCLUSIVE by design: the smallest p of 6 clusters is 0.0156, 0.0625 after Holm over 4; 7 clusters are needed'
    >>> power_floor(7).reachable
    True
    """
    _known(alternative)
    if min(n_clusters, comparisons) < 1:
        raise InputError(f"needs one cluster and one comparison or more, got {n_clusters} and {comparisons}")
    sides = 2 if alternative == "two-sided" else 1
    p = min(1.0, sides * 2.0**-n_clusters)
    adjusted = min(1.0, p * comparisons)
    needed = math.ceil(math.log2(sides * comparisons / alpha) - 1e-12)
    text = f"the smallest p of {n_clusters} clusters is {p:.3g}, {adjusted:.3g} after Holm over {comparisons}"
    if adjusted > alpha:
        text = f"INCONCLUSIVE by design: {text}; {needed} clusters are needed"
    return Floor(p, adjusted, needed, adjusted <= alpha, text)


def paired_tests(
    table: xr.DataArray,
    reference: str = "MHA",
    alternative: str = "greater",
    others: Sequence[str] | None = None,
    level: float = 0.95,
) -> xr.Dataset:
    """`d_g = a_g(reference) - a_g(other)` over clusters g: exact signed ranks and paired t, one alternative, Holm (C7).

    Parameters
    ----------
    table : DataArray
        Dimension configuration and one more, whose entries are independent, see
        `vitplast.analysis.clusters.cluster_means`; at most 20. Rows with a NaN in any configuration compared are left
        out, the same for all comparisons.
    alternative : str
        greater, less or two-sided, for both tests alike.
    others : sequence of str
        By default the other components of a block that are there.

    Returns
    -------
    Dataset (other): difference (mean, unit of the table), low and high (two-sided t interval of the mean),
    rank_biserial (`(W+ - W-) / (W+ + W-)`, -1 to 1, zeros dropped), wins, ties, losses, the p-values wilcoxon and t,
    and both adjusted, wilcoxon_holm and t_holm. Attributes: alternative, reference, n_clusters, level, floor (smallest
    adjusted p that is possible) and floor_text (see `power_floor`).

    Raises
    ------
    UnknownNameError
        If a configuration or the alternative is unknown.
    InputError
        If fewer than two rows are whole, or the table has other dimensions.
    """
    _known(alternative)
    known = [str(c) for c in table["configuration"].values] if "configuration" in table.dims else []
    others = [c for c in COMPONENTS if c in known and c != reference] if others is None else list(others)
    for name in (reference, *others):
        if name not in known:
            raise UnknownNameError("configuration", name, known)
    values = whole_rows(table, [reference, *others])
    rows: dict[str, list[float]] = {}
    for column in range(1, len(others) + 1):
        for name, value in _pair(np.round(values[:, 0] - values[:, column], DIGITS), alternative, level).items():
            rows.setdefault(name, []).append(value)
    for name in ("wilcoxon", "t"):
        rows[f"{name}_holm"] = holm(rows[name]).tolist()
    floor = power_floor(len(values), len(others), alternative=alternative)
    about = {"alternative": alternative, "reference": reference, "n_clusters": len(values), "level": level}
    about |= {"floor": floor.adjusted, "floor_text": floor.text}
    return xr.Dataset({n: ("other", np.array(v)) for n, v in rows.items()}, coords={"other": others}, attrs=about)


def _pair(gaps: np.ndarray, alternative: str, level: float) -> dict[str, float]:
    """One comparison. Without any difference both p-values are 1; with the same one everywhere t is at its limit."""
    count, mean = len(gaps), float(gaps.mean())
    half = stats.t.ppf((1 + level) / 2, count - 1) * gaps.std(ddof=1) / math.sqrt(count)
    signed = -gaps if alternative == "less" else gaps
    weight = stats.rankdata(np.abs(gaps[gaps != 0]))
    total = float(weight.sum())
    if total == 0:
        rank, t = 1.0, 1.0
    else:
        rank = signed_rank(signed)[1 if alternative == "two-sided" else 0]
        if np.ptp(gaps) == 0:
            t = 0.0 if alternative == "two-sided" or signed[0] > 0 else 1.0
        else:
            t = float(stats.ttest_1samp(gaps, 0, alternative=alternative).pvalue)
    return {
        "difference": mean,
        "low": mean - half,
        "high": mean + half,
        "rank_biserial": float((weight * np.sign(gaps[gaps != 0])).sum() / total) if total else 0.0,
        "wins": int((gaps > 0).sum()),
        "ties": int((gaps == 0).sum()),
        "losses": int((gaps < 0).sum()),
        "wilcoxon": rank,
        "t": t,
    }


def whole_rows(table: xr.DataArray, chosen: Sequence[str]) -> np.ndarray:
    """`(clusters, len(chosen))`: the rows of a table (cluster, configuration) without a NaN among the chosen.

    Raises
    ------
    InputError
        If the table has other dimensions, or fewer than two rows are whole.
    """
    if table.ndim != 2:
        raise InputError(
            f"the table must have two dimensions, configuration and clusters, got {', '.join(map(str, table.dims))}"
        )
    values = table.sel(configuration=list(chosen)).transpose(..., "configuration").values.astype(float)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) < 2:
        raise InputError(f"needs two clusters or more with {', '.join(chosen)}, got {len(values)}")
    return values


def _known(alternative: str) -> None:
    if alternative not in ALTERNATIVES:
        raise UnknownNameError("alternative", alternative, ALTERNATIVES)
