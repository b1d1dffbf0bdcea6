"""Mixed precision: which one is used, and the context and scaler that go with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache

import torch

from vitplast.errors import UnknownNameError

PRECISIONS = ("float32", "bfloat16", "float16")
#: Environment variable that says what `auto` means, so that all processes of a sweep do the same.
VARIABLE = "VITPLAST_PRECISION"
#: Where flags are not known, bfloat16 must be this many times faster than float32 to be chosen on a CPU.
MARGIN = 1.5


def resolve_precision(precision: str, device: torch.device | str = "cpu", *, width: int = 384) -> str:
    """`float32`, `bfloat16` or `float16`; `auto` becomes what `VITPLAST_PRECISION` says, else what suits `device`.

    That is bfloat16 where the hardware multiplies it and float32 elsewhere, the same in every process on one machine.
    Only on a CPU whose flags PyTorch does not know is a product of the model's size (`width`) timed in both, and
    bfloat16 taken if it is `MARGIN` times faster. Weights stay as they are (autocast).

    Raises
    ------
    UnknownNameError
        If `precision` or the environment variable is none of these names.
    """
    if precision in PRECISIONS:
        return precision
    if precision != "auto":
        raise UnknownNameError("precision", precision, ("auto", *PRECISIONS))
    if chosen := os.environ.get(VARIABLE):
        if chosen not in PRECISIONS:
            raise UnknownNameError(VARIABLE, chosen, PRECISIONS)
        return chosen
    device = torch.device(device)
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type != "cpu":
        return "float32"
    known = _multiplies_bfloat16()
    if known is None:
        known = _bfloat16_gain(width, torch.get_num_threads()) >= MARGIN
    return "bfloat16" if known else "float32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of a forward pass; for `float32` none, so that weights in float64 stay in float64."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


@contextmanager
def exact_products() -> Iterator[str]:
    """A context without TF32, shorter products that GPUs may take for float32 (PyTorch's convolutions do by default).

    Yields the settings in words, for the record. They are put back at the end; on a CPU they change nothing.
    """
    backend, convolutions = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    products = torch.get_float32_matmul_precision()
    try:
        backend.allow_tf32 = False
        if products != "highest":
            torch.set_float32_matmul_precision("highest")
        yield "float32 products exact: TF32 off in matrix products and convolutions"
    finally:
        backend.allow_tf32 = convolutions
        if products != "highest":
            torch.set_float32_matmul_precision(products)


def scaler(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """Loss scaling, which float16 alone needs."""
    return torch.amp.GradScaler(device.type) if precision == "float16" else None


def _multiplies_bfloat16() -> bool | None:
    """Whether the processor has instructions for products in bfloat16, by its flags; None if PyTorch can't tell.

    On x86 these are AVX512-BF16 and AMX, which nothing below AVX512 has.
    """
    try:
        capability = torch.backends.cpu.get_cpu_capability()
        if capability == "AVX2":
            return False
        if capability != "AVX512":
            return None
        return any(getattr(torch.cpu, name)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    except (AttributeError, RuntimeError):
        # Neither is promised by every version of PyTorch.
        return None


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
