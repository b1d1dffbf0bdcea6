"""What one run of finetuning does: `Recipe`, its learning rates and the steps at which it is evaluated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitplast.components import parse_components
from vitplast.errors import InputError, UnknownNameError
from vitplast.training.rules import check_combination

CHOICES = {
    "optimizer": ("sgd", "adamw"),
    "schedule": ("cosine", "constant"),
    "clipping": ("joint", "separate"),
    "precision": ("auto", "float32", "bfloat16", "float16"),
    "augment": ("none", "paper", "original"),
    "last_batch": ("used", "dropped"),
    "head_init": ("keep", "zero", "default"),
}

#: Whole numbers, by the smallest that is allowed.
FROM_0 = ("warmup", "seed", "lora_rank", "validate_every", "accuracy_batch")
FROM_1 = ("steps", "batch_size", "accumulation", "evaluations", "log_every")


@dataclass(frozen=True)
class Recipe:
    """One configuration, one learning rate, one seed; defaults are small, the paper's are 512 images and 10,000 steps.

    Raises
    ------
    UnknownNameError, InputError
        If a value is not one that is allowed, or values do not fit together (`rules.check_combination`); the message
        names the field.
    """

    components: str = "MHA"
    lr: float = 0.03
    seed: int = 0
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    steps: int = 50
    batch_size: int = 32
    accumulation: int = 1
    warmup: int = 5
    schedule: str = "cosine"
    clip: float = 1.0
    clipping: str = "joint"
    precision: str = "auto"
    augment: str = "none"
    #: `keep` leaves the head as it is; `zero` and `default` start it anew, the latter from `seed`.
    head_init: str = "keep"
    train_head: bool = True
    train_norm: bool = True
    evaluations: int = 1
    #: Rank of LoRA's factors, which train in place of the component's weights; 0: the weights themselves train.
    lora_rank: int = 0
    #: LoRA's factors count alpha / rank; the default stands where the rank is 0.
    lora_alpha: float = 16.0
    #: Steps between validations; 0: `evaluations` equally spaced ones.
    validate_every: int = 0
    #: Steps between logged points of the curves.
    log_every: int = 1
    #: Images in the batches whose accuracies are averaged; 0: images are counted.
    accuracy_batch: int = 0
    #: Whether the incomplete last batch of a pass is filled from the next pass, or dropped.
    last_batch: str = "used"
    #: Whether the training step is compiled (`torch.compile`).
    compile: bool = False

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UnknownNameError(name, str(getattr(self, name)), allowed)
        object.__setattr__(self, "components", "+".join(parse_components(self.components)))
        for name in (*FROM_1, *FROM_0):
            low = 0 if name in FROM_0 else 1
            if type(getattr(self, name)) is not int or getattr(self, name) < low:
                raise InputError(f"{name} must be a whole number of at least {low}, got {getattr(self, name)!r}")
        for name in ("lr", "momentum", "weight_decay", "clip", "lora_alpha"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{name} must be finite and at least 0, got {value!r}")
        check_combination(self)

    @classmethod
    def from_run(cls, values: Mapping[str, Any]) -> Recipe:
        """The recipe in the parameters of a single run, as `FinetuneParameters.runs()` gives them; others are left."""
        names = [f.name for f in dataclasses.fields(cls)]
        missing = [name for name in names if name not in values]
        if missing:
            raise InputError(f"the run's parameters lack {', '.join(missing)}")
        return cls(**{name: values[name] for name in names})

    def rate(self, step: int) -> float:
        """Learning rate of step `step` (from 0): the peak times `multiplier`."""
        return self.lr * multiplier(step, steps=self.steps, warmup=self.warmup, schedule=self.schedule)

    def evaluation_steps(self) -> list[int]:
        """Numbers of steps taken when the model is validated, rising.

        Equally spaced up to `steps`; with `validate_every` its multiples up to `steps`, of which the last may be before
        the end.
        """
        if self.validate_every:
            return list(range(self.validate_every, self.steps + 1, self.validate_every))
        return [self.steps * (i + 1) // self.evaluations for i in range(self.evaluations)]

    def logged_steps(self) -> list[int]:
        """Steps (from 0) whose loss, rate and gradient norms are kept: multiples of `log_every`, the first included."""
        return list(range(0, self.steps, self.log_every))

    @property
    def drop(self) -> int:
        """Images in a batch of the loader whose incomplete last one is dropped; 0 where all images are used.

        Where a step takes several micro-batches the loader makes these, as the authors'.
        """
        return self.batch_size // self.accumulation if self.last_batch == "dropped" else 0


def multiplier(step: int, *, steps: int, warmup: int, schedule: str = "cosine") -> float:
    """s / warmup for s < warmup, then (1 + cos(pi (s - warmup) / (steps - warmup))) / 2, or 1 if constant.

    As the authors' schedule: with a warm-up the first step (s = 0) has rate 0 and changes nothing.
    """
    if step < warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
