"""Figures of the page on attention: a switch in the plane, the bound over n, r and depth, the sharp example."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from vitplast import figures

#: The colour of MHA is for measured rates of MHA; forms of the bound differ by grey or black and by line style.
BLACK, GREY, MHA = "black", "0.55", figures.COLORS["MHA"]
#: Line style, colour, width and label of each form of the bound, in the order in which legends show them.
FORMS = {
    "quoted": (":", GREY, 1.5, "paper's form"),
    "repaired": ("--", GREY, 1.5, "its repair, with bias"),
    "separate": ("-.", BLACK, 1.0, "new, heads separate"),
    "sum": ((0, (5, 1)), BLACK, 1.0, "new, heads summed"),
    "stacked": ("-", BLACK, 1.5, "new, heads stacked"),
    "centred": ((0, (1, 1)), "0.75", 2.5, "new, stacked, recentred"),
}
#: Marker and label of what is measured.
MEASURED = {"local": ("x", r"largest $\|J\|_2$ found"), "rate": ("o", "largest rate of a pair")}


def switch(moves: np.ndarray, fixed: np.ndarray, heights: np.ndarray, runs: dict[str, xr.Dataset]) -> list[Axes]:
    """Left: one token moves (`moves`, (T, 2)), two are fixed, and the output of the last one follows a path.

    Right: the weight that the last token gives to the moving one against its height. `runs` maps a name to a dataset
    of `output` (step, axis) and `weight` (step).
    """
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), width_ratios=[1, 1.25])
    axes[0].add_patch(Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.8))
    axes[0].plot(*moves[[0, -1]].T, "-", color=GREY, linewidth=4, alpha=0.35)
    for place in (moves[len(moves) // 3], *fixed):
        axes[0].plot(*place, "s", markeredgecolor=BLACK, markerfacecolor="white")
    places = [(*moves[-1], "1 moves"), (*fixed[0], "2"), (*fixed[1], "3 looks")]
    for x, y, name in places:
        axes[0].annotate(name, (x, y), xytext=(0, 6), textcoords="offset points", fontsize=8, ha="center")
    for (name, one), (color, marker) in zip(runs.items(), [(GREY, "^"), (BLACK, "o")], strict=True):
        axes[0].plot(*one.output.values[::4].T, marker, color=color, markersize=3)
        axes[1].plot(heights, one.weight, color=color)
        axes[1].plot(heights[::12], one.weight[::12], marker, color=color, label=name)
    axes[0].set(aspect="equal", xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes[1].set(xlabel="height of token 1", ylabel="weight of token 1 for token 3", ylim=(-0.05, 1.05))
    axes[1].legend()
    return list(axes)


def forms(curves: dict[str, xr.DataArray]) -> list[Axes]:
    """Bounds against one quantity a panel; `curves` maps the axis label to an array (form, quantity)."""
    figures.use_style()
    fig, axes = plt.subplots(1, len(curves), sharey=True, squeeze=False, figsize=(7.2, 3.4))
    for ax, (label, one) in zip(axes[0], curves.items(), strict=True):
        along = one[one.dims[-1]]
        for name in one.form.values:
            style, color, width, text = FORMS[str(name)]
            ax.plot(along, one.sel(form=name), linestyle=style, color=color, linewidth=width, label=text)
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[0][0].set_ylabel("bound on the rate of change")
    fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return list(axes[0])


def depth(bounds: xr.DataArray, measured: xr.DataArray) -> list[Axes]:
    """Bounds (convention, form, layer) as lines, and `MEASURED` (convention, kind, layer) as markers, against depth."""
    figures.use_style()
    fig, axes = plt.subplots(1, bounds.sizes["convention"], sharey=True, squeeze=False, figsize=(7.2, 3.6))
    for ax, convention in zip(axes[0], bounds.convention.values, strict=True):
        for name in bounds.form.values:
            style, color, width, text = FORMS[str(name)]
            one = bounds.sel(convention=convention, form=name)
            ax.plot(one.layer, one, linestyle=style, color=color, linewidth=width, label=text)
        for kind, (marker, text) in MEASURED.items():
            one = measured.sel(convention=convention, kind=kind)
            ax.plot(one.layer, one, marker, color=MHA, linestyle="none", label=text)
        ax.set(yscale="log", xlabel="block")
        ax.annotate(figures.CONVENTION_NAMES[str(convention)], (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("rate of change of MHA")
    fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return list(axes[0])


def sharpness(tokens: np.ndarray, shares: dict[str, np.ndarray], limit: np.ndarray) -> Axes:
    """Rate of the sharp example over each form of the bound (keys of `FORMS`) against n, and its `limit`."""
    figures.use_style()
    _, ax = plt.subplots(figsize=(6.4, 3.2))
    for (name, values), marker in zip(shares.items(), "os^", strict=False):
        _, color, _, text = FORMS[name]
        ax.plot(tokens, values, marker, color=color, linestyle="none", label=f"rate / {text}")
    ax.plot(tokens, limit, "-", color=BLACK, linewidth=1, label="its limit, strong scores")
    ax.axhline(1 / np.sqrt(24), color=GREY, linewidth=1, linestyle=":")
    ax.annotate(r"$1/\sqrt{24}$", (tokens[0], 1 / np.sqrt(24)), xytext=(0, 4), textcoords="offset points", fontsize=9)
    ax.set(xscale="log", xlabel="tokens n", ylabel="share of the bound reached", ylim=(0, 1.05))
    ax.legend(loc="center right")
    return ax
