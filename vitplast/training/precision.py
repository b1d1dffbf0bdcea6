"""Mixed precision: which one is used, and the context and scaler that go with it."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch

from vitplast.errors import UnknownNameError

PRECISIONS = ("float32", "bfloat16", "float16")
#: bfloat16 must be this many times faster than float32 to be chosen on a CPU.
MARGIN = 1.2


def resolve_precision(precision: str, device: torch.device | str = "cpu", *, width: int = 384) -> str:
    """`float32`, `bfloat16` or `float16`; `auto` becomes the fastest that needs no loss scaling on `device`.

    On CUDA that is bfloat16 where the hardware has it. On a CPU a product of the model's size is timed in float32 and
    bfloat16, and bfloat16 is taken only if it is `MARGIN` times faster. Weights stay as they are (autocast).

    Raises
    ------
    UnknownNameError
        If `precision` is none of these names.
    """
    if precision in PRECISIONS:
        return precision
    if precision != "auto":
        raise UnknownNameError("precision", precision, ("auto", *PRECISIONS))
    device = torch.device(device)
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type != "cpu":
        return "float32"
    gain = _bfloat16_gain(width, torch.get_num_threads())
    return "bfloat16" if gain >= MARGIN else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass; for `float32` none, so that weights in float64 stay in float64."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def scaler(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """Loss scaling, which float16 alone needs."""
    return torch.amp.GradScaler(device.type) if precision == "float16" else None


@lru_cache
def _bfloat16_gain(width: int, threads: int) -> float:
    """Time in float32 over time in bfloat16 of a linear layer; kept, so that one process decides once."""
    x, weight = torch.ones(256, width), torch.ones(4 * width, width)
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = x.to(dtype), weight.to(dtype)
        torch.nn.functional.linear(a, b)
        trials = []
        for _ in range(5):
            start = time.perf_counter()
            torch.nn.functional.linear(a, b)
            trials.append(time.perf_counter() - start)
        seconds[dtype] = min(trials)
    return seconds[torch.float32] / seconds[torch.bfloat16]
