"""Accuracy at the best rate in summary: over tasks as the paper does it, as a table, and next to the paper's own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.clusters import cluster_means, clusters
from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError

#: Marks in the table of best rates: the chosen rate is the smallest or largest tried; not all planned runs are there.
EDGE, PARTIAL = "*", "…"
GROUPS = {"matrices": ("MHA", "FC1", "FC2"), "norms": ("LN1", "LN2")}


def whole_tasks(best: xr.Dataset, whole: xr.DataArray, configurations: list[str] | tuple[str, ...]) -> xr.Dataset:
    """The tasks on which every one of `configurations` has all its runs; (dataset, configuration), perhaps no task.

    Parameters
    ----------
    best : Dataset
        From `vitplast.analysis.tables.best_rate`.
    whole : DataArray
        From `vitplast.analysis.selection.whole`.
    """
    there = [c for c in configurations if c in best["configuration"].values]
    chosen = best.sel(configuration=there)
    keep = whole.sel(configuration=there).all("configuration") & (len(there) == len(configurations))
    return chosen.isel(dataset=np.flatnonzero(keep.values & chosen["accuracy"].notnull().all("configuration").values))


def over_tasks(best: xr.Dataset) -> xr.Dataset:
    """`mean_g a_g` and its error from seeds alone, `sqrt(mean_g s_g^2) / sqrt(S)`: what the paper's bars show.

    The error says how far other seeds would move the mean of one task; it holds nothing of the spread between tasks.
    The authors take `s` with ddof 0; here it is ddof 1.

    Parameters
    ----------
    best : Dataset
        With accuracy or mean, std and, if there is one, seeds (dataset, configuration); S is the mean of seeds, else
        the attribute seeds.

    Returns
    -------
    Dataset (configuration): mean (over tasks), cluster_mean (over clusters of tasks), error; fractions.

    Raises
    ------
    InputError
        If there is no task.
    """
    name = "accuracy" if "accuracy" in best else "mean"
    if not best.sizes["dataset"]:
        raise InputError("no task is left to take a mean over")
    seeds = best["seeds"].mean("dataset") if "seeds" in best else float(best.attrs["seeds"])
    error = np.sqrt(np.square(best["std"]).mean("dataset", skipna=False) / seeds)
    by_cluster = cluster_means(best[name]).mean("cluster")
    table = xr.Dataset({"mean": best[name].mean("dataset"), "cluster_mean": by_cluster, "error": error})
    return table.assign_attrs(datasets=best.sizes["dataset"], clusters=len(clusters(best["dataset"].values)))


def contrast(accuracy: xr.DataArray, above: str = "matrices", below: str = "norms") -> xr.DataArray:
    """`mean of one group - mean of the other` by cluster, groups of `GROUPS`: the paper's main contrast, a fraction."""
    table = cluster_means(accuracy)
    high, low = (table.sel(configuration=list(GROUPS[g])).mean("configuration") for g in (above, below))
    return (high - low).rename("contrast")


def best_rate_table(best: xr.Dataset, whole: xr.DataArray) -> pd.DataFrame:
    """`mean ± deviation` in percent and the chosen rate below, by task and configuration, as text for Markdown.

    The highest mean of a task among those with all runs is bold. `EDGE` marks a rate at the edge of those tried,
    `PARTIAL` a cell whose planned runs are not all there; a cell without any run is empty.
    """
    order = [c for c in CONFIGURATIONS if c in best["configuration"].values]
    rows = {}
    for task in best["dataset"].values.tolist():
        accuracy = best["accuracy"].sel(dataset=task)
        sure = accuracy.where(whole.sel(dataset=task))
        top = float(sure.max()) if bool(sure.notnull().any()) else np.nan
        cells = []
        for c in order:
            one = best.sel(dataset=task, configuration=c)
            mean, std = float(one["accuracy"]), float(one["std"])
            if np.isnan(mean):
                cells.append("")
                continue
            spread = "" if np.isnan(std) else f" ± {100 * std:.1f}"
            there = bool(whole.sel(dataset=task, configuration=c))
            text = f"{100 * mean:.1f}{spread}"
            text = f"**{text}**" if there and mean == top else text
            cells.append(
                f"{text}<br>{float(one['lr']):g}{EDGE if bool(one['at_edge']) else ''}{'' if there else PARTIAL}"
            )
        rows[task] = cells
    return pd.DataFrame.from_dict(rows, orient="index", columns=order)


def markdown(table: pd.DataFrame, corner: str = "") -> str:
    """A table of text as Markdown, the index as first column."""
    head = f"| {corner} | " + " | ".join(map(str, table.columns)) + " |"
    lines = [
        f"| {name} | " + " | ".join(map(str, row)) + " |"
        for name, row in zip(table.index, table.values.tolist(), strict=True)
    ]
    return "\n".join([head, "|" + " --- |" * (1 + len(table.columns)), *lines])
