"""Finetuning of some components of a vision transformer, all else frozen bit for bit: one call, one result.

The paper's protocol: SGD with momentum, linear warm-up and cosine, gradients clipped, head and final norm trained in
every configuration, the checkpoint with the highest validation accuracy tested once. What differs from the authors'
code unless the recipe asks for theirs: accuracies count images (`accuracy_batch`), crops are taken from prepared images
(`augment`), and the last images of a pass are used (`last_batch`). The component's gradient norm is logged apart from
head and norm.

Memory on the host: validation and test images are kept as bytes, 3 S^2 each (150 kB at 224 pixels), and so are training
images, but with `augment="original"`; up to 2 GiB of a split on the device. They become floats a batch at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing

import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import select
from vitplast.errors import InputError
from vitplast.training import memory
from vitplast.training.batches import Images, RandomCrop, Split, labelled, order
from vitplast.training.encoding import encoded, fits
from vitplast.training.evaluate import evaluate
from vitplast.training.loop import History, load, train
from vitplast.training.lora import adapted, base_names, described, merged, require_peft
from vitplast.training.origin import Origin, check_frozen, check_trained, classes, initialise_head, tensors
from vitplast.training.pictures import OwnSize, Pictures, labels_of
from vitplast.training.precision import autocast, exact_products, resolve_precision
from vitplast.training.recipe import Recipe
from vitplast.training.record import to_dataset, with_plasticity
from vitplast.training.rules import ZERO_HEAD
from vitplast.training.stages import Stages
from vitplast.training.step import OUTER, Stepper, compiled

__all__ = ["Origin", "Recipe", "finetune"]

#: Plasticity (convention, layer, component) of a model; it is told whether that model is trained.
Look = Callable[[nn.Module, bool], xr.DataArray]

#: Encoded images of a frozen encoder are kept up to this size; beyond it every batch is encoded anew.
FEATURE_BYTES = 2**30


def finetune(
    model: nn.Module | Origin,
    train_split: Split | OwnSize | None,
    validation_split: Split | None,
    test_split: Split | None,
    recipe: Recipe,
    *,
    workers: int = 0,
    memory_gib: float = 0.0,
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
        `prepare`; floats count as normalised. With `augment="original"` the training split has pictures at their own
        size (`training.pictures`).
    recipe
        See `Recipe`. With a warm-up the first step has rate 0.
    workers
        Processes that read pictures, for `augment="original"`; the numbers do not depend on it.
    memory_gib
        Memory in GiB that the run may take on the device (`training.memory`). A batch that needs more is cut into
        micro-batches, which changes numbers by rounding alone. 0: all that is free on a GPU, no limit on a CPU.
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
        if all training labels are equal, if the head is zero and does not train, if LoRA's rank is too large, if the
        incomplete last batch is dropped and no other is left, or if not even one image fits into the memory.
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
    limits = {"classes": classes(model), "can_prepare": prepare is not None}
    original = recipe.augment == "original"
    labels = [labels_of(train_split, "train", **limits)] if original else []
    splits = [
        labelled(split, name, model=model, **limits)
        for name, split in (("train", train_split), ("validation", validation_split), ("test", test_split))[original:]
    ]
    labels += [labels for _, labels in splits]
    unseen = _classes_missing(labels)
    batches = order(
        len(labels[0]), batch_size=recipe.batch_size, steps=recipe.steps, seed=recipe.seed, drop=recipe.drop
    )
    trained = select(model, recipe.components, train_head=recipe.train_head, train_norm=recipe.train_norm)

    device = torch.device(device) if device is not None else next(model.parameters()).device
    origin.restore().to(device)
    initialise_head(model, recipe.head_init, recipe.seed)
    if "head" not in trained and not model.head.weight.any():
        raise InputError(ZERO_HEAD)
    start = origin.state | {name: t.detach().clone() for name, t in tensors(model) if name.startswith("head.")}

    precision = resolve_precision(recipe.precision, device, width=getattr(model, "embed_dim", 384))
    dtype = next(model.parameters()).dtype
    size = splits[-1][0].shape[-1]
    inputs: list[Images | Pictures] = [Images(images, prepare, device, dtype) for images, _ in splits]
    if original:
        options = {"size": size, "seed": recipe.seed, "workers": workers, "kept": origin.kept}
        inputs.insert(0, Pictures(train_split, prepare=prepare, device=device, dtype=dtype, **options))
    parts = memory.micro_batches(
        recipe,
        model,
        precision=precision,
        budget=memory.budget_bytes(memory_gib, device),
        kept=sum(one.nbytes for one in inputs),
        image_values=splits[-1][0][0].numel(),
    )
    looked = {} if look is None else {"plasticity_before": look(model, False)}
    with adapted(model, trained, recipe) as trained, memory.limited(memory_gib, device), exact_products() as products:
        history, stepper, tested, checked = _trained(
            origin, recipe, trained, start, inputs, labels, batches, precision=precision, parts=parts, progress=progress
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
            "products": products,
            "attention": memory.attention(model),
            "pictures": inputs[0].description if original else "kept at the size of the model's input",
            "micro_batches": stepper.parts,
            "workers": workers,
            "memory_gib": memory_gib,
            "peak_memory_gib": memory.peak_gib(device),
            **checked,
        },
    )
    return with_plasticity(ds, looked)


def _trained(
    origin: Origin,
    recipe: Recipe,
    trained: dict[str, list[str]],
    start: dict[str, Tensor],
    inputs: list[Images | Pictures],
    labels: list[Tensor],
    batches: Tensor,
    *,
    precision: str,
    parts: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[History, Stepper, tuple[float, float], dict[str, str]]:
    """Training, the checks after it, and the test of the best checkpoint, which the model then is.

    Returns
    -------
    The history, the stepper, accuracy and loss on the test images, and what was checked as attributes.
    """
    model, stages, device = origin.model, Stages(origin.model), inputs[0].device
    start = base_names(model, start)
    clock, train_labels = time.perf_counter(), labels[0]
    once = recipe.augment == "none" and set(trained) <= set(OUTER) and fits(stages, inputs, FEATURE_BYTES)
    if once:
        used, batches = torch.unique(batches, return_inverse=True)
        inputs[0], train_labels = inputs[0].subset(used), train_labels[used]
        inputs[0] = encoded(origin, stages, inputs[0], precision, FEATURE_BYTES)
    encoding_seconds = time.perf_counter() - clock
    if once:
        inputs[1:] = [encoded(origin, stages, images, precision, FEATURE_BYTES) for images in inputs[1:]]
    forward = stages.classify if once else stages
    step = compiled(forward) if recipe.compile else forward
    stepper = Stepper(step, model, trained, recipe, precision=precision, parts=parts)

    def score(split: int) -> tuple[float, float]:
        with autocast(precision, device):
            return evaluate(forward, inputs[split], labels[split], accuracy_batch=recipe.accuracy_batch)

    crop = {"augment": RandomCrop(recipe.seed)} if recipe.augment == "paper" else {}
    with closing(inputs[0].feed(batches, **crop)) as feed:
        history = train(stepper, feed, train_labels.to(device), batches, lambda: score(1), progress)
    history.seconds += encoding_seconds
    check_frozen(model, start, set(stepper.named))
    diverged, best = history.diverged_step >= 0, history.best_step >= 0
    unmoved = [] if diverged else check_trained(model, start, trained, history)
    load(stepper.named, history.checkpoint if best else {n: start[n] for n in stepper.named})
    checked = {
        "encoded_once": "yes" if once else "no",
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
