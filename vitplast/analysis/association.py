"""Rank correlation of a predictor and an outcome over components, averaged over clusters: the statistic of C4 and C5.

Five components allow 120 relabellings, so no p below 1/120 exists, however many datasets there are; clusters (datasets
that share their images count once) decide how wide the interval of the mean is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from math import factorial

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from vitplast.errors import InputError, ShapeError

#: Thirds of the blocks that are described apart.
TERCILES = ("first third", "second third", "last third")
#: Relabellings are gone through one by one up to this number of components.
MOST = 8
#: What rounding may add to a correlation that equals the observed one.
_ROUNDING = 1e-12


def rank_association(
    predictor: xr.DataArray,
    outcome: xr.DataArray,
    clusters: Mapping[str, str],
    *,
    parameters: xr.DataArray | None = None,
    draws: int = 10_000,
    seed: int = 0,
) -> xr.Dataset:
    """`mean_c mean_{g in c} Spearman_k(predictor_gk, outcome_gk)` over clusters c of datasets g, with its exact p.

    The p-value is one-sided (larger correlation): the share of the K! relabellings of the components, each applied to
    all datasets at once, whose mean is as large or larger. The interval is the 95% percentile interval of a bootstrap
    of clusters. A dataset that lacks a value of any component is left out; `n_left_out` counts them.

    Parameters
    ----------
    predictor
        Dimension component; dataset where it differs between datasets, layer where it has blocks (their mean counts).
    outcome
        Dimensions dataset and component.
    clusters
        Dataset to the name of its cluster.
    parameters
        Number of parameters, dimension component (or dataset too). With it, `partial` holds the correlation of the
        ranks after a linear fit on the logarithm of that number; it is not ranked itself, or the four biases that FC1
        has more than FC2 would count like the step from a norm to a matrix.
    draws, seed
        Bootstrap samples and the seed of their generator.

    Returns
    -------
    xarray.Dataset
        `correlation` (dataset), `cluster_correlation` (cluster), `mean`, `p`, `low`, `high` (NaN for fewer than two
        clusters), `n_clusters`, `n_datasets`, `n_left_out`, `partial` (mean over clusters, NaN without `parameters` or
        where ranks and parameters say the same); for three blocks or more `tercile_mean` (tercile). A dataset in which
        all values are equal has correlation 0: it shows no association. All NaN where no dataset is whole.

    Raises
    ------
    InputError
        If a dataset is in no cluster, or no dataset is in both arrays.
    ShapeError
        If predictor and outcome have not the same components, fewer than three or more than `MOST` of them, or
        dimensions beside those above.

    Notes
    -----
    Rules C4 and C5, and rules 3 and 4 of the theory for terciles and the control.

    Examples
    --------
    >>> rate = xr.DataArray([1.0, 2.0, 3.0], dims="component", coords={"component": ["LN1", "FC1", "MHA"]})
    >>> gain = xr.DataArray([[0.1, 0.2, 0.5]], dims=("dataset", "component"), coords=dict(rate.coords, dataset=["a"]))
    >>> found = rank_association(rate, gain, {"a": "a"})
    >>> float(found["mean"]), round(float(found.p), 4)
    (1.0, 0.1667)
    """
    x, y = _aligned(predictor, outcome, clusters)
    layers = x["layer"].values if "layer" in x.dims else []
    flat = x.mean("layer") if len(layers) else x
    whole = (flat.notnull() & y.notnull()).all("component").values
    names = y["dataset"].values[whole].tolist()
    groups = [clusters[n] for n in names]
    left_out = int((~whole).sum())
    a, b = flat.values[whole], y.values[whole]
    values = correlations(a, b)
    order, means = cluster_mean(values, groups)
    low, high = bootstrap_interval(means, draws=draws, seed=seed)
    found = xr.Dataset(
        {
            "correlation": ("dataset", values),
            "cluster_correlation": ("cluster", means),
            "mean": float(means.mean()) if len(means) else np.nan,
            "p": _relabelled_p(a, b, groups),
            "low": low,
            "high": high,
            "n_clusters": len(means),
            "n_datasets": len(names),
            "n_left_out": left_out,
            "partial": _partial(a, b, groups, parameters, y, whole),
        },
        coords={"dataset": names, "cluster": order},
        attrs={"draws": draws, "seed": seed},
    )
    if len(layers) >= len(TERCILES) and len(names):
        parts = [x.sel(layer=part).mean("layer").values[whole] for part in np.array_split(layers, len(TERCILES))]
        thirds = [float(cluster_mean(correlations(part, b), groups)[1].mean()) for part in parts]
        found = found.assign(tercile_mean=("tercile", thirds)).assign_coords(tercile=list(TERCILES))
    return found


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row of two (datasets, K) arrays, ties sharing their rank; 0 for equal values."""
    return _pearson(rankdata(a, axis=1), rankdata(b, axis=1))


