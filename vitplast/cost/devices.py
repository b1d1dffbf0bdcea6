"""GPUs by name: memory and peak rates of data sheets (from memory), and the share of the peak assumed in use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitplast.errors import InputError, UnknownNameError

GIB = 2**30
#: Share of the peak that training reaches: an assumption, to be replaced by what a lab measures. Matrix products of
#: ViT-Base alone reach more; norms, GELU, residual sums in float32 and casts, which move memory, take the rest.
UTILISATION = {"bfloat16": 0.25, "float16": 0.25, "float32": 0.6}
#: GiB of a card that a run can't have: CUDA context and kernels, and fragments of the allocator.
RESERVED_GIB = 2.0
#: Device that stands for plain memory (`40GB`) and its speed.
PLAIN = "A100-40GB"


@dataclass(frozen=True)
class Gpu:
    """One GPU: `memory_gib`, and peak TFLOP/s of dense products in bfloat16 (float16) and of float32 without TF32."""

    name: str
    memory_gib: float
    bfloat16: float
    float32: float
    source: str
    has_bfloat16: bool = True

    def rate(self, precision: str, utilisation: float | None = None) -> float:
        """FLOP/s in use: `utilisation` (default `UTILISATION`) times the peak in `precision`.

        Raises
        ------
        InputError
            If the utilisation is not above 0 and at most 1, or the precision unknown.
        """
        if precision not in UTILISATION:
            raise UnknownNameError("precision", precision, UTILISATION)
        share = UTILISATION[precision] if utilisation is None else utilisation
        if not 0 < share <= 1:
            raise InputError(f"utilisation must be above 0 and at most 1, got {share!r}")
        return 1e12 * share * (self.float32 if precision == "float32" else self.bfloat16)

    @property
    def budget_bytes(self) -> float:
        """Memory of a run that has the card for itself: all but `RESERVED_GIB`."""
        return max(0.0, self.memory_gib - RESERVED_GIB) * GIB


def _gb(gigabytes: float) -> float:
    """GiB of a card sold with so many GB: cards of up to 80 GB count in powers of two, larger ones in powers of ten."""
    return gigabytes if gigabytes <= 80 else round(gigabytes * 1e9 / GIB, 1)


_NVIDIA = "NVIDIA data sheet"
#: Rates without sparsity. TF32 is not used: vitplast leaves PyTorch's switch off. A card without bfloat16 has its
#: float16 rate there.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("H100", _gb(80), 989.0, 67.0, f"{_NVIDIA}, H100 SXM5 80 GB"),
        Gpu("H100-PCIe", _gb(80), 756.0, 51.0, f"{_NVIDIA}, H100 PCIe 80 GB"),
        Gpu("H200", _gb(141), 989.0, 67.0, f"{_NVIDIA}, H200 SXM 141 GB"),
        Gpu("B200", _gb(180), 2250.0, 75.0, f"{_NVIDIA}, HGX B200, an eighth of the board"),
        Gpu("A100-80GB", _gb(80), 312.0, 19.5, f"{_NVIDIA}, A100 SXM4 80 GB"),
        Gpu("A100-40GB", _gb(40), 312.0, 19.5, f"{_NVIDIA}, A100 SXM4 40 GB"),
        Gpu("A10", _gb(24), 125.0, 31.2, f"{_NVIDIA}, A10"),
        Gpu("A40", _gb(48), 149.7, 37.4, f"{_NVIDIA}, A40"),
        Gpu("L4", _gb(24), 121.0, 30.3, f"{_NVIDIA}, L4"),
        Gpu("L40S", _gb(48), 362.0, 91.6, f"{_NVIDIA}, L40S"),
        Gpu("RTX-A6000", _gb(48), 154.8, 38.7, f"{_NVIDIA}, RTX A6000"),
        Gpu("RTX-3090", _gb(24), 71.0, 35.6, "NVIDIA GA102 white paper, float32 sums"),
        Gpu("RTX-4090", _gb(24), 165.2, 82.6, "NVIDIA Ada white paper, float32 sums"),
        Gpu("V100", _gb(32), 125.0, 15.7, f"{_NVIDIA}, V100 SXM2 32 GB, float16", has_bfloat16=False),
        Gpu("T4", _gb(16), 65.0, 8.1, f"{_NVIDIA}, T4, float16", has_bfloat16=False),
        Gpu("MI300X", _gb(192), 1307.4, 163.4, "AMD data sheet, Instinct MI300X"),
    )
}


def gpu_named(text: str) -> Gpu:
    """The GPU of that name, whatever the case; or `40GB`: a card of that memory with the speed of `PLAIN`.

    Raises
    ------
    UnknownNameError
        If the name is not known; gives the nearest.
    InputError
        If a plain memory is not between 1 and 1,024 GB.

    Examples
    --------
    >>> gpu_named("h100").memory_gib, gpu_named("24GB").bfloat16
    (80, 312.0)
    """
    by_lower = {name.lower(): gpu for name, gpu in GPUS.items()}
    if text.lower() in by_lower:
        return by_lower[text.lower()]
    plain = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GB|GiB)", text, re.IGNORECASE)
    if plain is None:
        raise UnknownNameError("GPU", text, GPUS, "Or give a memory, as 40GB.")
    memory = float(plain[1])
    if not 1 <= memory <= 1024:
        raise InputError(f"the memory of a GPU must be between 1 and 1024 GB, got {text!r}")
    like = GPUS[PLAIN]
    source = f"memory as given; speed assumed to be that of {PLAIN}"
    return Gpu(f"{plain[1]}GB", memory, like.bfloat16, like.float32, source)
