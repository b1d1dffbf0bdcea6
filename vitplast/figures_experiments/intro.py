"""The introduction's figure: plasticity of the components beside what finetuning them gains."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.figures import COLORS, use_style
from vitplast.figures_experiments.plasticity import BY_RANK, RANK_LABEL, boxes

#: Limits of the vertical axis of the authors' bars, in percent (their plotting code).
PAPER_AXIS = (45.8, 48.8)


def intro(means: xr.DataArray, gains: xr.Dataset | None = None) -> list[Axes]:
    """(a) Boxes of plasticity over blocks and tasks; (b) bars of the mean relative gain, from 0, with intervals.

    Parameters
    ----------
    means : DataArray (dataset, layer, component)
        Mean rate of change of every block, of one convention.
    gains : Dataset (configuration)
        mean, low, high, fractions, as `vitplast.analysis.mean_gain.mean_gain` returns them; None: (a) alone. Components
        that are not in it get no bar.
    """
    use_style()
    count = 1 if gains is None else 2
    _, axes = plt.subplots(1, count, squeeze=False, figsize=(3.6 * count, 3.2))
    first = axes[0][0]
    boxes(first, means)
    first.set(xlabel=RANK_LABEL, ylabel="plasticity")
    first.annotate("(a)", (0.0, 1.02), xycoords="axes fraction")
    if gains is None:
        return [first]
    ax = axes[0][1]
    there = [c for c in BY_RANK if c in gains["configuration"].values]
    for component in there:
        one = 100 * gains.sel(configuration=component)
        mean, low, high = (float(one[n]) for n in ("mean", "low", "high"))
        spread = None if not np.isfinite([low, high]).all() else [[mean - low], [high - mean]]
        place = BY_RANK.index(component)
        ax.bar(place, mean, yerr=spread, color=COLORS[component], ecolor="#111111", capsize=3, width=0.7)
    ax.axhline(0, color="#111111", linewidth=0.8)
    ax.set_xticks(range(len(BY_RANK)), BY_RANK)
    low, high = ax.get_ylim()
    ax.set_ylim(min(0.0, low), max(0.0, high))
    ax.set_ylabel("mean relative gain (%)")
    ax.annotate("(b)", (0.0, 1.02), xycoords="axes fraction")
    return [first, ax]


def drawn_heights(gains: xr.DataArray, axis: tuple[float, float] = PAPER_AXIS) -> xr.DataArray:
    """`(g - bottom) / (top - bottom)`: the share of the panel that a bar of `g` percent fills on such an axis."""
    return (gains - axis[0]) / (axis[1] - axis[0])
