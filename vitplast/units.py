"""From checked parameters to one result: what the notebooks and the command line both call.

`load` gives what all runs of a notebook share, `COMPUTE[kind]` makes the dataset of a single run (one item of
`Parameters.runs()`), `summary` its numbers in a few rows. Writing results down is left to `vitplast.results`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import xarray as xr

from vitplast import images, texts
from vitplast.bounds import bounds, token_statistics
from vitplast.components import COMPONENTS
from vitplast.criteria.sample import score_sample
from vitplast.depth import POINTS, depth_probe
from vitplast.errors import InputError
from vitplast.estimate import layer_mean, plasticity
from vitplast.finetune import Origin, Recipe, finetune
from vitplast.images import ImageSet, ImageSplit
from vitplast.landscape import PUBLISHED_IMAGES, landscape
from vitplast.measure import measure
from vitplast.models import LoadedModel, LoadedText, is_text_model, load_model, load_text_model, own, weights_hash
from vitplast.pairs import pairs_of
from vitplast.pretraining import pretrain
from vitplast.probe import linear_probe
from vitplast.rescale import gradients_survey, rescaled
from vitplast.search import cases_named, search_case
from vitplast.search.stored import as_result
from vitplast.theory import survey
from vitplast.training.lora import require_peft
from vitplast.training.material import Plasticity, counts_in_words, splits_of
from vitplast.training.material import first as _first

Run = dict[str, Any]
Progress = Callable[[int, int], None]


def load(run: Run) -> LoadedModel | LoadedText:
    """The model that a run names, in evaluation mode on the run's device; with a head if the run has a loss.

    Rescaled (Prop. 18) if the run says so. A model that reads text comes with its tokenizer.
    """
    if is_text_model(run["model"]):
        chosen = {name: run[name] for name in ("weights", "init_seed", "device")}
        return load_text_model(run["model"], **chosen)
    if run.get("lora_rank", 0):
        require_peft()
    labelled = run["dataset"] if {"components", "head"} & set(run) else run["target"] if "factors" in run else ""
    classes = len(open_set(run, labelled, size=32).classes) if labelled else 0
    found = load_model(
        run["model"],
        weights=run["weights"],
        img_size=run["img_size"],
        num_classes=classes,
        normalization=run["normalization"],
        init_seed=run["init_seed"],
        device=run["device"],
    )
    return rescaled(found, run.get("rescale", ""))


def open_set(run: Run, name: str, size: int) -> ImageSet:
    """An image set at a size in pixels, divided by the run's seed."""
    return images.open_images(name, size=size, seed=run.get("seed", 0), download=run["download"])


def plasticity_run(run: Run, loaded: LoadedModel | LoadedText, progress: Progress | None = None) -> xr.Dataset:
    """Rates of change of every component on the run's pairs, one value a pair (kind "plasticity")."""
    own = {"gated": run.get("fc1", "both"), "mha_input": run.get("mha_input", "embedding")}
    return _on_pairs(measure, run, loaded, progress, **own)


def bounds_run(run: Run, loaded: LoadedModel | LoadedText, progress: Progress | None = None) -> xr.Dataset:
    """Bounds of every component, for the tokens of the images or texts that the same pairs use (kind "bounds")."""
    source, target, source_index, target_index = _pairs(run, loaded)
    sides = [(source, source_index), (target, target_index)]
    statistics = token_statistics(loaded, sides, batch_size=run["batch_size"], progress=progress)
    return bounds(loaded.model, statistics).assign_attrs(loaded.provenance)


def theory_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Every bound, prediction and measured value on the run's pairs (kind "theory")."""
    return _on_pairs(survey, run, loaded, progress, **{n: run[n] for n in ("local_pairs", "local_points")})


def gradients_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Gradient norms and rescalings of the model with a new head, on the run's pairs (kind "gradients")."""
    source, target, source_index, target_index = _pairs(run, loaded)
    sides = {"source": (source, source_index), "target": (target, target_index)}
    found = gradients_survey(
        loaded,
        *(loaded.prepare(split.images(index)) for split, index in sides.values()),
        torch.from_numpy(target.labels[target_index[: run["images"]]]),
        factors=run["factors"],
        pair_coords={
            f"{side}_{what}": [str(getattr(split, f"{what}s")[i]) for i in index]
            for side, (split, index) in sides.items()
            for what in ("id", "group")
        },
        progress=progress,
    )
    return found.assign_attrs(loaded.provenance)


def search_run(run: Run, progress: Progress | None = None) -> xr.Dataset:
    """The search for a counterexample in one setting (kind "search")."""
    (case,) = cases_named([run["case"]])
    return as_result(case, search_case(case, **{n: run[n] for n in ("starts", "steps", "seed")}, progress=progress))


