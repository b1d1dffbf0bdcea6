"""Figures of what the learning rate does: box plots over rates and seeds, and ranges over the rates by cluster."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, MARKERS, use_style

BLACK, GREY = "#111111", "#4d4d4d"


def boxes(grid: xr.Dataset, columns: int = 5) -> list[Axes]:
    """Test accuracies of all rates and seeds, one box a component, one panel a task (the paper's robustness_all).

    The box goes from the first to the third quartile, the whiskers to the last run within 1.5 box lengths, and every
    run is a dot. The dashed line is the mean of the same runs of `all`, where they are there.

    Parameters
    ----------
    grid : Dataset
        test_accuracy (dataset, configuration, rate, seed), a fraction; NaN is left out.
    columns
        Panels a row.

    Returns
    -------
    One axes a task, in order.
    """
    use_style()
    tasks = grid["dataset"].values.tolist()
    across = min(columns, len(tasks))
    rows = -(-len(tasks) // across)
    figure, axes = plt.subplots(
        rows, across, squeeze=False, sharex=True, figsize=(max(3.4, 1.75 * across), 1.75 * rows + 0.5)
    )
    drawn = axes.ravel()[: len(tasks)]
    for ax in axes.ravel()[len(tasks) :]:
        ax.set_axis_off()
    for ax, task in zip(drawn, tasks, strict=True):
        accuracy = 100 * grid["test_accuracy"].sel(dataset=task)
        for place, component in enumerate(COMPONENTS):
            values = _values(accuracy, component)
            if not len(values):
                continue
            color = COLORS[component]
            line = {"color": color, "linewidth": 1}
            ax.boxplot(
                [values], positions=[place], widths=0.6, showfliers=False, patch_artist=True,
                boxprops={"facecolor": color, "alpha": 0.35, "edgecolor": color}, medianprops={"color": BLACK},
                whiskerprops=line, capprops=line, manage_ticks=False,
            )  # fmt: skip
            beside = place + np.linspace(-0.18, 0.18, len(values))
            ax.plot(beside, values, linestyle="none", marker=MARKERS[component], color=color, markersize=2)
        whole = _values(accuracy, "all")
        if len(whole):
            ax.axhline(whole.mean(), linestyle="--", color=GREY, linewidth=1)
        ax.set_xlim(-0.6, len(COMPONENTS) - 0.4)
        ax.set_xticks(range(len(COMPONENTS)), COMPONENTS)
        ax.tick_params(axis="x", rotation=60, labelbottom=True, labelsize=7)
        ax.tick_params(axis="y", labelsize=7)
        ax.annotate(task.replace("photocrops:", "crops:"), (0.5, 1.02), xycoords="axes fraction", ha="center", size=7)
    figure.supylabel("test accuracy (%)", size=9)
    return list(drawn)


def ranges(panels: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Range of the mean accuracy over the rates in points, one mark a cluster, and its median; panel an experiment.

    Parameters
    ----------
    panels
        Name to range and floor (cluster, configuration), fractions, of `vitplast.analysis.robustness.rate_ranges`. The
        grey dash is the median of the floor: what seeds alone would show were all rates equally good.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, figsize=(3.6 * len(panels) + 0.6, 3.2))
    for ax, (name, table) in zip(axes[0], panels.items(), strict=True):
        order = [c for c in COMPONENTS if c in table["configuration"].values]
        for place, component in enumerate(order):
            one = 100 * table[["range", "floor"]].sel(configuration=component)
            here = one["range"].values[np.isfinite(one["range"].values)]
            color, marker = COLORS[component], MARKERS[component]
            beside = place + np.linspace(-0.2, 0.2, len(here))
            ax.plot(beside, here, linestyle="none", color=color, marker=marker, markersize=4, alpha=0.6)
            if len(here):
                ax.hlines(np.median(here), place - 0.35, place + 0.35, color=color, linewidth=2)
            floor = float(one["floor"].median())
            if np.isfinite(floor):
                ax.hlines(floor, place - 0.35, place + 0.35, color=GREY, linewidth=1.2, linestyles=":")
        ax.set(xticks=range(len(order)), xticklabels=order, xlim=(-0.6, len(order) - 0.4))
        ax.set_ylim(bottom=0)
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("range over learning rates (points)")
    handles = [
        Line2D([], [], color=BLACK, linewidth=2, label="median of the clusters"),
        Line2D([], [], color=GREY, linestyle=":", label="expected from seeds alone"),
    ]
    axes[0][-1].legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return list(axes[0])


def by_rate(panels: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Accuracy less the best of its own rates, mean over tasks, against the rate; bands are the quartiles over tasks.

    `panels`: name to a grid with test_accuracy (dataset, configuration, rate, seed) and lr (dataset, configuration,
    rate). It shows on which side of its best rate a component loses.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, sharey=True, figsize=(3.6 * len(panels) + 0.6, 3.2))
    for ax, (name, grid) in zip(axes[0], panels.items(), strict=True):
        mean = 100 * grid["test_accuracy"].mean("seed")
        lost = mean - mean.max("rate")
        for component in [c for c in COMPONENTS if c in grid["configuration"].values]:
            one = lost.sel(configuration=component).dropna("dataset", how="all")
            if not one.sizes["dataset"]:
                continue
            rate = grid["lr"].sel(configuration=component, dataset=one["dataset"]).median("dataset")
            color = COLORS[component]
            ax.plot(rate, one.mean("dataset"), color=color, marker=MARKERS[component], markersize=4, label=component)
            low, high = (one.quantile(q, "dataset") for q in (0.25, 0.75))
            ax.fill_between(rate, low, high, color=color, alpha=0.12, linewidth=0)
        ax.set(xscale="log", xlabel="learning rate")
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("accuracy − that of the best rate (points)")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def _values(accuracy: xr.DataArray, configuration: str) -> np.ndarray:
    if configuration not in accuracy["configuration"].values:
        return np.array([])
    values = accuracy.sel(configuration=configuration).transpose("rate", "seed").values.ravel()
    return values[np.isfinite(values)]
