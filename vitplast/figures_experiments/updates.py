"""Figures of what clipping sees and how far a step moves each group; and of plasticity before and after finetuning."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.analysis.plasticity_change import of_the_trained
from vitplast.analysis.selection import model_name
from vitplast.components import CONFIGURATIONS
from vitplast.figures import COLORS, CONVENTION_NAMES, MARKERS, use_style
from vitplast.figures_experiments.ablations import BLACK, GREY, panels


def relative_steps(tables: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Largest relative update by one step (percent) against the learning rate, a line a configuration.

    `tables`: model to what `vitplast.analysis.updates.step_sizes` returns, with `relative`. Bars go from the image set
    with the smallest to the one with the largest value, the line through their geometric mean.
    """
    use_style()
    _, axes = plt.subplots(1, len(tables), sharey=True, squeeze=False, figsize=(max(4.2, 3.6 * len(tables)), 3.2))
    for ax, (model, table) in zip(axes[0], tables.items(), strict=True):
        for configuration in [c for c in CONFIGURATIONS if c in table["configuration"].values]:
            one = table.sel(configuration=configuration)
            pairs = sorted({float(v) for v in one["lr"].values.ravel() if np.isfinite(v)})
            values = [100 * one["relative"].where(one["lr"] == lr).values for lr in pairs]
            values = [v[np.isfinite(v) & (v > 0)] for v in values]
            kept = [(lr, v) for lr, v in zip(pairs, values, strict=True) if len(v)]
            if not kept:
                continue
            lrs, mean = [lr for lr, _ in kept], np.array([np.exp(np.log(v).mean()) for _, v in kept])
            spread = np.array([[m - v.min(), v.max() - m] for m, (_, v) in zip(mean, kept, strict=True)]).T
            ax.errorbar(lrs, mean, yerr=np.maximum(spread, 0), color=COLORS[configuration], capsize=2, linewidth=1,
                        marker=MARKERS[configuration], markersize=4, label=configuration)  # fmt: skip
        ax.set(xscale="log", yscale="log", xlabel="learning rate")
        ax.annotate(model_name(model), (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel("largest update by a step (%)")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def before_and_after(change: xr.Dataset, convention: str = "common") -> list[Axes]:
    """Plasticity of the trained component by block, before (grey, dashed) and after (its colour), a panel a component.

    `change`: of `vitplast.analysis.plasticity_change.plasticity_change`. Lines are geometric means over the image sets,
    bands go from the smallest to the largest of them.
    """
    use_style()
    own = of_the_trained(change.sel(convention=convention))
    names = own["component"].values.tolist()
    _, axes = plt.subplots(1, len(names), sharey=True, squeeze=False, figsize=(max(4.2, 1.75 * len(names)), 2.8))
    for ax, name in zip(axes[0], names, strict=True):
        for moment, color, line in (("before", GREY, "--"), ("after", COLORS[name], "-")):
            values = own[moment].sel(component=name).transpose("dataset", "layer")
            mean = np.exp(np.log(values).mean("dataset"))
            marker = MARKERS[name] if moment == "after" else None
            ax.plot(values["layer"], mean, line, color=color, marker=marker, markersize=3, label=moment)
            band = values.min("dataset"), values.max("dataset")
            ax.fill_between(values["layer"], *band, color=color, alpha=0.2, linewidth=0)
        ax.set(yscale="log", xlabel="block")
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    axes[0][0].set_ylabel(f"plasticity, {CONVENTION_NAMES[convention]}")
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])


def change_by_trained(tables: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Change in percent of every component's plasticity by what was trained, a panel a model and image set.

    `tables`: model to `vitplast.analysis.plasticity_change.summary` under one convention. Marks: mean over blocks, bars
    from the smallest to the largest block; black rings: the component that was trained.
    """
    found = panels(tables, height=2.6)
    for (model, name), ax in found.items():
        one = tables[model].sel(dataset=name)
        trained, measured = one["configuration"].values.tolist(), one["component"].values.tolist()
        for j, component in enumerate(measured):
            mean, low, high = (100 * (one[n].sel(component=component).values - 1) for n in ("mean", "low", "high"))
            at = np.arange(len(trained)) + 0.14 * (j - (len(measured) - 1) / 2)
            ax.errorbar(at, mean, yerr=[mean - low, high - mean], linestyle="none", color=COLORS[component],
                        marker=MARKERS[component], markersize=4, capsize=1, label=component)  # fmt: skip
            if component in trained:
                i = trained.index(component)
                ax.plot(at[i], mean[i], marker="o", markersize=10, markerfacecolor="none", markeredgecolor=BLACK)
        ax.axhline(0, color=GREY, linewidth=1)
        ax.set_xticks(range(len(trained)), trained)
        ax.set(xlabel="trained", ylabel="change of plasticity (%)")
    some = next(iter(found.values()))
    some.figure.legend(*some.get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return list(found.values())
