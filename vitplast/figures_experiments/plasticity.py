"""Figures of plasticity over blocks, depth and tasks, with the axes of the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vitplast.analysis.plasticity_table import THEORETICAL_RANK
from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, CONVENTION_NAMES, MARKERS, use_style

BY_RANK = sorted(COMPONENTS, key=THEORETICAL_RANK.__getitem__)
RANK_LABEL = "theoretical plasticity rank"


def boxes(ax: Axes, values: xr.DataArray) -> None:
    """One box a component over all other dimensions of `values`, at its theoretical rank, in log scale.

    The box holds the middle half, the whiskers reach the smallest and the largest value, so none is left out (the paper
    draws no outliers).
    """
    for component in BY_RANK:
        color, place = COLORS[component], THEORETICAL_RANK[component]
        one = values.sel(component=component).values.ravel()
        drawn = ax.boxplot(
            [one[np.isfinite(one)]], positions=[place], widths=0.6, whis=(0, 100), patch_artist=True,
            medianprops={"color": "#111111"}, whiskerprops={"color": color}, capprops={"color": color},
        )  # fmt: skip
        drawn["boxes"][0].set(facecolor=color, edgecolor=color, alpha=0.75)
    _logarithmic(ax)
    ax.set(xlim=(0.4, len(BY_RANK) + 0.6))
    ax.set_xticks(range(1, len(BY_RANK) + 1), [f"{THEORETICAL_RANK[c]}\n{c}" for c in BY_RANK])
    ax.tick_params(axis="x", labelsize=8)


def lines(ax: Axes, middle: xr.DataArray, low: xr.DataArray, high: xr.DataArray) -> None:
    """Lines (layer, component) with bands against depth in percent (block index / (L - 1)), in log scale."""
    count = middle.sizes["layer"]
    depth = 100 * np.arange(count) / max(1, count - 1)
    for component in COMPONENTS:
        style = {"color": COLORS[component]}
        one, *band = (x.sel(component=component).values for x in (middle, low, high))
        ax.plot(depth, one, marker=MARKERS[component], markersize=4, label=component, **style)
        ax.fill_between(depth, *band, alpha=0.25, linewidth=0, **style)
    _logarithmic(ax)
    ax.set(xlabel="depth (%)")


def paper_layout(tables: Mapping[str, xr.Dataset], dataset: str, convention: str) -> list[Axes]:
    """The paper's figure for one task: boxes over the blocks of the first model, then depth curves of each model.

    Parameters
    ----------
    tables
        Name of a model to its table from `plasticity_table`; models without the task are left out.
    dataset, convention
        Which task and which inputs. Bands are the 95% bootstrap intervals of the table.
    """
    use_style()
    there = {n: t for n, t in tables.items() if dataset in t["dataset"].values}
    chosen = {n: t.sel(dataset=dataset, convention=convention) for n, t in there.items()}
    _, axes = plt.subplots(1, 1 + len(chosen), figsize=(3.0 * (1 + len(chosen)), 3.2), sharey=True, squeeze=False)
    first, *others = axes[0]
    name = next(iter(chosen))
    boxes(first, chosen[name]["mean"])
    first.set(xlabel=RANK_LABEL, ylabel="plasticity")
    first.annotate(f"(a) {name}, blocks", (0.5, 1.02), xycoords="axes fraction", ha="center")
    for letter, ax, (name, one) in zip("bcdef", others, chosen.items(), strict=False):
        lines(ax, one["mean"], one["low"], one["high"])
        ax.annotate(f"({letter}) {name}", (0.5, 1.02), xycoords="axes fraction", ha="center")
    others[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return [first, *others]


def boxes_by_task(means: xr.DataArray, columns: int = 5) -> list[Axes]:
    """One panel a task of `means` (dataset, layer, component): boxes over the blocks, on one vertical axis."""
    use_style()
    names = [str(d) for d in means["dataset"].values]
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(max(3.6, 1.75 * columns), 1.75 * rows + 0.5)
    )
    for ax, name in zip(axes.flat, names, strict=False):
        boxes(ax, means.sel(dataset=name))
        ax.set_xticks(range(1, len(BY_RANK) + 1), BY_RANK)
        ax.tick_params(axis="x", labelsize=7, rotation=60)
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center", fontsize=8)
    for ax in axes.flat[len(names) :]:
        ax.remove()
    for ax in axes.flat[max(0, len(names) - columns) : len(names)]:  # nothing stands below these
        ax.tick_params(axis="x", labelbottom=True)
    figure.supxlabel(f"component, by {RANK_LABEL}", fontsize=9)
    figure.supylabel("plasticity", fontsize=9)
    return list(axes.flat[: len(names)])


def depth_over_tasks(tables: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Median over tasks against depth, bands from the lowest to the highest task; a row a convention, a column a model.

    `tables`: name of a model to its table from `plasticity_table`.
    """
    use_style()
    conventions = [str(c) for c in next(iter(tables.values()))["convention"].values]
    shape = (len(conventions), len(tables))
    _, axes = plt.subplots(
        *shape, sharex=True, sharey=True, squeeze=False, figsize=(3.4 * shape[1] + 0.8, 2.5 * shape[0] + 0.4)
    )
    for row, convention in zip(axes, conventions, strict=True):
        for ax, (name, table) in zip(row, tables.items(), strict=True):
            mean = table["mean"].sel(convention=convention)
            lines(ax, mean.median("dataset"), mean.min("dataset"), mean.max("dataset"))
            ax.annotate(
                f"{name}, {CONVENTION_NAMES[convention]}",
                (0.5, 1.02),
                xycoords="axes fraction",
                ha="center",
                fontsize=9,
            )
        row[0].set_ylabel("plasticity")
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes.flat)


def _logarithmic(ax: Axes) -> None:
    """A logarithmic vertical axis with plain numbers at 1, 2 and 5 times the powers of ten."""
    ax.set(yscale="log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
