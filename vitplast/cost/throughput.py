"""How many images a second a GPU consumes: what reading, decoding and cropping of pictures has to keep up with."""

from __future__ import annotations

from vitplast.cost.devices import Gpu
from vitplast.cost.flops import forward_flops, training_flops
from vitplast.cost.measuring import pair_flops
from vitplast.cost.shapes import Shape


def training_images_per_second(
    shape: Shape,
    components: str,
    gpu: Gpu,
    *,
    precision: str = "bfloat16",
    utilisation: float | None = None,
    lora_rank: int = 0,
) -> float:
    """Rate in use over the operations of one training image (forward and backward): images/s of one run.

    Raises
    ------
    InputError
        UnknownNameError among them; see `Gpu.rate` and `training_flops`.
    """
    return gpu.rate(precision, utilisation) / training_flops(shape, components, lora_rank=lora_rank)


def forward_images_per_second(
    shape: Shape, gpu: Gpu, *, precision: str = "bfloat16", utilisation: float | None = None
) -> float:
    """Rate in use over the operations of one forward pass: images/s of validation, test and features."""
    return gpu.rate(precision, utilisation) / forward_flops(shape)


def plasticity_images_per_second(
    shape: Shape,
    gpu: Gpu,
    *,
    conventions: tuple[str, ...] = ("common", "in_situ"),
    precision: str = "float32",
    utilisation: float | None = None,
) -> float:
    """Images/s of a plasticity run, two for each pair, whatever the number of conventions."""
    return 2 * gpu.rate(precision, utilisation) / pair_flops(shape, conventions)
