"""Figures of the page on verdicts: the verdicts as a grid, plasticity against gain and against gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, CONVENTION_NAMES, MARKERS, use_style

#: Tone and letter of a verdict; greys and letters, as colours belong to the components.
TONES = {"PASS": ("#5b7f95", "P"), "FAIL": ("#2b2b2b", "F"), "INCONCLUSIVE": ("#d9dee2", "?"), "NOT RUN": ("white", "")}
MEASURE_NAMES = {"raw": "gradient norm", "rms": "per parameter (RMS)", "elasticity": "elasticity"}


def verdict_grid(table: pd.DataFrame, claims: Sequence[str]) -> Axes:
    """One row a group and variant, one column a claim; the verdict as tone and letter: P, F, ? (inconclusive).

    Parameters
    ----------
    table
        From `vitplast.verdict_variations.variations`; a claim that a row lacks is left white.
    """
    use_style()
    rows = list(dict.fromkeys(zip(table["group"], table["variant"], strict=True)))
    found = {(r.group, r.variant, r.claim): r.verdict for r in table.itertuples()}
    _, ax = plt.subplots(figsize=(0.55 * len(claims) + 3.0, 0.27 * len(rows) + 0.7), layout="constrained")
    for y, (group, variant) in enumerate(rows):
        for x, claim in enumerate(claims):
            tone, letter = TONES[found.get((group, variant, claim), "NOT RUN")]
            ax.add_patch(
                plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=tone, edgecolor="#b8c4cc", linewidth=0.5)
            )
            ax.text(x, y, letter, ha="center", va="center", color="black" if letter == "?" else "white", fontsize=8)
        if y and rows[y - 1][0] != group:
            ax.axhline(y - 0.5, color="#4d4d4d", linewidth=1)
    ax.set(xlim=(-0.5, len(claims) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.set(xticks=range(len(claims)), xticklabels=claims, yticks=range(len(rows)))
    ax.set_yticklabels([f"{group}: {CONVENTION_NAMES.get(variant, variant)}" for group, variant in rows])
    ax.xaxis.tick_top()
    ax.grid(False)
    return ax


def gain_by_cluster(
    rates: xr.DataArray, gain: xr.DataArray, correlation: xr.DataArray, spread: xr.DataArray | None = None
) -> list[Axes]:
    """Relative gain against plasticity, one panel a cluster, one marker a component; the title has Spearman's rho.

    Parameters
    ----------
    rates
        Plasticity (cluster, component), one convention.
    gain, spread
        Relative gain and its standard error over seeds, fractions, like `rates`; drawn in percent, two errors wide.
    correlation
        Spearman's rho (cluster).
    """
    use_style()
    names = [str(c) for c in gain["cluster"].values]
    wide = min(5, len(names))
    tall = int(np.ceil(len(names) / wide))
    _, grid = plt.subplots(
        tall, wide, squeeze=False, figsize=(1.6 * wide + 0.6, 1.6 * tall + 0.5), layout="constrained"
    )
    axes = list(grid.flat)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    for ax, name in zip(axes, names, strict=False):
        for component in COMPONENTS:
            at = {"cluster": name, "component": component}
            error = None if spread is None else 200 * float(spread.sel(at))
            ax.errorbar(
                float(rates.sel(at)), 100 * float(gain.sel(at)), yerr=error, color=COLORS[component],
                marker=MARKERS[component], linestyle="none", capsize=2, markersize=5,
            )  # fmt: skip
        ax.axhline(0, color="#4d4d4d", linewidth=0.8)
        ax.set_xscale("log")
        _few_ticks(ax)
        ax.set_title(f"{name}, ρ = {float(correlation.sel(cluster=name)):+.1f}", fontsize=8)
        ax.tick_params(labelsize=7)
    grid[-1][0].set_xlabel("plasticity", fontsize=8)
    grid[0][0].set_ylabel("gain (%)", fontsize=8)
    _legend(axes[wide - 1])
    return axes[: len(names)]


def gradients_by_plasticity(rates: xr.DataArray, norms: xr.DataArray) -> list[Axes]:
    """Gradient norms against plasticity, rows conventions, columns measures; every marker a component on a data set.

    Parameters
    ----------
    rates
        Plasticity (convention, dataset, component).
    norms
        Norms (measure, dataset, component) at one moment; a measure without any value is left out.
    """
    use_style()
    measures = [str(m) for m in norms["measure"].values if bool(norms.sel(measure=m).notnull().any())]
    conventions = [str(c) for c in rates["convention"].values]
    _, grid = plt.subplots(
        len(conventions), len(measures), squeeze=False, sharex="row", sharey="col",
        figsize=(2.3 * len(measures) + 0.9, 2.0 * len(conventions) + 0.4), layout="constrained",
    )  # fmt: skip
    sets = [d for d in norms["dataset"].values if d in rates["dataset"].values]
    for i, (row, convention) in enumerate(zip(grid, conventions, strict=True)):
        for ax, measure in zip(row, measures, strict=True):
            for component in COMPONENTS:
                x = rates.sel(convention=convention, component=component, dataset=sets)
                y = norms.sel(measure=measure, component=component, dataset=sets)
                ax.plot(
                    x, y, linestyle="none", color=COLORS[component], marker=MARKERS[component], markersize=4, alpha=0.8
                )
            ax.set(xscale="log", yscale="log")
            _few_ticks(ax)
            if i == 0:
                ax.annotate(MEASURE_NAMES[measure], (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom")
        row[0].set_ylabel(CONVENTION_NAMES.get(convention, convention))
    grid[-1][0].set_xlabel("plasticity, mean over blocks")
    _legend(grid[0][-1])
    return list(grid.flat)


def correlations(found: Mapping[str, xr.Dataset]) -> Axes:
    """Mean Spearman correlation with its bootstrap interval, one row a name; every cluster as a small mark."""
    use_style()
    _, ax = plt.subplots(figsize=(6.0, 0.32 * len(found) + 0.8), layout="constrained")
    for y, one in enumerate(found.values()):
        mean, low, high = (float(one[n]) for n in ("mean", "low", "high"))
        each = one["cluster_correlation"].values
        ax.plot(each, np.full(len(each), y), linestyle="none", marker="|", color="#949494", markersize=9)
        spread = [[mean - low], [high - mean]] if np.isfinite([low, high]).all() else None
        ax.errorbar(mean, y, xerr=spread, color="#4d4d4d", marker="o", capsize=3)
    ax.axvline(0, color="#4d4d4d", linewidth=1)
    ax.axvline(0.5, color="#4d4d4d", linewidth=1, linestyle=":")
    ax.set(
        yticks=range(len(found)), yticklabels=list(found), xlim=(-1.05, 1.05), xlabel="Spearman's ρ, mean over clusters"
    )
    ax.set_ylim(len(found) - 0.5, -0.5)
    return ax


def _few_ticks(ax: Axes) -> None:
    """Labels at 1, 2 and 5 over less than a decade and a half, else at powers of ten, written out."""
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 30 else (1,), numticks=5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _legend(ax: Axes) -> None:
    handles = [
        Line2D([], [], color=COLORS[c], marker=MARKERS[c], linestyle="none", label=c, markersize=5) for c in COMPONENTS
    ]
    ax.legend(handles=handles, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
