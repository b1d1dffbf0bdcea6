"""Figure of linear probing over depth."""

from __future__ import annotations

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.axes import Axes

from vitplast.figures import COLORS, MARKERS, use_style

GREY, BLACK = "#4d4d4d", "#111111"  # no component is meant by these
#: Points that are the output of a component.
OF_COMPONENTS = {"attn_norm": "LN1", "attn": "MHA", "ffn_norm": "LN2", "ffn_fc1": "FC1", "ffn_fc2": "FC2"}
#: Points that are not, with colour and line, and their names.
OTHERS = {
    "attn_res": (GREY, "--", "after attention, added up"),
    "ffn_activation": (GREY, ":", "activation"),
    "ffn_res": (BLACK, "-", "end of the block"),
}
ENDS = {"embedding": ("s", "embedding"), "final_norm": ("*", "final norm")}


def accuracy_over_depth(depth: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Test accuracy in percent against the block, one line a point of the block, the two ends as single marks.

    Parameters
    ----------
    depth
        One result of kind "depth", or many along `run`, of one data set: then lines are means over runs. Bands are one
        standard error of a single result (binomial), or the range over runs.
    """
    use_style()
    ax = plt.subplots(figsize=(7.2, 3.8))[1] if ax is None else ax
    runs = "run" in depth.test_accuracy.dims

    def drawn(name: str) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
        accuracy, error = 100 * depth[f"{name}test_accuracy"], 100 * depth[f"{name}standard_error"]
        if runs:
            return accuracy.mean("run"), accuracy.min("run"), accuracy.max("run")
        return accuracy, accuracy - error, accuracy + error

    middle, low, high = drawn("")
    for point in depth.point.values.tolist():
        if point in OF_COMPONENTS:
            component = OF_COMPONENTS[point]
            style = {"color": COLORS[component], "marker": MARKERS[component], "label": component}
        else:
            color, line, label = OTHERS[point]
            style = {"color": color, "linestyle": line, "label": label}
        ax.plot(depth.layer, middle.sel(point=point), markersize=4, **style)
        band = (x.sel(point=point) for x in (low, high))
        ax.fill_between(depth.layer, *band, color=style["color"], alpha=0.1, linewidth=0)
    middle, low, high = drawn("end_")
    for end, place in (("embedding", -1), ("final_norm", depth.sizes["layer"])):
        marker, label = ENDS[end]
        here = [float(x.sel(end=end)) for x in (middle, low, high)]
        spread = [[here[0] - here[1]], [here[2] - here[0]]]
        ax.errorbar(place, here[0], spread, color=BLACK, marker=marker, linestyle="none", capsize=2, label=label)
    ax.set(xticks=depth.layer[:: 1 + depth.sizes["layer"] // 8].values)  # the ends are no blocks
    ax.set(xlabel="block", ylabel="test accuracy of the probe (%)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return ax
