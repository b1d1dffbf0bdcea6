"""What must hold between the parameters of a finetuning run, for notebooks and recipes alike; loads nothing heavy."""

from __future__ import annotations

from typing import Any

from vitplast.components import parse_components
from vitplast.errors import InputError

#: Components that consist of linear layers, which LoRA can train.
LINEAR = ("MHA", "FC1", "FC2")
ZERO_HEAD = "a zero head that does not train passes no gradient back; use head_init=default or train the head"


def check_combination(values: Any) -> None:
    """Whether the single values fit together; `values` has the names of `Recipe` as its attributes.

    Raises
    ------
    InputError
        If the warm-up takes all steps, there are more evaluations than steps or none, micro-batches do not divide the
        batch, the head is zero and stays so (`train_head=False`, unless the head is the component that trains), or LoRA
        is asked for components without linear layers.
    """
    if values.warmup >= values.steps:
        raise InputError(f"warmup must be smaller than steps, got warmup={values.warmup} and steps={values.steps}")
    if values.validate_every > values.steps:
        raise InputError(
            f"validate_every={values.validate_every} is more than steps={values.steps}: no checkpoint would be tested"
        )
    if values.evaluations > values.steps and not values.validate_every:
        raise InputError(f"evaluations={values.evaluations} is more than steps={values.steps}")
    if values.batch_size % values.accumulation:
        raise InputError(f"accumulation={values.accumulation} does not divide batch_size={values.batch_size}")
    trains = values.train_head or "head" in parse_components(values.components)
    if values.head_init == "zero" and not trains:
        raise InputError(f"{ZERO_HEAD} (components={values.components}, train_head=False, head_init=zero)")
    others = [name for name in parse_components(values.components) if name not in LINEAR]
    if values.lora_rank and others:
        raise InputError(
            f"lora_rank={values.lora_rank} needs components of linear layers, {', '.join(LINEAR)} or combinations of "
            f"them, got {values.components}"
        )
    if values.lora_rank and not values.lora_alpha > 0:
        raise InputError(f"lora_alpha must be above 0, got {values.lora_alpha!r}")
