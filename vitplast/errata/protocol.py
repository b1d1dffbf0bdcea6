"""Settings of the authors' public code (commit 268c240) that the demonstrations need, as they stand in it."""

from __future__ import annotations

from dataclasses import dataclass

#: Images in a batch of finetuning, validation and test.
BATCH = 512
#: Length of the warm-up, which no configuration file names.
WARMUP = 2000
#: Pairs of a plasticity measurement: 200 batches of 64.
PAIRS, PAIR_BATCH = 12_800, 64
#: Learning rates tried per configuration, and seeds.
RATES, SEEDS = 4, 3
#: Validation images of ImageNet-1k, read folder by folder.
SOURCE_CLASSES, SOURCE_PER_CLASS = 1000, 50
#: Radius that the code quotes for the attention bound.
RADIUS = 19.4
#: Mean and deviation of the input: what the code uses, and what the in21k checkpoints were trained with.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
#: "Theoretical rank" of the plasticity figures, typed into the code.
TYPED_RANK = {"MHA": 1, "FC1": 2, "FC2": 3, "LN2": 4, "LN1": 5}


@dataclass(frozen=True)
class Downstream:
    """One downstream set: images of each split as the code divides it, and finetuning steps."""

    name: str
    train: int
    validation: int
    test: int
    steps: int


#: Without DomainNet, whose sizes depend on the copy; the corruption sets are alike.
DOWNSTREAM = (
    Downstream("CIFAR-10, CIFAR-100", 40_000, 10_000, 10_000, 10_000),
    Downstream("CIFAR-10-C", 6_400, 1_600, 2_000, 10_000),
    Downstream("Flowers102", 1_020, 1_020, 6_149, 5_000),
    Downstream("Pet", 2_944, 736, 3_669, 4_000),
)
#: Finetuning steps by group of sets; the low-data runs stand on a development branch.
STEPS = {
    "DomainNet": 20_000,
    "CIFAR-10, -100, -10-C": 10_000,
    "Flowers102": 5_000,
    "Pet": 4_000,
    "low data": 2_500,
}
#: The five of the eleven sets that are corruptions of the same test images, by their names in the published table.
CORRUPTIONS = ("Contrast", "Gaussian noise", "Motion blur", "Snow", "Speckle noise")


def downstream(name: str) -> Downstream:
    """The set of this name.

    Raises
    ------
    UnknownNameError
        If there is none.

    Examples
    --------
    >>> downstream("Pet").test
    3669
    """
    from vitplast.errors import UnknownNameError

    found = {one.name: one for one in DOWNSTREAM}
    if name not in found:
        raise UnknownNameError("downstream set", name, found)
    return found[name]
