"""From checked parameters to one result: what the notebooks and the command line both call.

Each function takes the parameters of a single run (one item of `Parameters.runs()`) and a loaded model, and returns
a labelled dataset. Writing it down is left to `vitplast.results`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr

from vitplast import images
from vitplast.bounds import bounds, token_statistics
from vitplast.finetune import Recipe, finetune
from vitplast.measure import measure
from vitplast.models import LoadedModel, load_model
from vitplast.pairs import pair_indices
from vitplast.probe import linear_probe

Run = dict[str, Any]


def load(run: Run, *, num_classes: int = 0, head_init: str = "default") -> LoadedModel:
    """The model that a run names, in evaluation mode on the run's device."""
    return load_model(
        run["model"],
        weights=run["weights"],
        img_size=run["img_size"],
        normalization=run["normalization"],
        init_seed=run["init_seed"],
        device=run["device"],
        num_classes=num_classes,
        head_init=head_init,
    )


def load_images(run: Run, name: str, seed: int | None = None) -> images.ImageSet:
    """An image set at the size that a run asks for."""
    seed = run["seed"] if seed is None else seed
    return images.open_images(name, size=run["img_size"], seed=seed, download=run["download"])


def _pairs(run: Run) -> tuple[images.ImageSplit, images.ImageSplit, Any, Any]:
    source = load_images(run, run["source"]).source
    target = load_images(run, run["target"]).test
    return source, target, *pair_indices(len(source), len(target), run["pairs"], run["design"], run["seed"])


def plasticity_run(run: Run, loaded: LoadedModel, progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Rates of change of every component on the run's pairs, one value a pair (kind "plasticity")."""
    source, target, source_index, target_index = _pairs(run)
    return measure(
        loaded,
        source,
        target,
        source_index=source_index,
        target_index=target_index,
        design=run["design"],
        conventions=run["conventions"],
        batch_size=run["batch_size"],
        precision=run["precision"],
        progress=progress,
    )


def bounds_run(run: Run, loaded: LoadedModel, progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Bounds of every component, with the token statistics of the images that the same pairs use (kind "bounds")."""
    source, target, source_index, target_index = _pairs(run)
    statistics = token_statistics(
        loaded, [(source, source_index), (target, target_index)], batch_size=run["batch_size"], progress=progress
    )
    return bounds(loaded.model, statistics)


def finetune_run(
    run: Run, loaded: LoadedModel | None = None, progress: Callable[[int, int], None] | None = None
) -> xr.Dataset:
    """One finetuning run: one configuration, learning rate and seed (kind "finetune")."""
    images_ = load_images(run, run["dataset"])
    fresh = load({**run, "init_seed": run["seed"]} if run["weights"] != "random" else run,
                 num_classes=len(images_.classes), head_init=run["head_init"])
    return finetune(
        fresh.model,
        images_.train,
        images_.validation,
        images_.test,
        Recipe.from_run(run),
        prepare=fresh.prepare,
        progress=progress,
    )


def probe_run(run: Run, loaded: LoadedModel, progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Linear probe of the frozen model: the baseline of the relative gain (kind "probe")."""
    images_ = load_images(run, run["dataset"])
    return linear_probe(loaded, images_.train, images_.test, features=run["features"], batch_size=run["batch_size"])


#: Kind to the function that makes one result of it.
COMPUTE = {"plasticity": plasticity_run, "bounds": bounds_run, "finetune": finetune_run, "probe": probe_run}
