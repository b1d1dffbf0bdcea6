"""Figures of the page on blocks: slopes, averages of bounds, branches and blocks by depth, gated MLPs, patches."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from vitplast import figures

GREY, LIGHT = figures.COLORS["all"], figures.COLORS["head"]
#: Grey, line style and width of each activation; a colour would stand for a component.
ACTIVATIONS = {
    "GELU": ("black", "-", 1.6),
    "GELUTanh": ("#b8b8b8", ":", 1.8),  # lies on GELU, so it is drawn as light dots on a black line
    "SiLU": (GREY, "--", 1.6),
    "QuickGELU": (LIGHT, "-.", 1.6),
    "ReLU": (LIGHT, "-", 0.9),
}
#: Colour and marker of the two branches of a block; the MLP is two components, and so has the colour of neither.
BRANCHES = {"MHA": (figures.COLORS["MHA"], figures.MARKERS["MHA"]), "MLP": ("black", "p")}


def slopes(t: np.ndarray, curves: Mapping[str, np.ndarray], peaks: Mapping[str, tuple[float, float]]) -> Axes:
    """Derivative of each activation over `t`, with its greatest value (place, value) marked."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(6.4, 3.2))
    for name, curve in curves.items():
        color, style, linewidth = ACTIVATIONS[name]
        ax.plot(t, curve, style, color=color, linewidth=linewidth, label=name)
        if name in peaks:
            ax.plot(*peaks[name], "o", color=color, markeredgecolor=GREY, markersize=4)
    ax.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    ax.set(xlabel="input t", ylabel=r"slope $\varphi'(t)$")
    ax.legend(loc="lower right")
    return ax


def averages(sigma: np.ndarray, curve: np.ndarray, pairs: np.ndarray, rates: np.ndarray, ratios: xr.DataArray) -> list:
    """Left: a bound over the floor `sigma` with pairs that reach it and their mean. Right: `ratios` (what, layer).

    `pairs` and `rates` are the floor and the rate of single pairs; ratios are bounds at an average over the average
    of the bounds.
    """
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.2))
    color = figures.COLORS["LN1"]
    axes[0].plot(sigma, curve, "-", color=color, label="bound at one floor")
    axes[0].plot(pairs, rates, "v", color="black", label="rates of two pairs")
    axes[0].plot(pairs, rates, ":", color=GREY, linewidth=1)
    axes[0].plot(pairs.mean(), rates.mean(), "X", color=GREY, markersize=8, label="their mean")
    axes[0].plot(
        pairs.mean(), np.interp(pairs.mean(), sigma, curve), "d", color=color, markersize=8, label="bound at the mean"
    )
    axes[0].set(xlabel=r"deviation floor $\sigma$", ylabel="rate of LN1", ylim=(0, None))
    axes[0].legend()
    looks = {  # marker, colour, face, shift, label
        "sigma": ("v", figures.COLORS["LN1"], None, -0.2, "LN1, mean floor"),
        "max": ("o", figures.COLORS["MHA"], None, 0.2, "MHA, mean radius"),
        "rms": ("o", figures.COLORS["MHA"], "white", 0.0, "MHA, RMS radius"),
    }
    for what in ratios.what.values:
        marker, color, face, shift, label = looks[str(what)]
        places = ratios.layer + shift
        axes[1].plot(
            places,
            ratios.sel(what=what),
            marker,
            color=color,
            markerfacecolor=face or color,
            label=label,
            markersize=4.5,
        )
    axes[1].axhline(1.0, color=GREY, linewidth=1, linestyle=":", zorder=1)
    low = float(ratios.min())
    axes[1].set(xlabel="block", ylabel="bound at average / average", ylim=(0.7 if low > 0.71 else 0.95 * low, 1.03))
    axes[1].legend(loc="center right", bbox_to_anchor=(1.0, 0.72))
    return list(axes)


def branches(table: xr.Dataset) -> list[Axes]:
    """Left: median and range of the LayerScale factors; right: what folding them in does to the branch's bound.

    `table` has dims branch, layer and the variables median, least, most, factor (bound with over bound without).
    """
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True)
    for i, branch in enumerate(table.branch.values):
        color, marker = BRANCHES[str(branch)]
        one = table.sel(branch=branch)
        spread = [one["median"] - one["least"], one["most"] - one["median"]]
        axes[0].errorbar(
            one.layer + 0.2 * i - 0.1, one["median"], yerr=spread, fmt=marker, color=color, capsize=2, label=str(branch)
        )
        axes[1].plot(one.layer, one["factor"], marker=marker, color=color, label=f"{branch} branch")
    for ax in axes:
        ax.axhline(1.0, color=GREY, linewidth=1, linestyle=":")
        ax.set(yscale="log", xlabel="block")
    axes[0].set_ylabel(r"factors $|\lambda_j|$")
    axes[1].set_ylabel("bound with / without LayerScale")
    axes[1].yaxis.set_tick_params(labelleft=True)
    axes[0].legend()
    return list(axes)


def block_by_depth(table: xr.Dataset) -> Axes:
    """Bounds of whole blocks and rates (largest of all pairs) against depth.

    `table` has dim layer and the variables bound, centred, composed, largest.
    """
    figures.use_style()
    _, ax = plt.subplots(figsize=(6.4, 3.4))
    lines = {
        "bound": ("-", "bound, both halves (Prop. 15)"),
        "centred": ("--", "the same, slopes centred"),
        "composed": ("-.", "measured branches put together"),
    }
    for name, (style, label) in lines.items():
        ax.plot(table.layer, table[name], style, color=GREY, label=label)
    ax.plot(
        table.layer,
        table["largest"],
        "x",
        color="black",
        markersize=6,
        markeredgewidth=1.6,
        label="largest rate measured",
    )
    ax.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    ax.set(yscale="log", xlabel="block", ylabel="rate of change of a block")
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.45))
    return ax


def gated(radius: np.ndarray, bound: np.ndarray, local: np.ndarray, pairs: np.ndarray) -> Axes:
    """Bound of a gated MLP, steepest point found and largest rate of random pairs against the radius of the ball."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(6.4, 3.2))
    ax.plot(radius, bound, "-", color="black", label="bound on the ball (Prop. 15)")
    ax.plot(radius, local, "d", color="black", label="steepest point found")
    ax.plot(radius, pairs, ".", color=LIGHT, markersize=8, label="largest rate of random pairs")
    ax.set(xscale="log", yscale="log", xlabel="radius of the ball", ylabel="rate of change")
    ax.legend(loc="upper left")
    return ax


def patches(steepest: np.ndarray, gains: np.ndarray, rates: np.ndarray, bound: float) -> list[Axes]:
    """The patches that a patch embedding stretches most (count, height, width, 3), and rates of image pairs."""
    figures.use_style()
    fig = plt.figure(figsize=(7.2, 2.9))
    grid = fig.add_gridspec(2, 4, width_ratios=[1, 1, 0.25, 3.2])
    axes = [fig.add_subplot(grid[i, j]) for i in range(2) for j in range(2)]
    for ax, patch, gain in zip(axes, steepest, gains, strict=False):
        ax.imshow(patch, interpolation="nearest")
        ax.set_axis_off()
        ax.annotate(f"{gain:.2f}", (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=8)
    ax = fig.add_subplot(grid[:, 3])
    ax.hist(rates, bins=np.linspace(0, bound * 1.05, 60), color=figures.COLORS["emb"], label="pairs of images")
    ax.axvline(bound, color=GREY, label=r"bound $\|W\|_2$")
    ax.set(xlabel="rate of the patch embedding", ylabel="pairs")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend(loc="upper center")
    return [*axes, ax]
