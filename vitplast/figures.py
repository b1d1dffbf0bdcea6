"""The figures of the book and the notebooks: one style, one colour, marker and place per component.

Every function takes labelled data and returns the axes; spread is always drawn, titles are left to captions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import xarray as xr
from matplotlib.axes import Axes

from vitplast.components import COMPONENTS, CONFIGURATIONS

#: Colours that stay apart for colour-blind readers; markers that stay apart in grey print.
COLORS = {
    "LN1": "#56b4e9",
    "MHA": "#d55e00",
    "LN2": "#0173b2",
    "FC1": "#de8f05",
    "FC2": "#9b4fa0",
    "all": "#4d4d4d",
    "emb": "#029e73",
    "head": "#949494",
}
MARKERS = {"LN1": "v", "MHA": "o", "LN2": "^", "FC1": "s", "FC2": "D", "all": "*", "emb": "P", "head": "X"}

CONVENTION_NAMES = {"common": "common input", "in_situ": "in situ"}
VARIANT_NAMES = {
    "as_coded": "formula as coded",
    "heads_fixed": "the same, heads cut right",
    "valid": "bound, valid",
    "new": "bound, new",
}


def use_style() -> None:
    """Sets the project's style for all figures that follow."""
    sns.set_theme(context="paper", style="whitegrid")
    plt.style.use(Path(__file__).with_name("style.mplstyle"))


def _axes(ax: Axes | None) -> Axes:
    use_style()
    return plt.subplots()[1] if ax is None else ax


