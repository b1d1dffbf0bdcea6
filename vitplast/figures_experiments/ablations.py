"""Figures of the ablations: accuracy and ranks under several settings, differences, spread over learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from vitplast.analysis.ablations import ranks
from vitplast.analysis.selection import model_name
from vitplast.components import COMPONENTS, CONFIGURATIONS
from vitplast.errors import InputError
from vitplast.figures import COLORS, MARKERS, use_style

GREY, BLACK = "#4d4d4d", "#111111"  # no component is meant by these
#: Share of the distance between two settings over which points of one setting are spread.
SPREAD = 0.5


def style_of(configuration: str) -> dict[str, Any]:
    """Colour and marker of a configuration; combinations of components are black pentagons."""
    return {"color": COLORS.get(configuration, BLACK), "marker": MARKERS.get(configuration, "p")}


def panels(tables: Mapping[str, xr.Dataset], *, height: float = 2.9) -> dict[tuple[str, str], Axes]:
    """One panel a model (rows) and image set (columns), by (model, image set); a panel without results says so.

    Raises
    ------
    InputError
        If there is no table.
    """
    use_style()
    names = list(dict.fromkeys(str(d) for t in tables.values() for d in t["dataset"].values))
    if not names:
        raise InputError("no model has results to be drawn")
    size = (max(4.2, 3.6 * len(names)), height * len(tables))
    _, grid = plt.subplots(len(tables), len(names), squeeze=False, figsize=size)
    found = {}
    for row, (model, table) in zip(grid, tables.items(), strict=True):
        for ax, name in zip(row, names, strict=True):
            ax.annotate(f"{model_name(model)}, {name}", (0.5, 1.02), xycoords="axes fraction", ha="center")
            if name in table["dataset"].values:
                found[model, name] = ax
            else:
                ax.annotate("not run yet", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
    return found


def legend_below(axes: Sequence[Axes], columns: int = 8) -> None:
    """One legend of all that is labelled in the panels, below the figure."""
    labelled: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            labelled.setdefault(label, handle)
    axes[0].figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=columns)


def accuracy_by_setting(tables: Mapping[str, xr.Dataset], xlabel: str, *, log: bool = False) -> list[Axes]:
    """Test accuracy in percent against the setting, a line a configuration; bars are one standard error.

    Parameters
    ----------
    tables
        Model to the table of `vitplast.analysis.ablations.by_setting`. Settings are numbers, or names in their order.
    log
        Numbers on a logarithmic axis.
    """
    found = panels(tables)
    for (model, name), ax in found.items():
        one = tables[model].sel(dataset=name)
        settings = one["setting"].values
        numbers = settings.dtype.kind in "if"
        x = settings.astype(float) if numbers else np.arange(len(settings))
        shown = one["configuration"].values.tolist()
        for i, configuration in enumerate(shown):
            row = one.sel(configuration=configuration).transpose("setting", ...)
            shift = SPREAD * (i / max(1, len(shown) - 1) - 0.5) * 0.4
            at = x * 2**shift if log else x + shift
            ax.errorbar(at, 100 * row["accuracy"], yerr=100 * row["error"], capsize=2, markersize=4, linewidth=1,
                        label=configuration, **style_of(configuration))  # fmt: skip
        if log:
            ax.set_xscale("log")
        ax.set_xticks(x, [f"{s:g}" if numbers else str(s) for s in settings], minor=False)
        ax.set_xticks([], minor=True)
        ax.set(xlabel=xlabel, ylabel="test accuracy (%)")
    legend_below(list(found.values()))
    return list(found.values())


def rank_lines(tables: Mapping[str, xr.Dataset], xlabel: str, components: tuple[str, ...] = COMPONENTS) -> list[Axes]:
    """Rank of each component (1, the most accurate, on top) under each setting; crossing lines are changes of order.

    `tables` as in `accuracy_by_setting`. Ticks above and below a mark: ranks of the components whose accuracy is not
    1.96 errors away, that is, which the mark could have had as far as the noise says.
    """
    found = panels(tables, height=2.5)
    for (model, name), ax in found.items():
        one = tables[model].sel(dataset=name)
        place = ranks(one["accuracy"], components).transpose("setting", "configuration")
        table = one.reindex(configuration=list(components)).transpose("setting", "configuration")
        for i, component in enumerate(components):
            gap = np.abs(table["accuracy"] - table["accuracy"].sel(configuration=component, drop=True))
            error = np.hypot(table["error"], table["error"].sel(configuration=component, drop=True))
            near = place.where(gap <= 1.96 * error)
            own = place.sel(configuration=component)
            bars = np.stack([own - near.min("configuration"), near.max("configuration") - own])
            at = np.arange(table.sizes["setting"]) + 0.25 * SPREAD * (i - (len(components) - 1) / 2)
            ax.errorbar(at, own, yerr=np.nan_to_num(bars), capsize=0, elinewidth=0.8, markersize=5,
                        label=component, **style_of(component))  # fmt: skip
        settings = [f"{s:g}" if isinstance(s, (int, float)) else str(s) for s in table["setting"].values.tolist()]
        ax.set_xticks(range(len(settings)), settings)
        ax.set(yticks=range(1, len(components) + 1), ylim=(len(components) + 0.5, 0.5), xlabel=xlabel, ylabel="rank")
    legend_below(list(found.values()))
    return list(found.values())


def paired_differences(tables: Mapping[str, xr.Dataset], xlabel: str) -> list[Axes]:
    """Difference in points between two settings, a row a configuration; bars are 95 % of the noise.

    `tables`: model to what `vitplast.analysis.ablations.differences` returns. Filled marks: resolved at 5 % (Holm).
    """
    found = panels(tables, height=2.6)
    labelled = set()
    for (model, name), ax in found.items():
        known = tables[model]["difference"].notnull().any("dataset")
        shown = tables[model]["configuration"].values[known.values].tolist()
        one = tables[model].sel(dataset=name)
        for i, configuration in enumerate(shown):
            row = one.sel(configuration=configuration)
            face = {} if float(row["p_holm"]) <= 0.05 else {"markerfacecolor": "white"}
            ax.errorbar(100 * float(row["difference"]), i, xerr=196 * float(row["error"]), linestyle="none", capsize=3,
                        label=configuration, **style_of(configuration), **face)  # fmt: skip
        ax.axvline(0, color=GREY, linewidth=1)
        labels = [""] * len(shown) if model in labelled else shown  # the panels of a model have the same rows
        labelled.add(model)
        ax.set_yticks(range(len(shown)), labels)
        ax.set(ylim=(len(shown) - 0.5, -0.5), xlabel=xlabel)
    return list(found.values())


def spread_over_rates(tables: Mapping[str, Mapping[str, xr.Dataset]], configurations: Sequence[str] = ()) -> list[Axes]:
    """Box plots of the test accuracy over learning rates (and seeds), a pair of boxes a configuration, dots the runs.

    Parameters
    ----------
    tables
        Model to setting to a grid of `vitplast.analysis.grid.grid`. The first setting is filled, the second hatched.
    configurations
        Which; by default all that a later setting has.
    """
    merged = {m: xr.Dataset(coords={"dataset": _sets(grids)}) for m, grids in tables.items()}
    found = panels(merged, height=2.9)
    later = [c for grids in tables.values() for g in list(grids.values())[1:] for c in g["configuration"].values]
    shown = list(configurations) or [c for c in CONFIGURATIONS if c in later]
    names = list(dict.fromkeys(s for grids in tables.values() for s in grids))
    for (model, name), ax in found.items():
        for s, setting in enumerate(names):
            grid = tables[model].get(setting)
            if grid is None or name not in grid["dataset"].values:
                continue
            for i, configuration in enumerate(shown):
                if configuration in grid["configuration"].values:
                    values = grid["test_accuracy"].sel(dataset=name, configuration=configuration).values.ravel()
                    _box(ax, 100 * values[np.isfinite(values)], i + 0.4 * (s - (len(names) - 1) / 2), configuration, s)
        ax.set_xticks(range(len(shown)), shown)
        ax.set(xlim=(-0.6, len(shown) - 0.4), ylabel="test accuracy (%)")
    if found:
        faces = ["#d9d9d9" if s == 0 else "white" for s in range(len(names))]
        fills = [Patch(facecolor=f, edgecolor=GREY, hatch=_hatch(s)) for s, f in enumerate(faces)]
        next(iter(found.values())).figure.legend(fills, names, loc="outside lower center", ncols=len(names))
    return list(found.values())


def _sets(grids: Mapping[str, xr.Dataset]) -> list[str]:
    return list(dict.fromkeys(str(d) for g in grids.values() if g is not None for d in g["dataset"].values))


def _hatch(place: int) -> str:
    return ("", "////", "....")[place % 3]


def _box(ax: Axes, values: np.ndarray, at: float, configuration: str, place: int) -> None:
    if not len(values):
        return
    color = COLORS.get(configuration, BLACK)
    drawn = ax.boxplot([values], positions=[at], widths=0.32, patch_artist=True, showfliers=False, manage_ticks=False)
    for box in drawn["boxes"]:
        box.set(facecolor=color if place == 0 else "white", alpha=0.6, edgecolor=color, hatch=_hatch(place))
    for line in (*drawn["medians"], *drawn["whiskers"], *drawn["caps"]):
        line.set(color=BLACK if line in drawn["medians"] else color)
    ax.plot(np.full(len(values), at), values, linestyle="none", marker=".", markersize=3, color=BLACK, alpha=0.7)
