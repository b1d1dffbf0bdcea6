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
LINEAR = 0.1
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


def contours(
    landscape: xr.Dataset, components: Sequence[str] | None = None, *, cut: float | None = None, shared: bool = True
) -> list[Axes]:
    """Contours of the loss over (u, v) at 40 levels, some with the loss in nat, and the gradient descent.

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
    shared
        The same levels in all panels, as the authors; else each panel has its own, and a flat one its lines.
    """
    use_style()
    names = list(map(str, landscape.component.values)) if components is None else list(components)
    every = landscape.loss.sel(component=names)
    _, axes = plt.subplots(1, len(names), squeeze=False, sharey=True, figsize=(max(3.6, 2.9 * len(names)), 3.0))
    for ax, name in zip(axes[0], names, strict=True):
        one = landscape.sel(component=name)
        loss = every if shared else one.loss
        levels = np.linspace(float(loss.min()), float(loss.max()), LEVELS + 1)
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


def sections(landscape: xr.Dataset, components: Sequence[str] | None = None) -> list[Axes]:
    """Loss minus that at the start, in nat, along u (solid) and v (dashed) through the start, one panel a variant.

    Where 0 is not on the grid, the line is the mean of the two next to it; the band reaches from one to the other.
    The scale is linear up to `LINEAR` nat and logarithmic beyond, so that flat and steep components are both seen.

    Parameters
    ----------
    landscape
        A result of kind "landscape": dims variant, component, u, v, step.
    components
        Which, in which order; all by default.
    """
    use_style()
    names = list(map(str, landscape.component.values)) if components is None else list(components)
    variants = [str(v) for v in landscape.variant.values]
    _, axes = plt.subplots(1, len(variants), squeeze=False, figsize=(max(3.8, 3.4 * len(variants) + 0.4), 3.0))
    for ax, variant in zip(axes[0], variants, strict=True):
        for name in names:
            one = landscape.sel(variant=variant, component=name)
            rise = one.loss - float(one.trajectory_loss[0])
            for along, across, line in (("u", "v", "-"), ("v", "u", "--")):
                nearest = np.flatnonzero(np.isclose(abs(rise[across]), float(abs(rise[across]).min())))
                lines = rise.isel({across: nearest})
                label = f"{name}, along {along}"
                ax.plot(rise[along], lines.mean(across), line, color=COLORS[name], label=label)
                band = lines.min(across), lines.max(across)
                ax.fill_between(rise[along], *band, color=COLORS[name], alpha=0.2, linewidth=0)
        ax.axhline(0, color=BLACK, linewidth=0.6)
        ax.set_yscale("symlog", linthresh=LINEAR)
        ax.set(xlabel="way from the weights")
        ax.annotate(variant.replace("_", " "), (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("loss minus loss at the start (nat)")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return list(axes[0])
