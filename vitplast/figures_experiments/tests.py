"""Figures of the page on tests: paired differences with intervals, differences by cluster, what the test can reach."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.analysis.tests import ALPHA, power_floor
from vitplast.figures import COLORS, MARKERS, use_style

GREY = "#4d4d4d"  # no component is meant by it
POINTS = "difference of accuracy (percentage points)"


def forest(tables: Mapping[str, xr.Dataset], reference: str = "MHA") -> list[Axes]:
    """Mean difference from `reference` with its t interval, one row a component, one panel a table.

    Filled markers are resolved in both tests after Holm, hollow ones are not.

    Parameters
    ----------
    tables
        Title to a result of `vitplast.analysis.tests.paired_tests`, fractions; drawn in percentage points.
    """
    use_style()
    figure, axes = plt.subplots(
        1,
        len(tables),
        sharey=True,
        squeeze=False,
        figsize=(max(3.6, 2.3 * len(tables) + 0.6), 2.6),
        layout="constrained",
    )
    for ax, (title, table) in zip(axes[0], tables.items(), strict=True):
        for i, other in enumerate(table["other"].values):
            one = table.sel(other=other)
            mean, low, high = (100 * float(one[n]) for n in ("difference", "low", "high"))
            sure = max(float(one["wilcoxon_holm"]), float(one["t_holm"])) <= ALPHA
            ax.errorbar(
                mean, i, xerr=[[mean - low], [high - mean]], color=COLORS[str(other)], marker=MARKERS[str(other)],
                fillstyle="full" if sure else "none", capsize=3, linestyle="none",
            )  # fmt: skip
        ax.axvline(0, color=GREY, linewidth=1)
        ax.set(yticks=range(table.sizes["other"]), yticklabels=[f"{reference} − {o}" for o in table["other"].values])
        ax.annotate(title, (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom")
        ax.margins(y=0.2)
    axes[0][0].invert_yaxis()
    figure.supxlabel(POINTS, fontsize="medium")
    return list(axes[0])


def by_set(gap: xr.DataArray, error: xr.DataArray | None = None, reference: str = "MHA") -> list[Axes]:
    """Difference from `reference` on every image set, one panel a component; whiskers are two standard errors.

    Parameters
    ----------
    gap
        Reference minus other, a fraction, dimensions (dataset or cluster, other); drawn in percentage points.
    error
        Standard error over seeds, like `gap`; None, or NaN, where it is not known.
    """
    use_style()
    dim = next(str(d) for d in gap.dims if d != "other")
    rows = [str(v) for v in gap[dim].values]
    size = (7.6, 0.24 * len(rows) + 1.2)
    _, axes = plt.subplots(1, gap.sizes["other"], sharey=True, squeeze=False, figsize=size, layout="constrained")
    for ax, other in zip(axes[0], map(str, gap["other"].values), strict=True):
        spread = None if error is None else 200 * error.sel(other=other).fillna(0).values
        ax.errorbar(
            100 * gap.sel(other=other).values, range(len(rows)), xerr=spread, color=COLORS[other],
            marker=MARKERS[other], linestyle="none", capsize=2,
        )  # fmt: skip
        ax.axvline(0, color=GREY, linewidth=1)
        ax.set(yticks=range(len(rows)), yticklabels=rows, xlabel="points")
        ax.annotate(f"{reference} − {other}", (0.5, 1.02), xycoords="axes fraction", ha="center", va="bottom")
    axes[0][0].invert_yaxis()
    return list(axes[0])


def reach(marks: Mapping[str, int], comparisons: int = 4, most: int = 12) -> Axes:
    """Smallest adjusted p of the signed ranks against the number of clusters, with the level and designs marked.

    Parameters
    ----------
    marks
        Name of a design to its number of clusters.
    """
    use_style()
    _, ax = plt.subplots(figsize=(5.4, 2.8), layout="constrained")
    counts = np.arange(1, max(most, *marks.values()) + 1)
    ax.plot(counts, [power_floor(int(n), comparisons).adjusted for n in counts], color=GREY, marker=".")
    ax.axhline(ALPHA, color=GREY, linestyle="--", linewidth=1)
    ax.annotate(f"{ALPHA:g}", (1, ALPHA), textcoords="offset points", xytext=(0, 3))
    at: dict[int, list[str]] = {}
    for name, n in marks.items():
        at.setdefault(n, []).append(name)
    for n, names in at.items():
        y = power_floor(n, comparisons).adjusted
        ax.plot([n], [y], color=GREY, marker="o", fillstyle="full" if y <= ALPHA else "none", markersize=8)
        ax.annotate(", ".join(names), (n, y), textcoords="offset points", xytext=(8, 6), fontsize=8)
    ax.set(yscale="log", xlabel="clusters", ylabel=f"smallest p after Holm\nover {comparisons} comparisons")
    ax.set_xlim(0.5, counts[-1] + 2)
    return ax