def finetune_run(run: Run, loaded: LoadedModel, origin: Origin, progress: Progress | None = None) -> xr.Dataset:
    """One finetuning run from `origin`, the state that `loaded.model` had when it was loaded (kind "finetune")."""
    splits = splits_of(run, loaded.img_size, origin)
    look = Plasticity(run, loaded, origin) if run["plasticity_pairs"] else None
    means = {name: run[name] for name in ("workers", "memory_gib")}
    found = finetune(
        origin, *splits, Recipe.from_run(run), **means, prepare=loaded.prepare, progress=progress, look=look
    )
    own = {name: run[name] for name in ("per_class", "plasticity_pairs")} | {"rescale": run["rescale"] or "none"}
    return found.assign_attrs(loaded.provenance | own, per_class_counts=counts_in_words(splits[0]))


def probe_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Linear probe of the frozen model: the baseline of the relative gain (kind "probe")."""
    set_ = open_set(run, run["dataset"], loaded.img_size)
    train, test = _first(set_.train, run["train_images"]), _first(set_.test, run["test_images"])
    found = linear_probe(loaded, train, test, features=run["features"], batch_size=run["batch_size"])
    return found.assign_attrs(loaded.provenance)


def pretrain_run(run: Run, progress: Progress | None = None) -> tuple[xr.Dataset, dict[str, torch.Tensor]]:
    """The project's own model trained from random weights (kind "pretrain"), and the tensors of its backbone."""
    set_ = open_set(run, run["dataset"], own.SIZE)
    splits = [
        _first(split, run[number]).all()
        for split, number in (
            (set_.train, "train_images"),
            (set_.validation, "test_images"),
            (set_.test, "test_images"),
        )
    ]
    loaded = load_model(
        own.ARCHITECTURE, weights="random", num_classes=len(set_.classes), init_seed=run["seed"], device=run["device"]
    )
    chosen = {name: run[name] for name in ("epochs", "batch_size", "lr", "weight_decay", "seed")}
    found = pretrain(loaded.model, *splits, prepare=loaded.prepare, progress=progress, **chosen)
    about = loaded.provenance | {name: run[name] for name in ("epochs", "batch_size", "lr", "weight_decay")}
    tensors = {name: t for name, t in loaded.model.state_dict().items() if not name.startswith("head.")}
    return found.assign_attrs(about, trained_sha256=weights_hash(loaded.model)), tensors


def depth_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Linear probes of the frozen model after each point of every block (kind "depth")."""
    set_ = open_set(run, run["dataset"], loaded.img_size)
    train, test = _first(set_.train, run["train_images"]), _first(set_.test, run["test_images"])
    options = {name: run[name] for name in ("features", "c", "max_iter", "batch_size", "view", "view_batch", "seed")}
    return depth_probe(loaded, train, test, **options, progress=progress).assign_attrs(loaded.provenance)


def landscape_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Loss and rate-of-change surfaces of the run's components, with a head for the task (kind "landscape")."""
    set_ = open_set(run, run["dataset"], loaded.img_size)
    fitted, shown = run["head_images"], run["images"]
    if len(set_.train) < fitted + shown:
        raise InputError(
            f"{run['dataset']} has {len(set_.train)} training images; head_images and images take {fitted} and {shown}"
        )
    found = landscape(
        loaded,
        set_.train.subset(range(fitted)),
        set_.train.subset(range(fitted, fitted + shown)),
        _first(set_.test, PUBLISHED_IMAGES),
        **{
            name: run[name]
            for name in (
                "components", "variants", "steps", "lr", "extent", "grid", "layer", "rate_images", "seed",
            )
        },
        progress=progress,
    )  # fmt: skip
    return found.assign_attrs(loaded.provenance)


def criteria_run(run: Run, loaded: LoadedModel, progress: Progress | None = None) -> xr.Dataset:
    """Every criterion for the choice of a component, from the run's training images (kind "criteria")."""
    found = score_sample(
        loaded,
        open_set(run, run["source"], loaded.img_size),
        open_set(run, run["dataset"], loaded.img_size),
        run,
        progress,
    )
    return found.assign_attrs(loaded.provenance)


def compute(kind: str, run: Run, progress: Progress | None = None) -> xr.Dataset:
    """One result from its parameters alone, the model loaded afresh."""
    if kind == "search":
        return search_run(run, progress)
    if kind == "pretrain":
        return pretrain_run(run, progress)[0]
    loaded = load(run)
    if kind == "finetune":
        return finetune_run(run, loaded, Origin(loaded.model), progress)
    makers = {
        "plasticity": plasticity_run,
        "bounds": bounds_run,
        "theory": theory_run,
        "gradients": gradients_run,
        "probe": probe_run,
        "depth": depth_run,
        "landscape": landscape_run,
        "criteria": criteria_run,
    }
    return makers[kind](run, loaded, progress)


