"""Differences between two configurations set by set, with the error that seeds leave, and where they are resolved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.analysis.tests import ALPHA, holm
from vitplast.components import COMPONENTS
from vitplast.errors import UnknownNameError


def seed_gaps(best: xr.Dataset, reference: str = "MHA", others: Sequence[str] | None = None) -> xr.Dataset:
    """`d_gs = a_gs(reference) - a_gs(other)` by image set g: mean over seeds s, its standard error, paired t, Holm.

    A seed has one split for all configurations, so differences are taken seed by seed. The test speaks of these image
    sets only; Holm's adjustment is over all sets and comparisons.

    Parameters
    ----------
    best : Dataset
        From `vitplast.analysis.tables.best_rate`.
    others : sequence of str
        By default the other components of a block that are there.

    Returns
    -------
    Dataset: difference and error (fractions), seeds, p, p_holm (dataset, other), NaN below two seeds; better, worse
    (other): sets with a resolved difference.

    Raises
    ------
    UnknownNameError
        If a configuration is not there.
    """
    known = [str(c) for c in best["configuration"].values]
    others = [c for c in COMPONENTS if c in known and c != reference] if others is None else list(others)
    for name in (reference, *others):
        if name not in known:
            raise UnknownNameError("configuration", name, known)
    values = best["seed_accuracy"].transpose("dataset", "configuration", "seed")
    rest = values.sel(configuration=others).rename(configuration="other")
    each = (values.sel(configuration=reference, drop=True) - rest).transpose("dataset", "other", "seed")
    count = each.count("seed")
    error = each.std("seed", ddof=1).where(count > 1) / np.sqrt(count)
    mean = each.mean("seed")
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where((error == 0) & (mean == 0), 0.0, np.abs(mean / error))
    p = np.where(error.notnull(), 2 * stats.t.sf(t, np.maximum(count - 1, 1)), np.nan)
    found = xr.Dataset({"difference": mean, "error": error, "seeds": count})
    found["p"] = mean.dims, p
    found["p_holm"] = mean.dims, holm(p.ravel()).reshape(p.shape)
    sure = found["p_holm"] <= ALPHA
    found["better"], found["worse"] = ((sure & s).sum("dataset") for s in (mean > 0, mean < 0))
    return found
