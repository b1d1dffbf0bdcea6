"""Figures of the page on local rates: gain along segments, the same by depth, and a set that is not convex."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter

from vitplast.figures import COLORS, use_style

GREY, BLACK = "#4d4d4d", "#111111"  # no component is meant by these


def segments(ds: xr.Dataset) -> list[Axes]:
    """`gain` and `norm` against `t` for each component of one pair, with the `rate` of the pair as a line."""
    use_style()
    names = [str(c) for c in ds.component.values]
    fig, axes = plt.subplots(1, len(names), figsize=(7.2, 3.2))
    for ax, name in zip(axes, names, strict=True):
        one, color = ds.sel(component=name), COLORS[name]
        ax.plot(one.t, one.norm, color=GREY, marker="s", linestyle="--")
        ax.plot(one.t, one.gain, color=color, marker="o")
        ax.axhline(float(one.rate), color=color, linestyle=":")
        ax.set(yscale="log", xlabel="place t on the segment", xticks=[0, 0.5, 1])
        _plain_ticks(ax)
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0].set_ylabel("rate of change")
    _legend_above(
        fig,
        {
            "largest gain of any direction": ("s", "--"),
            "gain in the direction of the pair": ("o", "-"),
            "rate of the pair": ("", ":"),
        },
    )
    return list(axes)


def depth(ds: xr.Dataset) -> list[Axes]:
    """`rate`, `gain` (mean over t) and `norm` (largest over t) against depth: mean over pairs, bars for their range."""
    use_style()
    names = [str(c) for c in ds.component.values]
    fig, axes = plt.subplots(1, len(names), figsize=(7.2, 3.2))
    styles = {
        "norm": ("largest gain found on the segment", "s", "--"),
        "gain": ("mean gain in the direction of the pair", "o", "-"),
        "rate": ("rate of the pair", "x", ":"),
    }
    for ax, name in zip(axes, names, strict=True):
        for variable, (_, marker, line) in styles.items():
            one = ds[variable].sel(component=name)
            color = GREY if variable == "norm" else COLORS[name]
            mean = one.mean("pair")
            spread = np.stack([mean - one.min("pair"), one.max("pair") - mean])
            ax.errorbar(ds.layer, mean, spread, color=color, marker=marker, linestyle=line, capsize=2)
        ax.set(yscale="log", xlabel="block")
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0].set_ylabel("rate of change")
    _legend_above(fig, {words: (marker, line) for words, marker, line in styles.values()})
    return list(axes)


def two_rays(half: np.ndarray, output: np.ndarray, ends: tuple[float, float], sigma: float) -> Axes:
    """LayerNorm of width 2 against half the difference of its inputs; the set of deviation >= sigma is shaded."""
    use_style()
    _, ax = plt.subplots(figsize=(7.2, 3.0))
    limit = float(np.abs(half).max())
    for low, high in ((-limit, -sigma), (sigma, limit)):
        ax.axvspan(low, high, color=GREY, alpha=0.12, linewidth=0)
    ax.plot(half, output, color=GREY, label="output")
    ax.plot([-sigma, sigma], ends, color=BLACK, marker="o", linestyle="--", label="the pair that is worst")
    ax.set(xlabel="half the difference of the two features", ylabel="output, first feature", xlim=(-limit, limit))
    ax.legend(loc="upper left")
    return ax


def _plain_ticks(ax: Axes) -> None:
    """Written-out numbers on a logarithmic axis that spans less than a decade; others stay as they are."""
    low, high = ax.get_ylim()
    if high < 10 * low:
        places = [float(v) for v in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= v <= high]
        ax.yaxis.set_major_locator(FixedLocator(places))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())


def _legend_above(fig: plt.Figure, styles: Mapping[str, tuple[str, str]]) -> None:
    """A legend for all panels, in grey: colours are those of the components, named above each panel."""
    handles = [Line2D([], [], color=GREY, marker=m, linestyle=line, label=w) for w, (m, line) in styles.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=3, fontsize=8)
