"""The form in which every criterion answers: a number for each block and component, and one for each component."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import xarray as xr

from vitplast.components import COMPONENTS
from vitplast.errors import HypothesisError, ShapeError

#: How a component over all blocks at once is scored from its blocks.
TOTALS = {
    "mean": lambda v: v.mean(axis=0),
    "sum": lambda v: v.sum(axis=0),
    "root_sum_square": lambda v: np.sqrt(np.square(v).sum(axis=0)),
}


def scored(
    values: np.ndarray,
    total: np.ndarray | str,
    *,
    forward: float = 0.0,
    backward: float = 0.0,
    reasons: Mapping[str, str] | None = None,
) -> xr.Dataset:
    """`score` (layer, component) and `total` (component): larger = finetune first.

    Parameters
    ----------
    values
        Shape (layers, 5), in the order of `COMPONENTS`; NaN where the criterion says nothing.
    total
        Shape (5,), or the name of one of `TOTALS` that makes it from `values`.
    forward, backward
        Passes of one image through the whole model that the criterion needs on its own; attributes of the result.
    reasons
        Component to why it has no score.

    Returns
    -------
    Dataset with score and total, float64 without unit, and attributes forward_passes, backward_passes, no_score.

    Raises
    ------
    ShapeError
        If the arrays are not of these shapes.
    HypothesisError
        If a score is infinite, or missing without a reason (or there with one).

    Examples
    --------
    >>> found = scored(np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 2.0, 1.0, 0.0, 5.0]]), "mean")
    >>> found.total.values.tolist()
    [2.0, 2.0, 2.0, 2.0, 5.0]
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(COMPONENTS) or not len(values):
        raise ShapeError(f"scores must be of shape (layers, {len(COMPONENTS)}), got {values.shape}")
    whole = TOTALS[total](values) if isinstance(total, str) else np.asarray(total, dtype=np.float64)
    if whole.shape != (len(COMPONENTS),):
        raise ShapeError(f"totals must be of shape ({len(COMPONENTS)},), got {whole.shape}")
    reasons = dict(reasons or {})
    for k, component in enumerate(COMPONENTS):
        if np.isinf(values[:, k]).any() or np.isinf(whole[k]):
            raise HypothesisError(f"the score of {component} is infinite")
        missing = bool(np.isnan(whole[k]) or np.isnan(values[:, k]).any())
        if missing != (component in reasons):
            raise HypothesisError(f"{component} {'has no score, and no reason' if missing else 'has one'}: {reasons}")
    return xr.Dataset(
        {
            "score": (("layer", "component"), values, {"units": "1", "long_name": "score"}),
            "total": ("component", whole, {"units": "1", "long_name": "score, all blocks at once"}),
        },
        coords={"layer": np.arange(len(values)), "component": list(COMPONENTS)},
        attrs={
            "forward_passes": float(forward),
            "backward_passes": float(backward),
            "no_score": json.dumps(reasons, sort_keys=True),
        },
    )
