"""Figures of the page on errata: token norms and radii, two conventions, paired differences, shares, warm-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from vitplast.components import COMPONENTS
from vitplast.figures import COLORS, MARKERS, use_style

GREY = "#4d4d4d"  # no component is meant by it


def token_norms(norms: np.ndarray, coded: float, needed: float) -> Axes:
    """Histogram of the token norms, with the radius as the authors' code takes it and as the theorem needs it."""
    use_style()
    _, ax = plt.subplots(figsize=(5.4, 2.6))
    ax.hist(norms, bins=40, color="#b8c4cc")
    for radius, style, name in ((coded, "--", "as coded: a mean"), (needed, "-", "as needed: the largest")):
        ax.axvline(radius, linestyle=style, color=GREY, label=name)
    ax.set(xlabel="norm of a token of the embedding", ylabel="tokens")
    ax.legend(loc="upper right", bbox_to_anchor=(0.94, 1.0), title="radius")
    return ax


def conventions(estimate: xr.Dataset, padded: np.ndarray, in_situ: float) -> list[Axes]:
    """LayerNorms on the embedding and on their true input by depth; FC2's padded rates over orders of its inputs.

    `estimate` has dims convention, layer, component and the variable mean; `padded` holds one rate an order, of the
    block whose rate in situ is given.
    """
    use_style()
    _, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=(3, 2))
    for component in ("LN1", "LN2"):
        for convention, style, name in (("common", "--", "embedding"), ("in_situ", "-", "true input")):
            one = estimate["mean"].sel(component=component, convention=convention)
            color, marker = COLORS[component], MARKERS[component]
            left.plot(one.layer, one, style, color=color, marker=marker, label=f"{component}, {name}")
    left.set(yscale="log", xlabel="block", ylabel="plasticity")
    left.legend(loc="best", fontsize=8)
    right.hist(padded, bins=20, color=COLORS["FC2"], alpha=0.6, label="padded, one value per order")
    right.axvline(in_situ, color=GREY, label="true input, any order")
    right.set(xlabel="rate of FC2", ylabel="orders")
    right.margins(x=0.1)
    right.set_ylim(top=1.35 * right.get_ylim()[1])
    right.legend(loc="upper center", fontsize=8)
    return [left, right]


def paired_differences(tables: Mapping[str, pd.DataFrame]) -> Axes:
    """Mean accuracy of MHA less that of each other component, with its 95% interval; one marker a table."""
    use_style()
    _, ax = plt.subplots(figsize=(6.4, 2.8))
    fills = ("full", "none")
    for i, (name, table) in enumerate(tables.items()):
        place = np.arange(len(table)) + 0.24 * (i - (len(tables) - 1) / 2)
        spread = [table.difference - table.low, table.high - table.difference]
        ax.errorbar(
            table.difference, place, xerr=spread, linestyle="none", color=COLORS["MHA"], marker=MARKERS["MHA"],
            fillstyle=fills[i % 2], capsize=3, label=name,
        )  # fmt: skip
    ax.axvline(0, color=GREY, linewidth=1)
    ax.set(yticks=range(len(table)), yticklabels=[f"MHA less {other}" for other in table.index])
    ax.set_xlabel("difference of accuracy (percentage points)")
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def outer_shares(shares: Mapping[str, Mapping[str, float]]) -> Axes:
    """Share of the squared logged gradient norm that is head and final norm, a bar a component and setting."""
    use_style()
    _, ax = plt.subplots(figsize=(6.4, 2.8))
    width = 0.8 / len(shares)
    for i, (name, found) in enumerate(shares.items()):
        place = np.arange(len(COMPONENTS)) + width * (i - (len(shares) - 1) / 2)
        color, hatch = (GREY, None) if i == 0 else ("#c9c9c9", "//")
        ax.bar(place, [100 * found[c] for c in COMPONENTS], width, color=color, hatch=hatch, label=name)
    ax.set(xticks=range(len(COMPONENTS)), xticklabels=COMPONENTS, ylim=(0, 100))
    ax.set(ylabel="head and final norm\n(% of the squared norm)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def warmups(curves: Mapping[str, Sequence[float]]) -> Axes:
    """Factor on the learning rate against the share of the run, one line a length of run."""
    use_style()
    _, ax = plt.subplots(figsize=(6.4, 2.8))
    styles = ("-", "--", "-.", ":", (0, (1, 3)))
    for i, (name, curve) in enumerate(curves.items()):
        share, color = np.linspace(0, 100, len(curve)), plt.cm.cividis(i / 5)
        ax.plot(share, curve, linestyle=styles[i % 5], color=color, label=name)
    ax.set(xlabel="share of the run (%)", ylabel="factor on the learning rate", ylim=(0, 1.05))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
