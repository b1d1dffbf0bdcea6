"""Gathered results of kind criteria as a table by dataset, their orders, and the head to head against finetuning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from vitplast.analysis.clusters import cluster_of
from vitplast.analysis.scoring import noise_ceiling, score_criteria
from vitplast.analysis.tables import best_rate
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, ShapeError
from vitplast.rescalings import KINDS

#: Criteria that always name one component; `score_criteria` has them as constant advice.
CONSTANT = "constant_"
_EVERY = tuple(KINDS)
_SAME_FUNCTION = ("V/O", "Q/K")  # every component keeps its own function
#: Rescalings of Prop. 18 under which all five scores of a criterion stay, whatever the factor.
KEPT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("plasticity_common", "plasticity_in_situ"), _SAME_FUNCTION),
    **dict.fromkeys(("jacobian_frobenius", "jacobian_spectral"), _SAME_FUNCTION),
    **{f"bound_{v}_{c}": _SAME_FUNCTION for v in ("valid", "new") for c in ("common", "in_situ")},
    **dict.fromkeys(("plasticity_branch", "relative_rate", "auto_snr", "elasticity", "parameter_count"), _EVERY),
    **dict.fromkeys(("gradient_norm", "gradient_rms", "auto_rgn", "spt", "spt_count", "fisher"), ()),
    **dict.fromkeys(("residual_norm", "residual_energy", "spectrum", "spectrum_edge"), ()),
    **{f"{CONSTANT}{c}": _EVERY for c in COMPONENTS},
}


def criteria_by_dataset(gathered: xr.Dataset) -> xr.Dataset:
    """`total (run, criterion, component) -> total (dataset, criterion, component)`: means over the runs of a dataset.

    Parameters
    ----------
    gathered
        Runs along `run`, whose dataset is in the coordinate `target` (or `dataset`), with `total` and, if they are
        there, `forward_passes` and `backward_passes` (criterion, or run too).

    Returns
    -------
    Dataset with `total`, and the passes as their mean over runs.

    Raises
    ------
    InputError
        If it says of no dataset, has no `total`, or holds several models.

    Examples
    --------
    >>> runs = xr.Dataset({"total": (("run", "criterion", "component"), [[[1.0, 2.0]], [[3.0, 4.0]]])},
    ...                   coords={"target": ("run", ["a", "a"]), "criterion": ["size"], "component": ["LN1", "MHA"]})
    >>> criteria_by_dataset(runs)["total"].values.tolist()
    [[[2.0, 3.0]]]
    """
    name = next((n for n in ("target", "dataset") if n in gathered.coords), None)
    if name is None or "total" not in gathered or "run" not in gathered.dims:
        raise InputError("gathered results of kind criteria are needed: total along run, with target or dataset")
    for parameter in ("model", "weights", "img_size"):
        known = np.unique(gathered[parameter].values.astype(str)) if parameter in gathered.coords else ()
        if len(known) > 1:
            raise InputError(f"the criteria have several values of {parameter}: {', '.join(known)}; choose one")
    labels = np.broadcast_to(gathered[name].values.astype(str), gathered.sizes["run"])
    names = list(dict.fromkeys(labels.tolist()))
    rows = [gathered["total"].isel(run=np.flatnonzero(labels == n)).mean("run").reset_coords(drop=True) for n in names]
    table = xr.concat(rows, xr.Variable("dataset", names)).transpose("dataset", "criterion", "component").to_dataset()
    for passes in ("forward_passes", "backward_passes"):
        if passes in gathered:
            one = gathered[passes].reset_coords(drop=True)
            table[passes] = one.mean("run") if "run" in one.dims else one
    return table


def component_accuracy(grid: xr.Dataset) -> xr.DataArray:
    """`a(dataset, component, seed)`: test accuracy at the rate that validation chose, of the five components.

    A seed counts on a dataset if all its rates were run for all five components; else it is NaN for all of them, so
    that no component is judged on other seeds than its rivals.

    Parameters
    ----------
    grid
        From `vitplast.analysis.grid.grid`.

    Returns
    -------
    DataArray (dataset, component, seed), fractions; NaN where anything is missing.
    """
    done = (grid["finished"] | grid["lr"].isnull()).all("rate") & grid["finished"].any("rate")
    table = best_rate(grid)["seed_accuracy"].where(done).reset_coords(drop=True)
    table = table.reindex(configuration=list(COMPONENTS)).rename(configuration="component")
    return table.where(table.notnull().all("component")).transpose("dataset", "component", "seed")


def head_to_head(
    criteria: xr.Dataset,
    accuracy: xr.DataArray,
    of: Callable[[str], str] = cluster_of,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> xr.Dataset:
    """`score_criteria` of all criteria beside the constant advice, with the noise ceiling as `ceiling` (measure).

    Parameters
    ----------
    criteria
        From `criteria_by_dataset`; the constant criteria among them are replaced by the advice.
    accuracy
        From `component_accuracy`.
    of
        Cluster of a dataset's name; `str` makes every dataset one of its own.
    draws, seed
        As `score_criteria`.

    Raises
    ------
    InputError, ShapeError
        As `score_criteria`.
    """
    names = [c for c in criteria["criterion"].values.tolist() if not c.startswith(CONSTANT)]
    clusters = {str(d): of(str(d)) for d in accuracy["dataset"].values}
    found = score_criteria(criteria.sel(criterion=names), accuracy, clusters, draws=draws, seed=seed)
    ceiling = noise_ceiling(accuracy.sel(dataset=found["dataset"].values), clusters)["mean"]
    return found.assign(ceiling=ceiling)


def component_ranks(scores: xr.DataArray, of: Callable[[str], str] = cluster_of) -> xr.Dataset:
    """`1 + #{components with a larger score}` (ties share their mean rank), 1 = finetune first; over clusters.

    Parameters
    ----------
    scores
        Larger = first; dimensions dataset and component, and any others.
    of
        Cluster of a dataset's name.

    Returns
    -------
    Dataset with `mean`, `low` and `high` (smallest and largest cluster) without the dimension dataset; NaN for a
    component without a score, which takes no rank from the others.

    Raises
    ------
    ShapeError
        If a dimension is missing.

    Examples
    --------
    >>> one = xr.DataArray([[3.0, 1.0, 1.0]], dims=("dataset", "component"),
    ...                    coords={"dataset": ["a"], "component": ["MHA", "LN1", "FC1"]})
    >>> component_ranks(one)["mean"].values.tolist()
    [1.0, 2.5, 2.5]
    """
    if not {"dataset", "component"} <= set(scores.dims):
        raise ShapeError(f"ranks need scores by dataset and component, got {scores.dims}")
    scores = scores.reset_coords(drop=True)
    ranks = xr.apply_ufunc(
        lambda v: rankdata(-v, axis=-1, nan_policy="omit"),
        scores,
        input_core_dims=[["component"]],
        output_core_dims=[["component"]],
    )
    groups = xr.DataArray([of(str(d)) for d in ranks["dataset"].values], dims="dataset", name="cluster")
    clusters = ranks.groupby(groups).mean("dataset")
    spread = {"mean": clusters.mean("cluster"), "low": clusters.min("cluster"), "high": clusters.max("cluster")}
    return xr.Dataset(spread)


def first_choices(criteria: xr.Dataset) -> xr.DataArray:
    """`argmax_k score_k` by dataset and criterion, a name; the first of `COMPONENTS` among equals."""
    total = criteria["total"].sel(component=list(COMPONENTS)).transpose("dataset", "criterion", "component")
    return xr.DataArray(
        np.array(COMPONENTS)[total.fillna(-np.inf).argmax("component").values],
        dims=("dataset", "criterion"),
        coords={"dataset": total["dataset"].values, "criterion": total["criterion"].values},
    )
