"""What stands in place of a figure whose results are not there yet."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from vitplast.figures import use_style


def not_run_yet(kind: str) -> Axes:
    """An empty frame that says which results are missing, so that no other picture stands in their place."""
    use_style()
    ax = plt.subplots(figsize=(7.2, 1.2))[1]
    ax.set(xticks=[], yticks=[])
    ax.annotate(f"no results of kind {kind} yet", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center")
    return ax