def summary(kind: str, dataset: xr.Dataset) -> list[dict[str, Any]]:
    """The numbers of a result in a few rows, for a terminal."""
    if kind == "plasticity":
        found = plasticity(layer_mean(dataset))
        return [
            {"convention": str(c), "component": k}
            | {name: float(found[name].sel(convention=c, component=k)) for name in ("mean", "se", "ci_low", "ci_high")}
            for c in dataset.convention.values
            for k in COMPONENTS
        ]
    if kind == "bounds":
        found = dataset.bound.mean("layer")
        return [
            {"convention": str(c), "variant": str(v)}
            | {k: float(found.sel(convention=c, variant=v, component=k)) for k in COMPONENTS}
            for c in dataset.convention.values
            for v in dataset.variant.values
        ]
    if kind == "theory":
        return [
            {"convention": str(c), "component": str(k)}
            | {
                n: float(dataset[n].sel(convention=c, component=k).mean("layer"))
                for n in ("measured_mean", "measured_max")
            }
            | {"tightest": float(dataset.tightness.sel(convention=c, component=k).max())}
            for c in dataset.convention.values
            for k in dataset.component.values
            if bool(dataset.measured_mean.sel(convention=c, component=k).notnull().any())
        ]
    if kind == "gradients":
        one = dataset.sel(factor=1.0).isel(kind=0)
        return [
            {"component": k}
            | {n: float(one[n].sel(component=k).mean()) for n in ("gradient_norm", "gradient_rms", "elasticity")}
            | {"largest ratio": float(one.ratio.sel(component=k).max())}
            for k in COMPONENTS
        ]
    if kind == "criteria":
        return [
            {"criterion": str(c)} | {k: float(dataset.total.sel(criterion=c, component=k)) for k in COMPONENTS}
            for c in dataset.criterion.values
        ]
    if kind == "search":
        return [
            {"formula": str(f), "expected": str(one.expected.item()), "value": float(one.bound.fillna(one.claimed))}
            | {n: float(one[n]) for n in ("random", "adversarial", "tight")}
            for f in dataset.formula.values
            for one in (dataset.sel(formula=f),)
        ]
    if kind == "depth":
        return [
            {"layer": int(layer)} | {p: float(dataset.test_accuracy.sel(layer=layer, point=p)) for p in POINTS}
            for layer in dataset.layer.values
        ]
    if kind == "landscape":
        return [
            {"variant": str(v), "component": str(k)}
            | {"loss": float(one.trajectory_loss[0]), "after descent": float(one.trajectory_loss[-1])}
            | {"largest loss": float(one.loss.max()), "largest rate": float(one.rate.max())}
            | {f"gain {a}": float(one.gain.sel(axis=a)) for a in ("u", "v")}
            for v in dataset.variant.values
            for k in dataset.component.values
            for one in (dataset.sel(variant=v, component=k),)
        ]
    scalars = {str(name): v for name, v in dataset.data_vars.items() if not v.dims}
    return [{"what": name, "value": v.item(), "unit": v.attrs["units"]} for name, v in scalars.items()]


def _on_pairs(
    take: Callable[..., xr.Dataset], run: Run, loaded: LoadedModel, progress: Progress | None, **more: Any
) -> xr.Dataset:
    """What `measure` or `survey` finds on the run's pairs, with the origin of the weights."""
    source, target, source_index, target_index = _pairs(run, loaded)
    found = take(
        loaded,
        source,
        target,
        source_name=run["source"],
        target_name=run["target"],
        source_index=source_index,
        target_index=target_index,
        progress=progress,
        **{name: run[name] for name in ("design", "conventions", "batch_size", "precision", "seed")},
        **more,
    )
    return found.assign_attrs(loaded.provenance)


def _pairs(run: Run, loaded: LoadedModel | LoadedText) -> tuple[ImageSplit | texts.TextSplit, ...]:
    """Source and target side, and the positions of the images or texts of each pair."""
    if isinstance(loaded, LoadedText):
        how = {"tokens": run["tokens"], "padding": run.get("padding", "excluded")}
        source, target = (texts.open_texts(run[side], loaded.tokenizer, **how) for side in ("source", "target"))
    else:
        source = open_set(run, run["source"], loaded.img_size).source
        target = open_set(run, run["target"], loaded.img_size).test
    in_file = (source.file_order(), target.file_order()) if run.get("order") == "file" else None
    return source, target, *pairs_of(run, len(source), len(target), in_file)
