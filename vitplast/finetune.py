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
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import select
from vitplast.errors import InputError
from vitplast.training.batches import Images, RandomCrop, labelled, order
from vitplast.training.evaluate import BATCH, evaluate
from vitplast.training.origin import Origin, bit_equal, check_frozen, check_trained, classes, initialise_head, tensors
from vitplast.training.precision import autocast, resolve_precision
from vitplast.training.recipe import Recipe
from vitplast.training.record import to_dataset
from vitplast.training.stages import Stages, encode_all
from vitplast.training.step import OUTER, StepLog, Stepper

__all__ = ["Origin", "Recipe", "finetune"]

#: Encoded images of a frozen model are kept up to this size; beyond it every batch is encoded anew.
FEATURE_BYTES = 2**30


@dataclass
class History:
    """What a run leaves behind: a log of each step, accuracy and loss of each validation, the best checkpoint."""

    steps: list[StepLog] = field(default_factory=list)
    validations: list[tuple[float, float]] = field(default_factory=list)
    best_step: int = -1
    best_accuracy: float = -1.0
    diverged_step: int = -1
    #: Largest rate times clipped gradient norm of each group.
    pushes: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    checkpoint: dict[str, Tensor] = field(default_factory=dict)


def finetune(
    model: nn.Module | Origin,
    train,
    validation,
    test,
    recipe: Recipe,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Trains one configuration with one rate and one seed, and returns its history and its test accuracy.

    The model is changed in place and ends as the checkpoint that was tested. It is trained in evaluation mode: dropout
    is off (its rates are 0 in the paper) and statistics of frozen norms stay.

    Parameters
    ----------
    model
        A vision transformer with a head, or an `Origin`, which is restored first: one loaded model for many runs.
    train, validation, test
        Objects whose `all()` gives images (N, C, H, W) and labels (N,), or such pairs. uint8 images are normalised by
        `prepare`; floats count as normalised.
    recipe
        See `Recipe`. With a warm-up the first step has rate 0.
    device
        Where to train; by default where the model is.
    progress
        Called as `progress(steps_done, steps)`.

    Returns
    -------
    xarray.Dataset
        Kind "finetune" of `vitplast.schema`: curves over `step` and `evaluation`, scalars, and the recipe as attributes.
        A run whose loss or gradient stops being finite has `diverged_step` >= 0; its accuracies are those of the best
        checkpoint before that, or NaN if there was none.

    Raises
    ------
    InputError
        If a split is missing, empty, of another size than the model's, not finite or wrongly labelled, or if all
        training labels are equal.
    VitplastError
        If a frozen tensor changed or a trained group did not.
    """
    origin = model if isinstance(model, Origin) else Origin(model)
    model = origin.model
    splits = [
        labelled(split, name, classes=classes(model), model=model, needs_prepare=prepare is not None)
        for name, split in (("train", train), ("validation", validation), ("test", test))
    ]
    seen = torch.unique(splits[0][1])
    if len(seen) < 2:
        raise InputError(f"all {len(splits[0][1])} train labels are {int(seen[0])}: there is nothing to learn")
    unseen = sorted({int(c) for _, labels in splits[1:] for c in labels.unique()} - set(seen.tolist()))
    trained = select(model, recipe.components, train_head=recipe.train_head, train_norm=recipe.train_norm)

    device = torch.device(device) if device is not None else next(model.parameters()).device
    model.to(device)
    origin.restore()
    initialise_head(model, recipe.head_init, recipe.seed)
    head = {name: t.detach().clone() for name, t in tensors(model) if name.startswith("head.")}
    start = {**origin.state, **head}

    precision = resolve_precision(recipe.precision, device, width=getattr(model, "embed_dim", 384))
    context = lambda: autocast(precision, device)  # noqa: E731
    stages = Stages(model)
    dtype = next(model.parameters()).dtype
    inputs = [Images(images, prepare, device, dtype) for images, _ in splits]
    batches = order(len(inputs[0]), batch_size=recipe.batch_size, steps=recipe.steps, seed=recipe.seed)
    history = History()
    clock = time.perf_counter()
    cached = _encoder_is_frozen(recipe, trained, stages) and _fits(inputs, stages, model)
    if cached:
        used, batches = torch.unique(batches, return_inverse=True)
        inputs[0], splits[0] = Images(splits[0][0][used], prepare, device, dtype), (None, splits[0][1][used])
        inputs[0] = _features(origin, stages, inputs[0], precision, context)
        history.seconds += time.perf_counter() - clock
        inputs[1:] = [_features(origin, stages, i, precision, context) for i in inputs[1:]]
    stepper = Stepper(stages.classify if cached else stages, model, trained, recipe, precision=precision)

    def score(index: int) -> tuple[float, float]:
        with context():
            return evaluate(stepper.forward, inputs[index], splits[index][1])

    _run(stepper, inputs[0], splits[0][1].to(device), batches, lambda: score(1), history, progress)
    names = {name for group in trained.values() for name in group}
    check_frozen(model, start, names)
    attrs = {"frozen_check": "bit-equal", "trained_check": "diverged: not checked", "unmoved_groups": "none"}
    if history.diverged_step < 0:
        unmoved = check_trained(model, start, trained, history.pushes)
        attrs |= {
            "trained_check": "changed" if not unmoved else "changed where a step was large enough to show",
            "unmoved_groups": " ".join(unmoved) or "none",
        }
    parameters = dict(model.named_parameters())
    _load(parameters, history.checkpoint or {name: start[name] for name in names if history.best_step < 0})
    tested = score(2) if history.best_step >= 0 else (math.nan, math.nan)
    return to_dataset(
        recipe,
        history,
        tested=tested,
        sizes={group: sum(parameters[name].numel() for name in group_names) for group, group_names in trained.items()},
        component=stepper.component,
        outer=OUTER,
        images=[len(labels) for _, labels in splits],
        attrs=attrs
        | {
            "precision_resolved": precision if precision != "float32" else str(dtype).removeprefix("torch."),
            "cached_features": "yes" if cached else "no",
            "classes_missing_in_train": " ".join(map(str, unseen)) or "none",
        },
    )


def _run(
    stepper: Stepper,
    inputs,
    labels: Tensor,
    batches: Tensor,
    validate: Callable[[], tuple[float, float]],
    history: History,
    progress: Callable[[int, int], None] | None,
) -> None:
    """All steps, with a validation where the recipe has one; stops at the first loss or gradient that isn't finite."""
    recipe, points = stepper.recipe, set(stepper.recipe.evaluation_steps())
    augment = RandomCrop(recipe.seed) if recipe.augment == "paper" else None
    for step, indices in enumerate(batches):
        clock = time.perf_counter()
        rate = recipe.rate(step)
        log = stepper.step(inputs.at(indices, augment), labels[indices.to(labels.device)], rate)
        history.seconds += time.perf_counter() - clock
        history.steps.append(log)
        if not log.finite:
            history.diverged_step = step
            return
        for group, norm in log.norms.items():
            push = rate * norm * log.scale[group] if log.scale[group] > 0 else 0.0
            history.pushes[group] = max(history.pushes.get(group, 0.0), push)
        if step + 1 in points:
            accuracy, loss = validate()
            history.validations.append((accuracy, loss))
            if math.isfinite(loss) and accuracy > history.best_accuracy:
                history.best_step, history.best_accuracy = step + 1, accuracy
                history.checkpoint = _trained_state(stepper)
        if progress is not None:
            progress(step + 1, recipe.steps)


def _trained_state(stepper: Stepper) -> dict[str, Tensor]:
    """A copy of all that trains; the rest is frozen."""
    return {name: p.detach().clone() for name, p in stepper.names.items()}


def _load(parameters: dict[str, nn.Parameter], state: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in state.items():
            parameters[name].copy_(tensor)
