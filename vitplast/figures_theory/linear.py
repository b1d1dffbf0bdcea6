"""Figures of the page on linear layers: gains and directions, laws against depth, orders of hidden units, alignment."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from vitplast import figures

GREY = figures.COLORS["all"]
#: Line style of each prediction, in the order in which legends show them.
LAWS = {
    "bound": (":", r"bound $\|W\|_2$"),
    "isotropic": ("--", r"isotropic $\|W\|_F/\sqrt{d}$"),
    "law": ("-", r"law $\sqrt{\mathrm{tr}(W^\top WC)}$"),
}


def spectrum(gains: np.ndarray, shares: np.ndarray, numbers: dict[str, float], component: str = "FC1") -> list[Axes]:
    """Left: gain of each right singular direction, with a line each for `numbers` (keys of `LAWS`, and measured).

    Right: share of the differences' energy along the direction, in units of the even share 1/d.
    """
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.2))
    index = np.arange(1, len(gains) + 1)
    axes[0].plot(index, gains, color=figures.COLORS[component], label="gain of a direction")
    for name, (style, label) in LAWS.items():
        axes[0].axhline(numbers[name], linestyle=style, color=GREY, linewidth=1.2, label=label)
    axes[0].set(xscale="log", yscale="log", xlabel="singular direction", ylabel="gain")
    axes[0].legend(fontsize=8, loc="lower left")
    axes[1].plot(index, shares * len(shares), ".", color=figures.COLORS[component], markersize=3)
    axes[1].axhline(1.0, linestyle="--", color=GREY, linewidth=1.2)
    axes[1].annotate("even share", (1.0, 1.0), xytext=(0, 3), textcoords="offset points", fontsize=8)
    axes[1].set(xscale="log", yscale="log", xlabel="singular direction", ylabel="energy of $X-Y$ / even share")
    return list(axes)


def laws_by_depth(table: xr.Dataset) -> list[Axes]:
    """Rates of held-out pairs (markers, bar from smallest to largest) and `LAWS` against depth, a panel a component.

    `table` has dims layer, component and the variables mean, low, high and those of `LAWS`.
    """
    figures.use_style()
    components = [str(k) for k in table.component.values]
    fig, axes = plt.subplots(1, len(components), sharey=True, squeeze=False, figsize=(7.2, 3.4))
    for ax, component in zip(axes[0], components, strict=True):
        one, color = table.sel(component=component), figures.COLORS[component]
        for name, (style, _) in LAWS.items():
            ax.plot(one.layer, one[name], style, color=color)
        ax.errorbar(
            one.layer,
            one["mean"],
            yerr=[one["mean"] - one.low, one.high - one["mean"]],
            linestyle="none",
            marker=figures.MARKERS[component],
            color=color,
            markeredgecolor="white",
        )
        ax.set(yscale="log", xlabel="block")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.annotate(component, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("rate of change")
    # the legend serves all panels, so it has no component's colour
    handles = [Line2D([], [], linestyle=style, color=GREY, label=label) for style, label in LAWS.values()]
    handles.append(Line2D([], [], linestyle="none", marker=".", markersize=9, color=GREY, label="measured"))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    return list(axes[0])


def orders(drawn: np.ndarray, marks: dict[str, float], average: float) -> Axes:
    """Padded P_2 of FC2 over drawn orders of its hidden units, single orders as `marks`, and the average over all."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(7.2, 2.8))
    ax.hist(drawn, bins=25, color=figures.COLORS["FC2"], alpha=0.6, label=f"{len(drawn)} random orders")
    ax.axvline(average, color=GREY, label="average over all orders")
    top = ax.get_ylim()[1]
    for (name, value), marker in zip(marks.items(), "*<>", strict=False):
        ax.plot(value, 0.05 * top, marker, color=GREY, markersize=9, linestyle="none", label=name, clip_on=False)
    ax.set(xlabel="root mean square rate of zero-padded FC2", ylabel="orders")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def alignment(shares: np.ndarray, measured: np.ndarray, laws: dict[str, np.ndarray], component: str = "FC1") -> Axes:
    """Mean rate (markers) and `laws` (keys of `LAWS`) against the share of `X - Y` along the top singular vector."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(7.2, 3.2))
    color = figures.COLORS[component]
    for name, (style, label) in LAWS.items():
        ax.plot(shares, laws[name], style, color=color if name == "law" else GREY, label=label)
    marker = figures.MARKERS[component]
    ax.plot(shares, measured, marker, color=color, markeredgecolor="white", linestyle="none", label="measured mean")
    ax.set(xlabel="share of the difference along the top singular vector", ylabel="rate of change", ylim=(0, None))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
