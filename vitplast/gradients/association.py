"""What the gradient norms say: the largest ratio to the bounds (rule C9), and the order against plasticity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from vitplast.errors import HypothesisError, ShapeError

#: Excess over a bound that rounding may cause (C9).
SLACK = 1e-6
#: Largest gradient of the key bias, relative to the terms that cancel in it, that counts as rounding.
KEY_BIAS = 1e-9
#: Gradient norms that are compared with plasticity: as they are, per parameter, and times the parameter norm.
MEASURES = ("raw", "rms", "elasticity")


def largest_ratio(ds: xr.Dataset) -> float:
    """`max ||grad_theta|| / bound` over all layers, components, parts and images: the statistic of C9 (Prop. 17).

    Parameters
    ----------
    ds
        From `gradient_norms` or `gradients_survey`.

    Raises
    ------
    HypothesisError
        If no bound is known for any of its components.

    Examples
    --------
    >>> largest_ratio(xr.Dataset({"ratio": ("part", [0.25, float("nan"), 0.75])}))
    0.75
    """
    values = ds["ratio"].values[~np.isnan(ds["ratio"].values)]
    if not len(values):
        raise HypothesisError("no bound of Prop. 17 is known for any component of this model")
    return float(values.max())


def gradient_rule(results: Mapping[Any, xr.Dataset]) -> tuple[str, str, float]:
    """C9: PASS if no gradient exceeds its bound of Prop. 17 in any run and that of the key bias is 0, else FAIL.

    A run without any known bound decides nothing: INCONCLUSIVE, unless another run fails.

    Parameters
    ----------
    results
        Run to dataset, as for the other rules.

    Returns
    -------
    Verdict, statistic in words, and the largest ratio.

    Examples
    --------
    >>> one = xr.Dataset({"ratio": (("component", "part"), [[0.5]]), "key_bias": ("layer", [0.0])},
    ...                  coords={"component": ["FC1"], "part": ["weight"]})
    >>> gradient_rule({"run": one})
    ('PASS', 'largest gradient / bound = 0.5 (FC1, weight); key bias: 0', 0.5)
    """
    if not results:
        return "INCONCLUSIVE", "no gradients were measured", np.nan
    worst, where, unknown = -np.inf, "", 0
    for ds in results.values():
        if ds["ratio"].isnull().all():
            unknown += 1
            continue
        value = largest_ratio(ds)
        if value > worst:
            at = np.unravel_index(np.nanargmax(ds["ratio"].values), ds["ratio"].shape)
            labels = dict(zip(ds["ratio"].dims, at, strict=True))
            where = ", ".join(str(ds[d].values[labels[d]]) for d in ("component", "part") if d in labels)
            worst = value
    biases = np.concatenate([ds["key_bias"].values.ravel() for ds in results.values()])
    biases = biases[~np.isnan(biases)]
    holds = worst <= 1 + SLACK and (biases <= KEY_BIAS).all()
    texts = [] if unknown == len(results) else [f"largest gradient / bound = {worst:.3g} ({where})"]
    texts += [f"no bound of Prop. 17 is known in {unknown} of {len(results)} runs"] if unknown else []
    texts.append(f"key bias: {biases.max():.2g}" if len(biases) else "no key bias")
    verdict = "FAIL" if not holds else "INCONCLUSIVE" if unknown else "PASS"
    return verdict, "; ".join(texts), np.nan if unknown == len(results) else worst


def component_totals(ds: xr.Dataset) -> xr.Dataset:
    """Each component taken over all blocks at once, as it is finetuned: raw, rms and elasticity, mean over images.

    `raw = (sum_l ||grad_l||^2)^(1/2)`, `rms = raw / sqrt(number of parameters)`, `elasticity` summed up as `raw` is.

    Parameters
    ----------
    ds
        From `gradient_norms` or `gradients_survey`.

    Returns
    -------
    Dataset of the three, without the dimensions layer and image.
    """
    raw = np.sqrt(np.square(ds["gradient_norm"]).sum("layer"))
    count = ds["part_parameters"].sum(["layer", "part"])
    totals = {"raw": raw, "rms": raw / np.sqrt(count), "elasticity": np.sqrt(np.square(ds["elasticity"]).sum("layer"))}
    words = {"raw": "gradient norm", "rms": "gradient norm per parameter", "elasticity": "elasticity"}
    return xr.Dataset(
        {k: v.mean("image").assign_attrs(units="1", long_name=f"{words[k]}, all blocks") for k, v in totals.items()}
    )


def spearman(plasticity: xr.DataArray, totals: xr.Dataset) -> xr.DataArray:
    """Spearman's rank correlation over the components of plasticity with each of `MEASURES`.

    Parameters
    ----------
    plasticity
        Dimension component and any others.
    totals
        From `component_totals`, on the same components.

    Returns
    -------
    Dims measure and all other dimensions of both; NaN where all values are equal. A description, no test.

    Raises
    ------
    ShapeError
        If fewer than three components are compared.

    Examples
    --------
    >>> p = xr.DataArray([1.0, 2.0, 3.0], dims="component")
    >>> totals = xr.Dataset({"raw": p**2, "rms": -p, "elasticity": p})
    >>> spearman(p, totals).values.tolist()
    [1.0, -1.0, 1.0]
    """
    if plasticity.sizes["component"] < 3:
        raise ShapeError(f"{plasticity.sizes['component']} components can't be ranked: three or more are needed")
    measures = xr.concat([totals[k] for k in MEASURES], xr.Variable("measure", list(MEASURES)), combine_attrs="drop")
    found = xr.apply_ufunc(
        _rank_correlation,
        *xr.align(plasticity, measures, join="exact"),
        input_core_dims=[["component"], ["component"]],
        vectorize=True,
    )
    return found.transpose("measure", ...).assign_attrs(units="1", long_name="Spearman of plasticity and gradient")


def spearman_table(plasticity: xr.DataArray, ds: xr.Dataset) -> xr.DataArray:
    """`spearman` of plasticity, averaged over blocks, with the gradients of whole components (for C5 and C10).

    Parameters
    ----------
    plasticity
        Dimensions layer and component and any others (convention, ...), mean over pairs.
    ds
        From `gradient_norms`, for the same model.
    """
    return spearman(plasticity.mean("layer"), component_totals(ds))


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    return np.nan if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)
