"""Finetuning of some components of a vision transformer, all else frozen bit for bit: one call, one result.

The paper's protocol: SGD with momentum, linear warm-up and cosine, gradients clipped, head and final norm trained in
every configuration, the checkpoint with the highest validation accuracy tested once. What differs from the authors'
code: accuracies count images, the component's gradient norm is logged apart from head and norm, and the last images of
a pass are used.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable

import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import select
from vitplast.errors import InputError
from vitplast.training.batches import Images, Split, labelled, order
from vitplast.training.evaluate import BATCH, evaluate
from vitplast.training.loop import History, load, train
from vitplast.training.lora import adapted, base_names, described, merged, require_peft
from vitplast.training.origin import Origin, check_frozen, check_trained, classes, initialise_head, tensors
from vitplast.training.precision import autocast, resolve_precision
from vitplast.training.recipe import Recipe
from vitplast.training.record import to_dataset, with_plasticity
from vitplast.training.rules import ZERO_HEAD
from vitplast.training.stages import Stages
from vitplast.training.step import OUTER, Stepper

__all__ = ["Origin", "Recipe", "finetune"]

#: Plasticity (convention, layer, component) of a model; it is told whether that model is trained.
Look = Callable[[nn.Module, bool], xr.DataArray]

#: Encoded images of a frozen encoder are kept up to this size; beyond it every batch is encoded anew.
FEATURE_BYTES = 2**30


def finetune(
    model: nn.Module | Origin,
    train_split: Split | None,
    validation_split: Split | None,
    test_split: Split | None,
    recipe: Recipe,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    look: Look | None = None,
) -> xr.Dataset:
    """Trains one configuration with one rate and one seed, and returns its history and its test accuracy.

    The model is changed in place and ends as the checkpoint that was tested; with LoRA (`training.lora`) its factors
    are taken out again, and of the checkpoint head and final norm stay. It is trained in evaluation mode: dropout is
    off (its rates are 0 in the paper) and statistics of frozen norms stay.

    Parameters
    ----------
    model
        A vision transformer with a head, or an `Origin`, which is restored first: one loaded model for many runs.
    train_split, validation_split, test_split
        Objects whose `all()` gives images (N, C, H, W) and labels (N,), or such pairs. uint8 images are normalised by
        `prepare`; floats count as normalised.
    recipe
        See `Recipe`. With a warm-up the first step has rate 0.
    device
        Where to train; by default where the model is.
    progress
        Called as `progress(steps_done, steps)`.
    look
        Measures plasticity before training and at the checkpoint (LoRA's factors merged into the weights), for
        `plasticity_before` and `plasticity_after`. It must leave the model as it is.

    Returns
    -------
    xarray.Dataset
        Kind "finetune" of `vitplast.results.schema`: curves over `step` and `evaluation`, scalars, the recipe as
        attributes. A run whose loss or gradient stops being finite has `diverged_step` >= 0; its accuracies are those
        of the best checkpoint before that, or NaN if there was none.

    Raises
    ------
    InputError
        If a split is missing, empty, of another size than the model's, not finite (`PixelError`) or wrongly labelled,
        if all training labels are equal, if the head is zero and does not train, or if LoRA's rank is too large.
    MissingDependencyError
        If LoRA is asked for and peft is not installed.
    VitplastError
        If a frozen tensor changed, or a trained group did not or never received a gradient, in a run that did not
        diverge.
    """
    if recipe.lora_rank:
        require_peft()
    origin = model if isinstance(model, Origin) else Origin(model)
    model = origin.model
    splits = [
        labelled(split, name, classes=classes(model), model=model, can_prepare=prepare is not None)
        for name, split in (("train", train_split), ("validation", validation_split), ("test", test_split))
    ]
    labels = [labels for _, labels in splits]
    unseen = _classes_missing(labels)
    trained = select(model, recipe.components, train_head=recipe.train_head, train_norm=recipe.train_norm)

    device = torch.device(device) if device is not None else next(model.parameters()).device
    origin.restore().to(device)
    initialise_head(model, recipe.head_init, recipe.seed)
    if "head" not in trained and not model.head.weight.any():
        raise InputError(ZERO_HEAD)
    start = origin.state | {name: t.detach().clone() for name, t in tensors(model) if name.startswith("head.")}

    precision = resolve_precision(recipe.precision, device, width=getattr(model, "embed_dim", 384))
    dtype = next(model.parameters()).dtype
    inputs = [Images(images, prepare, device, dtype) for images, _ in splits]
    looked = {} if look is None else {"plasticity_before": look(model, False)}
    with adapted(model, trained, recipe) as trained:
        history, stepper, tested, checked = _trained(
            origin, recipe, trained, start, inputs, labels, precision=precision, progress=progress
        )
        if look is not None:
            looked["plasticity_after"] = look(merged(model), True).where(history.best_step >= 0)
    ds = to_dataset(
        recipe,
        history,
        stepper,
        tested=tested,
        images=[len(found) for found in labels],
        attrs={
            "precision_resolved": str(dtype).removeprefix("torch.") if precision == "float32" else precision,
            "classes_missing_in_train": " ".join(map(str, unseen)) or "none",
            "adapter": described(recipe),
            **checked,
        },
    )
    return with_plasticity(ds, looked)


def _trained(
    origin: Origin,
    recipe: Recipe,
    trained: dict[str, list[str]],
    start: dict[str, Tensor],
    inputs: list[Images],
    labels: list[Tensor],
    *,
    precision: str,
    progress: Callable[[int, int], None] | None,
) -> tuple[History, Stepper, tuple[float, float], dict[str, str]]:
    """Training, the checks after it, and the test of the best checkpoint, which the model then is.

    Returns
    -------
    The history, the stepper, accuracy and loss on the test images, and what was checked as attributes.
    """
    model, stages, device = origin.model, Stages(origin.model), inputs[0].device
    start = base_names(model, start)
    batches = order(len(inputs[0]), batch_size=recipe.batch_size, steps=recipe.steps, seed=recipe.seed)
    clock, train_labels = time.perf_counter(), labels[0]
    encoded = recipe.augment == "none" and set(trained) <= set(OUTER) and _fits(stages, inputs)
    if encoded:
        used, batches = torch.unique(batches, return_inverse=True)
        inputs[0], train_labels = inputs[0].subset(used), train_labels[used]
        inputs[0] = _encoded(origin, stages, inputs[0], precision)
    encoding_seconds = time.perf_counter() - clock
    if encoded:
        inputs[1:] = [_encoded(origin, stages, images, precision) for images in inputs[1:]]
    stepper = Stepper(stages.classify if encoded else stages, model, trained, recipe, precision=precision)

    def score(split: int) -> tuple[float, float]:
        with autocast(precision, device):
            return evaluate(stepper.forward, inputs[split], labels[split])

    history = train(stepper, inputs[0], train_labels.to(device), batches, lambda: score(1), progress)
    history.seconds += encoding_seconds
    check_frozen(model, start, set(stepper.named))
    diverged, best = history.diverged_step >= 0, history.best_step >= 0
    unmoved = [] if diverged else check_trained(model, start, trained, history)
    load(stepper.named, history.checkpoint if best else {n: start[n] for n in stepper.named})
    checked = {
        "encoded_once": "yes" if encoded else "no",
        "frozen_check": "bit-equal",
        "trained_check": "diverged, not checked" if diverged else "changed, but for unmoved_groups",
        "unmoved_groups": " ".join(unmoved) or "none",
        "tested": "best checkpoint" if best else "nothing: diverged before the first validation",
    }
    return history, stepper, score(2) if best else (math.nan, math.nan), checked


def _classes_missing(labels: list[Tensor]) -> list[int]:
    """Classes that are validated or tested but not trained on; an InputError if there is one training class only."""
    seen = set(labels[0].tolist())
    if len(seen) < 2:
        raise InputError(f"all {len(labels[0])} train labels are {min(seen)}: there is nothing to learn")
    return sorted(set(torch.cat(labels[1:]).tolist()) - seen)


def _fits(stages: Stages, inputs: list[Images]) -> bool:
    """Whether the model can be cut before its final norm, and all encoded images fit into `FEATURE_BYTES`."""
    if not stages.splits:
        return False
    model = stages.model
    tokens = 1 if stages.pooled else model.patch_embed.num_patches + model.num_prefix_tokens
    return sum(map(len, inputs)) * tokens * model.embed_dim * 4 <= FEATURE_BYTES


def _encoded(origin: Origin, stages: Stages, inputs: Images, precision: str) -> Images:
    """What the frozen encoder makes of all images, in order and in chunks of one size: the same bits in every run.

    Kept in `origin` under a hash of the images, for the next learning rate on the same ones.
    """
    content = hashlib.sha256(inputs.images.cpu().contiguous().numpy()).hexdigest()
    key = (content, inputs.images.dtype, inputs.prepare, precision)
    if key not in origin.features:
        with torch.no_grad(), autocast(precision, inputs.device):
            chunks = [stages.encode(inputs.at(i)).to(inputs.dtype) for i in torch.arange(len(inputs)).split(BATCH)]
        if sum(kept.nbytes for kept in origin.features.values()) > FEATURE_BYTES:
            origin.features.clear()
        origin.features[key] = torch.cat(chunks)
    return Images(origin.features[key], None, inputs.device, inputs.dtype)
