"""Figures for the choice of a configuration: what it loses against how much it trains, and the rates that it wants."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError
from vitplast.figures import COLORS, MARKERS, use_style


def behind_by_size(behind: Mapping[str, xr.Dataset], cost: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Points behind the best configuration against the scalars trained, a panel a model; bars are the 95% intervals.

    Parameters
    ----------
    behind, cost
        Model to its `points_behind` and `training_cost` of `vitplast.analysis.advice`.

    Raises
    ------
    InputError
        If there is no model.
    """
    axes = _panels(list(behind))
    for ax, (model, table) in zip(axes, behind.items(), strict=True):
        for c in [c for c in CONFIGURATIONS if c in table["configuration"].values]:
            at = table.sel(configuration=c)
            loss = float(at["behind"]) if np.isfinite(float(at["behind"])) else 0.0
            spread = [[loss - float(at["low"])], [float(at["high"]) - loss]] if c != table.attrs["best"] else None
            ax.errorbar(
                float(cost[model]["parameters"].sel(configuration=c)),
                loss,
                spread,
                color=COLORS[c],
                marker=MARKERS[c],
                linestyle="none",
                capsize=2,
                label=c,
            )
        ax.axhline(0, color="#111111", linewidth=0.7)
        ax.set(xscale="log", xlabel="scalars trained (head included)")
        ax.invert_yaxis()
    axes[0].set_ylabel("points behind the best")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def best_rates(best: Mapping[str, xr.Dataset]) -> list[Axes]:
    """The learning rate that validation chose, a mark an image set, by configuration; a bar is the geometric mean.

    Hollow marks lie at the edge of the rates tried. Marks are moved sideways a little, by image set, so that they can
    be told apart.

    Parameters
    ----------
    best
        Model to its `vitplast.analysis.tables.best_rate`.

    Raises
    ------
    InputError
        If there is no model.
    """
    axes = _panels(list(best))
    for ax, table in zip(axes, best.values(), strict=True):
        order = [c for c in CONFIGURATIONS if c in table["configuration"].values]
        for i, c in enumerate(order):
            lr, edge = (table[n].sel(configuration=c).values for n in ("lr", "at_edge"))
            place = i + np.linspace(-0.3, 0.3, len(lr))
            for hollow in (False, True):
                chosen = np.isfinite(lr) & (edge == hollow)
                face = "none" if hollow else COLORS[c]
                style = {"color": COLORS[c], "markerfacecolor": face, "markersize": 4, "linestyle": "none"}
                ax.plot(place[chosen], lr[chosen], MARKERS[c], **style)
            if np.isfinite(lr).any():
                mean = np.exp(np.nanmean(np.log(lr)))
                ax.hlines(mean, i - 0.38, i + 0.38, color=COLORS[c], linewidth=1.5)
        ax.set(yscale="log", xticks=range(len(order)), xticklabels=order)
        ax.tick_params(axis="x", rotation=40)
    axes[0].set_ylabel("best learning rate")
    return axes


def _panels(models: list[str]) -> list[Axes]:
    if not models:
        raise InputError("no model to show")
    use_style()
    _, axes = plt.subplots(1, len(models), squeeze=False, figsize=(7.6, 3.2))
    for ax, model in zip(axes[0], models, strict=True):
        ax.annotate(model, (0.5, 1.02), xycoords="axes fraction", ha="center")
    return list(axes[0])
