"""Operations of the measurements: plasticity on pairs, bounds from weights, features, logistic regressions."""

from __future__ import annotations

from collections.abc import Sequence

from vitplast.cost.flops import forward_flops, forward_parts
from vitplast.cost.shapes import Shape
from vitplast.errors import UnknownNameError

#: Operations of a singular value decomposition (values alone) of an a x b matrix, b the smaller, over a b^2.
SVD = 4
#: Iterations of the logistic regression that are assumed; the authors allow 5,000 and scikit-learn stops earlier.
ITERATIONS = 500
#: Classifiers of one depth run, for each block.
POINTS = 8


def pair_flops(shape: Shape, conventions: Sequence[str]) -> int:
    """Operations of a pair: in situ two forward passes; common as `vitplast.measure.common_input` computes it.

    Common: two embeddings; for each block attention without its output projection on both images, that projection once
    on the difference, n E^2; D^T D once, n E^2; its products with the Gram matrices of 2 L linear layers, E^2 each;
    and E for each of 2 L norms.

    Raises
    ------
    UnknownNameError
        If a convention is not known.
    """
    part, total = forward_parts(shape), 0
    e, n = shape.width, shape.tokens
    for convention in conventions:
        if convention == "in_situ":
            total += 2 * forward_flops(shape)
        elif convention == "common":
            total += 2 * (part["patches"] + part["qkv"] + part["attention"]) + part["proj"]
            total += 2 * n * e * e + 2 * (2 * shape.depth) * (e * e + e)
        else:
            raise UnknownNameError("convention", convention, ("common", "in_situ"))
    return total


def gram_flops(shape: Shape) -> int:
    """Once a run in the common convention: `W^T W` of two linear layers a block, 2 H E^2 each (FC2: E x E of it)."""
    e = shape.width
    return shape.depth * (2 * shape.hidden * e * e + 2 * e**3)


def bounds_flops(shape: Shape) -> int:
    """Singular values behind every bound: FC1, FC2, and for each head four E x d matrices and one E x E product.

    An order of magnitude: `data/bounds_cost.csv` has seconds that were measured.
    """
    e, h, head = shape.width, shape.hidden, shape.width // shape.heads
    heads = shape.heads * (4 * SVD * e * head**2 + 2 * e * e * head + SVD * e**3)
    return shape.depth * (2 * SVD * h * e * e + heads)


def logistic_flops(images: int, width: int, classes: int, iterations: int = ITERATIONS) -> int:
    """`4 N d C` an iteration: logits and their gradient, in float64 on the CPU."""
    return 4 * images * width * classes * iterations


def depth_logistic_flops(shape: Shape, images: int, classes: int) -> int:
    """Logistic regressions at eight points of every block: six of width E, two of width H."""
    six, two = logistic_flops(images, shape.width, classes), logistic_flops(images, shape.hidden, classes)
    return shape.depth * ((POINTS - 2) * six + 2 * two)
