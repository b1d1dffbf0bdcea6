"""What a small subset of the runs can decide: its clusters, its noise, and the differences of the published table.

The published table is used for its size of effects only; the subset's own results decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.paper import paper_table
from vitplast.analysis.tests import ALPHA, power_floor, signed_rank
from vitplast.components import COMPONENTS
from vitplast.errors import InputError

#: Chance of a decision that is asked for.
POWER = 0.8
#: Share of test images on which two finetuned models are assumed to disagree.
DISAGREE = 0.05


@dataclass(frozen=True)
class Subset:
    """So many independent clusters of image sets, seeds of each run and test images of each set."""

    clusters: int
    seeds: int
    test_images: int

    def __post_init__(self) -> None:
        for name in ("clusters", "seeds", "test_images"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")


def contrary_allowed(clusters: int, comparisons: int = 4, alpha: float = ALPHA) -> int:
    """Most clusters whose difference may be contrary, the smallest ones, so that signed ranks still decide after Holm.

    -1 where they can't decide even if all agree (`power_floor`).

    Examples
    --------
    >>> [contrary_allowed(n) for n in (6, 7, 8, 10)]
    [-1, 0, 1, 2]
    """
    found = -1
    for contrary in range(clusters):
        gaps = np.arange(1.0, clusters + 1)
        gaps[:contrary] *= -1
        if comparisons * signed_rank(gaps)[0] > alpha:
            break
        found = contrary
    return found


def chance(difference: float, deviation: float, clusters: int, comparisons: int = 4, alpha: float = ALPHA) -> float:
    """Chance that the one-sided paired t-test finds a true mean `difference`, at Holm's first level alpha / m.

    `deviation` is that of a cluster's observed difference around the mean; both in the same unit.
    """
    if clusters < 2 or not deviation > 0:
        raise InputError(f"needs two clusters and a deviation above 0, got {clusters} and {deviation!r}")
    critical = stats.t.isf(alpha / comparisons, clusters - 1)
    return float(stats.nct.sf(critical, clusters - 1, difference * math.sqrt(clusters) / deviation))


def detectable(
    deviation: float, clusters: int, comparisons: int = 4, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The true mean difference that `chance` finds with probability `power`, in the unit of `deviation`."""
    low, high = 0.0, 100.0 * deviation
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle, deviation, clusters, comparisons, alpha) < power else (low, middle)
    return high


def published_gaps(table: xr.Dataset | None = None, reference: str = "MHA") -> xr.Dataset:
    """Differences of `reference` from the others in the published table, by cluster.

    Returns
    -------
    Dataset: gap (cluster, other), a fraction; mean (other); between (other), the deviation over clusters without the
    part that the table's own seeds make; seed (other), deviation of a difference of single runs.
    """
    table = paper_table() if table is None else table
    others = [c for c in COMPONENTS if c != reference]
    means = cluster_means(table["mean"])
    gap = (means.sel(configuration=reference, drop=True) - means.sel(configuration=others)).rename(
        configuration="other"
    )
    variance = table["std"].sel(configuration=[reference, *others]) ** 2
    single = variance.sel(configuration=reference, drop=True) + variance.sel(configuration=others)
    single = single.rename(configuration="other").mean("dataset")
    within = single / int(table.attrs.get("seeds", 3))
    between = np.sqrt(np.maximum(gap.var("cluster", ddof=1) - within, 0.0))
    found = {"gap": gap.drop_vars("sets", errors="ignore"), "mean": gap.mean("cluster"), "between": between}
    return xr.Dataset(found | {"seed": np.sqrt(single)})


def argument(subset: Subset, *, table: xr.Dataset | None = None, comparisons: int = 4) -> pd.DataFrame:
    """For each comparison of MHA: published difference, noise of the subset, what it can find, and with what chance.

    The deviation of a cluster's difference is sqrt(between^2 + seed^2 / seeds + DISAGREE / test images).

    Returns
    -------
    DataFrame, one row another component, in points: difference, between, noise, detectable (at `POWER`); chance of a
    decision at the published difference; clusters_needed for that chance of `POWER` (0: more than 60); reachable,
    whether signed ranks can decide with so many clusters; contrary, how many of them may disagree.
    """
    found = published_gaps(table)
    floor = power_floor(subset.clusters, comparisons)
    rows = []
    for other in found["other"].values:
        one = found.sel(other=other)
        difference, between = float(one["mean"]), float(one["between"])
        noise = math.sqrt(float(one["seed"]) ** 2 / subset.seeds + DISAGREE / subset.test_images)
        deviation = math.hypot(between, noise)
        needed = next((n for n in range(floor.needed, 61) if chance(difference, deviation, n, comparisons) >= POWER), 0)
        rows.append({
            "other": str(other),
            "difference": 100 * difference,
            "between": 100 * between,
            "noise": 100 * noise,
            "detectable": 100 * detectable(deviation, subset.clusters, comparisons),
            "chance": chance(difference, deviation, subset.clusters, comparisons),
            "clusters_needed": needed,
            "reachable": floor.reachable,
            "contrary": contrary_allowed(subset.clusters, comparisons),
        })  # fmt: skip
    return pd.DataFrame(rows)
