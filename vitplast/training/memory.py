"""How much memory a run may take, and into how many micro-batches a batch is cut so that it fits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vitplast.errors import InputError
from vitplast.training.recipe import Recipe

#: Environment variable that says what `memory_gib` 0 means, so that several runs share a device: GiB for each.
VARIABLE = "VITPLAST_MEMORY_GIB"
GIB = 2**30
#: What CUDA takes for itself in each process, and the share of the rest that is lost in gaps between tensors.
CONTEXT_BYTES, SLACK = GIB // 2, 0.05
#: Bytes of a pixel value on its way from the picture to the model: crop, normalised image and what lies between.
BYTES_PER_VALUE = 16


def limit_bytes(memory_gib: float) -> float | None:
    """Bytes that were asked for: `memory_gib`, or where that is 0 `VITPLAST_MEMORY_GIB`; None if neither says it.

    Raises
    ------
    InputError
        If the environment variable is no number above 0.
    """
    if memory_gib > 0:
        return memory_gib * GIB
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{VARIABLE} must be a number of GiB above 0, got {text!r}")
    return value * GIB


def budget_bytes(memory_gib: float, device: torch.device) -> float | None:
    """Bytes for one run with all that it keeps on `device`; None for no limit.

    On a GPU at most what is free there, with what this process holds already, and all of it where nothing is said; on
    a CPU what `limit_bytes` says.
    """
    limit = limit_bytes(memory_gib)
    if device.type != "cuda":
        return limit
    free, _ = torch.cuda.mem_get_info(device)
    there = free + torch.cuda.memory_reserved(device)
    return there if limit is None else min(there, limit - CONTEXT_BYTES)


def micro_batches(
    recipe: Recipe, model: nn.Module, *, precision: str, budget: float | None, kept: int, image_values: int
) -> int:
    """Parts of a batch: as many as the recipe says, or more where the batch would not fit into `budget` bytes.

    Parameters
    ----------
    precision
        Of the forward pass, as `precision.resolve_precision` gives it.
    kept
        Bytes of images that stay on the device.
    image_values
        Numbers in one input image, 3 S^2.

    Raises
    ------
    InputError
        If not even one image fits; says what one needs.
    LayoutError
        If the shape of the model cannot be read.
    """
    if budget is None:
        return recipe.accumulation
    from vitplast.cost.memory import images_that_fit
    from vitplast.cost.shapes import Shape

    fit = images_that_fit(
        Shape.of(model),
        components=recipe.components,
        precision=precision,
        budget_bytes=(1 - SLACK) * budget - kept - BYTES_PER_VALUE * image_values * recipe.batch_size,
        fused_attention=attention(model) == "fused",
        lora_rank=recipe.lora_rank,
        optimizer=recipe.optimizer,
        train_head=recipe.train_head,
        train_norm=recipe.train_norm,
    )
    return max(recipe.accumulation, math.ceil(recipe.batch_size / fit))


def attention(model: nn.Module) -> str:
    """`fused` where all attention layers use PyTorch's own kernel (timm's default), `written out`, or `mixed`."""
    found = {bool(module.fused_attn) for module in model.modules() if hasattr(module, "fused_attn")}
    return {frozenset({True}): "fused", frozenset({True, False}): "mixed"}.get(frozenset(found), "written out")


def peak_gib(device: torch.device) -> float:
    """Largest memory of tensors on a GPU since the run began (`limited`), in GiB to three digits; 0 on a CPU."""
    return round(torch.cuda.max_memory_allocated(device) / GIB, 3) if device.type == "cuda" else 0.0


@contextmanager
def limited(memory_gib: float, device: torch.device) -> Iterator[None]:
    """A context in which PyTorch refuses more memory on a GPU than was asked for; elsewhere nothing happens.

    The largest memory is counted from its beginning.
    """
    limit = limit_bytes(memory_gib)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if limit is None or device.type != "cuda":
        yield
        return
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(limit - CONTEXT_BYTES, 0) / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
