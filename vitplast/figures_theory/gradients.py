"""Figures of the page on gradients: an orbit, the inequalities, and two parametrisations of one network."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vitplast import figures
from vitplast.components import COMPONENTS

GREY = figures.COLORS["all"]
#: Parts in the order of the rows, with the symbols of the page.
SYMBOLS = {
    ("LN1", "weight"): r"LN1 $\gamma$", ("LN1", "bias"): r"LN1 $\beta$",
    ("MHA", "Q"): r"MHA $Q$", ("MHA", "b_Q"): r"MHA $b_Q$", ("MHA", "K"): r"MHA $K$",
    ("MHA", "V"): r"MHA $V$", ("MHA", "b_V"): r"MHA $b_V$", ("MHA", "O"): r"MHA $O$", ("MHA", "b_O"): r"MHA $b_O$",
    ("LN2", "weight"): r"LN2 $\gamma$", ("LN2", "bias"): r"LN2 $\beta$",
    ("FC1", "weight"): r"FC1 $W$", ("FC1", "bias"): r"FC1 $b$",
    ("FC2", "weight"): r"FC2 $W$", ("FC2", "bias"): r"FC2 $b$",
}  # fmt: skip


def opposite(plasticity: xr.DataArray, gradient: xr.DataArray, difference: xr.DataArray) -> list[Axes]:
    """Left: both relative to c = 1, mean over blocks. Right: one against the other, one line a block.

    `plasticity` and `gradient` have dims factor, layer, component (LN2, FC1); `difference` (factor) is that of the
    logits, drawn as their size relative to c = 1.
    """
    figures.use_style()
    _, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4))
    factors, shift = plasticity.factor.values, {"LN2": 0.96, "FC1": 1.04}
    for component in plasticity.component.values:
        color, marker = figures.COLORS[component], figures.MARKERS[component]
        for values, style, face in ((plasticity, "-", color), (gradient, "--", "white")):
            one = (values / values.sel(factor=1.0)).sel(component=component).mean("layer")
            left.plot(factors * shift[component], one, style, color=color, marker=marker, markerfacecolor=face)
        p, g = (v.sel(component=component) for v in (plasticity, gradient))
        right.plot(p, g, color=color, linewidth=0.9, alpha=0.8)
        right.plot(p.sel(factor=1.0), g.sel(factor=1.0), marker, color=color, linestyle="none", label=component)
    left.plot(factors, 1 + difference, color=GREY, linewidth=1, marker="x")
    handles = [
        Line2D([], [], color=GREY, linestyle="-", marker="o", label="plasticity"),
        Line2D([], [], color=GREY, linestyle="--", marker="o", markerfacecolor="white", label="gradient norm"),
        Line2D([], [], color=GREY, linewidth=1, marker="x", label="logits"),
    ]
    left.legend(handles=handles, loc="upper center", fontsize=8)
    left.set(xscale="log", yscale="log", xlabel="factor $c$", ylabel="relative to $c=1$")
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(factors, [f"{c:g}" for c in factors])
    left.minorticks_off()
    right.set(xscale="log", yscale="log", xlabel="plasticity", ylabel="gradient norm")
    right.legend()
    return [left, right]


def inequalities(ratio: xr.DataArray) -> Axes:
    """Gradient over bound for every parameter, one dot a block; `ratio` has dims layer, component, part."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(7.2, 3.6))
    for row, ((component, part), name) in enumerate(SYMBOLS.items()):
        values = ratio.sel(component=component, part=part)
        ax.plot(values, np.full(values.size, row), figures.MARKERS[component], color=figures.COLORS[component], ms=4)
        ax.annotate(name, (0, row), xycoords=("axes fraction", "data"), xytext=(-6, 0), textcoords="offset points",
                    ha="right", va="center", fontsize=8)  # fmt: skip
    ax.axvline(1, color=GREY)
    ax.annotate("bound", (1, 0), xytext=(-4, -2), textcoords="offset points", ha="right", fontsize=8)
    ax.set(xscale="log", xlabel="gradient norm / bound", yticks=range(len(SYMBOLS)), yticklabels=[], xlim=(None, 1.6))
    ax.invert_yaxis()
    return ax


def moved(before: xr.Dataset, after: xr.Dataset, panels: dict[str, str]) -> list[Axes]:
    """Plasticity against gradient before and after a rescaling, an arrow a component; `panels` maps variable to label.

    Both datasets have dimension component, `plasticity` and the variables of `panels`.
    """
    figures.use_style()
    _, axes = plt.subplots(1, len(panels), figsize=(7.2, 3.4), squeeze=False)
    for ax, (name, label) in zip(axes[0], panels.items(), strict=True):
        for component in COMPONENTS:
            ends = [(float(d.plasticity.sel(component=component)), float(d[name].sel(component=component)))
                    for d in (before, after)]  # fmt: skip
            color, marker = figures.COLORS[component], figures.MARKERS[component]
            ax.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": color, "alpha": 0.6})
            ax.plot(*ends[0], marker, color=color, markerfacecolor="white")
            ax.plot(*ends[1], marker, color=color, linestyle="none", label=component)
        ax.set(xscale="log", yscale="log", xlabel="plasticity, in situ", ylabel=label)
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])
