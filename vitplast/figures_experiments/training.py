"""Figures of how training goes: gradient norms and losses against the step, for every learning rate."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vitplast.analysis.at_rate import all_rates, at_rate
from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, MARKERS, use_style

BLACK, GREY = "#111111", "#4d4d4d"


def evolution(grid: xr.Dataset, task: str) -> list[list[Axes]]:
    """Gradient norm (top) and losses (bottom) against the step, a column a rate (the paper's training_evolution).

    Top: norm of the component alone before clipping (line) and of all trained parameters, head and final norm included
    (dotted), which is what the authors log. Bottom: validation loss (marks) and training loss (thin line). Lines are
    means over seeds, bands go from the smallest to the largest. Components have rates of their own, so some are missing
    in some columns.

    Parameters
    ----------
    grid : Dataset
        From `vitplast.analysis.selection.main_grid`, with its curves.
    task
        Name of an image set in it.

    Returns
    -------
    Two rows of axes.
    """
    use_style()
    one = grid.sel(dataset=[task])
    here = one.sel(configuration=[c for c in COMPONENTS if c in grid["configuration"].values])
    rates = [r for r in all_rates(here) if bool(at_rate(here, r)["finished"].any())]
    figure, axes = plt.subplots(
        2, len(rates), squeeze=False, sharex=True, sharey="row", figsize=(1.75 * len(rates) + 1.4, 4.2)
    )
    for column, rate in enumerate(rates):
        runs = at_rate(here, rate).squeeze("dataset", drop=True)
        top, bottom = axes[:, column]
        for component in runs["configuration"].values.tolist():
            of = runs.sel(configuration=component)
            if not bool(of["finished"].any()):
                continue
            color, marker = COLORS[component], MARKERS[component]
            norm = _logged(of["gradient_norm"])
            _band(top, norm.where(norm > 0), color, label=component)
            _band(top, _logged(of["gradient_norm_total"]), color, linestyle=":", linewidth=1, band=False)
            _band(bottom, _logged(of["train_loss"]), color, linewidth=0.6, band=False)
            _points(bottom, of["validation_loss"], color, marker)
        top.set(yscale="log")
        top.annotate(f"rate {rate:g}", (0.5, 1.02), xycoords="axes fraction", ha="center", size=9)
        bottom.set(yscale="log", xlabel="step")
        _plain(bottom.yaxis)
    axes[0][0].set_ylabel("gradient norm")
    axes[1][0].set_ylabel("loss (nat)")
    handles = [Line2D([], [], color=COLORS[c], marker=MARKERS[c], label=c) for c in COMPONENTS]
    handles += [
        Line2D([], [], color=GREY, label="component alone"),
        Line2D([], [], color=GREY, linestyle=":", label="all that is trained"),
        Line2D([], [], color=GREY, linewidth=0.6, label="training loss"),
        Line2D([], [], color=GREY, linestyle="none", marker="o", label="validation loss"),
    ]
    figure.legend(handles=handles, loc="outside right center", fontsize=7)
    return [list(row) for row in axes]


def norms_by_task(runs: xr.Dataset, columns: int = 5) -> list[Axes]:
    """Norm of each component's own gradient before clipping against the step, one panel a task; bands over seeds.

    `runs`: a grid at one rate, from `vitplast.analysis.at_rate.at_rate`.
    """
    use_style()
    tasks = [d for d in runs["dataset"].values.tolist() if bool(runs["finished"].sel(dataset=d).any())]
    across = min(columns, len(tasks))
    rows = -(-len(tasks) // across)
    figure, axes = plt.subplots(
        rows, across, squeeze=False, sharex=True, sharey=True, figsize=(max(3.6, 1.7 * across + 0.8), 1.5 * rows + 0.7)
    )
    for ax in axes.ravel()[len(tasks) :]:
        ax.set_axis_off()
    for ax, task in zip(axes.ravel(), tasks, strict=False):
        for component in [c for c in COMPONENTS if c in runs["configuration"].values]:
            norm = _logged(runs["gradient_norm"].sel(dataset=task, configuration=component))
            _band(ax, norm.where(norm > 0), COLORS[component], linewidth=1)
        ax.set(yscale="log")
        ax.tick_params(labelsize=7)
        ax.annotate(task.replace("photocrops:", "crops:"), (0.5, 1.02), xycoords="axes fraction", ha="center", size=7)
    figure.supylabel("gradient norm of the component", size=9)
    figure.supxlabel("step", size=9)
    handles = [Line2D([], [], color=COLORS[c], label=c) for c in COMPONENTS]
    figure.legend(handles=handles, loc="outside right center", fontsize=8)
    return list(axes.ravel()[: len(tasks)])


def norm_against_plasticity(panels: dict[str, xr.Dataset]) -> list[Axes]:
    """Gradient norm against plasticity, one mark a task and component, a large one at the geometric mean of each.

    `panels`: name to norm and plasticity (dataset, component), both without unit and above 0.
    """
    use_style()
    _, axes = plt.subplots(1, len(panels), squeeze=False, figsize=(3.6 * len(panels) + 0.6, 3.3))
    for ax, (name, table) in zip(axes[0], panels.items(), strict=True):
        for component in [c for c in COMPONENTS if c in table["component"].values]:
            one = table.sel(component=component).dropna("dataset")
            color, marker = COLORS[component], MARKERS[component]
            ax.plot(
                one["plasticity"], one["norm"], linestyle="none", color=color, marker=marker, markersize=4, alpha=0.5
            )
            x, y = (float(np.exp(np.log(one[n]).mean())) for n in ("plasticity", "norm"))
            ax.plot(
                x, y, linestyle="none", color=color, marker=marker, markersize=9, markeredgecolor=BLACK, label=component
            )
        ax.set(xscale="log", yscale="log", xlabel="plasticity, mean over blocks")
        _plain(ax.xaxis)
        _plain(ax.yaxis)
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("gradient norm of the component")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def _plain(axis: Axis) -> None:
    """A logarithmic axis with plain numbers at 1, 3, 10, 30, since it may span less than a decade."""
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _logged(values: xr.DataArray) -> xr.DataArray:
    """Without the steps that no seed has: runs on another image set may have logged others."""
    return values.dropna("step", how="all")


def _band(ax: Axes, values: xr.DataArray, color: str, *, band: bool = True, **line: object) -> None:
    mean = values.mean("seed")
    ax.plot(values["step"], mean, color=color, **line)
    if band:
        ax.fill_between(values["step"], values.min("seed"), values.max("seed"), color=color, alpha=0.2, linewidth=0)


def _points(ax: Axes, values: xr.DataArray, color: str, marker: str) -> None:
    values = values.dropna("evaluation", how="all")
    mean, low, high = values.mean("seed"), values.min("seed"), values.max("seed")
    spread = [(mean - low).values, (high - mean).values]
    ax.errorbar(
        values["evaluation"], mean, yerr=spread, color=color, marker=marker, markersize=4, linestyle="none", capsize=2
    )
