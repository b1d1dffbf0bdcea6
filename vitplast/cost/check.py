"""Formula against measurement on small models: `python -m vitplast.cost.check --write data/cost_check.csv`.

Operations are counted by `torch.utils.flop_counter` in a forward and a backward pass of `vitplast.training.stages`,
with attention written out (on a CPU the counter does not know the fused kernel). What autograd keeps is the sum over
the distinct storages that it saves in the forward pass, parameters excluded. Random weights; seconds on one core.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vitplast.components import CONFIGURATIONS, select
from vitplast.cost.flops import backward_flops, forward_flops
from vitplast.cost.memory import activation_bytes
from vitplast.cost.shapes import Shape
from vitplast.training.lora import adapted
from vitplast.training.precision import autocast
from vitplast.training.recipe import Recipe
from vitplast.training.stages import Stages

#: Model, side of its input: a plain one with a class token, and one with LayerScale, classified by its class token.
MODELS = (("vit_tiny_patch16_224", 64), ("vit_small_patch14_dinov2", 56))
#: LoRA's rank and what it is put on.
LORA = ((4, "MHA"), (4, "FC1"), (4, "FC2"))
COLUMNS = ("model", "img_size", "configuration", "lora_rank", "attention", "precision", "images", "forward_formula",
           "forward_measured", "backward_formula", "backward_measured", "kept_formula", "kept_measured")  # fmt: skip


class Measured(NamedTuple):
    """Operations of the forward and the backward pass for one image, and bytes that autograd keeps for all images."""

    forward: int
    backward: int
    kept: int


def measured(
    model: nn.Module, components: str, *, images: int, precision: str, fused: bool, lora_rank: int = 0
) -> Measured:
    """One training step of `model` on random images, counted; the model is left as it was, but for `requires_grad`.

    Operations of fused attention are missing where the counter does not know its kernel.
    """
    trained = select(model, components)
    recipe = Recipe(components=components, lora_rank=lora_rank)
    device = next(model.parameters()).device
    pixels = torch.randn(images, 3, *model.patch_embed.img_size, device=device)
    labels = torch.arange(images, device=device) % model.head.out_features
    stages = Stages(model)
    with _attention(model, fused), adapted(model, trained, recipe):
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage
            return tensor

        forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
        with saved_tensors_hooks(keep, lambda tensor: tensor), forward:
            with autocast(precision, device):
                logits = stages(pixels)
            loss = cross_entropy(logits.float(), labels, reduction="sum")
        total = sum(storage.nbytes() for storage in kept.values())
        with backward:
            loss.backward()
    model.zero_grad(set_to_none=True)
    return Measured(forward.get_total_flops() // images, backward.get_total_flops() // images, total)


def peak(model: nn.Module, components: str, *, images: int, precision: str, fused: bool) -> int:
    """Most bytes that PyTorch holds at a time in one training step beyond what it held before, by its own profiler.

    The step is done once before, so that nothing is counted that happens only once; gradients are allocated in it.
    On a CPU; a GPU has counters of its own.
    """
    select(model, components)
    stages, device = Stages(model), next(model.parameters()).device
    pixels = torch.randn(images, 3, *model.patch_embed.img_size, device=device)
    labels = torch.arange(images, device=device) % model.head.out_features

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with autocast(precision, device):
            logits = stages(pixels)
        cross_entropy(logits.float(), labels, reduction="sum").backward()

    with _attention(model, fused):
        step()
        model.zero_grad(set_to_none=True)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            step()
    model.zero_grad(set_to_none=True)
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(held, default=0)


def rows(name: str, img_size: int, *, images: int = 4, classes: int = 10) -> Iterator[dict[str, object]]:
    """Formula and measurement for every configuration, LoRA, both kinds of attention, both precisions."""
    from vitplast.models import load_model

    model = load_model(name, weights="random", img_size=img_size, num_classes=classes).model
    shape = Shape.of(model)
    for rank, components in (*((0, c) for c in CONFIGURATIONS), *LORA):
        for fused in (False, True):
            for precision in ("float32", "bfloat16"):
                found = measured(model, components, images=images, precision=precision, fused=fused, lora_rank=rank)
                forward = forward_flops(shape, rank, components)
                backward = backward_flops(shape, components, lora_rank=rank, fused_attention=fused)
                kept = activation_bytes(
                    shape, components=components, images=images, precision=precision, fused_attention=fused,
                    lora_rank=rank,
                )  # fmt: skip
                values = (
                    name, img_size, components, rank, "fused" if fused else "written out", precision, images,
                    forward, "" if fused else found.forward, backward, "" if fused else found.backward,
                    kept, found.kept,
                )  # fmt: skip
                yield dict(zip(COLUMNS, values, strict=True))


@contextmanager
def _attention(model: nn.Module, fused: bool) -> Iterator[None]:
    modules = [m for m in model.modules() if hasattr(m, "fused_attn")]
    before = [m.fused_attn for m in modules]
    try:
        for module in modules:
            module.fused_attn = fused
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.fused_attn = value


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitplast.cost.check", description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--write", default="", help="CSV file for the numbers")
    args = parser.parse_args(argv)
    found = [row for name, size in MODELS for row in rows(name, size, images=args.images)]
    counted = [r for r in found if r["forward_measured"] != ""]
    equal = sum(
        r["forward_formula"] == r["forward_measured"] and r["backward_formula"] == r["backward_measured"]
        for r in counted
    )
    worst = max(abs(r["kept_formula"] / r["kept_measured"] - 1) for r in found)
    print(f"operations: {equal} of {len(counted)} rows equal; kept by autograd: largest deviation {worst:.2%}")
    if args.write:
        with Path(args.write).open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(found)


if __name__ == "__main__":
    main()
