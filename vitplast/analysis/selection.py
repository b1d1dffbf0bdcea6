"""Which runs belong together: those of the main grid, those that change one thing, and those that were planned."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.grid import CELL, grid
from vitplast.components import CONFIGURATIONS
from vitplast.errors import UnknownNameError
from vitplast.models import PACKAGED
from vitplast.parameters import KINDS
from vitplast.runs.plan import load_profile

#: What the runs of the main grid of profile laptop have in common; what they differ in is the grid.
MAIN: dict[str, Any] = {
    "components": CONFIGURATIONS,
    "img_size": 56,
    "optimizer": "sgd",
    "steps": 40,
    "clipping": "joint",
    "train_images": 640,
    "per_class": 0,
    "lora_rank": 0,
    "rescale": "",
    "plasticity_pairs": 0,
}
#: Short names of the models that come with the project.
MODEL_NAMES = {PACKAGED: "DINOv2 ViT-S/14", "vit_micro_patch14_56.fashion_mnist": "own ViT"}
ALONG = ("step", "evaluation")


def models_of(gathered: xr.Dataset) -> list[str]:
    """`{model of a run}`: the models of gathered runs, the packaged one first, the others as they appear."""
    found = list(dict.fromkeys(np.atleast_1d(gathered["model"].values).tolist()))
    return sorted(found, key=lambda name: name != PACKAGED)


def model_name(model: str) -> str:
    """Short name of a model for tables and figures; its own where it has none.

    Examples
    --------
    >>> model_name("vit_micro_patch14_56.fashion_mnist"), model_name("vit_tiny_patch16_224")
    ('own ViT', 'vit_tiny_patch16_224')
    """
    return MODEL_NAMES.get(model, model)


def main_grid(gathered: xr.Dataset, model: str) -> xr.Dataset:
    """The runs of the main grid of a model, as `vitplast.analysis.grid.grid`: `varied` with nothing changed."""
    return varied(gathered, model)


def main_grids(gathered: xr.Dataset) -> dict[str, xr.Dataset]:
    """`main_grid` by model, the packaged one first; models without a run in the main grid are left out."""
    of_model = {m: gathered.isel(run=np.flatnonzero(gathered["model"].values == m)) for m in models_of(gathered)}
    return {m: varied(runs, m) for m, runs in of_model.items() if _some(runs)}


def varied(gathered: xr.Dataset, model: str, **changes: Any) -> xr.Dataset:
    """`grid(gathered, model=model, MAIN | changes)`: the runs that differ from the main grid in `changes`.

    Steps and evaluations that none of these runs has (others that were gathered with them may be longer) are left out.

    Parameters
    ----------
    gathered : Dataset
        Kind finetune along `run`.
    changes
        Parameters by name, as `steps=80` or `per_class=10, train_images=0`.

    Raises
    ------
    InputError
        UnknownNameError among them: if there is no such run, or a parameter not named differs among them, as `grid`.
    """
    table = grid(gathered, **({"model": model} | MAIN | changes))
    for dim, name in zip(ALONG, ("train_loss", "validation_loss"), strict=True):
        if name in table:
            there = table[name].notnull().any([d for d in table[name].dims if d != dim])
            table = table.isel({dim: np.flatnonzero(there.values)})
    return table


def planned(kind: str, profile: str = "laptop", **equal: Any) -> pd.DataFrame:
    """One row a run that a profile asks for, with its parameters; `len(planned(...))` is their number.

    Parameters
    ----------
    kind : str
        finetune, probe, plasticity and so on.
    profile : str
        Name or path of a profile.
    equal
        Values of parameters by name, tuples and lists of allowed ones; `**MAIN` gives the main grid.

    Raises
    ------
    UnknownNameError
        If there is no such kind, or `equal` names no parameter of it.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    table = _planned(kind, profile)
    for name, value in equal.items():
        if name not in table and len(table):
            raise UnknownNameError("parameter", name, map(str, table.columns))
        table = table[table[name].isin(list(value) if isinstance(value, (tuple, list)) else [value])]
    return table.reset_index(drop=True)


def whole(table: xr.Dataset, plan: pd.DataFrame) -> xr.DataArray:
    """Are all planned runs of an image set and configuration there? (dataset, configuration), yes or no.

    Parameters
    ----------
    table : Dataset
        From `main_grid` or `varied`.
    plan : DataFrame
        Its rows of `planned`.
    """
    counts = plan.groupby(["dataset", "components"]).size() if len(plan) else {}
    shape = table["finished"].isel(rate=0, seed=0, drop=True).transpose("dataset", "configuration")
    asked = [[counts.get((d, c), 0) for c in shape["configuration"].values] for d in shape["dataset"].values]
    done = table["finished"].transpose(*CELL).sum(CELL[2:])
    return ((done >= np.array(asked)) & (done > 0)).rename("whole")


def finished(table: xr.Dataset | None, plan: pd.DataFrame) -> str:
    """`N of M planned runs` in words; `table`: from `main_grid` or `varied`, None where there is none."""
    return f"{0 if table is None else table.attrs['runs']:,} of {len(plan):,} planned runs"


@lru_cache(maxsize=8)
def _planned(kind: str, profile: str) -> pd.DataFrame:
    rows = [run for unit in load_profile(profile).units if unit.kind == kind for run in unit.runs.values()]
    return pd.DataFrame(rows)


def _some(runs: xr.Dataset) -> bool:
    """Is there a run with the parameters of the main grid? Options that came later may be missing."""
    keep = np.ones(runs.sizes["run"], dtype=bool)
    for name, value in MAIN.items():
        if name in runs.coords:
            values = runs[name].values
            known = values != "" if values.dtype.kind in "UOT" else values >= 0
            keep &= ~known | np.isin(values, list(value) if isinstance(value, tuple) else [value])
    return bool(keep.any())
