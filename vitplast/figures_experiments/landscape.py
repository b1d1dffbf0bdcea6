"""Figures of the loss and rate-of-change landscapes: surfaces on one scale, and contours with the descent."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from vitplast.figures import COLORS, MARKERS, use_style

BLACK = "#111111"  # no component is meant by it
LEVELS = 40
NAMES = {"loss": "loss (nat)", "rate": "rate of change"}


def surfaces(values: xr.DataArray, components: Sequence[str] | None = None, *, divide: bool = False) -> list[Axes]:
    """`loss` or `rate` over (u, v) as 3-d surfaces, one panel a component in its colour, all on one vertical scale.

    Parameters
    ----------
    values
        Dims component, u, v.
    components
        Which, in which order; all by default.
    divide
        Divide by the largest value of all panels, as the authors do.
    """
    use_style()
    names = list(map(str, values.component.values)) if components is None else list(components)
    chosen = values.sel(component=names)
    chosen = chosen / float(chosen.max()) if divide else chosen
    top = float(chosen.max())
    _, axes = plt.subplots(
        1, len(names), squeeze=False, subplot_kw={"projection": "3d"}, figsize=(max(3.6, 2.9 * len(names)), 3.2)
    )
    u, v = np.meshgrid(chosen.u, chosen.v, indexing="ij")
    for ax, name in zip(axes[0], names, strict=True):
        ax.plot_surface(u, v, chosen.sel(component=name).transpose("u", "v").values, cmap=_shades(name),
                        vmin=0, vmax=top, linewidth=0, rcount=len(chosen.u), ccount=len(chosen.v))  # fmt: skip
        ax.set(zlim=(0, top), xlabel="u", ylabel="v")
        ax.tick_params(labelsize=7, pad=0)
        ax.annotate(name, (0.5, 1.0), xycoords="axes fraction", ha="center")
    label = NAMES.get(str(values.name), str(values.name))
    words = f"{label} / largest" if divide else label
    axes[0][0].annotate(words, (0, 0.5), xycoords="axes fraction", rotation=90, ha="right", va="center")
    return list(axes[0])


def contours(landscape: xr.Dataset, components: Sequence[str] | None = None, *, cut: float | None = None) -> list[Axes]:
    """Contours of the loss over (u, v), 40 levels for all panels, some with the loss in nat, and the gradient descent.

    The cross is where the descent starts, the mark of the component where it ends; in brackets stand the shares of the
    path's variance along u and v.

    Parameters
    ----------
    landscape
        One variant of a result of kind "landscape".
    components
        Which, in which order; all by default.
    cut
        Largest u and v shown; the authors cut at 0.25.
    """
    use_style()
    names = list(map(str, landscape.component.values)) if components is None else list(components)
    loss = landscape.loss.sel(component=names)
    levels = np.linspace(float(loss.min()), float(loss.max()), LEVELS + 1)
    _, axes = plt.subplots(1, len(names), squeeze=False, sharey=True, figsize=(max(3.6, 2.9 * len(names)), 3.0))
    for ax, name in zip(axes[0], names, strict=True):
        one = landscape.sel(component=name)
        drawn = ax.contour(one.u, one.v, one.loss.transpose("v", "u"), levels, cmap=_shades(name), linewidths=0.8)
        ax.clabel(drawn, drawn.levels[::4], fontsize=6)
        path = one.trajectory.transpose("axis", "step").values
        ax.plot(*path, color=BLACK, linewidth=1)
        ax.plot(*path[:, 0], color=BLACK, marker="x", linestyle="none", markersize=5)
        ax.plot(*path[:, -1], color=COLORS[name], marker=MARKERS[name], markeredgecolor=BLACK, linestyle="none")
        side = float(one.u.max()) if cut is None else cut
        share = ", ".join(f"{100 * float(s):.0f} %" for s in one.explained_variance)
        ax.set(xlim=(-side, side), ylim=(-side, side), xlabel="u")
        ax.annotate(f"{name} ({share})", (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("v")
    return list(axes[0])


def _shades(component: str) -> LinearSegmentedColormap:
    """From a light to a dark shade of the component's colour."""
    color = COLORS[component]
    return LinearSegmentedColormap.from_list(component, ["#f2f2f2", color, BLACK])
