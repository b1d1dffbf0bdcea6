"""Mean relative gain of each configuration over clusters of tasks, with an interval."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.analysis.clusters import cluster_means
from vitplast.errors import InputError


def mean_gain(gain: xr.DataArray, level: float = 0.95) -> xr.Dataset:
    """`mean_g gain_g ± t s / sqrt(G)` over the G clusters of tasks, by configuration.

    Parameters
    ----------
    gain : DataArray (dataset, configuration)
        Relative gains, fractions; tasks that lack a configuration are left out of all of them, so that all
        configurations are compared on the same tasks.
    level : float
        Of the interval, between 0 and 1. It holds the spread between tasks, which all configurations share, so it
        can't say whether two configurations differ; paired tests do.

    Returns
    -------
    Dataset (configuration): mean, low, high (NaN with fewer than two clusters); attributes clusters, datasets, left_out
    (names joined by commas).

    Raises
    ------
    InputError
        If no task has all configurations, or `level` is out of range.
    """
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level}")
    whole = gain.transpose("dataset", "configuration").dropna("dataset")
    if not whole.sizes["dataset"]:
        raise InputError("no task has all of " + ", ".join(map(str, gain["configuration"].values)))
    table = cluster_means(whole).transpose("cluster", "configuration")
    count = table.sizes["cluster"]
    mean = table.mean("cluster")
    half = np.full(mean.shape, np.nan)
    if count > 1:
        half = float(stats.t.ppf((1 + level) / 2, count - 1)) * table.values.std(axis=0, ddof=1) / np.sqrt(count)
    gone = [str(d) for d in gain["dataset"].values if d not in whole["dataset"].values]
    return xr.Dataset(
        {"mean": mean, "low": mean - half, "high": mean + half},
        attrs={"clusters": count, "datasets": whole.sizes["dataset"], "left_out": ", ".join(gone), "level": level},
    )
