"""Bounds, predictions and measurements of all components and blocks on one axis."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, MARKERS, use_style

#: Statement and law shown for each component: the sharpest bound of every pair, the prediction with fewest inputs.
SHOWN_BOUND = {"LN1": "T6", "MHA": "T12_stacked", "LN2": "T6", "FC1": "T3", "FC2": "T3"}
SHOWN_LAW = {"LN1": "P7", "MHA": "pooling", "LN2": "P7", "FC1": "T4_isotropic", "FC2": "T4_isotropic"}


def shown(result: xr.Dataset, convention: str) -> xr.Dataset:
    """bound, prediction and measured mean (layer, component) of the five components, one of each a component."""
    one = result.sel(convention=convention, component=list(COMPONENTS))

    def pick(name: str, dim: str, chosen: dict[str, str]) -> xr.DataArray:
        labels = xr.DataArray([chosen[c] for c in COMPONENTS], dims="component", coords={"component": list(COMPONENTS)})
        return one[name].sel({dim: labels}).drop_vars(dim)

    return xr.Dataset(
        {
            "bound": pick("bound", "statement", SHOWN_BOUND),
            "prediction": pick("prediction", "law", SHOWN_LAW),
            "measured": one["measured_mean"],
        }
    )


def ladder(result: xr.Dataset, convention: str, ax: Axes | None = None) -> Axes:
    """One row a block and component: mean rate (marker), prediction (ring), bound (bar), on one logarithmic axis.

    `result` is one run of kind "theory".
    """
    use_style()
    if ax is None:
        ax = plt.subplots(figsize=(7.2, 5.4))[1]
    table, depth = shown(result, convention), result.sizes["layer"]
    step, ring, hollow = depth + 2, "#7f7f7f", {"fillstyle": "none", "markeredgewidth": 0.8}
    for c, component in enumerate(COMPONENTS):
        rows = c * step + np.arange(depth)
        one = table.sel(component=component)
        color = COLORS[component]
        ax.hlines(rows, one["measured"], one["bound"], color=color, linewidth=0.6, alpha=0.5)
        ax.plot(one["bound"], rows, linestyle="none", marker="|", markersize=7, color=color)
        ax.plot(one["prediction"], rows, linestyle="none", marker="o", markersize=7, color=ring, **hollow)
        ax.plot(one["measured"], rows, linestyle="none", marker=MARKERS[component], markersize=3.5, color=color)
    ax.set(
        xscale="log",
        xlabel="rate of change",
        yticks=[c * step + (depth - 1) / 2 for c in range(len(COMPONENTS))],
        yticklabels=COMPONENTS,
    )
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    grey = "#4d4d4d"
    handles = [
        Line2D([], [], linestyle="none", marker="s", markersize=4, color=grey, label="mean rate measured"),
        Line2D([], [], linestyle="none", marker="o", markersize=7, color=ring, label="predicted", **hollow),
        Line2D([], [], linestyle="none", marker="|", markersize=8, color=grey, label="upper bound"),
    ]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return ax
