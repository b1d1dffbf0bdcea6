"""The cost plan in pictures: GPU hours by experiment and GPU, the assumed share of the peak, formula and count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from vitplast.cost.plan import Plan
from vitplast.errors import InputError
from vitplast.figures import use_style

#: Colours and markers of GPUs, and of what is counted; apart for colour-blind readers and in grey.
SERIES = (("#0173b2", "o"), ("#d55e00", "s"), ("#029e73", "^"), ("#9b4fa0", "D"), ("#4d4d4d", "v"), ("#de8f05", "P"))
EDGE = {"linewidth": 0.8, "color": "#4d4d4d"}


def gpu_hours(plans: Mapping[str, Plan]) -> Axes:
    """GPU hours of each experiment, one mark a GPU, on a logarithmic axis; the last row is all of them.

    `plans`: name of the GPU to `vitplast.cost.plan.plan` of the same units.
    """
    use_style()
    first = next(iter(plans.values())).table
    names = first["experiment"].tolist()
    ax = plt.subplots(figsize=(7.2, 0.33 * len(names) + 1.0))[1]
    for (name, plan), (color, marker) in zip(plans.items(), SERIES, strict=False):
        hours = plan.table["GPU hours"].to_numpy(float)
        ax.plot(hours, np.arange(len(names)), linestyle="none", marker=marker, color=color, label=name)
    ax.axhline(len(names) - 1.5, **EDGE)
    ax.set(xscale="log", xlabel="GPU hours", yticks=range(len(names)), yticklabels=names)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def hours_at(plan: Plan, share: float) -> float:
    """GPU hours of all units if `share` of the peak is reached, in every precision; work on the processor apart.

    Raises
    ------
    InputError
        If the share is outside (0, 1].
    """
    shares = dict.fromkeys(plan.utilisation, share)
    return sum(cost.gpu_seconds(plan.gpu, shares) for cost in plan.costs) / 3600


def utilisation(plans: Mapping[str, Plan], shares: Iterable[float]) -> Axes:
    """GPU hours of all units against the share of the peak that is reached; marks: the shares that the plan assumes.

    `plans`: a name to a plan, as `gpu_hours`.
    """
    use_style()
    shares = sorted(shares)
    if not shares:
        raise InputError("shares is empty; give numbers in (0, 1]")
    ax = plt.subplots(figsize=(5.6, 3.2))[1]
    for (name, plan), (color, marker) in zip(plans.items(), SERIES, strict=False):
        ax.plot(shares, [hours_at(plan, share) for share in shares], color=color, label=name)
        total = float(plan.table["GPU hours"].iloc[-1])
        at = float(np.interp(-total, [-hours_at(plan, s) for s in shares], shares))
        ax.plot([at], [total], linestyle="none", marker=marker, color=color)
    ax.set(xlabel="share of the peak rate that is reached", ylabel="GPU hours", yscale="log")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def formula_and_measurement(table: pd.DataFrame) -> list[Axes]:
    """Operations and kept bytes by formula against what PyTorch counts, one mark a row of `data/cost_check.csv`."""
    use_style()
    _, axes = plt.subplots(1, 2, figsize=(7.2, 3.4))
    panels = (
        (axes[0], (("forward", "forward pass"), ("backward", "backward pass")), 1e6, "million operations an image"),
        (axes[1], (("kept", "float32"), ("kept", "bfloat16")), 1e6, "megabytes kept for 4 images"),
    )
    for ax, series, unit, label in panels:
        seen = []
        for (name, words), (color, marker) in zip(series, SERIES, strict=False):
            own = table if name != "kept" else table[table["precision"] == words]
            own = own[own[f"{name}_measured"] > 0]
            counted, formula = own[f"{name}_measured"] / unit, own[f"{name}_formula"] / unit
            seen += [*counted, *formula]
            ax.plot(counted, formula, linestyle="none", marker=marker, markersize=5, color=color, label=words,
                    fillstyle="none")  # fmt: skip
        limits = (min(seen) / 2, 2 * max(seen))
        ax.plot(limits, limits, zorder=0, **EDGE)
        ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits, xlabel=f"counted: {label}", ylabel="formula")
        ax.legend(loc="upper left")
    return list(axes)


def decoding(table: pd.DataFrame, consumed: Mapping[str, float]) -> Axes:
    """Images a second that one core makes ready, with the slowest and fastest repeat; lines: what a GPU takes.

    Parameters
    ----------
    table
        As `data/decoding_speed.csv`: pictures, work, images_per_second, slowest, fastest.
    consumed
        Words to images a second of a run on a GPU.
    """
    use_style()
    names = [f"{p}: {w}" for p, w in zip(table["pictures"], table["work"], strict=True)]
    ax = plt.subplots(figsize=(7.2, 0.36 * len(names) + 1.2))[1]
    speed = table["images_per_second"].to_numpy(float)
    spread = np.abs(np.stack([table["slowest"], table["fastest"]]).astype(float) - speed)
    ax.errorbar(speed, np.arange(len(names)), xerr=spread, linestyle="none", marker="o", color="#0173b2", capsize=3,
                label="one core")  # fmt: skip
    for (words, value), (color, _) in zip(consumed.items(), SERIES[1:], strict=False):
        ax.axvline(value, color=color, linestyle="--", label=words)
    ax.set(xscale="log", xlabel="images a second", yticks=range(len(names)), yticklabels=names)
    ax.invert_yaxis()
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return ax


def micro_batches(plans: Mapping[str, Plan]) -> pd.DataFrame:
    """How a training step is cut for each GPU, a row an experiment and model: images at a time, parts, GiB.

    Columns: experiment, model, then for each GPU `images x parts` of the configuration that needs most, with its GiB.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for name, plan in plans.items():
        worst: dict[tuple[str, str], int] = {}
        for number, unit in enumerate(plan.units):
            if unit.kind != "finetune":
                continue
            key, cost = (unit.experiment, unit.parameters.model), plan.costs[number]
            if key not in worst or (cost.parts, cost.memory_bytes) > (
                plan.costs[worst[key]].parts,
                plan.costs[worst[key]].memory_bytes,
            ):
                worst[key] = number
        for key, number in worst.items():
            cost = plan.costs[number]
            text = f"{cost.micro_batch} × {cost.parts}, {cost.memory_bytes / 2**30:.0f} GiB"
            rows.setdefault(key, {})[name] = text if cost.fits else "does not fit"
    return pd.DataFrame([{"experiment": e, "model": f"`{m}`", **cells} for (e, m), cells in rows.items()])