def plasticity_by_depth(estimate: xr.Dataset, conventions: Iterable[str] = ("common", "in_situ")) -> list[Axes]:
    """Mean rate of change against depth, one line a component, one panel a convention; bands are the intervals.

    `estimate` has dims convention, layer, component and the variables of `vitplast.estimate.plasticity`.
    """
    use_style()
    conventions = [c for c in conventions if c in estimate.convention.values]
    _, axes = plt.subplots(1, len(conventions), sharey=True, squeeze=False, figsize=(7.2, 3.4))
    for ax, convention in zip(axes[0], conventions, strict=True):
        for component in COMPONENTS:
            one = estimate.sel(convention=convention, component=component)
            ax.plot(one.layer, one["mean"], color=COLORS[component], marker=MARKERS[component], label=component)
            ax.fill_between(one.layer, one.ci_low, one.ci_high, color=COLORS[component], alpha=0.25, linewidth=0)
        ax.set(yscale="log", xlabel="block")
        ax.annotate(CONVENTION_NAMES[convention], (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("plasticity (mean rate of change)")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def plasticity_by_target(estimates: dict[str, xr.Dataset], convention: str) -> Axes:
    """Mean over blocks with its interval per component, one group of points a row of `estimates` (name to estimate)."""
    ax = _axes(None)
    rows = list(estimates)
    for c, component in enumerate(COMPONENTS):
        shift = (c - 2) * 0.13
        for i, name in enumerate(rows):
            one = estimates[name].sel(convention=convention, component=component)
            mean, low, high = (float(one[v]) for v in ("mean", "ci_low", "ci_high"))
            ax.errorbar(
                mean,
                i + shift,
                xerr=[[mean - low], [high - mean]],
                color=COLORS[component],
                marker=MARKERS[component],
                capsize=2,
                label=component if i == 0 else None,
            )
    ax.set(xscale="log", yticks=range(len(rows)), yticklabels=rows, xlabel="plasticity, mean over blocks")
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def bounds_by_depth(bounds: xr.DataArray, largest: xr.DataArray | None = None) -> list[Axes]:
    """Bounds (lines, one style a variant) and the largest measured rate (markers) against depth, a panel a component.

    `bounds` has dims variant, layer, component; `largest` dims layer, component.
    """
    use_style()
    lines = {"as_coded": ":", "heads_fixed": "--", "valid": "-", "new": "-."}
    fig, axes = plt.subplots(1, 5, sharey=True, figsize=(7.8, 3.0))
    for ax, component in zip(axes, COMPONENTS, strict=True):
        for variant in bounds.variant.values:
            one = bounds.sel(variant=variant, component=component)
            if one.notnull().any():
                ax.plot(
                    one.layer,
                    one,
                    lines[str(variant)],
                    color=COLORS[component],
                    label=VARIANT_NAMES[str(variant)],
                )
        if largest is not None:
            ax.plot(
                largest.layer,
                largest.sel(component=component),
                linestyle="none",
                color=COLORS[component],
                marker=MARKERS[component],
                markersize=4,
                label="largest rate measured",
            )
        ax.set(yscale="log", xlabel="block")
        ax.annotate(component, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0].set_ylabel("rate of change")
    handles, labels = axes[1].get_legend_handles_labels()
    for handle in handles:
        handle.set_color("#4d4d4d")
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
    for handle in handles:
        handle.set_color(COLORS["MHA"])
    return list(axes)


def accuracy_by_configuration(table: xr.Dataset, probe: dict[str, float] | None = None) -> list[Axes]:
    """Test accuracy of each configuration, one panel a data set; the dashed line is the linear probe.

    `table` has dim run with coordinates dataset, components and the variable test_accuracy; the bar is the
    binomial standard error over the test images, and dots are the single runs (seeds and learning rates).
    """
    use_style()
    datasets = [str(d) for d in np.unique(table.dataset)]
    order = [c for c in CONFIGURATIONS if c in table.components.values]
    _, axes = plt.subplots(1, len(datasets), sharey=False, squeeze=False, figsize=(7.2, 3.2))
    for ax, dataset in zip(axes[0], datasets, strict=True):
        for i, configuration in enumerate(order):
            runs = table.where((table.dataset == dataset) & (table.components == configuration), drop=True)
            if not runs.sizes["run"]:
                continue
            accuracy = 100 * runs.test_accuracy.values
            error = 100 * np.sqrt(runs.test_accuracy * (1 - runs.test_accuracy) / runs.n_test).values
            ax.errorbar(
                np.full(accuracy.size, i),
                accuracy,
                yerr=error,
                color=COLORS[configuration],
                marker=MARKERS[configuration],
                linestyle="none",
                capsize=3,
            )
        if probe and dataset in probe:
            ax.axhline(100 * probe[dataset], linestyle="--", color="#4d4d4d", linewidth=1)
            ax.annotate("linear probe", (len(order) - 0.5, 100 * probe[dataset]), ha="right", va="bottom", fontsize=8)
        ax.set(xticks=range(len(order)), xticklabels=order, xlim=(-0.6, len(order) - 0.4), xlabel=dataset)
        ax.tick_params(axis="x", rotation=40)
    axes[0][0].set_ylabel("test accuracy (%)")
    return list(axes[0])


def training_curves(table: xr.Dataset, dataset: str) -> list[Axes]:
    """Training loss, and the component's own gradient norm before clipping, against the step."""
    use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.2))
    runs = table.where(table.dataset == dataset, drop=True)
    for configuration in [c for c in CONFIGURATIONS if c in runs.components.values]:
        one = runs.where(runs.components == configuration, drop=True)
        for ax, name in zip(axes, ("train_loss", "gradient_norm"), strict=True):
            mean = one[name].mean("run")
            ax.plot(one.step, mean, color=COLORS[configuration], label=configuration)
            if one.sizes["run"] > 1:
                ax.fill_between(
                    one.step,
                    one[name].min("run"),
                    one[name].max("run"),
                    color=COLORS[configuration],
                    alpha=0.2,
                    linewidth=0,
                )
    axes[0].set(xlabel="step", ylabel="training loss (nats)")
    axes[1].set(xlabel="step", ylabel="gradient norm of the component", yscale="log")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes)
