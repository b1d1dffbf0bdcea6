"""Figures of the page on plasticity: rates against the scale of the inputs, coverage, rates beside Jacobian norms."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from vitplast import figures

GREY, LIGHT = figures.COLORS["all"], figures.COLORS["head"]


def scale_curves(rates: xr.DataArray, limits: dict[str, float], crossings: list[float]) -> Axes:
    """Plasticity of LN1, MHA and FC1 against the factor a of their inputs.

    `rates` has dims factor, map; maps named like a component are drawn as such, "LN1, eps = 0" as a dashed line.
    `limits` are the two limits of attention ("pooling", "hard"), drawn over the half where they apply; `crossings`
    are the factors at which two components change places.
    """
    figures.use_style()
    _, ax = plt.subplots(figsize=(7.2, 3.6))
    for i, value in enumerate(crossings):
        ax.axvline(value, color=LIGHT, linewidth=1.2, label=None if i else "change of order", zorder=1)
    for name in [str(n) for n in rates["map"].values]:
        one = rates.sel(map=name)
        if name in figures.COLORS:
            color, marker = figures.COLORS[name], figures.MARKERS[name]
            ax.plot(one.factor, one, color=color, marker=marker, markevery=3, label=name)
        else:
            ax.plot(one.factor, one, "--", color=GREY, linewidth=1, label=r"LN1 with $\varepsilon=0$")
    low, high = float(rates.factor.min()), float(rates.factor.max())
    ax.plot([low, 1], 2 * [limits["pooling"]], ":", color=GREY, label="mean pooling")
    ax.plot([max(1.0, high / 100), high], 2 * [limits["hard"]], "-.", color=GREY, label="hard attention")
    ax.set(xscale="log", yscale="log", xlabel="factor $a$ of the inputs", ylabel="plasticity")
    handles, labels = ax.get_legend_handles_labels()
    last = labels.index("change of order") if crossings else 0
    order = [i for i in range(len(labels)) if i != last] + [last]
    ax.legend([handles[i] for i in order], [labels[i] for i in order], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def coverage(observed: xr.DataArray, expected: xr.DataArray, level: float = 0.95) -> Axes:
    """Share of intervals that hold the true value, a row each kind of interval, a marker each component.

    Both arrays have dims interval, component; `observed` has the attribute repeats, which sets the bars (two binomial
    standard errors); `expected` (crosses) is NaN where the variances predict nothing but the level.
    """
    figures.use_style()
    rows = [str(n) for n in observed.interval.values]
    _, ax = plt.subplots(figsize=(7.2, 0.5 * len(rows) + 1.1))
    components = [str(k) for k in observed.component.values]
    ax.axvline(100 * level, color=GREY, linestyle="--", linewidth=1)
    for c, component in enumerate(components):
        place = np.arange(len(rows)) + 0.2 * (c - (len(components) - 1) / 2)
        share = observed.sel(component=component).values
        error = 200 * np.sqrt(share * (1 - share) / observed.attrs["repeats"])
        ax.errorbar(
            100 * share,
            place,
            xerr=error,
            linestyle="none",
            color=figures.COLORS[component],
            marker=figures.MARKERS[component],
            label=component,
        )
        ax.plot(
            100 * expected.sel(component=component).values,
            place,
            "x",
            color="black",
            markersize=6,
            label="from the variances" if c == len(components) - 1 else None,
        )
    ax.set(yticks=range(len(rows)), yticklabels=rows, xlim=(0, 102), xlabel="intervals that hold the true value (%)")
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def beside_jacobians(table: xr.Dataset) -> Axes:
    """Rate of real pairs, mean over random directions and largest gain of the Jacobian, a row each component.

    `table` has dims component, sample and the variables rate, directional, norm; one dot a sample, the means larger.
    """
    figures.use_style()
    looks = {
        "rate": ("o", "black", "black", "rate of the pair"),
        "directional": ("s", "white", "black", "mean over random directions"),
        "norm": ("^", LIGHT, LIGHT, r"largest gain $\|J\|_2$ found"),
    }
    rows = [str(k) for k in table.component.values]
    _, ax = plt.subplots(figsize=(7.2, 0.55 * len(rows) + 1.1))
    for shift, (name, (marker, face, edge, label)) in zip((-0.22, 0.0, 0.22), looks.items(), strict=True):
        look = {"linestyle": "none", "markerfacecolor": face, "markeredgecolor": edge}
        values = table[name].transpose("component", "sample").values
        place = np.arange(len(rows))
        spread = np.repeat(place + shift, values.shape[1])
        ax.plot(values.ravel(), spread, marker, markersize=3, alpha=0.5, **look)
        ax.plot(values.mean(axis=1), place + shift, marker, markersize=7, label=label, **look)
    ax.set(xscale="log", yticks=range(len(rows)), yticklabels=rows, xlabel="rate or gain")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
