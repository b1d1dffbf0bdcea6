"""Disk: result files, executed notebooks, weights, and the image sets as their publishers give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitplast.cost.shapes import Shape

#: Bytes of a result file without its long arrays: names, units, attributes and the parameters of the run.
RESULT_BYTES = 48_000
#: Bytes of an executed notebook with its figures, and of its log.
NOTEBOOK_BYTES = 150_000
#: A result lies in the store, and once more in the file that gathers all of its kind.
COPIES = 2
#: Curves of a finetuning run over its logged steps, and over its validations.
STEP_CURVES, VALIDATION_CURVES = 5, 2
#: rate, distance in, distance out.
PAIR_ARRAYS = 3
COMPONENTS = 5
#: Bytes of the names of a pair's two images and their groups, as characters before compression.
PAIR_NAMES = 120

#: GB (10^9 bytes) of each set: archive, and unpacked beside it. CIFAR-C counts all 19 corruptions.
SETS = {
    "cifar10": (0.17, 0.19),
    "cifar100": (0.17, 0.19),
    "cifar10_c": (2.9, 2.9),
    "cifar100_c": (2.9, 2.9),
    "flowers102": (0.35, 0.35),
    "pets": (0.8, 0.8),
    "domainnet_clipart": (1.3, 1.3),
    "domainnet_infograph": (4.0, 4.0),
    "domainnet_painting": (3.7, 3.7),
    "domainnet_quickdraw": (0.44, 0.7),
    "domainnet_real": (5.6, 5.6),
    "domainnet_sketch": (2.5, 2.5),
    "imagenet_val": (6.7, 6.7),
}


def result_bytes(kind: str, run: dict[str, Any], shape: Shape) -> int:
    """Bytes of one result file, before compression (which takes a few per cent of random numbers, half of curves).

    A finetuning run has five curves of a float64 for each logged step; a plasticity run three for each pair, block,
    component and convention. What other kinds hold fits into `RESULT_BYTES` for each block.
    """
    if kind == "finetune":
        logged = -(-run["steps"] // max(1, run.get("log_every", 1)))
        return RESULT_BYTES + 8 * (STEP_CURVES * logged + VALIDATION_CURVES * validations(run))
    if kind == "plasticity":
        values = len(run["conventions"]) * PAIR_ARRAYS * COMPONENTS * shape.depth
        return RESULT_BYTES + run["pairs"] * (8 * values + PAIR_NAMES)
    if kind == "landscape":
        surfaces = len(run["components"]) * len(run["variants"]) * run["grid"] ** 2
        return RESULT_BYTES + 4 * 8 * surfaces
    return RESULT_BYTES + 2_000 * shape.depth


def validations(run: dict[str, Any]) -> int:
    """Validations of a finetuning run: at multiples of `validate_every`, or `evaluations` of them."""
    every = run.get("validate_every", 0)
    return run["steps"] // every if every else run["evaluations"]


def sets_gb(names: Iterable[str]) -> tuple[float, float, list[str]]:
    """GB of the archives and of the unpacked files of these sets, each counted once, and names whose size is unknown.

    Corruptions of one set count as one, and so do the two divisions of a domain.

    Examples
    --------
    >>> sets_gb(["cifar10", "cifar10_c:snow:5", "cifar10_c:contrast:5"])
    (3.07, 3.09, [])
    """
    bases = list(dict.fromkeys(name.partition(":")[0].removesuffix("_official") for name in names))
    known = [SETS[base] for base in bases if base in SETS]
    archives, unpacked = (round(sum(pair[i] for pair in known), 2) for i in (0, 1))
    return archives, unpacked, [base for base in bases if base not in SETS]


def weights_gb(shapes: Iterable[Shape]) -> float:
    """GB of weight files in float32, 4 P each."""
    return round(sum(4e-9 * shape.all_parameters for shape in shapes), 2)
