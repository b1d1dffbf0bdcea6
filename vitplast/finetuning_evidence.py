"""Results of finetuning as the tables that the claims C4 to C7 and C10 are decided on, by dataset and component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from vitplast.analysis.clusters import cluster_of
from vitplast.analysis.curves import first_steps
from vitplast.analysis.grid import grid
from vitplast.analysis.tables import best_rate, gap, probe_accuracy, relative_gain
from vitplast.components import COMPONENTS

#: Steps whose mean gradient norm C5 takes.
FIRST_STEPS = 100
MOMENTS = ("first step", "first steps")
MEASURES = ("raw", "rms", "elasticity")


@dataclass(frozen=True)
class Evidence:
    """What one parametrisation of one model showed; dimension component holds `COMPONENTS`, in their order.

    `rates` (convention, dataset, layer, component): mean rate of change. `accuracy` and `gap` (dataset, component):
    test accuracy at the rate that validation chose, and range over the rates. `gain` (dataset, component): relative to
    the probe, None without probes. `norms` (moment, measure, dataset, component): gradient norms. `parameters`
    (component). `undivided` (dataset, component): raw norms at the first step as they were measured, where those in
    `norms` were divided by the learning rate, else None. `notes`: what is missing, in words.
    """

    rates: xr.DataArray | None = None
    accuracy: xr.DataArray | None = None
    gap: xr.DataArray | None = None
    gain: xr.DataArray | None = None
    norms: xr.DataArray | None = None
    parameters: xr.DataArray | None = None
    undivided: xr.DataArray | None = None
    notes: list[str] = field(default_factory=list)

    def lacking(self, *names: str) -> list[str]:
        """Those of the named tables that are not there."""
        return [n for n in names if getattr(self, n) is None]

    def on(self, datasets: list[str]) -> Evidence:
        """The same for some of the datasets."""
        tables = {
            n: None
            if (t := getattr(self, n)) is None
            else t.sel(dataset=[d for d in t["dataset"].values if d in datasets])
            for n in ("rates", "accuracy", "gap", "gain", "norms", "undivided")
        }
        return Evidence(**tables, parameters=self.parameters, notes=self.notes)


def clusters_of(table: xr.DataArray) -> dict[str, str]:
    """Cluster of each dataset of a table."""
    return {str(d): cluster_of(str(d)) for d in table["dataset"].values}


def gather_evidence(
    rates: Mapping[str, list[xr.Dataset]],
    finetune: xr.Dataset | None,
    probe: xr.Dataset | None,
    sizes: xr.DataArray | None = None,
    *,
    equal: Mapping[str, Any] | None = None,
) -> Evidence:
    """The tables of `Evidence` from results that belong together.

    Parameters
    ----------
    rates
        Dataset to its plasticity results.
    finetune, probe
        Gathered runs of these kinds; None where there are none.
    sizes
        Norm of the pretrained parameters of each component, dimension component; None: no elasticity.
    equal
        Values that `grid` keeps, where the runs differ in more than dataset, configuration, rate and seed.

    Raises
    ------
    InputError
        As `grid`.
    """
    found: dict[str, Any] = {"rates": mean_rates(rates)}
    notes: list[str] = []
    if finetune is not None:
        runs = grid(finetune, **(equal or {}))
        absent = [c for c in COMPONENTS if c not in runs["configuration"].values]
        if absent:
            notes.append(f"finetune lacks {', '.join(absent)}")
        else:
            found |= _from_grid(runs, sizes, notes)
    if probe is not None and "accuracy" in found:
        base = probe_accuracy(probe)
        both = [d for d in found["accuracy"]["dataset"].values if d in base["dataset"].values]
        lacking = [str(d) for d in found["accuracy"]["dataset"].values if d not in both]
        if lacking:
            notes.append(f"no probe of {', '.join(lacking)}")
        if both:
            gain = relative_gain(found["accuracy"].sel(dataset=both), base)
            found["gain"] = gain.where(np.isfinite(gain))
    return Evidence(**found, notes=notes)


def mean_rates(rates: Mapping[str, list[xr.Dataset]]) -> xr.DataArray | None:
    """Mean rate of change over pairs and over the results of a dataset: (convention, dataset, layer, component)."""
    rows = {
        name: xr.concat([ds["rate"].mean("pair").reset_coords(drop=True) for ds in several], "result", join="inner")
        for name, several in rates.items()
    }
    if not rows:
        return None
    axis = xr.Variable("dataset", list(rows))
    table = xr.concat([row.mean("result") for row in rows.values()], axis, join="inner")
    return table.sel(component=list(COMPONENTS)).transpose("convention", "dataset", "layer", "component")


def gradient_norms(
    runs: xr.Dataset, best: xr.Dataset, sizes: xr.DataArray | None = None
) -> tuple[xr.DataArray, xr.DataArray | None]:
    """`||g_k||` before clipping, `||g_k|| / sqrt(n_k)` and `||g_k|| ||theta_k||`, at the first step and over 100 steps.

    Gradients are those of the component alone, at the learning rate that validation chose, means over seeds. With a
    head of zeros no gradient reaches the component in step 0 (nor in the next one, if a warm-up starts from rate 0), so
    the first step with a gradient above 0 stands for it. There the head is one update old and proportional to the
    learning rate, and with it the gradient; as each component has a rate of its own, the norms at the first step are
    then divided by it. The mean of the first steps stays as it was measured.

    Parameters
    ----------
    runs, best
        From `vitplast.analysis.grid.grid` and `best_rate`.
    sizes
        Norm of the pretrained parameters by component; without it elasticity is NaN.

    Returns
    -------
    DataArray (moment, measure, dataset, component), and where norms at the first step were divided by the rate, the raw
    ones (dataset, component) before that, else None.
    """
    components = list(COMPONENTS)
    rate = best["rate"].sel(configuration=components)
    norm = runs["gradient_norm"].sel(configuration=components).isel(rate=rate.clip(0)).where(rate >= 0)
    norm = norm.drop_vars("rate", errors="ignore").transpose(..., "step")
    reached = norm > 0
    at = reached.argmax("step")
    first = norm.isel(step=at).where(reached.any("step")).drop_vars("step", errors="ignore")
    undivided = None
    if bool((at.where(reached.any("step")) > 0).any()):
        undivided = first.mean("seed").rename(configuration="component")
        first = first / best["lr"].sel(configuration=components)
    tables = {MOMENTS[0]: first, MOMENTS[1]: first_steps(norm, FIRST_STEPS).mean("step")}
    raw = xr.concat([t.mean("seed") for t in tables.values()], xr.Variable("moment", list(MOMENTS)))
    raw = raw.rename(configuration="component")
    count = runs["component_parameters"].sel(configuration=components).rename(configuration="component")
    size = xr.full_like(count, np.nan) if sizes is None else sizes.sel(component=components)
    measures = [raw, raw / np.sqrt(count), raw * size]
    table = xr.concat(measures, xr.Variable("measure", list(MEASURES)), coords="minimal", compat="override")
    return table.transpose("moment", "measure", "dataset", "component"), undivided


def parameter_norms(gradients: Mapping[Any, xr.Dataset], rescale: str = "") -> xr.DataArray | None:
    """`||theta_k||` over all blocks, by component, from results of kind gradients; None if none of them has it.

    `rescale` is a kind of rescaling and its factor, as "LN2/FC1:4"; empty for the model as it is.
    """
    for ds in gradients.values():
        if "part_parameter_norm" not in ds:
            continue
        norm = ds["part_parameter_norm"]
        if "factor" in norm.dims:
            kind, _, factor = rescale.rpartition(":")
            norm = norm.isel(kind=0).sel(factor=1.0) if not rescale else _at(norm, kind, float(factor))
        elif rescale:
            continue
        if norm is not None and set(COMPONENTS) <= set(norm["component"].values):
            total = np.sqrt(np.square(norm).sum(["layer", "part"])).sel(component=list(COMPONENTS))
            return total.reset_coords(drop=True)
    return None


def _at(norm: xr.DataArray, kind: str, factor: float) -> xr.DataArray | None:
    there = kind in norm["kind"].values and factor in norm["factor"].values
    return norm.sel(kind=kind, factor=factor) if there else None


def _from_grid(runs: xr.Dataset, sizes: xr.DataArray | None, notes: list[str]) -> dict[str, Any]:
    """Tables by dataset and component; NaN where fewer rates were run than for the same component elsewhere."""
    components = list(COMPONENTS)
    best = best_rate(runs)
    tried = (runs["test_accuracy"].notnull().any("seed")).sum("rate").sel(configuration=components)
    whole = (tried == tried.max("dataset")).rename(configuration="component")
    missing = int(runs.attrs.get("missing", 0))
    if missing:
        notes.append(f"{missing} runs of the grid are missing")
    short = [str(d) for d in whole["dataset"].values[~whole.all("component").values]]
    if short:
        notes.append(f"not all components and rates were run on {', '.join(short)}")

    def by_component(table: xr.DataArray) -> xr.DataArray:
        return table.sel(configuration=components).rename(configuration="component").where(whole)

    found: dict[str, Any] = {"accuracy": by_component(best["accuracy"]), "gap": by_component(gap(runs))}
    if "component_parameters" in runs:
        count = runs["component_parameters"].sel(configuration=components).rename(configuration="component")
        found["parameters"] = count
        if "gradient_norm" in runs:
            norms, undivided = gradient_norms(runs, best, sizes)
            found |= {"norms": norms.where(whole)}
            found["undivided"] = None if undivided is None else undivided.where(whole)
    return found


def select_runs(results: xr.Dataset | None, rescale: str) -> xr.Dataset | None:
    """The runs of a gathered dataset of one rescaling (empty: none); None if there is none."""
    chosen = np.flatnonzero([g == rescale for g in rescalings(results)])
    return results.isel(run=chosen) if results is not None and len(chosen) else None


def rescalings(results: xr.Dataset | None) -> list[str]:
    """The rescaling of each run of a gathered dataset; empty text where it is the model as it is."""
    if results is None:
        return []
    if "rescale" not in results.coords:
        return [""] * results.sizes["run"]
    return [str(v) for v in np.broadcast_to(results["rescale"].values, results.sizes["run"])]
