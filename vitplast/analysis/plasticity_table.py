"""Plasticity of one model over many tasks: a labelled table, the order of the components, and the paper's rank."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast import results
from vitplast.analysis.paper import ORDER
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.estimate import layer_mean, plasticity, resampled_means

#: Rank that the paper's bounds give each component, 1 the most plastic; the x axis of its figures.
THEORETICAL_RANK = {name: len(ORDER) - i for i, name in enumerate(ORDER)}
#: Experiments that measure models as they are; of runs that say of no experiment, what such runs have.
EXPERIMENTS = ("plasticity", "plasticity_others")
PLAIN: Mapping[str, Any] = {"rescale": "", "weights": "auto"}


def plasticity_table(gathered: xr.Dataset, model: str, **equal: Any) -> xr.Dataset:
    """`P_k,l = mean over pairs of rho` by task: mean, low, high (convention, dataset, layer, component).

    `total`, `total_low`, `total_high` (convention, dataset, component) are means over the blocks, resampled pair by
    pair; `apart` (convention, dataset, component, other): whether the interval of the paired difference of two such
    means leaves out 0.

    Parameters
    ----------
    gathered : Dataset
        Kind plasticity along `run`; of runs with a coordinate `experiment` those of `EXPERIMENTS` count.
    model : str
        Its name.
    equal
        Parameters of the runs by name; over those of `PLAIN` where the runs say of no experiment.

    Raises
    ------
    InputError
        If no run is left, or a task is there twice.
    """
    labelled = "experiment" in gathered.coords
    wanted = {"model": model} | ({} if labelled else dict(PLAIN)) | equal
    if labelled:
        gathered = gathered.isel(run=np.flatnonzero(np.isin(gathered["experiment"].values.astype(str), EXPERIMENTS)))
    rows: dict[str, xr.Dataset] = {}
    given = [json.loads(text) for text in gathered["params_json"].values.tolist()]
    keep = [i for i, one in enumerate(given) if all(one.get(n, PLAIN.get(n)) == v for n, v in wanted.items())]
    if not keep:
        raise InputError(f"no plasticity run with {', '.join(f'{n}={v!r}' for n, v in wanted.items())}")
    for one in results.singles(gathered.isel(run=keep)):
        name = json.loads(one.attrs["params_json"])["target"]
        if name in rows:
            raise InputError(f"two runs with target {name!r}; choose with one more parameter")
        rows[name] = _estimated(one)
    table = xr.concat(rows.values(), xr.Variable("dataset", list(rows)), combine_attrs="drop_conflicts")
    return table.transpose("convention", "dataset", "layer", "component", ...)


def orders(table: xr.Dataset) -> pd.DataFrame:
    """Order of the components by `total`, most plastic first: `>` where the difference is resolved, else `~`.

    Returns
    -------
    DataFrame with columns convention, dataset, order (text), names (tuple), rank_correlation (Spearman with the paper's
    rank, 1 for the paper's own order).
    """
    rows = []
    for convention in table["convention"].values:
        for dataset in table["dataset"].values:
            one = table.sel(convention=convention, dataset=dataset)
            names = one["component"].values[np.argsort(-one["total"].values, kind="stable")].tolist()
            text = names[0]
            for a, b in itertools.pairwise(names):
                text += (" > " if bool(one["apart"].sel(component=a, other=b)) else " ~ ") + b
            rows.append((str(convention), str(dataset), text, tuple(names), rank_correlation(one["total"])))
    return pd.DataFrame(rows, columns=["convention", "dataset", "order", "names", "rank_correlation"])


def rank_correlation(values: xr.DataArray) -> float:
    """Spearman's correlation of `values` (component) with the paper's rank; 1 where MHA is largest and LN1 smallest."""
    from scipy.stats import spearmanr

    rank = [-THEORETICAL_RANK[str(c)] for c in values["component"].values]
    return float(spearmanr(values.values, rank).statistic)


def spreads(table: xr.Dataset) -> xr.Dataset:
    """`max / min` of `total`: over the tasks for each component (`tasks`), and over the components (`components`).

    Returns
    -------
    Dataset: tasks (convention, component); components (convention), of the geometric means over tasks.
    """
    total = table["total"]
    middle = np.exp(np.log(total).mean("dataset"))
    return xr.Dataset(
        {
            "tasks": total.max("dataset") / total.min("dataset"),
            "components": middle.max("component") / middle.min("component"),
        }
    )


def _estimated(run: xr.Dataset) -> xr.Dataset:
    blocks, whole = plasticity(run), plasticity(layer_mean(run))
    drawn = resampled_means(layer_mean(run))
    gaps = drawn - drawn.rename(component="other")
    apart = (gaps.quantile(0.025, "resample") > 0) | (gaps.quantile(0.975, "resample") < 0)
    found = xr.Dataset(
        {
            "mean": blocks["mean"], "low": blocks["ci_low"], "high": blocks["ci_high"], "total": whole["mean"],
            "total_low": whole["ci_low"], "total_high": whole["ci_high"], "apart": apart,
        }
    )  # fmt: skip
    found = found.reset_coords(drop=True)
    source = json.loads(run.attrs["params_json"])["source"]
    kept = found.sel(component=list(COMPONENTS), other=list(COMPONENTS))
    kept.attrs = {"pairs": run.sizes["pair"], "source": source, "resampled": whole.attrs["resampled"]}
    return kept
