"""Head to head of selection criteria: how well does each one say which component to finetune?

Gain over a linear probe is an increasing function of accuracy, the same one for all components of a dataset; so ranks
and choices can be scored on accuracies as well as on gains. Regret needs accuracies, to be in points.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from vitplast.analysis.association import bootstrap_interval, cluster_mean, correlations
from vitplast.errors import InputError, ShapeError

#: Scores of a criterion: Spearman with the accuracies, points lost by its first choice, share of first choices right.
MEASURES = ("correlation", "regret", "hit")
#: Prefix of the criteria that always name one component.
ALWAYS = "always "
_TIE = 1e-12


def score_criteria(
    criteria: xr.DataArray | xr.Dataset,
    accuracy: xr.DataArray,
    clusters: Mapping[str, str],
    *,
    advice: bool = True,
    draws: int = 10_000,
    seed: int = 0,
) -> xr.Dataset:
    """`correlation = Spearman_k(score_k, acc_k)`, `regret = 100 (max_k acc_k - acc_first)`, `hit = [first is best]`.

    `first` is the component with the largest score; components with equal scores are each chosen in turn and averaged.
    Accuracies are means over seeds. Summaries are means over clusters of the means over their datasets.

    Parameters
    ----------
    criteria
        Scores, larger = finetune first; dimensions criterion and component, and dataset where they depend on it. A
        component without a score (NaN) is never chosen, and left out of the correlation. Or a dataset with them as
        `total`, whose `forward_passes` and `backward_passes` (criterion) are kept.
    accuracy
        Test accuracy as a fraction, rate chosen on validation data; dimensions dataset and component, and seed where
        the seeds are there one by one.
    clusters
        Dataset to the name of its cluster.
    advice
        Whether constant advice for each component competes, as "always MHA" and so on.
    draws, seed
        Bootstrap samples of clusters, and the seed.

    Returns
    -------
    xarray.Dataset
        `correlation`, `regret` (points, 0 to 100), `hit` (dataset, criterion); `cluster_*` (cluster, criterion);
        `mean`, `low`, `high` (measure, criterion), 95% intervals by a bootstrap of clusters; `seed_mean` and
        `seed_deviation` (measure, criterion): mean over seeds (to be compared with `noise_ceiling`) and deviation (ddof
        1) of the mean when the accuracies are those of one seed, NaN for fewer than two; `n_datasets` (criterion).
        Datasets that lack a component's accuracy are left out (`n_left_out`). The correlation is NaN for fewer than
        three scores, 0 for equal scores.

    Raises
    ------
    ShapeError
        If dimensions are not those above, or the components differ.
    InputError
        If a dataset has no cluster, no dataset has everything, or an accuracy is not between 0 and 1.

    Examples
    --------
    >>> acc = xr.DataArray([[0.5, 0.7, 0.6]], dims=("dataset", "component"),
    ...                    coords={"dataset": ["a"], "component": ["LN1", "MHA", "FC1"]})
    >>> size = xr.DataArray([[1.0, 2.0, 3.0]], dims=("criterion", "component"),
    ...                     coords={"criterion": ["size"], "component": ["LN1", "MHA", "FC1"]})
    >>> found = score_criteria(size, acc, {"a": "a"})
    >>> found["hit"].sel(criterion="always MHA").item(), float(found["regret"].sel(criterion="size").round(6).item())
    (1.0, 10.0)
    """
    scores, table = _aligned(criteria, accuracy, clusters)
    if advice:
        scores = xr.concat([scores, _constant(scores)], "criterion")
    seeds = table if "seed" in table.dims else table.expand_dims(seed=[0])
    accuracies = seeds.mean("seed").transpose("dataset", "component")
    whole = accuracies.notnull().all("component").values
    if not whole.any():
        raise InputError("no dataset has the accuracy of every component")
    names = accuracies["dataset"].values[whole].tolist()
    groups, criterion = [clusters[n] for n in names], scores["criterion"].values.tolist()
    order = list(dict.fromkeys(groups))
    values = scores.transpose("dataset", "criterion", "component").values[whole]
    each = dict(zip(MEASURES, _scores(values, accuracies.values[whole]), strict=True))
    by_cluster = {m: _cluster_mean(v, groups) for m, v in each.items()}
    means = np.array([_mean(v) for v in by_cluster.values()])
    columns = [[c[np.isfinite(c)] for c in v.T] for v in by_cluster.values()]
    spans = np.array([[bootstrap_interval(c, draws=draws, seed=seed) for c in v] for v in columns])
    over_seeds = zip(("seed_mean", "seed_deviation"), _over_seeds(values, seeds, whole, groups), strict=True)
    found = xr.Dataset(
        {
            **{m: (("dataset", "criterion"), v) for m, v in each.items()},
            **{f"cluster_{m}": (("cluster", "criterion"), v) for m, v in by_cluster.items()},
            "mean": (("measure", "criterion"), means),
            "low": (("measure", "criterion"), spans[..., 0]),
            "high": (("measure", "criterion"), spans[..., 1]),
            **{n: (("measure", "criterion"), v) for n, v in over_seeds},
            "n_datasets": ("criterion", np.isfinite(each["regret"]).sum(axis=0)),
            "n_left_out": int((~whole).sum()),
        },
        coords={"dataset": names, "cluster": order, "criterion": criterion, "measure": list(MEASURES)},
        attrs={"draws": draws, "seed": seed},
    )
    for name in ("forward_passes", "backward_passes") if isinstance(criteria, xr.Dataset) else ():
        if name in criteria:  # constant advice needs no pass
            found[name] = criteria[name].reindex(criterion=criterion, fill_value=0)
    return found


def noise_ceiling(accuracy: xr.DataArray, clusters: Mapping[str, str]) -> xr.Dataset:
    """`score(acc of the other seeds -> acc of one seed)`, averaged: how well the experiment predicts itself.

    Each seed's accuracies are predicted by the mean of all other seeds on the same dataset. That mean is noisy too, so
    a criterion may do better; one that does as well is as good as a repetition. Compare with `seed_mean`.

    Parameters
    ----------
    accuracy
        Fractions, dimensions dataset, component and seed. Seeds that lack a component are left out of their dataset.
    clusters
        Dataset to the name of its cluster.

    Returns
    -------
    xarray.Dataset
        `correlation`, `regret` (points), `hit` (dataset), and `mean` (measure) over clusters; NaN for a dataset with
        fewer than two whole seeds.

    Raises
    ------
    ShapeError
        If a dimension is missing.
    InputError
        If a dataset has no cluster.
    """
    if set(accuracy.dims) != {"dataset", "component", "seed"}:
        raise ShapeError(f"the noise ceiling needs accuracies by dataset, component and seed, got {accuracy.dims}")
    names = accuracy["dataset"].values.tolist()
    _check_clusters(names, clusters)
    table = np.full((len(names), len(MEASURES)), np.nan)
    for i, one in enumerate(accuracy.transpose("dataset", "seed", "component").values):
        one = one[np.isfinite(one).all(axis=1)]
        if len(one) < 2:
            continue
        others = (one.sum(axis=0) - one) / (len(one) - 1)
        table[i] = [v.mean() for v in _scores(others[:, None, :], one)]
    mean = _mean(_cluster_mean(table, [clusters[n] for n in names]))
    found = {m: ("dataset", table[:, j]) for j, m in enumerate(MEASURES)}
    return xr.Dataset({**found, "mean": ("measure", mean)}, {"dataset": names, "measure": list(MEASURES)})


def _scores(scores: np.ndarray, accuracy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The three measures of scores (n, criterion, component) on accuracies (n, component); each (n, criterion)."""
    best = accuracy.max(axis=1)
    there = np.isfinite(scores)
    top = np.where(there, scores, -np.inf)
    first = there & (top >= top.max(axis=2, keepdims=True) - _TIE * np.abs(np.where(there, scores, 0)))
    picks = first.sum(axis=2)
    with np.errstate(invalid="ignore"):
        chosen = (first * accuracy[:, None, :]).sum(axis=2) / picks
        hit = (first & (accuracy >= best[:, None] - _TIE)[:, None, :]).sum(axis=2) / picks
    correlation = np.full(picks.shape, np.nan)
    for place in zip(*np.nonzero(there.sum(axis=2) >= 3), strict=True):
        known = there[place]
        correlation[place] = correlations(scores[place][known][None], accuracy[place[0]][known][None])[0]
    regret = np.maximum(100 * (best[:, None] - chosen), 0.0)  # the mean of equal numbers may round above them
    return correlation, regret, hit


