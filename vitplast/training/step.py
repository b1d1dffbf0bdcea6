"""One optimizer step: loss and gradients of a batch, their norms, clipping, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from vitplast.training.precision import autocast, scaler
from vitplast.training.recipe import Recipe

#: Groups that the authors train in every configuration; their gradients are logged apart from the component's.
OUTER = ("norm", "head")


@dataclass(frozen=True)
class StepLog:
    """Loss of the whole batch before the step, gradient norms before clipping (by group), and what came of the step."""

    loss: float
    norms: dict[str, float]
    #: False if loss or gradients are not finite; then nothing was updated.
    finite: bool = True
    #: Factor of clipping by group; 0 where the step was left out.
    scale: dict[str, float] = field(default_factory=dict)

    def norm(self, groups: Iterable[str]) -> float:
        """Gradient norm over all parameters of these groups, before clipping."""
        return math.sqrt(sum(self.norms.get(group, math.nan) ** 2 for group in groups))

    def updates(self, rate: float) -> dict[str, float]:
        """Rate times clipped gradient norm, by group."""
        return {g: rate * self.norms[g] * scale if scale > 0 else 0.0 for g, scale in self.scale.items()}


class Stepper:
    """Trains the parameters of `trained` (names by group, see `components.select`) one batch at a time.

    `forward` maps a batch of inputs to logits. SGD without dampening or Nesterov momentum, or AdamW with betas 0.9 and
    0.999 and eps 1e-8; only trained parameters are given to the optimizer, so weight decay can't reach frozen ones.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        model: nn.Module,
        trained: Mapping[str, list[str]],
        recipe: Recipe,
        *,
        precision: str = "float32",
        parts: int = 0,
    ) -> None:
        parameters = dict(model.named_parameters())
        self.forward, self.recipe = forward, recipe
        #: Micro-batches of a step: those of the recipe, or more where memory demands it.
        self.parts = max(parts, recipe.accumulation)
        self.named = {name: parameters[name] for names in trained.values() for name in names}
        self.groups = {group: [parameters[name] for name in names] for group, names in trained.items()}
        inner, outer = (tuple(g for g in self.groups if (g in OUTER) == side) for side in (False, True))
        self.clipped_together = [tuple(self.groups)] if recipe.clipping == "joint" else [p for p in (inner, outer) if p]
        #: Groups of the component: all but head and final norm, or, if nothing else trains, those named in the recipe.
        self.component = inner or tuple(g for g in outer if g in recipe.components.split("+"))
        first = next(iter(self.groups.values()))[0]
        self.precision, self.device = precision, first.device
        self.scaler = scaler(precision, self.device)
        self.optimizer = _optimizer(list(self.named.values()), recipe)
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, inputs: Tensor, labels: Tensor, rate: float) -> StepLog:
        """Mean cross-entropy of the batch, its gradient over micro-batches, clipping, one update with rate `rate`.

        Where the device runs out of memory the batch is cut into twice as many micro-batches, now and from then on.
        """
        loss = None
        while loss is None:
            loss = self._gradients(inputs, labels)
        return self._update(loss, rate) if math.isfinite(loss) else StepLog(loss, {}, finite=False)

    def _gradients(self, inputs: Tensor, labels: Tensor) -> float | None:
        """The loss, up to the first micro-batch where it is not finite; None if memory ran out and can be retried."""
        parts = min(self.parts, len(inputs))
        try:
            return self._accumulated(inputs, labels, parts)
        except torch.OutOfMemoryError:
            if parts == len(inputs):
                raise
        # Not inside the handler, which would keep the activations alive.
        self.parts = min(2 * parts, len(inputs))
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _accumulated(self, inputs: Tensor, labels: Tensor, parts: int) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for x, y in zip(inputs.tensor_split(parts), labels.tensor_split(parts), strict=True):
            with autocast(self.precision, self.device):
                logits = self.forward(x)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            # The sum over images, divided by the whole batch: micro-batches of any size average correctly.
            part = cross_entropy(logits, y, reduction="sum") / len(inputs)
            loss += float(part.detach())
            if not math.isfinite(loss):
                return loss
            (part if self.scaler is None else self.scaler.scale(part)).backward()
        return loss

    def state(self) -> dict[str, Tensor]:
        """A copy of all that trains."""
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def _update(self, loss: float, rate: float) -> StepLog:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        gradients = {g: [p.grad for p in group if p.grad is not None] for g, group in self.groups.items()}
        norms = {g: float(get_total_norm(found)) if found else 0.0 for g, found in gradients.items()}
        log = StepLog(loss, norms)
        finite = math.isfinite(log.norm(self.groups))
        if not finite and self.scaler is None:
            return StepLog(loss, norms, finite=False)
        scale = dict.fromkeys(self.groups, 1.0 if finite else 0.0)
        if self.recipe.clip > 0 and finite:
            for together in self.clipped_together:
                total = torch.tensor(log.norm(together), dtype=torch.float64)
                clip_grads_with_norm_([p for g in together for p in self.groups[g]], self.recipe.clip, total)
                scale |= dict.fromkeys(together, min(1.0, self.recipe.clip / (float(total) + 1e-6)))
        for options in self.optimizer.param_groups:
            options["lr"] = rate
        if self.scaler is None:
            self.optimizer.step()
        else:
            # A step whose scaled gradients overflow is left out, and the scale lowered: no divergence.
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return StepLog(loss, norms, scale=scale)


def compiled(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`forward` through `torch.compile`, once for each size of a micro-batch: the same numbers up to rounding.

    What was compiled before is dropped, so that many runs in one process do not reach the compiler's limit.
    """
    torch.compiler.reset()
    return torch.compile(forward, dynamic=False)


def _optimizer(parameters: list[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    fused = parameters[0].device.type in ("cpu", "cuda")
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters, lr=recipe.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=recipe.weight_decay, fused=fused
        )
    return torch.optim.SGD(
        parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=fused
    )
