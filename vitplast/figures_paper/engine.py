"""How the jobs of one machine share its GPUs: a small trial, with processes that only wait, and its picture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from vitplast.errors import InputError, VitplastError
from vitplast.figures import use_style

COLORS = ("#0173b2", "#de8f05", "#029e73", "#9b4fa0", "#d55e00", "#4d4d4d")
_JOB = (
    "import os, sys, time; start = time.time(); time.sleep(float(sys.argv[1])); "
    "print(os.environ['CUDA_VISIBLE_DEVICES'], start, time.time())"
)


def slots_trial(folder: str | Path, slots: Sequence[str], jobs: int, seconds: float) -> pd.DataFrame:
    """Starts `jobs` processes at once that each need a slot and then wait `seconds`; a row a job in order of its start.

    Each goes through `vitplast.workflow.devices`, as a job of `vitplast cluster --on gpus` does.

    Returns
    -------
    DataFrame: job, gpu (what CUDA_VISIBLE_DEVICES said), start and end in seconds since the first start.

    Raises
    ------
    InputError
        If there is no job.
    VitplastError
        If a job ends badly.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs!r}")
    line = [sys.executable, "-m", "vitplast.workflow.devices", "--slots", ",".join(slots), "--folder", str(folder)]
    line += ["--", sys.executable, "-c", _JOB, str(seconds)]
    started = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(jobs)]
    rows = []
    for number, process in enumerate(started):
        said = process.communicate()[0].split()
        if process.returncode:
            raise VitplastError(f"job {number} ended with exit code {process.returncode}")
        rows.append({"job": number, "gpu": said[0], "start": float(said[1]), "end": float(said[2])})
    table = pd.DataFrame(rows).sort_values("start", ignore_index=True)
    table[["start", "end"]] -= table["start"].min()
    return table


def most_at_once(table: pd.DataFrame) -> dict[str, int]:
    """Most jobs that one GPU had at the same time, by GPU.

    Examples
    --------
    >>> most_at_once(pd.DataFrame({"gpu": ["0", "0"], "start": [0.0, 1.0], "end": [1.0, 2.0]}))
    {'0': 1}
    """
    found = {}
    for gpu, own in table.groupby("gpu"):
        found[str(gpu)] = max(int(((own["start"] <= s) & (own["end"] > s)).sum()) for s in own["start"])
    return found


def timeline(table: pd.DataFrame) -> Axes:
    """Each job as a bar from its start to its end, one row a GPU; `table` as of `slots_trial`."""
    use_style()
    gpus = sorted(table["gpu"].unique())
    ax = plt.subplots(figsize=(6.4, 0.5 * len(gpus) + 0.9))[1]
    for row in table.itertuples():
        place = gpus.index(row.gpu)
        ax.barh(place, row.end - row.start, left=row.start, height=0.55, color=COLORS[row.job % len(COLORS)],
                edgecolor="white")  # fmt: skip
        ax.annotate(f"job {row.job}", ((row.start + row.end) / 2, place), ha="center", va="center", color="white")
    ax.set(yticks=range(len(gpus)), yticklabels=[f"GPU {g}" for g in gpus], xlabel="seconds")
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    return ax
