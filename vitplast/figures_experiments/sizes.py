"""Figures that compare sizes: of the images, of the model, of random models."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, MARKERS, use_style

SHIFT = 0.16


def accuracy_two_sizes(tables: Mapping[str, xr.Dataset], probes: Mapping[str, Mapping[str, float]]) -> list[Axes]:
    """Test accuracy in percent of each configuration at two image sizes, one panel an image set.

    The first size is open, the second filled; bars are one binomial standard error over the test images. Dashed and
    solid line: linear probe at the first and at the second size.

    Parameters
    ----------
    tables
        Name of a size to accuracy (dataset, configuration), a fraction, and n_test (dataset).
    probes
        Name of a size to accuracy of the probe by image set; sets may be missing.
    """
    use_style()
    first = next(iter(tables.values()))
    datasets, configurations = (first[d].values.tolist() for d in ("dataset", "configuration"))
    _, axes = plt.subplots(1, len(datasets), squeeze=False, figsize=(max(3.8, 3.4 * len(datasets) + 0.6), 3.1))
    for ax, dataset in zip(axes[0], datasets, strict=True):
        for side, (size, table) in enumerate(tables.items()):
            one = table.sel(dataset=dataset)
            accuracy = 100 * one.accuracy
            error = 100 * np.sqrt(one.accuracy * (1 - one.accuracy) / one.n_test)
            for i, name in enumerate(configurations):
                values = float(accuracy.sel(configuration=name)), float(error.sel(configuration=name))
                face = COLORS[name] if side else "white"
                ax.errorbar(i + (2 * side - 1) * SHIFT, values[0], values[1], color=COLORS[name], marker=MARKERS[name],
                            markerfacecolor=face, capsize=2, linestyle="none",
                            label=size if i == 0 else None)  # fmt: skip
            if dataset in probes.get(size, {}):
                style = "-" if side else "--"
                ax.axhline(100 * probes[size][dataset], color="#4d4d4d", linewidth=1, linestyle=style)
        ax.set(xticks=range(len(configurations)), xticklabels=configurations)
        ax.tick_params(axis="x", rotation=40)
        ax.annotate(dataset, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("test accuracy (%)")
    handles, labels = axes[0][-1].get_legend_handles_labels()
    axes[0][-1].legend(handles, labels, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def relative_to_mean(accuracies: Mapping[str, xr.DataArray]) -> list[Axes]:
    """Accuracy of each component minus the mean over the five, in points, one panel a model.

    Grey dots are the clusters of image sets; the mark is their mean, its bar one standard error over the clusters.

    Parameters
    ----------
    accuracies
        Name of a model to accuracy (cluster, configuration), a fraction, with the five components.
    """
    use_style()
    _, axes = plt.subplots(1, len(accuracies), squeeze=False, sharey=True, figsize=(3.4 * len(accuracies) + 0.4, 3.1))
    for ax, (model, table) in zip(axes[0], accuracies.items(), strict=True):
        chosen = 100 * table.sel(configuration=list(COMPONENTS)).transpose("cluster", "configuration")
        centred = chosen - chosen.mean("configuration")
        count = centred.sizes["cluster"]
        for i, name in enumerate(COMPONENTS):
            values = centred.sel(configuration=name).values
            ax.plot(np.full(count, i), values, ".", color="#b0b0b0", zorder=1)
            error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
            ax.errorbar(i, float(values.mean()), error, color=COLORS[name], marker=MARKERS[name], capsize=3, zorder=2)
        ax.axhline(0, color="#4d4d4d", linewidth=0.8)
        ax.set(xticks=range(len(COMPONENTS)), xticklabels=COMPONENTS)
        ax.annotate(f"{model}, {count} clusters", (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("accuracy minus mean of the five (points)")
    return list(axes[0])


def plasticity_against_width(estimates: Mapping[int, xr.Dataset]) -> Axes:
    """Mean rate of change over blocks against the width of the model, both logarithmic, one line a component.

    Parameters
    ----------
    estimates
        Width to what `vitplast.estimate.plasticity` returns of means over blocks, of one convention: mean, ci_low and
        ci_high (component); bands are these intervals.
    """
    use_style()
    ax = plt.subplots(figsize=(5.2, 3.4))[1]
    widths = sorted(estimates)
    for name in COMPONENTS:
        rows = [estimates[w].sel(component=name) for w in widths]
        mean, low, high = (np.array([float(r[v]) for r in rows]) for v in ("mean", "ci_low", "ci_high"))
        ax.plot(widths, mean, color=COLORS[name], marker=MARKERS[name], label=name)
        ax.fill_between(widths, low, high, color=COLORS[name], alpha=0.25, linewidth=0)
    ax.set(xscale="log", yscale="log", xlabel="width of the model", ylabel="plasticity, mean over blocks")
    ax.set_xticks(widths, [str(w) for w in widths])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
