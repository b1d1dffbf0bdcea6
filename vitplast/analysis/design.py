"""The design of the experiment in numbers: what was planned, what is finished, at what rates, and how fast it ran."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.study import EXPERIMENTS
from vitplast.components import CONFIGURATIONS

#: The paper's main experiment as its public code runs it, by aspect (arXiv:2602.06883).
PAPER_DESIGN: Mapping[str, str] = {
    "model": "ViT-B/16, 224 px, supervised on ImageNet-21k (Large and Huge in ablations)",
    "tasks": "11 image sets, 6 of them CIFAR-10 and its corruptions",
    "configurations": "7: all, emb (never reported), LN1, MHA, LN2, FC1, FC2; head and final norm train in each",
    "learning rates": "4, the same ones for every configuration: 0.001 to 0.03, on DomainNet 0.003 to 0.06",
    "seeds": "3: 0, 42, 3407",
    "runs": "924",
    "optimizer": "SGD, momentum 0.9, no weight decay, all gradients clipped together at norm 1",
    "steps": "4,000 to 20,000 of 512 images, random crops and flips",
    "schedule": "linear warm-up of 2,000 steps, then cosine to 0",
    "rate chosen on": "test accuracy",
    "precision": "float32",
}


def progress(plan: pd.DataFrame, missing: Collection[str]) -> pd.DataFrame:
    """Runs finished of runs planned, by model and experiment.

    Parameters
    ----------
    plan : DataFrame
        Planned finetuning runs, from `vitplast.analysis.study.Study.planned`.
    missing
        Keys of the planned runs that are not there.

    Returns
    -------
    DataFrame with columns model, experiment, part (the experiment in words), finished, planned; experiments in the
    order of `vitplast.analysis.study.EXPERIMENTS`, the main one first, then others as they appear.
    """
    table = plan[["model", "experiment"]].assign(finished=~np.isin(plan["run_key"], list(missing)))
    counts = table.groupby(["model", "experiment"], sort=False)["finished"].agg(["sum", "size"]).reset_index()
    counts = counts.rename(columns={"sum": "finished", "size": "planned"})
    order = list(dict.fromkeys([*EXPERIMENTS, *counts["experiment"]]))
    counts.insert(2, "part", [EXPERIMENTS.get(e, e or "of no experiment") for e in counts["experiment"]])
    counts["place"] = counts["experiment"].map(order.index)
    return counts.sort_values("place", kind="stable").drop(columns="place").reset_index(drop=True)


def learning_rates(plan: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """`(model, configuration) -> sorted rates` of the planned runs, configurations in their usual order."""
    found = {}
    for model in dict.fromkeys(plan["model"]):
        for configuration in CONFIGURATIONS:
            rows = plan[(plan["model"] == model) & (plan["components"] == configuration)]
            if len(rows):
                found[model, configuration] = sorted(set(rows["lr"]))
    return found


def training_speed(gathered: xr.Dataset) -> pd.DataFrame:
    """Median and quartiles of images per second of the finished runs, by model and configuration.

    Images per second are those of training alone, on one thread beside another process; runs on images that were
    encoded once are named so, since their steps do without the encoder.

    Returns
    -------
    DataFrame with columns model, configuration, median, low, high (quartiles), runs, encoded (share of such runs).
    """
    encoded = _text(gathered, "attr_encoded_once", "encoded_once") == "yes"
    table = pd.DataFrame({
        "model": _text(gathered, "model"), "configuration": _text(gathered, "components"),
        "speed": np.asarray(gathered["images_per_second"].values, float), "encoded": encoded,
    })  # fmt: skip
    table = table[table["configuration"].isin(CONFIGURATIONS) & np.isfinite(table["speed"])]
    rows = []
    for (model, configuration), one in table.groupby(["model", "configuration"], sort=False):
        low, median, high = np.quantile(one["speed"], [0.25, 0.5, 0.75])
        rows.append((model, configuration, median, low, high, len(one), one["encoded"].mean()))
    found = pd.DataFrame(rows, columns=["model", "configuration", "median", "low", "high", "runs", "encoded"])
    found["place"] = found["configuration"].map(CONFIGURATIONS.index)
    return found.sort_values("place", kind="stable").drop(columns="place").reset_index(drop=True)


def _text(gathered: xr.Dataset, *names: str) -> np.ndarray:
    """A label of every run: a coordinate along `run`, or an attribute that all runs share."""
    for name in names:
        if name in gathered.coords:
            return np.broadcast_to(gathered[name].values, gathered.sizes["run"]).astype(str)
        if name in gathered.attrs:
            return np.full(gathered.sizes["run"], str(gathered.attrs[name]))
    return np.full(gathered.sizes["run"], "")
