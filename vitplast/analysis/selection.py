"""Which gathered runs belong together: those of an experiment, as a grid; and the short names of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.grid import CELL, grid
from vitplast.analysis.study import MAIN
from vitplast.errors import InputError, UnknownNameError
from vitplast.models import PACKAGED
from vitplast.models.text_names import FOLDER, folder_of
from vitplast.models.tiny import is_tiny, real_name

#: Short names of models: those that come with the project, and those of the paper.
MODEL_NAMES = {
    PACKAGED: "DINOv2 ViT-S/14",
    "vit_micro_patch14_56.fashion_mnist": "own ViT",
    "vit_base_patch16_224.orig_in21k": "ViT-B/16",
    "vit_large_patch16_224.orig_in21k": "ViT-L/16",
    "vit_huge_patch14_224.orig_in21k": "ViT-H/14",
    "vit_small_patch16_dinov3.lvd1689m": "DINOv3 ViT-S/16",
    "vit_huge_plus_patch16_dinov3.lvd1689m": "DINOv3 ViT-H+/16",
    "vit_7b_patch16_dinov3.lvd1689m": "DINOv3 ViT-7B/16",
    "vit_base_patch16_224.mae": "MAE ViT-B/16",
    "vit_large_patch16_224.mae": "MAE ViT-L/16",
    "vit_huge_patch14_224.mae": "MAE ViT-H/14",
    "gpt2": "GPT-2",
}
ALONG = ("step", "evaluation")


def models_of(gathered: xr.Dataset | pd.DataFrame) -> list[str]:
    """`{model of a run}`: the models of gathered or planned runs, the packaged one first, the others as they appear."""
    found = list(dict.fromkeys(np.atleast_1d(gathered["model"].values).tolist()))
    return sorted(found, key=lambda name: name != PACKAGED)


def model_name(model: str) -> str:
    """Short name of a model for tables and figures; its own where it has none.

    Examples
    --------
    >>> model_name("vit_micro_patch14_56.fashion_mnist"), model_name("vit_tiny_patch16_224")
    ('own ViT', 'vit_tiny_patch16_224')
    >>> model_name("tiny:vit_base_patch16_224.mae"), model_name("hf:some/folder")
    ('tiny MAE ViT-B/16', 'hf:folder')
    """
    if is_tiny(model):
        return f"tiny {model_name(real_name(model))}"
    if model.startswith(FOLDER):  # not where it is
        return f"{FOLDER}{folder_of(model).name}"
    return MODEL_NAMES.get(model, model)


def of_experiment(gathered: xr.Dataset | None, *experiments: str, **equal: Any) -> xr.Dataset | None:
    """The runs of some experiments, with these parameters (a list or tuple allows each value); None if there is none.

    Parameters
    ----------
    gathered : Dataset
        Along `run`, labelled by `vitplast.analysis.study.Study.label`, as `vitplast.book.open_results` does.

    Raises
    ------
    InputError
        If the runs are not labelled.
    UnknownNameError
        If they have no such parameter.
    """
    if gathered is None:
        return None
    if "experiment" not in gathered.coords:
        raise InputError("the runs say of no experiment; open them with vitplast.book.open_results")
    keep = np.isin(gathered["experiment"].values.astype(str), experiments)
    for name, value in equal.items():
        if name not in gathered.coords:
            raise UnknownNameError("parameter", name, map(str, gathered.coords))
        values = np.broadcast_to(gathered[name].values, gathered.sizes["run"])
        keep &= np.isin(values, list(value) if isinstance(value, (tuple, list)) else [value])
    return gathered.isel(run=np.flatnonzero(keep)) if keep.any() else None


def main_grid(gathered: xr.Dataset, model: str) -> xr.Dataset:
    """The runs of the main experiment of a model, as `vitplast.analysis.grid.grid`."""
    return varied(gathered, model)


def main_grids(gathered: xr.Dataset) -> dict[str, xr.Dataset]:
    """`main_grid` by model, the packaged one first; models without a run in the main experiment are left out."""
    runs = of_experiment(gathered, MAIN)
    return {} if runs is None else {m: varied(runs, m) for m in models_of(runs)}


def varied(gathered: xr.Dataset, model: str, experiment: str = MAIN, **equal: Any) -> xr.Dataset:
    """`grid(runs of the experiment, model=model, **equal)`.

    Steps and evaluations that none of these runs has (others that were gathered with them may be longer) are left out.

    Parameters
    ----------
    gathered : Dataset
        Kind finetune along `run`, labelled with experiments.
    experiment : str
        Its name in the profile.
    equal
        Parameters by name, as `steps=80`, where the runs of the experiment differ in them.

    Raises
    ------
    InputError
        UnknownNameError among them: if there is no such run, or a parameter not named differs among them, as `grid`.
    """
    runs = of_experiment(gathered, experiment)
    if runs is None:
        there = ", ".join(dict.fromkeys(filter(None, gathered["experiment"].values.astype(str)))) or "none"
        raise InputError(f"no run of the experiment {experiment!r}; there are runs of {there}")
    table = grid(runs, model=model, **equal)
    for dim, name in zip(ALONG, ("train_loss", "validation_loss"), strict=True):
        if name in table:
            there = table[name].notnull().any([d for d in table[name].dims if d != dim])
            table = table.isel({dim: np.flatnonzero(there.values)})
    return table


def whole(table: xr.Dataset, plan: pd.DataFrame) -> xr.DataArray:
    """Are all planned runs of an image set and configuration there? (dataset, configuration), yes or no.

    Parameters
    ----------
    table : Dataset
        From `main_grid` or `varied`.
    plan : DataFrame
        Its rows of `vitplast.analysis.study.Study.planned`.
    """
    counts = plan.groupby(["dataset", "components"]).size() if len(plan) else {}
    shape = table["finished"].isel(rate=0, seed=0, drop=True).transpose("dataset", "configuration")
    asked = [[counts.get((d, c), 0) for c in shape["configuration"].values] for d in shape["dataset"].values]
    done = table["finished"].transpose(*CELL).sum(CELL[2:])
    return ((done >= np.array(asked)) & (done > 0)).rename("whole")


def finished(table: xr.Dataset | None, plan: pd.DataFrame) -> str:
    """`N of M planned runs` in words; `table`: from `main_grid` or `varied`, None where there is none."""
    return f"{0 if table is None else table.attrs['runs']:,} of {len(plan):,} planned runs"