def _constant(scores: xr.DataArray) -> xr.DataArray:
    """Scores of the constant advice: 1 for its component, 0 for all others."""
    components = scores["component"].values.tolist()
    table = xr.DataArray(
        np.eye(len(components)),
        dims=("criterion", "component"),
        coords={"criterion": [f"{ALWAYS}{c}" for c in components], "component": components},
    )
    return table.expand_dims(dataset=scores["dataset"].values).transpose(*scores.dims)


def _over_seeds(values: np.ndarray, seeds: xr.DataArray, whole: np.ndarray, groups: list[str]) -> list[np.ndarray]:
    """Mean and deviation, each (measure, criterion), over the seeds that lack nothing, of what one seed gives."""
    rows = []
    for one in seeds.transpose("seed", "dataset", "component").values[:, whole]:
        full = np.isfinite(one).all(axis=1)
        if full.all():
            rows.append([_mean(_cluster_mean(v, groups)) for v in _scores(values, one)])
    if len(rows) < 2:
        return [np.full((len(MEASURES), values.shape[1]), np.nan)] * 2
    return [np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)]


def _cluster_mean(values: np.ndarray, groups: list[str]) -> np.ndarray:
    """`cluster_mean` column by column over the rows that hold a value; NaN for a cluster without any."""
    order = list(dict.fromkeys(groups))
    found = np.full((len(order), values.shape[1]), np.nan)
    for j, column in enumerate(values.T):
        known = np.isfinite(column)
        names, means = cluster_mean(column[known], [g for g, k in zip(groups, known, strict=True) if k])
        found[[order.index(n) for n in names], j] = means
    return found


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.divide(np.where(known, values, 0).sum(axis=0), count, out=np.full(count.shape, np.nan), where=count > 0)


