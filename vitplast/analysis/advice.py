"""What a practitioner can take from the grid: which configuration, which rates, at what cost; and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from vitplast.analysis.clusters import cluster_means, cluster_of
from vitplast.analysis.tests import ALPHA, paired_tests
from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError, UnknownNameError

#: Bytes a trained scalar takes beside the weight itself: its gradient and what the optimizer keeps, in float32.
BYTES = {"sgd": 8, "adamw": 12}


def points_behind(accuracy: xr.DataArray, rivals: Sequence[str] | None = None) -> xr.Dataset:
    """`100 mean_g (a_g(best) - a_g(k))` over clusters g: how many points configuration k lies behind the best one.

    The best one is that with the largest mean over clusters. It is chosen on the very accuracies that it is compared
    on, so its lead is rather too large; what is not shown in spite of that is not shown.

    Parameters
    ----------
    accuracy
        Fractions, dimensions dataset and configuration, as `best_rate` returns them.
    rivals
        Configurations that count; by default all. Image sets that lack one of them are left out.

    Returns
    -------
    Dataset (configuration): mean (accuracy in percent), behind, low, high (points, t interval), p_holm (two-sided exact
    signed ranks, Holm over all others), tied (not shown to be behind). NaN, p_holm 1 and tied for the best one itself.
    Attributes: best, n_clusters, n_datasets, floor (smallest p_holm that is possible), floor_text.

    Raises
    ------
    InputError
        If fewer than two configurations, or fewer than two clusters that have them all.

    Examples
    --------
    >>> acc = xr.DataArray([[0.5, 0.7], [0.4, 0.8]], dims=("dataset", "configuration"),
    ...                    coords={"dataset": ["a", "b"], "configuration": ["LN1", "MHA"]})
    >>> found = points_behind(acc)
    >>> found.attrs["best"], round(float(found["behind"].sel(configuration="LN1")), 1)
    ('MHA', 30.0)
    """
    known = [c for c in accuracy["configuration"].values.tolist() if rivals is None or c in rivals]
    if len(known) < 2:
        raise InputError(f"two configurations or more are compared, got {', '.join(known) or 'none'}")
    table = accuracy.sel(configuration=known).dropna("dataset", how="any")
    clusters = cluster_means(table) if table.sizes["dataset"] else table.rename(dataset="cluster")
    if clusters.sizes["cluster"] < 2:
        raise InputError(f"two clusters with {', '.join(known)} are needed, got {clusters.sizes['cluster']}")
    mean = 100 * clusters.mean("cluster")
    best = str(mean["configuration"].values[int(mean.argmax("configuration"))])
    rest = [c for c in known if c != best]
    tests = paired_tests(100 * clusters.drop_vars("sets"), best, "two-sided", rest).rename(other="configuration")
    names = {"behind": "difference", "low": "low", "high": "high", "p_holm": "wilcoxon_holm"}
    found = xr.Dataset({n: tests[t].reindex(configuration=known) for n, t in names.items()})
    found["p_holm"] = found["p_holm"].fillna(1.0)
    found["mean"] = mean.reset_coords(drop=True)
    found["tied"] = found["p_holm"] > ALPHA
    about = {n: tests.attrs[n] for n in ("n_clusters", "floor", "floor_text")}
    return found.assign_attrs(best=best, n_datasets=table.sizes["dataset"], **about)


def relative_rates(best: xr.Dataset, reference: str = "MHA") -> xr.Dataset:
    """`exp mean_g log(lr_g(k) / lr_g(reference))` over clusters g: the best learning rate in units of the reference's.

    Parameters
    ----------
    best
        From `vitplast.analysis.tables.best_rate`.

    Returns
    -------
    Dataset (configuration): ratio, low and high (smallest and largest cluster), rate (geometric mean of the best rates
    themselves), edge (share of image sets whose best rate is the smallest or largest tried), n_datasets.

    Raises
    ------
    UnknownNameError
        If the reference was not trained.

    Examples
    --------
    >>> best = xr.Dataset({"lr": (("dataset", "configuration"), [[0.1, 0.01]]), "at_edge": (("dataset",
    ...     "configuration"), [[True, False]])}, {"dataset": ["a"], "configuration": ["LN1", "MHA"]})
    >>> relative_rates(best)["ratio"].values.round(6).tolist()
    [10.0, 1.0]
    """
    known = [str(c) for c in best["configuration"].values]
    if reference not in known:
        raise UnknownNameError("configuration", reference, known)
    logs = np.log(best["lr"].reset_coords(drop=True))
    over = logs - logs.sel(configuration=reference, drop=True)
    groups = xr.DataArray([cluster_of(str(d)) for d in best["dataset"].values], dims="dataset", name="cluster")
    ratio, rate = (table.groupby(groups).mean("dataset") for table in (over, logs))
    there = best["lr"].notnull()
    edge = best["at_edge"].where(there).mean("dataset")
    return xr.Dataset(
        {
            "ratio": np.exp(ratio.mean("cluster")),
            "low": np.exp(ratio.min("cluster")),
            "high": np.exp(ratio.max("cluster")),
            "rate": np.exp(rate.mean("cluster")),
            "edge": edge.reset_coords(drop=True),
            "n_datasets": there.sum("dataset").reset_coords(drop=True),
        }
    )


def training_cost(gathered: xr.Dataset, configurations: Sequence[str] = CONFIGURATIONS) -> xr.Dataset:
    """Medians over runs, by configuration: scalars trained, bytes for their gradients and optimizer, images a second.

    Parameters
    ----------
    gathered
        Kind finetune along `run`, of one model and size.

    Returns
    -------
    Dataset (configuration): parameters (head and final norm included), bytes_sgd and bytes_adamw (`BYTES` times
    parameters), speed (images a second; runs shared the machine with others, so it is a rough number), runs.

    Raises
    ------
    InputError
        If there are runs of several models.
    """
    models = sorted(set(np.atleast_1d(gathered["model"].values).tolist()))
    if len(models) > 1:
        raise InputError(f"the costs of several models were asked for: {', '.join(models)}; choose one")
    labels = gathered["components"].values
    rows: dict[str, list[float]] = {"parameters": [], "speed": [], "runs": []}
    known = [c for c in configurations if c in labels]
    for c in known:
        one = gathered.isel(run=np.flatnonzero(labels == c))
        rows["parameters"].append(float(one["trainable_parameters"].median()))
        rows["speed"].append(float(one["images_per_second"].median()))
        rows["runs"].append(one.sizes["run"])
    table = xr.Dataset({n: ("configuration", v) for n, v in rows.items()}, {"configuration": known})
    return table.assign({f"bytes_{o}": b * table["parameters"] for o, b in BYTES.items()})


def smallest_within(behind: xr.Dataset, cost: xr.Dataset, margin: float) -> str:
    """The configuration with the fewest trained scalars among those at most `margin` points behind the best one.

    Raises
    ------
    InputError
        If the margin is negative.
    """
    if margin < 0:
        raise InputError(f"the margin must be 0 points or more, got {margin}")
    near = behind["behind"].fillna(0.0) <= margin
    names = [str(c) for c in behind["configuration"].values[near.values] if c in cost["configuration"].values]
    return min(names or [behind.attrs["best"]], key=lambda c: float(cost["parameters"].sel(configuration=c)))


def strength(p_holm: float, floor: float, n_clusters: int) -> str:
    """How sure a difference is, in words: shown, not shown, or INCONCLUSIVE by design.

    Examples
    --------
    >>> strength(0.02, 0.01, 9), strength(0.3, 0.01, 9), strength(0.5, 0.25, 4)
    ('shown', 'not shown', 'INCONCLUSIVE by design (4 clusters)')
    """
    if floor > ALPHA:
        return f"INCONCLUSIVE by design ({n_clusters} clusters)"
    return "shown" if p_holm <= ALPHA else "not shown"
