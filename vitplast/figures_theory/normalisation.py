"""Figures of the page on normalisation: tokens and their images, the lift, prediction and bounds against depth."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from vitplast import figures

GREY, LIGHT = figures.COLORS["all"], figures.COLORS["head"]
#: Greys of two tokens or pairs; a colour would stand for a component.
NEAR, FAR = "black", LIGHT
#: Line style of each bound, in the order in which legends show them.
BOUNDS = {
    "global": (":", "global, eps alone"),
    "set": ("--", "set, smallest deviation"),
    "pair": ("-", "mean of the pair bounds"),
    "coded": ("-.", "as coded"),
}


def images_on_circle(
    tokens: dict[str, np.ndarray], cloud: dict[str, np.ndarray], curves: dict[str, float]
) -> list[Axes]:
    """Left: centred tokens of three features in their plane, and their images; right: rates against deviation.

    Parameters
    ----------
    tokens
        Label of a pair to its two tokens, (2, 3).
    cloud
        Label to an array (2, pairs): `sqrt(tau(x) tau(y))` and the rate.
    curves
        "norm", the norm of the scales behind the centring, and "coded", the formula without deviation.
    """
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), width_ratios=[1, 1.15])
    ax, plane = axes[0], np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(math.sqrt(3) * np.cos(angle), math.sqrt(3) * np.sin(angle), color=GREY, linewidth=1)
    for (label, pair), color, marker in zip(tokens.items(), (NEAR, FAR), "os", strict=True):
        points = pair @ plane.T
        ends = math.sqrt(3) * points / np.linalg.norm(points, axis=1, keepdims=True)
        for start, end in zip(points, ends, strict=True):
            arrow = {"arrowstyle": "->", "color": color, "shrinkA": 3, "shrinkB": 3}
            ax.annotate("", end, start, arrowprops=arrow)
        ax.plot(*points.T, "-", color=color, linewidth=2.5, alpha=0.5)
        ax.plot(*points.T, marker, color=color, label=label, linestyle="none")
        ax.plot(*ends.T, "-", color=GREY, linewidth=2.5, alpha=0.5)
        ax.plot(*ends.T, "D", color=GREY, markersize=4)
    ax.plot(0, 0, "+", color=GREY)
    ax.set(aspect="equal", xticks=[], yticks=[], xlim=(-2.0, 4.0), ylim=(-2.9, 3.9))
    ax.spines[:].set_visible(False)
    ax.legend(loc="lower left", handletextpad=0.1)
    ax = axes[1]
    for (label, (deviation, rate)), marker in zip(cloud.items(), (".", "x", "+"), strict=False):
        color = LIGHT if marker == "." else NEAR
        ax.plot(
            deviation, rate, marker, color=color, label=label, linestyle="none", markersize=3 if marker == "." else 6
        )
    deviations = np.concatenate([deviation for deviation, _ in cloud.values()])
    span = np.geomspace(deviations.min(), deviations.max())
    ax.plot(span, curves["norm"] / span, color=NEAR, linewidth=1, label="bound of the pair")
    ax.axhline(curves["coded"], linestyle="-.", color=GREY, label="as coded")
    ax.set(xscale="log", yscale="log", xlabel=r"$\sqrt{\tau(x)\,\tau(y)}$", ylabel="rate of change")
    ax.legend(fontsize=8, loc="lower left")
    return list(axes)


def lift_and_gap(sigma: float, eps: float) -> list[Axes]:
    """Two features. Left: the lift of Lemma 5. Right: the layer norm, steep only where no token lies."""
    figures.use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 2.9))
    ax, height = axes[0], 0.5
    angle = np.linspace(0, np.pi, 100)
    ax.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=1)
    ax.axhline(height, color=GREY, linestyle=":", linewidth=1)
    ax.axhline(0, color=GREY, linewidth=0.8)
    for z, name, color in ((-0.6, "z", NEAR), (2.0, "w", FAR)):
        size = math.hypot(z, height)
        ax.plot([0, z], [0, height], color=color, linewidth=1)
        ax.plot([0, z / size], [0, height / size], color=color, linewidth=2)
        ax.plot([z / size] * 2, [0, height / size], ":", color=color, linewidth=1)
        ax.plot(z, height, "o", color=color)
        ax.plot(z / size, height / size, "s", color=color)
        ax.plot(z / size, 0, "D", color=color)
        ax.annotate(rf"$\hat {name}$", (z, height), xytext=(4, 4), textcoords="offset points", color=color)
        ax.annotate(
            f"$g_c({name})$", (z / size, 0), xytext=(0, -14), textcoords="offset points", ha="center", color=color
        )
    ax.annotate("$c$", (-1.25, height), xytext=(0, 3), textcoords="offset points", color=GREY)
    ax.set(aspect="equal", xticks=[], yticks=[], xlim=(-1.3, 2.3), ylim=(-0.35, 1.15))
    ax.spines[:].set_visible(False)
    ax = axes[1]
    z = np.linspace(-3 * sigma, 3 * sigma, 601)
    ax.axvspan(-sigma, sigma, color=GREY, alpha=0.15, linewidth=0)
    ax.plot(z, z / np.sqrt(z**2 + eps), color=GREY, label="LayerNorm")
    end = sigma / math.sqrt(sigma**2 + eps)
    ax.plot([-sigma, sigma], [-end, end], "o--", color=NEAR, label="opposite tokens")
    slope = eps / (sigma**2 + eps) ** 1.5
    reach = np.array([sigma, 3 * sigma])
    ax.plot(reach, end + slope * (reach - sigma), color=FAR, linewidth=4, alpha=0.7, label="steepest tangent")
    ax.set(xlabel="first feature, mean taken off", ylabel="its image")
    ax.legend(fontsize=8, loc="upper left")
    return list(axes)


def prediction_by_depth(table: xr.Dataset) -> list[Axes]:
    """Measured mean rate with its range (markers) and prediction (lines) of LN1 and LN2, one panel a convention.

    `table` has dims convention, layer, component and the variables mean, low, high, prediction.
    """
    figures.use_style()
    conventions = [str(c) for c in table.convention.values]
    _, axes = plt.subplots(1, len(conventions), sharey=True, squeeze=False, figsize=(7.2, 3.2))
    for ax, convention in zip(axes[0], conventions, strict=True):
        for component in table.component.values:
            one, color = table.sel(convention=convention, component=component), figures.COLORS[component]
            ax.plot(one.layer, one.prediction, color=color, label=f"{component} predicted")
            _measured(ax, one, component, f"{component} measured")
        ax.set(yscale="log", xlabel="block", xticks=one.layer.values[::2])
        ax.annotate(figures.CONVENTION_NAMES[convention], (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("plasticity")
    _plain_ticks(axes[0][0])
    axes[0][-1].legend(fontsize=8, loc="lower left")
    return list(axes[0])


def bounds_by_depth(table: xr.Dataset) -> list[Axes]:
    """The bounds of `BOUNDS` (lines) above the measured rates (markers, with their range), one panel a component.

    `table` has dims layer, component and the variables mean, low, high and those of `BOUNDS`.
    """
    figures.use_style()
    components = [str(k) for k in table.component.values]
    fig, axes = plt.subplots(1, len(components), sharey=True, squeeze=False, figsize=(7.2, 3.5))
    for ax, component in zip(axes[0], components, strict=True):
        one = table.sel(component=component)
        for name, (style, _) in BOUNDS.items():
            ax.plot(one.layer, one[name], style, color=GREY if name == "coded" else figures.COLORS[component])
        _measured(ax, one, component, None)
        ax.set(yscale="log", xlabel="block", xticks=one.layer.values[::2])
        ax.annotate(component, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("rate of change")
    # the legend serves all panels, so it has no component's colour
    handles = [Line2D([], [], linestyle=style, color=GREY, label=label) for style, label in BOUNDS.values()]
    handles.append(Line2D([], [], linestyle="none", marker=".", markersize=9, color=GREY, label="measured"))
    fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    return list(axes[0])


def _measured(ax: Axes, one: xr.Dataset, component: str, label: str | None) -> None:
    ax.errorbar(
        one.layer,
        one["mean"],
        yerr=[one["mean"] - one.low, one.high - one["mean"]],
        linestyle="none",
        marker=figures.MARKERS[component],
        color=figures.COLORS[component],
        elinewidth=1,
        label=label,
    )


def _plain_ticks(ax: Axes) -> None:
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
