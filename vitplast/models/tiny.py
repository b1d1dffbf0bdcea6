"""`tiny:NAME`: any image model of a known family, built by timm's own function for `NAME` but few and narrow blocks.

For rehearsals and tests: everything that a name decides (class, positions, registers, gates, biases, normalisation of
the checkpoint) stays, and three numbers shrink. There are no trained weights of these sizes, so they are random.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from vitplast.errors import InputError

PREFIX = "tiny:"
#: Side of a patch in pixels, whatever the real one is.
PATCH = 8
#: The width is divided by this, the number of blocks by the other; numbers of one head.
NARROWER, SHALLOWER, HEAD = 16, 6, 8


def is_tiny(name: str) -> bool:
    """Whether it names a tiny model.

    Examples
    --------
    >>> is_tiny("tiny:vit_base_patch16_224.mae"), is_tiny("vit_tiny_patch16_224")
    (True, False)
    """
    return name.startswith(PREFIX)


def real_name(name: str) -> str:
    """The name of the model that a tiny one is made from; any other name as it is.

    Examples
    --------
    >>> real_name("tiny:vit_base_patch16_224.mae")
    'vit_base_patch16_224.mae'
    """
    return name.removeprefix(PREFIX)


def check_weights(name: str, weights: str) -> None:
    """InputError if a tiny model is asked for with trained weights."""
    if weights != "random":
        raise InputError(f"{name!r} has no trained weights: weights must be random, got {weights!r}")


@lru_cache(maxsize=32)
def _sizes(architecture: str) -> tuple[int, int]:
    import torch

    from vitplast.models.weights import create

    with torch.device("meta"):
        model = create(architecture, num_classes=0)
    return int(model.embed_dim), len(model.blocks)


def options(architecture: str) -> dict[str, Any]:
    """`width / 16` (a multiple of 8, at least 16), `blocks / 6` (at least 2), heads of 8 numbers, patches of 8 pixels.

    Parameters
    ----------
    architecture : str
        timm's name, without tag and without `tiny:`.

    Returns
    -------
    dict : arguments of `timm.create_model`.
    """
    width, depth = _sizes(architecture)
    narrow = max(2 * HEAD, round(width / NARROWER / HEAD) * HEAD)
    return {
        "embed_dim": narrow, "depth": max(2, depth // SHALLOWER), "num_heads": narrow // HEAD, "patch_size": PATCH,
    }  # fmt: skip