def _check_clusters(names: list[str], clusters: Mapping[str, str]) -> None:
    missing = [n for n in names if n not in clusters]
    if missing:
        raise InputError(f"dataset {missing[0]!r} is in no cluster; those known are {', '.join(clusters)}")


def _aligned(criteria: xr.DataArray | xr.Dataset, accuracy: xr.DataArray, clusters: Mapping[str, str]):
    scores = criteria["total"] if isinstance(criteria, xr.Dataset) else criteria
    if not {"criterion", "component"} <= set(scores.dims) <= {"criterion", "component", "dataset"}:
        raise ShapeError(f"criteria need the dimensions criterion and component (and dataset), got {scores.dims}")
    if not {"dataset", "component"} <= set(accuracy.dims) <= {"dataset", "component", "seed"}:
        raise ShapeError(f"accuracies need the dimensions dataset and component (and seed), got {accuracy.dims}")
    names = accuracy["component"].values.tolist()
    if sorted(names) != sorted(scores["component"].values.tolist()):
        raise ShapeError(
            f"criteria and accuracies must have the same components, got "
            f"{', '.join(scores['component'].values.tolist())} and {', '.join(names)}"
        )
    if bool(((accuracy < 0) | (accuracy > 1)).any()):
        raise InputError(f"accuracies must be fractions between 0 and 1, got {float(abs(accuracy).max()):g}")
    sets = accuracy["dataset"].values.tolist()
    if "dataset" in scores.dims:
        sets = [n for n in sets if n in set(scores["dataset"].values.tolist())]
        scores = scores.sel(dataset=sets)
    else:
        scores = scores.expand_dims(dataset=sets)
    if not sets:
        raise InputError("no dataset is in both the criteria and the accuracies")
    _check_clusters(sets, clusters)
    scores = scores.sel(component=names).drop_vars([c for c in scores.coords if c not in scores.dims])
    accuracy = accuracy.drop_vars([c for c in accuracy.coords if c not in accuracy.dims])
    return scores.transpose("dataset", "criterion", "component"), accuracy.sel(dataset=sets)
