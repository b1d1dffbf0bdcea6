"""In which direction a setting points on the questions of C4, C6 and C7, and whether all settings point the same way.

Two tasks decide no claim; the signs say whether a verdict at one setting is likely to carry over to another.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy import stats

from vitplast.analysis.tests import DIGITS
from vitplast.components import COMPONENTS

OTHERS = tuple(c for c in COMPONENTS if c != "MHA")


def claim_signs(table: xr.Dataset, plasticity: xr.DataArray | None = None) -> xr.Dataset:
    """C7: `a_MHA - a_k`; C4: `Spearman_k(P_k, a_k)`; C6: `Spearman_k(P_k, -range_k)`, by setting and image set.

    On one image set the gain rises with the accuracy, so that C4 needs no probe here.

    Parameters
    ----------
    table : Dataset
        From `vitplast.analysis.ablations.by_setting`.
    plasticity : DataArray
        (convention, dataset, component), as `total` of `vitplast.analysis.plasticity_table`; None if it is not known.

    Returns
    -------
    Dataset (setting, dataset): lead (..., other), worst (the smallest lead); and where plasticity is known, (...,
    convention): gain, robust. NaN where a component is missing, or a range needs two rates or more.
    """
    accuracy = table["accuracy"].reindex(configuration=list(COMPONENTS)).transpose("setting", "dataset", ...)
    lead = accuracy.sel(configuration="MHA", drop=True) - accuracy.sel(configuration=list(OTHERS))
    found = xr.Dataset({"lead": lead.rename(configuration="other")})
    found["worst"] = found["lead"].min("other", skipna=False)
    if plasticity is None:
        return found
    ranges = table["range"].reindex(configuration=list(COMPONENTS)).transpose("setting", "dataset", ...)
    rates = plasticity.sel(component=list(COMPONENTS)).reindex(dataset=table["dataset"].values)
    shape = (*accuracy.shape[:2], rates.sizes["convention"])
    out = {n: np.full(shape, np.nan) for n in ("gain", "robust")}
    for s, d, c in np.ndindex(shape):
        given = rates.values[c, d]
        out["gain"][s, d, c] = _spearman(given, accuracy.values[s, d])
        out["robust"][s, d, c] = _spearman(given, -ranges.values[s, d])
    coords = {"convention": rates["convention"].values}
    return found.assign_coords(coords).assign({n: (("setting", "dataset", "convention"), v) for n, v in out.items()})


def same_sign(values: xr.DataArray) -> bool:
    """Are all known values above 0, or all below? With none known: no."""
    known = values.values[np.isfinite(values.values)]
    return bool(known.size) and bool((known > 0).all() or (known < 0).all())


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.round(DIGITS), b.round(DIGITS)
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or min(np.ptp(a), np.ptp(b)) == 0:
        return float("nan")
    return float(stats.spearmanr(a, b).statistic)
