"""Upper bounds on the rate of change as criteria: the paper's theoretical ranking."""

from __future__ import annotations

import json

import xarray as xr
from torch import nn

from vitplast.bounds import bounds
from vitplast.criteria.scores import scored


def bound_scores(model: nn.Module, statistics: xr.Dataset) -> dict[str, xr.Dataset]:
    """The bounds "valid" and "new" of `vitplast.bounds.bounds`, under each input convention of the statistics.

    The total is the mean over blocks. Singular values of the weights are not counted as passes; the statistics at the
    embeddings need no pass through the blocks, those in situ one an image.

    Parameters
    ----------
    statistics
        From `vitplast.bounds.token_statistics`, over both sides of the pairs.

    Returns
    -------
    dict of `bound_{variant}_{convention}` to scores; NaN with the reason where no bound is known.

    Raises
    ------
    As `vitplast.bounds.bounds`.
    """
    table = bounds(model, statistics)
    unknown = {k: "; ".join(sorted(v)) for k, v in json.loads(table.attrs["no_bound"]).items()}
    found = {}
    for convention in table["convention"].values.tolist():
        passes = int(statistics.attrs["images"]) if convention == "in_situ" else 0
        for variant in ("valid", "new"):
            values = table["bound"].sel(variant=variant, convention=convention)
            missing = values.isnull().any("layer")
            reasons = {
                str(c): unknown.get(str(c), "no bound of this variant is known")
                for c in values["component"].values[missing.values]
            }
            found[f"bound_{variant}_{convention}"] = scored(values.values, "mean", forward=passes, reasons=reasons)
    return found
