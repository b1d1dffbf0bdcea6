"""Is a component of high plasticity robust to the learning rate? What rule C6 needs, cluster by cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.omnibus import page_trend
from vitplast.analysis.tables import gap, gap_noise
from vitplast.components import COMPONENTS
from vitplast.errors import InputError

#: The comparison of rule C6: the median range of the first is below those of the others.
ROBUST, FRAGILE = "MHA", ("LN1", "LN2")


def rate_ranges(grid: xr.Dataset, components: Sequence[str] = COMPONENTS) -> xr.Dataset:
    """`range_gk = max_rate - min_rate` of the mean test accuracy, and what seeds alone would show, by cluster.

    Per image set first, then the mean over the sets of a cluster. A wider grid of rates has a wider range, so `decades`
    goes with it.

    Returns
    -------
    Dataset (cluster, configuration): range, floor (expected under equal rates, `vitplast.analysis.tables.gap_noise`),
    excess (`max(0, range - floor)` by image set), resolved (share of the sets whose range is beyond seed noise at 5%),
    decades (`log10` of the largest over the smallest rate). Accuracies are fractions.

    Raises
    ------
    InputError
        If the grid lacks a component.
    """
    missing = [c for c in components if c not in grid["configuration"].values]
    if missing:
        raise InputError(f"the grid has no runs of {', '.join(missing)}; it has {', '.join(grid.configuration.values)}")
    chosen = grid.sel(configuration=list(components))
    found, noise = gap(chosen), gap_noise(chosen)
    table = xr.Dataset({"range": found.rename("range"), "floor": noise["expected"]})
    table["excess"] = (table["range"] - table["floor"]).clip(min=0)
    table["resolved"] = (noise["p"] <= 0.05).where(noise["p"].notnull())
    table["decades"] = np.log10(chosen["lr"].max("rate") / chosen["lr"].min("rate"))
    return cluster_means(table)


def robustness(
    grid: xr.Dataset,
    plasticity: xr.DataArray | Mapping[str, float],
    components: Sequence[str] = COMPONENTS,
) -> xr.Dataset:
    """Page's L of `-range_gk` in the order of plasticity: do plastic components lose less over the rates (C6)?

    Parameters
    ----------
    grid : Dataset
        From `vitplast.analysis.grid.grid`.
    plasticity : DataArray or mapping
        Measured plasticity by component, dimension component or configuration, and optionally dataset (then each
        cluster is ordered by its own mean).
    components : sequence of str
        At most seven.

    Returns
    -------
    Dataset of `rate_ranges`, with plasticity (configuration) or (cluster, configuration), median_range (configuration),
    and by measure (range, excess over the noise): page_l, p (claimed direction: the larger the plasticity, the smaller
    the range), p_opposite, mean_correlation (Spearman of plasticity and minus the range). Attribute n_clusters: those
    with a range for every component.

    Raises
    ------
    InputError
        If a component has no runs or no plasticity, a cluster has no plasticity, or fewer than two clusters are whole.
    """
    table = rate_ranges(grid, components)
    predictor = _predictor(plasticity, components)
    if "dataset" in predictor.dims:
        predictor = cluster_means(predictor)
        lacking = [c for c in table["cluster"].values if c not in predictor["cluster"].values]
        if lacking:
            raise InputError(f"no plasticity on {', '.join(lacking)}")
        predictor = predictor.sel(cluster=table["cluster"].values).drop_vars("sets")
    trends = [page_trend(-table[measure], predictor) for measure in ("range", "excess")]
    for i, name in enumerate(("page_l", "p", "p_opposite", "mean_correlation")):
        table[name] = "measure", [trend[i] for trend in trends]
    table = table.assign_coords(measure=["range", "excess"])
    table["plasticity"] = predictor
    table["median_range"] = table["range"].median("cluster")
    whole = int(table["range"].notnull().all("configuration").sum())
    return table.assign_attrs(n_clusters=whole)


def _predictor(plasticity: xr.DataArray | Mapping[str, float], components: Sequence[str]) -> xr.DataArray:
    if not isinstance(plasticity, xr.DataArray):
        names = list(plasticity)
        plasticity = xr.DataArray([plasticity[n] for n in names], dims="component", coords={"component": names})
    if "component" in plasticity.dims:
        plasticity = plasticity.rename(component="configuration")
    missing = [c for c in components if c not in plasticity["configuration"].values]
    if missing:
        raise InputError(f"no plasticity of {', '.join(missing)}")
    return plasticity.sel(configuration=list(components)).astype(float)
