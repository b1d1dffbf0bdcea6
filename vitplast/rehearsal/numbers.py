"""How one parameter of a profile becomes small. What is not named here stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitplast.models.text_names import is_text_model
from vitplast.models.tiny import PREFIX, is_tiny

#: Real steps that one step of the miniature stands for.
STEPS = 2500
#: Images of an optimizer step, and in the model at a time.
BATCH = 8
SIDE = 32


def _at_most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit)


def _steps(value: int) -> int:
    return max(2, value // STEPS)


def _accumulation(value: int) -> int:
    """The largest number of micro-batches up to the real one that divides the batch."""
    return max(n for n in range(1, BATCH + 1) if BATCH % n == 0 and n <= value)


def _cut(value: int) -> int:
    """A side of images is cut to a multiple of: 0 stays, others are a sixteenth, between 2 and the batch."""
    return min(BATCH, max(2, value // 16)) if value else 0


def _model(value: str) -> str:
    return value if is_tiny(value) or is_text_model(value) else PREFIX + value


#: Parameter to its rule, for one value. Text models are replaced in `miniature`, which has a folder for them.
RULES: dict[str, Callable[[Any], Any]] = {
    "model": _model,
    "img_size": lambda value: SIDE,
    "steps": _steps,
    "warmup": _at_most(1),
    "evaluations": _at_most(2),
    "log_every": _at_most(2),
    "batch_size": _at_most(BATCH),
    "view_batch": _at_most(BATCH),
    "accumulation": _accumulation,
    "accuracy_batch": _at_most(4),
    "drop_last": _cut,
    "per_class": _at_most(3),  # times the classes of the made-up sets: no less than a batch
    "train_images": _at_most(24),
    "validation_images": _at_most(8),
    "test_images": _at_most(12),
    "pairs": _at_most(2 * BATCH),
    "plasticity_pairs": _at_most(4),
    "tokens": _at_most(16),
    "workers": _at_most(2),
    "images": _at_most(6),
    "head_images": _at_most(12),
    "rate_images": _at_most(2),
    "grid": _at_most(10),  # curvature needs points near the middle
}


def validation(interval: int, steps: list[int]) -> int:
    """Steps between validations: 0 stays; 2; 3 where the real interval does not divide the real steps.

    With `STEPS` the last validation then lies before the last step where it does so in the real profile.

    Parameters
    ----------
    interval : int
        The real `validate_every`.
    steps : list of int
        The real steps of all entries that use it.
    """
    if not interval:
        return 0
    divides = all(total % interval == 0 for total in steps)
    return min([2 if divides else 3, *map(_steps, steps)])
