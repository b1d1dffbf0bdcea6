"""Figures of the page on the search: rates while the climb goes on, and how near each statement came to its bound."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from vitplast.figures import COLORS, use_style

GREY, BLACK = "#4d4d4d", "#111111"  # no component is meant by these
#: What the groups of cases are about, by the id of their statement, in the order of the figure.
GROUPS = {
    "L1": "linear",
    "N1": "LayerNorm",
    "N2": "LayerNorm as coded, signed",
    "N3": "LayerNorm as coded, positive",
    "N5": "LayerNorm from its Jacobian",
    "N6": "two points",
    "N7": "RMSNorm",
    "A0": "softmax weights",
    "A1": "attention",
    "A2": "attention, sharp example",
    "A3": "attention with biases",
    "A4": "attention, structured heads",
    "A5": "attention, mean radius",
    "A6": "attention, recentred",
    "A8": "LN1 and MHA together",
    "A9": "RoPE, QK-norm",
    "A11": "attention with a mask",
    "M2": "MLP",
    "M3": "residual branch",
    "M4": "gated MLP",
    "E1": "patch embedding",
    "G1": "gradients",
}


def climbs(ds: xr.Dataset) -> Axes:
    """`rate` against `step` for each pair, and the bounds in `limits` as lines."""
    use_style()
    _, ax = plt.subplots(figsize=(7.2, 3.2))
    ax.plot(ds.step, ds.rate.transpose("step", "pair"), color=COLORS["MHA"], alpha=0.45, linewidth=1)
    best = ds.rate.max("pair")
    ax.plot(ds.step, best, color=COLORS["MHA"], linewidth=2.2)
    ax.annotate("pairs, best in bold", (ds.step[-1], float(best[-1])), (0, 4), textcoords="offset points", ha="right")
    for bound in ds.limits.values:
        value = float(ds.limit.sel(limits=bound))
        ax.axhline(value, color=GREY, linestyle="--")
        ax.annotate(str(bound), (ds.step[-1], value), (0, 3), textcoords="offset points", ha="right", color=GREY)
    ax.set_xscale("symlog", linthresh=4)
    ax.set(yscale="log", xlabel="step", ylabel="rate of change", xticks=ds.step.values)
    ax.set_xticklabels([str(step) for step in ds.step.values])
    ax.minorticks_off()
    ax.margins(y=0.12)
    ax.set_xlim(-0.3, 1.2 * float(ds.step[-1]))
    return ax


def tightness(table: xr.Dataset) -> Axes:
    """Rate over bound of every formula, found by chance and by attack, one row a group; violated ones beyond 1.

    `table` has `random`, `adversarial`, `tight` and `expected` along `case`, with the coordinate `id`.
    """
    use_style()
    present = [i for i in GROUPS if i in set(table.id.values)]
    _, ax = plt.subplots(figsize=(7.2, 4.6))
    rows = np.array([present.index(i) for i in table.id.values])
    chance = table.random / table.adversarial * table.tight
    holds = (table.expected == "holds").values
    ax.hlines(rows, chance, table.tight, color="#bbbbbb", linewidth=0.8)
    ax.plot(chance, rows, "|", color=GREY, markersize=6, label="best random pair")
    ax.plot(table.tight[holds], rows[holds], "o", color=GREY, markersize=4, label="best pair of the attack")
    ax.plot(table.tight[~holds], rows[~holds], "X", color=BLACK, markersize=7, label="the same, formula violated")
    ax.axvline(1, color=GREY, linewidth=1)
    ax.set(xscale="log", xlabel="rate over bound", yticks=range(len(present)), ylim=(len(present) - 0.4, -0.6))
    ax.set_yticklabels([GROUPS[i] for i in present], fontsize=8)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=8, borderaxespad=0.2, handletextpad=0.3)
    return ax


def against_earlier(table: xr.Dataset) -> Axes:
    """Tightness found against that of an earlier search, for formulas that hold and have one."""
    use_style()
    shown = table.sel(case=((table.expected == "holds") & table.reference_tight.notnull()).values)
    _, ax = plt.subplots(figsize=(4.6, 3.6))
    ends = [float(min(shown.tight.min(), shown.reference_tight.min())) / 1.3, 1.3]
    ax.plot(ends, ends, color=GREY, linewidth=1)
    gradients = np.array([i == "G1" for i in shown.id.values])
    for chosen, marker, face, words in ((~gradients, "o", GREY, "rates"), (gradients, "s", "white", "gradients")):
        here, earlier = shown.tight[chosen], shown.reference_tight[chosen]
        ax.plot(earlier, here, marker, color=BLACK, markerfacecolor=face, markersize=4, label=words)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="tightness, earlier search",
        ylabel="tightness, here",
        xlim=ends,
        ylim=ends,
    )
    ax.legend(loc="lower right")
    return ax
