"""Figures of the page on variants of attention: ladder of norms, pooling, LayerNorm folded in, broken hypotheses."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast import figures

#: The colour of MHA is for measured rates of MHA; bounds and predictions are black or grey.
BLACK, GREY, MHA = "black", "0.55", figures.COLORS["MHA"]
#: Line style and legend of each step of the ladder, from the loosest to the tightest.
STEPS = {
    "ball": ("-", "bound on the ball (Theorem 12)"),
    "local": ("--", "bound at the tokens (Theorem 11)"),
    "jacobian": (":", "Jacobian norm found"),
}
FOLDED = {"composed": ("-", "LN1 times MHA"), "folded": ("--", "LN1 folded in (Theorem 14)")}


def ladder(table: xr.Dataset) -> Axes:
    """`STEPS` as lines and the rates of the pairs (marker at the mean, bar from smallest to largest) against depth.

    `table` has dim layer and the variables mean, low, high and those of `STEPS`.
    """
    return _lines(table, STEPS, "norm or rate of MHA")


def folded(table: xr.Dataset) -> Axes:
    """The same for MHA after LN1, with the variables of `FOLDED`."""
    return _lines(table, FOLDED, "rate of MHA after LN1")


def pooling(tables: dict[str, xr.Dataset]) -> list[Axes]:
    """Left: measured mean rate (markers) and the pooling prediction (lines); right: entropy. One marker a table.

    Each table has dim layer and the variables mean, pooling, entropy.
    """
    figures.use_style()
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.2))
    for (name, table), color, marker in zip(tables.items(), (BLACK, GREY), "ox", strict=False):
        axes[0].plot(table.layer, table.pooling, "--", color=color, label=f"pooling, {name}")
        axes[0].plot(table.layer, table["mean"], marker, color=MHA, label=f"measured, {name}")
        axes[1].plot(table.layer, table.entropy, marker, linestyle="-", linewidth=0.8, color=color)
    axes[0].set(xlabel="block", ylabel="rate of MHA", ylim=(0, None))
    axes[1].axhline(1.0, linestyle="--", color=GREY, linewidth=0.8)
    axes[1].set(xlabel="block", ylabel="attention entropy / ln n", ylim=(0, 1.05))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return list(axes)


def broken(panels: dict[str, dict[str, np.ndarray]]) -> list[Axes]:
    """Rate found (markers), the bound that holds (line) and the one that does not (dashed), a panel an assumption.

    The keys of `panels` are the labels of the x axes; each has the arrays x, rate, right, wrong.
    """
    figures.use_style()
    fig, axes = plt.subplots(1, len(panels), figsize=(7.2, 3.2))
    for ax, (label, one) in zip(axes, panels.items(), strict=True):
        ax.plot(one["x"], one["right"], "-", color=BLACK, label="bound")
        ax.plot(one["x"], one["wrong"], "--", color=GREY, label="bound without the hypothesis")
        ax.plot(one["x"], one["rate"], "o", color=MHA, markeredgecolor="white", label="rate of the pair")
        ax.set(xscale="log", yscale="log", xlabel=label)
    axes[0].set_ylabel("rate of change")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return list(axes)


def _lines(table: xr.Dataset, lines: dict[str, tuple[str, str]], label: str) -> Axes:
    figures.use_style()
    fig, ax = plt.subplots(figsize=(7.2, 3.4))
    for name, (style, words) in lines.items():
        ax.plot(table.layer, table[name], style, color=BLACK, label=words)
    ax.errorbar(
        table.layer,
        table["mean"],
        yerr=[table["mean"] - table.low, table.high - table["mean"]],
        linestyle="none",
        marker=figures.MARKERS["MHA"],
        color=MHA,
        markeredgecolor="white",
        label="measured rate",
    )
    ax.set(yscale="log", xlabel="block", ylabel=label)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return ax
