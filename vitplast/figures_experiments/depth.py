"""Figures of linear probing over depth."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
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


def accuracy_by_task(table: xr.Dataset) -> list[Axes]:
    """`accuracy_over_depth`, one panel an image set, with one legend; each panel has its own scale of accuracy.

    Parameters
    ----------
    table
        From `vitplast.analysis.depth_table.by_task`; bands are one standard error.
    """
    use_style()
    names = table.dataset.values.tolist()
    columns = min(3, len(names) + 1)  # the legend has a place of its own
    rows = -(-(len(names) + 1) // columns)
    _, axes = plt.subplots(rows, columns, squeeze=False, sharex=True, figsize=(2.6 * columns, 2.3 * rows))
    drawn, rest = axes.flat[: len(names)], axes.flat[len(names) :]
    for ax, name in zip(drawn, names, strict=True):
        accuracy_over_depth(table.sel(dataset=name), ax)
        handles, labels = ax.get_legend_handles_labels()
        ax.get_legend().remove()
        ax.set(xlabel="", ylabel="")
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    for ax in rest:
        ax.set_axis_off()
    rest[0].legend(handles, labels, loc="center", fontsize=7)
    for i, ax in enumerate(drawn):
        if i + columns >= len(names):
            ax.set_xlabel("block")
            ax.xaxis.set_tick_params(labelbottom=True)
        if i % columns == 0:
            ax.set_ylabel("test accuracy (%)")
    return list(drawn)


def advantage_map(tables: dict[str, xr.DataArray]) -> list[Axes]:
    """Mean over image sets of the accuracy minus that of the reported point, in points, by block and point of it.

    The numbers say on how many image sets a place is better than the reported one; a frame marks the largest mean.

    Parameters
    ----------
    tables
        Name of a model to `vitplast.analysis.depth_table.advantage` (dataset, layer, point), a fraction.
    """
    use_style()
    means = {name: 100 * one.mean("dataset").transpose("point", "layer") for name, one in tables.items()}
    top = max(1e-9, *(float(abs(m).max()) for m in means.values()))
    sizes = [one.sizes["layer"] for one in means.values()]
    fig, axes = plt.subplots(
        1, len(means), squeeze=False, sharey=True, figsize=(7.6, 2.9), gridspec_kw={"width_ratios": sizes}
    )
    for ax, (name, mean) in zip(axes[0], means.items(), strict=True):
        picture = ax.imshow(mean.values, cmap="PiYG", vmin=-top, vmax=top, aspect="auto")
        better = (tables[name] > 0).sum("dataset").transpose("point", "layer").values
        for (i, j), count in np.ndenumerate(better):
            shade = "white" if abs(mean.values[i, j]) > 0.6 * top else BLACK
            ax.text(j, i, str(int(count)), ha="center", va="center", fontsize=6, color=shade)
        row, column = np.unravel_index(int(np.argmax(mean.values)), mean.shape)
        ax.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=BLACK, linewidth=1.5))
        ax.grid(False)
        ax.set(xticks=range(mean.sizes["layer"]), xticklabels=mean.layer.values, xlabel="block")
        ax.annotate(name, (0.5, 1.02), xycoords="axes fraction", ha="center")
    points = [str(p) for p in next(iter(means.values())).point.values]
    axes[0][0].set(yticks=range(len(points)), yticklabels=[point_name(p) for p in points])
    fig.colorbar(picture, ax=axes[0].tolist(), label="accuracy minus reported (points)")
    return list(axes[0])


def point_name(point: str) -> str:
    """The component whose output a point is, else what the point is.

    Examples
    --------
    >>> point_name("attn"), point_name("ffn_res")
    ('MHA', 'end of the block')
    """
    return OF_COMPONENTS.get(point) or OTHERS[point][2]
