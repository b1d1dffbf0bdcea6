"""Figures of accuracies at the best learning rate: means over tasks, and gains cluster by cluster."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.mean_gain import mean_gain
from vitplast.components import CONFIGURATIONS
from vitplast.figures import COLORS, MARKERS, use_style

BLACK = "#111111"


def mean_accuracy(panels: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Mean accuracy over tasks in percent, one panel an experiment; bars are `error` (the paper's finetuning_all).

    Parameters
    ----------
    panels
        Name to a Dataset (configuration) with mean and error, fractions, as `vitplast.analysis.best_rates.over_tasks`
        makes it. Configurations without a mean keep their place.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, figsize=(2.9 * len(panels) + 0.6, 3.2))
    for ax, (name, table) in zip(axes[0], panels.items(), strict=True):
        order = _order(table["configuration"].values)
        for place, configuration in enumerate(order):
            one = table.sel(configuration=configuration)
            ax.errorbar(
                place,
                100 * float(one["mean"]),
                yerr=100 * float(one["error"]),
                color=COLORS[configuration],
                marker=MARKERS[configuration],
                linestyle="none",
                capsize=4,
            )
        _names(ax, order, name)
    axes[0][0].set_ylabel("test accuracy, mean over tasks (%)")
    return list(axes[0])


def by_cluster(panels: Mapping[str, xr.DataArray], label: str = "relative gain (%)") -> list[Axes]:
    """Values of each cluster of tasks as small marks, their mean as a large one with its interval; in percent.

    Parameters
    ----------
    panels
        Name to values (dataset, configuration), fractions; tasks without all configurations are left out, as in
        `vitplast.analysis.mean_gain.mean_gain`, which makes mean and interval.
    label
        Of the vertical axis.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, figsize=(3.8 * len(panels) + 0.4, 3.4))
    for ax, (name, values) in zip(axes[0], panels.items(), strict=True):
        order = _order(values["configuration"].values)
        means = mean_gain(values)
        points = 100 * cluster_means(values.transpose("dataset", "configuration").dropna("dataset"))
        for place, configuration in enumerate(order):
            color, marker = COLORS[configuration], MARKERS[configuration]
            here = points.sel(configuration=configuration).values
            beside = place + 0.22 + np.linspace(-0.08, 0.08, len(here))
            ax.plot(beside, here, linestyle="none", color=color, marker=marker, markersize=3, alpha=0.5)
            mean, low, high = (100 * float(means[n].sel(configuration=configuration)) for n in ("mean", "low", "high"))
            spread = None if np.isnan(low) else [[mean - low], [high - mean]]
            ax.errorbar(place - 0.12, mean, yerr=spread, color=color, marker=marker, capsize=4, linestyle="none")
        ax.axhline(0, color=BLACK, linewidth=0.8)
        _names(ax, order, name)
    axes[0][0].set_ylabel(label)
    return list(axes[0])


def selection(panels: Mapping[str, xr.DataArray]) -> list[Axes]:
    """What choosing the rate on test images adds, in points: a small mark a task, a dash at the mean over tasks.

    `panels`: name to the effect (dataset, configuration), a fraction, of `vitplast.analysis.tables.selection_effect`.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, sharey=True, figsize=(3.6 * len(panels) + 0.4, 2.9))
    for ax, (name, effect) in zip(axes[0], panels.items(), strict=True):
        order = _order(effect["configuration"].values)
        for place, configuration in enumerate(order):
            here = 100 * effect.sel(configuration=configuration).values
            here = here[np.isfinite(here)]
            beside = place + np.linspace(-0.2, 0.2, len(here))
            color = COLORS[configuration]
            ax.plot(beside, here, linestyle="none", color=color, marker=MARKERS[configuration], markersize=4, alpha=0.6)
            if len(here):
                ax.hlines(here.mean(), place - 0.35, place + 0.35, color=color, linewidth=2)
        _names(ax, order, name)
    axes[0][0].set_ylabel("by test − by validation (points)")
    return list(axes[0])


def _order(there: np.ndarray) -> list[str]:
    return [c for c in CONFIGURATIONS if c in there]


def _names(ax: Axes, order: list[str], name: str) -> None:
    ax.set(xticks=range(len(order)), xticklabels=order, xlim=(-0.6, len(order) - 0.4))
    ax.tick_params(axis="x", rotation=45)
    ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