def cluster_mean(values: np.ndarray, groups: list[str]) -> tuple[list[str], np.ndarray]:
    """Names of the groups, in order of appearance, and the mean of the values of each (along the first axis)."""
    order = list(dict.fromkeys(groups))
    member = np.array([[g == name for g in groups] for name in order], dtype=float).reshape(len(order), len(groups))
    return order, member @ values / member.sum(axis=1).reshape(-1, *[1] * (values.ndim - 1))


def bootstrap_interval(values: np.ndarray, *, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of the mean of `values` (n,) when they are drawn anew; NaN for fewer than two."""
    if len(values) < 2:
        return np.nan, np.nan
    chosen = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _aligned(predictor: xr.DataArray, outcome: xr.DataArray, clusters: Mapping[str, str]):
    """Both with the datasets and components in one order, predictor (dataset[, layer], component)."""
    extra = {*predictor.dims, *outcome.dims} - {"dataset", "component", "layer"}
    if extra or "component" not in predictor.dims or set(outcome.dims) != {"dataset", "component"}:
        raise ShapeError(
            "rank_association takes a predictor by component (and dataset, layer) and an outcome by dataset and "
            f"component, got {predictor.dims} and {outcome.dims}"
        )
    names = outcome["component"].values.tolist()
    if sorted(names) != sorted(predictor["component"].values.tolist()) or not 3 <= len(names) <= MOST:
        raise ShapeError(
            f"predictor and outcome must have the same 3 to {MOST} components, got "
            f"{', '.join(predictor['component'].values.tolist())} and {', '.join(names)}"
        )
    known = set(predictor["dataset"].values.tolist()) if "dataset" in predictor.dims else None
    sets = [n for n in outcome["dataset"].values.tolist() if known is None or n in known]
    if not sets:
        raise InputError("no dataset is in both the predictor and the outcome")
    for name in sets:
        if name not in clusters:
            raise InputError(f"dataset {name!r} is in no cluster; those known are {', '.join(clusters)}")
    y = outcome.sel(dataset=sets).transpose("dataset", "component")
    x = predictor.sel(component=names)
    x = x.sel(dataset=sets) if known is not None else x.expand_dims(dataset=sets)
    return x.transpose("dataset", ..., "component"), y


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation along the last axis; 0 where one side is constant."""
    a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean(axis=-1, keepdims=True)
    size = np.sqrt(np.square(a).sum(axis=-1) * np.square(b).sum(axis=-1))
    product = (a * b).sum(axis=-1)
    return np.divide(product, size, out=np.zeros_like(product), where=size > 1e-9)


def _relabelled_p(a: np.ndarray, b: np.ndarray, groups: list[str]) -> float:
    """Share of the relabellings of the outcome, common to all datasets, with a mean as large as the observed one."""
    if not len(a):
        return np.nan
    size = a.shape[1]
    orders = np.array(list(permutations(range(size))))  # the first one is the order as it is
    ranks = rankdata(b, axis=1)[:, orders]  # dataset, order, component
    values = _pearson(rankdata(a, axis=1)[:, None, :], ranks)
    means = cluster_mean(values, groups)[1].mean(axis=0)
    return float((means >= means[0] - _ROUNDING).sum() / factorial(size))


def _partial(a, b, groups: list[str], parameters: xr.DataArray | None, y: xr.DataArray, whole: np.ndarray) -> float:
    if parameters is None or not len(a):
        return np.nan
    counts = parameters.sel(component=y["component"].values)
    if "dataset" in counts.dims:
        counts = counts.sel(dataset=y["dataset"].values).transpose("dataset", "component").values[whole]
    else:
        counts = np.broadcast_to(counts.values, a.shape)
    if not (np.isfinite(counts).all() and (counts > 0).all()):
        return np.nan
    logs = np.log(counts)
    left = [_residual(rankdata(v, axis=1), logs) for v in (a, b)]
    # where nothing is left of the ranks, nothing can be said about that dataset
    told = np.all([np.square(v).sum(axis=1) > 1e-9 for v in left], axis=0)
    if not told.any():
        return np.nan
    return float(cluster_mean(_pearson(left[0][told], left[1][told]), np.array(groups)[told].tolist())[1].mean())


def _residual(ranks: np.ndarray, control: np.ndarray) -> np.ndarray:
    """What a straight line through `control` leaves of the ranks, row by row."""
    ranks, control = (v - v.mean(axis=1, keepdims=True) for v in (ranks, control))
    size = np.square(control).sum(axis=1, keepdims=True)
    slope = np.divide((ranks * control).sum(axis=1, keepdims=True), size, out=np.zeros_like(size), where=size > 0)
    return ranks - slope * control
