"""Figures of the head to head of selection criteria: how well each one scores, and how it orders the components."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.analysis.scoring import ALWAYS
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.figures import COLORS, MARKERS, use_style

GREY, BLACK = "#8c8c8c", "#111111"  # models, not components
#: Mark and colour of the first and the second model; no component has them.
STYLES = (("o", BLACK), ("s", GREY))
AXIS_NAMES = {
    "correlation": "rank correlation with\nthe accuracies",
    "regret": "lost by its first choice\n(points)",
    "hit": "first choice is best\n(share of tasks)",
}


def in_words(criterion: str) -> str:
    """Name of a criterion as figures and tables show it: spaces for underscores.

    Examples
    --------
    >>> in_words("plasticity_in_situ"), in_words("always MHA")
    ('plasticity in situ', 'always MHA')
    """
    return criterion.replace("_", " ")


def by_regret(scores: Mapping[str, xr.Dataset]) -> list[str]:
    """Criteria by their mean regret over models, the smallest first; one that no model has a regret of comes last.

    Raises
    ------
    InputError
        If there are no scores.
    """
    if not scores:
        raise InputError("no scores of any model")
    regrets = [one["mean"].sel(measure="regret", drop=True) for one in scores.values()]
    mean = xr.concat(regrets, "model", join="outer").mean("model")
    order = np.argsort(mean.fillna(np.inf).values, kind="stable")
    return [str(c) for c in mean["criterion"].values[order]]


def criteria_scores(scores: Mapping[str, xr.Dataset]) -> list[Axes]:
    """Correlation, regret and hits, a panel each; a row a criterion by mean regret, a mark a model.

    Thick bars: 95% interval over clusters; thin ones: two deviations over seeds. Dashed: the noise ceiling, how well
    the accuracies of the other seeds predict those of one seed; it compares with the ticks, the mean when a criterion
    is judged on single seeds. Both are NaN, and not drawn, where there are fewer than two seeds. The names of constant
    advice are in italics.

    Parameters
    ----------
    scores
        Name of the model to its `vitplast.analysis.criteria_table.head_to_head`; two models at most.

    Raises
    ------
    InputError
        If there are no scores, or more models than `STYLES`.
    """
    if len(scores) > len(STYLES):
        raise InputError(f"the figure shows up to {len(STYLES)} models, got {len(scores)}")
    use_style()
    rows = by_regret(scores)
    fig, axes = plt.subplots(1, 3, sharey=True, figsize=(8.2, 1.2 + 0.24 * len(rows)))
    for (name, one), (marker, color), shift in zip(scores.items(), STYLES, (-0.16, 0.16), strict=False):
        known = [r for r in rows if r in one["criterion"].values]
        height = np.array([rows.index(r) for r in known]) + (shift if len(scores) > 1 else 0)
        for ax, measure in zip(axes, AXIS_NAMES, strict=True):
            at = one.sel(measure=measure, criterion=known)
            mean = at["mean"].values
            deviation = np.nan_to_num(at["seed_deviation"].values)
            ax.hlines(height, mean - 2 * deviation, mean + 2 * deviation, color=color, linewidth=0.7)
            ax.hlines(height, at["low"].values, at["high"].values, color=color, linewidth=2.2, alpha=0.6)
            ax.plot(mean, height, marker, color=color, markersize=4, linestyle="none", label=name)
            ax.plot(
                at["seed_mean"].values,
                height,
                "|",
                color=color,
                markersize=7,
                linestyle="none",
                label=f"{name}, single seeds",
            )
            if np.isfinite(ceiling := float(one["ceiling"].sel(measure=measure))):
                ax.axvline(ceiling, color=color, linestyle="--", linewidth=1)
    for ax, label in zip(axes, AXIS_NAMES.values(), strict=True):
        ax.set_xlabel(label)
    axes[0].set(yticks=range(len(rows)), yticklabels=[in_words(r) for r in rows], xlim=(-1.05, 1.05))
    axes[0].axvline(0, color=BLACK, linewidth=0.5)
    axes[1].set_xlim(left=0)
    axes[2].set_xlim(-0.05, 1.05)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    for text, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        text.set_style("italic" if row.startswith(ALWAYS) else "normal")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return list(axes)


def component_orders(ranks: Mapping[str, xr.Dataset], truth: Mapping[str, xr.Dataset] | None = None) -> list[Axes]:
    """Mean rank of each component by criterion, 1 = finetune first, a panel a model; bars from best to worst cluster.

    Parameters
    ----------
    ranks
        Model to `vitplast.analysis.criteria_table.component_ranks` of the criteria.
    truth
        Model to the ranks of the accuracies, shown as the first row.

    Raises
    ------
    InputError
        If there are no ranks.
    """
    if not ranks:
        raise InputError("no ranks of any model")
    use_style()
    names = list(dict.fromkeys(str(c) for one in ranks.values() for c in one["criterion"].values))
    rows = ["finetuned accuracy", *names]
    _, axes = plt.subplots(1, len(ranks), sharey=True, squeeze=False, figsize=(8.2, 1.2 + 0.28 * len(rows)))
    for ax, (model, one) in zip(axes[0], ranks.items(), strict=True):
        tables = {str(c): one.sel(criterion=c) for c in one["criterion"].values}
        if truth and model in truth:
            tables = {rows[0]: truth[model], **tables}
        for k, component in enumerate(COMPONENTS):
            found = [tables[r].sel(component=component) if r in tables else None for r in rows]
            there = [i for i, f in enumerate(found) if f is not None and np.isfinite(float(f["mean"]))]
            mean, low, high = ([float(found[i][v]) for i in there] for v in ("mean", "low", "high"))
            height = np.array(there) + 0.13 * (k - 2)
            ax.hlines(height, low, high, color=COLORS[component], linewidth=1, alpha=0.7)
            ax.plot(mean, height, MARKERS[component], color=COLORS[component], markersize=4, label=component)
        ax.axhline(0.5, color=BLACK, linewidth=0.7)
        ax.set(xlim=(0.7, len(COMPONENTS) + 0.3), xticks=range(1, len(COMPONENTS) + 1), xlabel="rank (1: first)")
        ax.annotate(model, (0.5, 1.01), xycoords="axes fraction", ha="center")
    axes[0][0].set(yticks=range(len(rows)), yticklabels=[in_words(r) for r in rows], ylim=(len(rows) - 0.4, -0.6))
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return list(axes[0])
