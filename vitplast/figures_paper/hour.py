"""What the one-hour subset can decide: published differences of MHA against what so few runs can find."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from vitplast.figures import COLORS, MARKERS, use_style


def differences(argument: pd.DataFrame) -> Axes:
    """Published mean difference of MHA from each component (marks) and what is found 8 times in 10 (bars), in points.

    `argument`: as `vitplast.cost.subset.argument` returns it. A mark beyond its bar is a difference that the subset
    would find.
    """
    use_style()
    ax = plt.subplots(figsize=(5.6, 0.45 * len(argument) + 1.2))[1]
    for i, row in enumerate(argument.itertuples()):
        ax.barh(i, row.detectable, height=0.55, color="#d9d9d9", label="found 8 times in 10" if i == 0 else None)
        mark = {"marker": MARKERS[row.other], "color": COLORS[row.other], "markersize": 7, "linestyle": "none"}
        ax.plot([row.difference], [i], label="published difference" if i == 0 else None, **mark)
    ax.axvline(0, color="#4d4d4d", linewidth=0.8)
    ax.set(yticks=range(len(argument)), yticklabels=[f"MHA − {o}" for o in argument["other"]], xlabel="points")
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax
