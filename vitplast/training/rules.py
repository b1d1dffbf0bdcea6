"""What must hold between the parameters of a finetuning run, for notebooks and recipes alike; loads nothing heavy."""

from __future__ import annotations

from typing import Any

from vitplast.components import parse_components
from vitplast.errors import InputError

ZERO_HEAD = "a zero head that does not train passes no gradient back; use head_init=default or train the head"


def check_combination(values: Any) -> None:
    """Whether the single values fit together; `values` has the names of `Recipe` as its attributes.

    Raises
    ------
    InputError
        If the warm-up takes all steps, there are more evaluations than steps, micro-batches do not divide the batch,
        or the head is zero and stays so: `train_head=False`, unless the head is the component that trains.
    """
    if values.warmup >= values.steps:
        raise InputError(f"warmup must be smaller than steps, got warmup={values.warmup} and steps={values.steps}")
    if values.evaluations > values.steps:
        raise InputError(f"evaluations={values.evaluations} is more than steps={values.steps}")
    if values.batch_size % values.accumulation:
        raise InputError(f"accumulation={values.accumulation} does not divide batch_size={values.batch_size}")
    trains = values.train_head or "head" in parse_components(values.components)
    if values.head_init == "zero" and not trains:
        raise InputError(f"{ZERO_HEAD} (components={values.components}, train_head=False, head_init=zero)")
