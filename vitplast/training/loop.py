"""All steps of a run, its validations and its best checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitplast.training.step import StepLog, Stepper


@dataclass
class History:
    """What a run leaves behind; `best_step` counts the steps taken, `diverged_step` is a step (from 0), -1 for none."""

    steps: list[StepLog] = field(default_factory=list)
    #: Accuracy and loss of each validation.
    validations: list[tuple[float, float]] = field(default_factory=list)
    best_step: int = -1
    best_accuracy: float = math.nan
    #: All that trains, as it was at `best_step`.
    checkpoint: dict[str, Tensor] = field(default_factory=dict)
    diverged_step: int = -1
    #: Largest rate times clipped gradient norm, by group.
    pushes: dict[str, float] = field(default_factory=dict)
    #: Largest gradient norm before clipping, by group; steps that were left out don't count.
    gradients: dict[str, float] = field(default_factory=dict)
    #: Whether any step but the last had a rate and a gradient above 0.
    moved_before_last: bool = False
    #: Training alone, without validation.
    seconds: float = 0.0


def train(
    stepper: Stepper,
    feed: Iterable[Tensor],
    labels: Tensor,
    batches: Tensor,
    validate: Callable[[], tuple[float, float]],
    progress: Callable[[int, int], None] | None = None,
) -> History:
    """Trains on the batches of `feed`, one a step, and validates where the recipe says; of equal accuracies the first.

    `batches` are the indices (steps, batch) that `feed` follows, for the labels. Stops before the update at the first
    loss or gradient that is not finite.
    """
    recipe, history = stepper.recipe, History()
    points = set(recipe.evaluation_steps())
    ready = iter(feed)
    for step, indices in enumerate(batches):
        history.moved_before_last = any(history.pushes.values())
        clock, rate = time.perf_counter(), recipe.rate(step)
        log = stepper.step(next(ready), labels[indices.to(labels.device)], rate)
        history.seconds += time.perf_counter() - clock
        history.steps.append(log)
        if not log.finite:
            history.diverged_step = step
            break
        for group, size in log.updates(rate).items():
            history.pushes[group] = max(size, history.pushes.get(group, 0.0))
            if log.scale[group] > 0:
                history.gradients[group] = max(log.norms[group], history.gradients.get(group, 0.0))
        if step + 1 in points:
            _validate(stepper, validate, step + 1, history)
        if progress is not None:
            progress(step + 1, recipe.steps)
    return history


def _validate(stepper: Stepper, validate: Callable[[], tuple[float, float]], taken: int, history: History) -> None:
    accuracy, loss = validate()
    history.validations.append((accuracy, loss))
    if math.isfinite(loss) and (history.best_step < 0 or accuracy > history.best_accuracy):
        history.best_step, history.best_accuracy = taken, accuracy
        history.checkpoint = stepper.state()


def load(parameters: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Copies the tensors of `state` into the parameters of the same names."""
    with torch.no_grad():
        for name, tensor in state.items():
            parameters[name].copy_(tensor)
