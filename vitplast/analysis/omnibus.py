"""Tests of all configurations at once: Friedman (are any different) and Page (do they follow a predicted order)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.analysis.tests import DIGITS, whole_rows
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, UnknownNameError

#: Configurations at most: Page's exact distribution goes through their orders.
MOST = 7


class Friedman(NamedTuple):
    """Statistic, p-value, Kendall's W (0 no agreement, 1 full) and mean rank (1 best) by configuration."""

    statistic: float
    p: float
    agreement: float
    mean_ranks: dict[str, float]


class Trend(NamedTuple):
    """Page's L, exact p-values for the predicted and the opposite order, and the mean Spearman correlation."""

    statistic: float
    p: float
    p_opposite: float
    mean_correlation: float


def friedman(table: xr.DataArray, among: Sequence[str] = COMPONENTS) -> Friedman:
    """`chi^2 = 12 / (G K (K + 1)) sum_k R_k^2 - 3 G (K + 1)` (ties corrected), p by the chi-square law, K - 1 degrees.

    `table` (cluster, configuration); rows with NaN are left out. `W = chi^2 / (G (K - 1))`. With few clusters the law
    is approximate and errs on the cautious side.

    Raises
    ------
    InputError
        If fewer than three configurations or two whole rows are compared.
    UnknownNameError
        If a configuration is not there.
    """
    values = _values(table, among)
    groups, count = values.shape
    if count < 3:
        raise InputError(f"Friedman's test takes three configurations or more, got {count}")
    ranks = stats.rankdata(-values, axis=1).mean(axis=0)
    if (np.ptp(values, axis=1) == 0).all():
        found, p = 0.0, 1.0
    else:
        found, p = map(float, stats.friedmanchisquare(*values.T))
    return Friedman(found, p, found / (groups * (count - 1)), dict(zip(among, ranks.tolist(), strict=True)))


def page_trend(
    table: xr.DataArray, predictor: xr.DataArray | Sequence[str], among: Sequence[str] | None = None
) -> Trend:
    """`L = sum_g sum_k r_gk s_gk`: ranks r of the values and s of the prediction within cluster g, exact p for large L.

    Under no trend every order of the values within a cluster is equally likely; the law of L is the convolution over
    clusters, so ties and predictions that differ between clusters are dealt with exactly. For whole numbers of ranks
    and one prediction it is `scipy.stats.page_trend_test`.

    Parameters
    ----------
    table : DataArray
        (cluster, configuration), any unit; rows with NaN are left out.
    predictor : DataArray or sequence of str
        Predicted size by configuration, (configuration) or (cluster, configuration), or names from the smallest to the
        largest.
    among : sequence of str
        Configurations to compare; by default those of `predictor`.

    Raises
    ------
    InputError
        If fewer than two or more than seven configurations are compared, no two rows are whole, or a prediction is NaN.
    UnknownNameError
        If a configuration is not there.
    """
    if not isinstance(predictor, xr.DataArray):
        names = list(predictor)
        predictor = xr.DataArray(np.arange(len(names)), dims="configuration", coords={"configuration": names})
    among = [str(c) for c in predictor["configuration"].values] if among is None else list(among)
    for name in among:
        if name not in predictor["configuration"].values:
            raise UnknownNameError("configuration", name, map(str, predictor["configuration"].values))
    if not 2 <= len(among) <= MOST:
        raise InputError(f"Page's test takes 2 to {MOST} configurations, got {len(among)}")
    _values(table, among)
    table = table.sel(configuration=among).transpose(..., "configuration")
    predicted = _like(predictor.sel(configuration=among), table)
    whole = np.isfinite(table.values).all(axis=1)
    if not np.isfinite(predicted[whole]).all():
        raise InputError("the prediction must be there for every cluster and configuration")
    ranks = stats.rankdata(np.round(table.values[whole], DIGITS), axis=1)
    expected = stats.rankdata(predicted[whole], axis=1)
    orders = np.array(list(permutations(range(len(among)))))
    law = np.ones(1)
    for r, s in zip(ranks, expected, strict=True):
        # ranks are halves, so four times a product is whole
        law = np.convolve(law, np.bincount(np.rint(4 * r[orders] @ s).astype(int)) / len(orders))
    at = int(np.rint(4 * (ranks * expected).sum()))
    centred, aim = ranks - ranks.mean(axis=1, keepdims=True), expected - expected.mean(axis=1, keepdims=True)
    size = np.sqrt((centred**2).sum(axis=1) * (aim**2).sum(axis=1))
    each = np.divide((centred * aim).sum(axis=1), size, out=np.zeros(len(size)), where=size > 0)
    above, below = min(1.0, float(law[at:].sum())), min(1.0, float(law[: at + 1].sum()))
    return Trend(at / 4, above, below, float(each.mean()))


def _like(predictor: xr.DataArray, table: xr.DataArray) -> np.ndarray:
    """The prediction in the shape of the table; NaN for clusters that it lacks."""
    dim = table.dims[0]
    if dim in predictor.dims and dim in table.coords and dim in predictor.coords:
        predictor = predictor.reindex({dim: table[dim]})
    if predictor.sizes.get(dim, len(table)) != len(table) or not set(predictor.dims) <= set(table.dims):
        raise InputError(f"the prediction has sizes {dict(predictor.sizes)}, the table {dict(table.sizes)}")
    return np.broadcast_to(predictor.transpose(..., "configuration").values.astype(float), table.shape)


def _values(table: xr.DataArray, among: Sequence[str]) -> np.ndarray:
    """Whole rows of the configurations, rounded so that equal printed numbers are ties."""
    known = [str(c) for c in table["configuration"].values]
    for name in among:
        if name not in known:
            raise UnknownNameError("configuration", name, known)
    return np.round(whole_rows(table, among), DIGITS)
