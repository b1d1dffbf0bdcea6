"""Plasticity from rates of change: mean, standard error and interval, as the design asks (Definition 3)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitplast.errors import HypothesisError, InputError, UnknownNameError
from vitplast.pairs import DESIGNS

#: Fewest independent clusters of pairs (in effective number) whose resampling is trusted.
MIN_CLUSTERS = 10.0
#: Weights of resamples in memory at a time.
WEIGHTS_AT_ONCE = 2**22


def layer_mean(rates: xr.Dataset) -> xr.Dataset:
    """Mean rate of change over the layers, pair by pair: what `plasticity` takes for an interval per component.

    The pairs stay, so the resamples of `plasticity` are the same as without the mean.
    """
    return rates[["rate"]].mean("layer", keep_attrs=True)


def plasticity(rates: xr.Dataset, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> xr.Dataset:
    """`P = mean of rho` over the pairs, with standard error and bootstrap interval (Definitions 1 and 3).

    Standard errors: disjoint `s / sqrt(m)`; crossed `sqrt(s_a^2 / m + s_b^2 / m')` from the variances of row and
    column means; otherwise (cycled, or ids that share a group) the deviation of the bootstrap means. The percentile
    interval resamples what is independent, see `resampling`; all layers and components on the same resamples.

    Parameters
    ----------
    rates : Dataset
        rate with a dimension pair and any others, source_id, target_id, source_group, target_group (pair), and
        the attribute design; from `vitplast.measure`.
    level : float
        Of the interval, between 0 and 1.
    resamples : int
        Bootstrap samples, at least 100.

    Returns
    -------
    Dataset with mean, se, ci_low, ci_high, std (over pairs, ddof 1) and rms (P_2) over the other dimensions, and
    attributes design, resampled (pairs, clusters or both sides), level, resamples, bootstrap_seed, pairs.

    Raises
    ------
    InputError
        If fewer than 2 pairs, or an option out of its range.
    HypothesisError
        If a rate is not finite.
    """
    values, dims, coords = _table(rates)
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level}")
    if resamples < 100:
        raise InputError(f"resamples must be at least 100, got {resamples}")
    design, count = rates.attrs["design"], values.shape[-1]
    kind, _ = resampling(rates)
    means = resampled_means(rates, resamples=resamples, seed=seed)
    means = means.transpose("resample", *dims).values.reshape(resamples, -1)
    std = values.std(axis=1, ddof=1)
    if kind == "pairs":
        se = std / np.sqrt(count)
    elif design == "crossed" and _ungrouped(rates):
        se = _crossed_error(values, *_groups(rates))
    else:
        se = means.std(axis=0, ddof=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, (tail, 1 - tail), axis=0)
    shape = tuple(rates.rate.sizes[d] for d in dims)
    words = {
        "mean": (values.mean(axis=1), "plasticity"),
        "se": (se, "standard error of the plasticity"),
        "ci_low": (low, f"lower end of the {level:.0%} interval"),
        "ci_high": (high, f"upper end of the {level:.0%} interval"),
        "std": (std, "standard deviation of the rate of change over pairs"),
        "rms": (np.sqrt(np.square(values).mean(axis=1)), "root mean square plasticity"),
    }
    return xr.Dataset(
        {k: (dims, v.reshape(shape), {"units": "1", "long_name": name}) for k, (v, name) in words.items()},
        coords=coords,
        attrs={
            **rates.attrs,
            "resampled": kind,
            "level": float(level),
            "resamples": int(resamples),
            "bootstrap_seed": int(seed),
            "pairs": int(count),
        },
    )


def resampled_means(rates: xr.Dataset, *, resamples: int = 2000, seed: int = 0) -> xr.DataArray:
    """Bootstrap means of the rate of change: `sum w_k rho_k / sum w_k`, dimension resample first.

    All layers and components share the resamples, so that differences between them are paired.
    """
    values, dims, coords = _table(rates)
    kind, units = resampling(rates)
    weights = _weights(kind, units, resamples, seed)
    means = np.concatenate([w @ values.T / w.sum(axis=1, keepdims=True) for w in weights])
    shape = (resamples, *(rates.rate.sizes[d] for d in dims))
    return xr.DataArray(
        means.reshape(shape),
        dims=("resample", *dims),
        coords=coords,
        name="plasticity",
        attrs={"units": "1", "long_name": "resampled plasticity"},
    )


def resampling(rates: xr.Dataset) -> tuple[str, tuple[np.ndarray, ...]]:
    """What the bootstrap resamples, and the unit (0, 1, ...) of each pair.

    Two pairs that share a group on either side, directly or through other pairs, are in one cluster; clusters are
    independent. "pairs": each pair is its own cluster. "clusters": there are enough clusters (effective number at
    least 10) to resample them, as in the cycled design, where all pairs of one target image form a cluster.
    "both sides": source groups and target groups are resampled separately (pigeonhole), as in the crossed design.
    """
    source, target = _groups(rates)
    size = (source.max() + 1, target.max() + 1)
    links = coo_array((np.ones(len(source)), (source, size[0] + target)), shape=(sum(size), sum(size)))
    _, component = connected_components(links, directed=False)
    cluster = np.unique(component[source], return_inverse=True)[1]
    sizes = np.bincount(cluster)
    if sizes.max() == 1:
        return "pairs", (cluster,)
    if len(source) ** 2 / np.square(sizes.astype(float)).sum() >= MIN_CLUSTERS:
        return "clusters", (cluster,)
    return "both sides", (source, target)


def _weights(kind: str, units: tuple[np.ndarray, ...], resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Weights (some resamples, pairs): how often the units of each pair are drawn."""
    rng = np.random.default_rng(seed)
    step = max(1, WEIGHTS_AT_ONCE // len(units[0]))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        weights = np.ones((count, len(units[0])))
        for unit in units:
            weights *= _draws(rng, count, unit.max() + 1)[:, unit]
        empty = weights.sum(axis=1) == 0
        # both sides, incomplete: none of the drawn combinations may be there; such a resample has no mean
        weights[empty] = 1.0
        yield weights


def _draws(rng: np.random.Generator, resamples: int, count: int) -> np.ndarray:
    """How often each of `count` units is drawn in `count` draws with replacement: (resamples, count)."""
    drawn = rng.integers(count, size=(resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * count).reshape(resamples, count)


def _crossed_error(values: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`sqrt(s_a^2 / m + s_b^2 / m')`; with dropped pairs the means are over the pairs there are."""
    variance = np.zeros(len(values))
    for unit in (source, target):
        sizes = np.bincount(unit)
        if len(sizes) < 2:
            return np.full(len(values), np.nan)
        sums = np.stack([np.bincount(unit, weights=v) for v in values])
        variance += (sums / sizes).var(axis=1, ddof=1) / len(sizes)
    return np.sqrt(variance)


def _table(rates: xr.Dataset) -> tuple[np.ndarray, tuple[str, ...], dict]:
    """Rates as (all other dimensions, pair), the names of the other dimensions and their coordinates."""
    design = rates.attrs.get("design")
    if design not in DESIGNS:
        raise UnknownNameError("design", str(design), DESIGNS, "It is an attribute of the rates.")
    if rates.sizes["pair"] < 2:
        raise InputError(f"{rates.sizes['pair']} pair has no standard error; at least 2 are needed")
    rate = rates["rate"].transpose(..., "pair")
    dims = tuple(str(d) for d in rate.dims[:-1])
    values = rate.values.reshape(-1, rate.sizes["pair"]).astype(float)
    if not np.isfinite(values).all():
        raise HypothesisError(f"{int((~np.isfinite(values)).sum())} rates of change are not finite")
    return values, dims, {k: c for k, c in rate.coords.items() if "pair" not in c.dims}


def _groups(rates: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Numbers 0, 1, ... of the source and the target group of each pair."""
    source, target = (np.unique(rates[f"{side}_group"].values, return_inverse=True)[1] for side in ("source", "target"))
    return source, target


def _ungrouped(rates: xr.Dataset) -> bool:
    """Whether each image is a group of its own."""
    for side in ("source", "target"):
        ids, groups = rates[f"{side}_id"].values, rates[f"{side}_group"].values
        if len(np.unique(ids)) != len(np.unique(groups)):
            return False
    return True
