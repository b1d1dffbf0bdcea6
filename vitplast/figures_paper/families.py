"""The models beside the plain vision transformer: what their parts are, and a check on tiny random ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from vitplast.bounds import bounds, token_statistics
from vitplast.components import COMPONENTS, groups, parts
from vitplast.figures import COLORS, MARKERS, use_style
from vitplast.layouts import layout_of
from vitplast.measure import CONVENTIONS, rates_of_change
from vitplast.models import outline, split
from vitplast.models.text_names import is_text_model

#: Groups that every model has; the others are shown as what is beside them.
USUAL = ("emb", *COMPONENTS, "norm", "head")


def anatomy(names: Iterable[str]) -> pd.DataFrame:
    """What the models are made of, from their structure alone; no weights are needed.

    Returns
    -------
    DataFrame, a row a model: model, family (a name of `vitplast.layouts`), blocks, width, million parameters of the
    backbone, FC1 (paths in a block), beside the five (groups of parameters that are no component of the paper).
    """
    rows = []
    for name in names:
        model = outline(name if is_text_model(name) else split(name)[0], num_classes=0)
        layout, found, known = layout_of(model), groups(model), parts(model)
        sizes = {n: p.numel() for n, p in model.named_parameters()}
        root = layout.block_list(model)
        first = next(p for p in known if p.component == "FC1")
        rows.append({
            "model": f"`{name}`",
            "family": layout.name,
            "blocks": len({p.layer for p in known}),
            "width": layout.width(model),
            "million parameters": round(sum(n for k, n in sizes.items() if k not in found.get("head", [])) / 1e6, 1),
            "FC1": " and ".join(f"`{member.removeprefix(f'{root}.0.')}`" for member in first.members),
            "beside the five": ", ".join(g for g in found if g not in USUAL),
        })  # fmt: skip
    return pd.DataFrame(rows)


def tightness(model: Any, source: Any, target: Any) -> xr.Dataset:
    """Largest rate over the new bound of each component, on the pairs of two sides; at most 1 where there is a bound.

    Parameters
    ----------
    model : LoadedModel, LoadedText or nn.Module
        Of one of the families of `vitplast.layouts`.
    source, target
        As `vitplast.measure.rates_of_change` takes them. Pairs are the first with the first and so on; of sides that
        differ in size as many as the smaller one has, drawn at random.

    Returns
    -------
    Dataset of mean (mean rate over pairs and blocks) and ratio (largest over pairs and blocks), along convention and
    component; the attribute `no_bound` says in JSON why a component has none.
    """
    net = getattr(model, "model", model)
    sides = [(s, np.arange(len(s))) if layout_of(net).text else s for s in (source, target)]
    bound = bounds(net, token_statistics(net, sides))
    pairs = None if len(source) == len(target) else min(len(source), len(target))
    mean, ratio = [], []
    for convention in CONVENTIONS:
        rate = rates_of_change(net, source, target, convention=convention, pairs=pairs).rate
        mean.append(rate.mean(["pair", "layer"]))
        ratio.append((rate.max("pair") / bound.bound.sel(convention=convention, variant="new")).max("layer"))
    names = xr.DataArray(list(CONVENTIONS), dims="convention", name="convention")
    both = {"mean": xr.concat(mean, names), "ratio": xr.concat(ratio, names)}
    found = xr.Dataset({name: array.sel(component=list(COMPONENTS)) for name, array in both.items()})
    return found.assign_attrs(no_bound=bound.attrs["no_bound"])


def reasons(found: xr.Dataset) -> dict[str, list[str]]:
    """Component to the reasons why one of its bounds is missing, from what `tightness` returns."""
    return {component: list(why) for component, why in json.loads(found.attrs["no_bound"]).items()}


def closeness(tables: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Largest rate over bound of each component, a panel a convention, a row a model; the line at 1 is never passed.

    `tables`: name of a model to what `tightness` returns.
    """
    use_style()
    figure, axes = plt.subplots(1, len(CONVENTIONS), sharey=True, figsize=(7.2, 0.4 * len(tables) + 1.4))
    for ax, convention in zip(axes, CONVENTIONS, strict=True):
        for c, component in enumerate(COMPONENTS):
            values = [float(t.ratio.sel(convention=convention, component=component)) for t in tables.values()]
            ax.plot(values, np.arange(len(tables)) + (c - 2) * 0.13, linestyle="none", marker=MARKERS[component],
                    markersize=5, color=COLORS[component], label=component)  # fmt: skip
        ax.axvline(1, color="#4d4d4d", linewidth=0.8)
        ax.set(xscale="log", xlabel="largest rate / bound", yticks=range(len(tables)), yticklabels=list(tables))
        ax.annotate(convention.replace("_", " "), (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COMPONENTS))
    return list(axes)
