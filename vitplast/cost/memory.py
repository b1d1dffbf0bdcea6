"""Memory of finetuning: weights and optimizer, what autograd keeps for an image, and the micro-batch that fits.

The formulas follow timm's block in evaluation mode, under autograd of PyTorch 2; `vitplast.cost.check` holds them
against what PyTorch really keeps. Bytes throughout.
"""

from __future__ import annotations

from vitplast.cost.graph import Graph, blocks, check_lora, parts_with_tokens, trained_groups, upstream_of_head
from vitplast.cost.shapes import PRECISIONS, Shape
from vitplast.errors import InputError, UnknownNameError

#: Numbers that an optimizer keeps beside each trained one.
OPTIMIZER_STATES = {"sgd": 1, "adamw": 2}
GIB = 2**30


def fixed_bytes(
    shape: Shape,
    *,
    components: str,
    optimizer: str = "sgd",
    lora_rank: int = 0,
    train_head: bool = True,
    train_norm: bool = True,
) -> int:
    """4 (2 P + (2 + s) T): weights and the copy that runs start from, gradients, s optimizer states, best checkpoint.

    P all parameters, T those that train; s is 1 for SGD with momentum, 2 for AdamW. Float32, whatever the autocast.

    Raises
    ------
    UnknownNameError, InputError
        If optimizer or components are not known, or LoRA does not go with the components.
    """
    if optimizer not in OPTIMIZER_STATES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZER_STATES)
    check_lora(components, lora_rank)
    own = shape.trained_parameters(components, lora_rank, train_head=train_head, train_norm=train_norm)
    factors = shape.trained_parameters(components, lora_rank, train_head=False, train_norm=False) if lora_rank else 0
    return 4 * (2 * shape.all_parameters + factors + (2 + OPTIMIZER_STATES[optimizer]) * own)


def activation_bytes(
    shape: Shape,
    *,
    components: str,
    images: int,
    precision: str = "float32",
    fused_attention: bool = True,
    lora_rank: int = 0,
    train_head: bool = True,
    train_norm: bool = True,
) -> int:
    """What autograd keeps from the forward pass of `images` images to the backward pass, parameters themselves apart.

    For each block, with b bytes a number in `precision`, n tokens (m in the MLP), width E, hidden H and h heads:
    4 n E + 8 n where a norm trains or passes a gradient on; b n E for the input of each linear layer that trains;
    b 4 n E + 4 h n for fused attention; b m H before the activation, and b m H after it where FC2 trains. Under
    autocast also the copies of the weights that pass a gradient on, whatever the number of images.

    Raises
    ------
    UnknownNameError, InputError
        If precision or components are not known, images is below 1, or LoRA does not go with the components.
    """
    if type(images) is not int or images < 1:
        raise InputError(f"images must be a whole number of at least 1, got {images!r}")
    check_lora(components, lora_rank)
    size = _number_bytes(precision)
    trained = trained_groups(components, train_head=train_head, train_norm=train_norm)
    each, once = _ends(shape, trained, size)
    for graph in blocks(shape, trained):
        each += graph.count * _block(shape, graph, size, fused_attention, lora_rank)
        once += graph.count * _weight_copies(shape, graph, lora_rank) if size < 4 else 0
    return images * each + once


def transient_bytes(shape: Shape, *, images: int, precision: str = "float32", fused_attention: bool = True) -> int:
    """What one block holds for a moment beyond that, an image: max(2 b m H, 6 b n E + maps) + 12 n E; maps 8 h n^2.

    On the safe side: the gradients of the block's largest activations, before and after it, and three of the residual
    stream. With it the need of a model of three blocks is 1.0 to 1.5 times the peak measured on a CPU, and closer the
    more blocks there are; on a GPU it was not measured. There, written-out attention under autocast keeps its map in
    float32 as well, in every block; the fused kernel, timm's default, keeps none.
    """
    size, n, e = _number_bytes(precision), shape.tokens, shape.width
    mlp = 2 * size * n * shape.hidden * (2 if shape.gated else 1)
    attention = 6 * size * n * e + (0 if fused_attention else 8 * shape.heads * n * n)
    return images * (max(mlp, attention) + 3 * 4 * n * e)


def images_that_fit(
    shape: Shape,
    *,
    components: str,
    precision: str = "float32",
    budget_bytes: float,
    fused_attention: bool = True,
    lora_rank: int = 0,
    optimizer: str = "sgd",
    train_head: bool = True,
    train_norm: bool = True,
) -> int:
    """Largest number of images whose forward and backward pass fits into `budget_bytes` beside weights and optimizer.

    The budget is for one run: what the CUDA context (about half a GiB), kept images and other runs take goes off first.

    Raises
    ------
    InputError
        If not even one image fits; says what one needs.
    """
    outer = {"train_head": train_head, "train_norm": train_norm}
    taken = fixed_bytes(shape, components=components, optimizer=optimizer, lora_rank=lora_rank, **outer)

    def need(images: int) -> int:
        kept = activation_bytes(
            shape, components=components, images=images, precision=precision, fused_attention=fused_attention,
            lora_rank=lora_rank, **outer,
        )  # fmt: skip
        return kept + transient_bytes(shape, images=images, precision=precision, fused_attention=fused_attention)

    one, two = need(1), need(2)
    left = budget_bytes - taken - one
    if left < 0:
        raise InputError(
            f"training {components} with one image at a time needs {(taken + one) / GIB:.2f} GiB, the budget is "
            f"{budget_bytes / GIB:.2f} GiB"
        )
    return 1 + int(left // (two - one))


def run_bytes(
    shape: Shape,
    *,
    components: str,
    images: int,
    precision: str = "float32",
    fused_attention: bool = True,
    lora_rank: int = 0,
    optimizer: str = "sgd",
    train_head: bool = True,
    train_norm: bool = True,
) -> int:
    """All of it for a micro-batch of `images`: `fixed_bytes` + `activation_bytes` + `transient_bytes`."""
    outer = {"train_head": train_head, "train_norm": train_norm}
    return (
        fixed_bytes(shape, components=components, optimizer=optimizer, lora_rank=lora_rank, **outer)
        + activation_bytes(
            shape, components=components, images=images, precision=precision, fused_attention=fused_attention,
            lora_rank=lora_rank, **outer,
        )
        + transient_bytes(shape, images=images, precision=precision, fused_attention=fused_attention)
    )  # fmt: skip


def _number_bytes(precision: str) -> int:
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    return 4 if precision == "float32" else 2


def _ends(shape: Shape, trained: frozenset[str], size: int) -> tuple[int, int]:
    """Image, final norm, head and loss: bytes an image, and once (copies of weights under autocast)."""
    e, reached = shape.width, upstream_of_head(trained)
    each = size * shape.patches * shape.patch_inputs if "emb" in trained else 0
    if reached or "norm" in trained:
        each += (shape.normed_tokens or shape.tokens) * (4 * e + 8)
    if shape.classes and "head" in trained:
        each += size * e
    if shape.classes and trained:
        each += 4 * shape.classes + 8  # logarithms of the probabilities, label
    passes = shape.classes and (reached or "norm" in trained)
    copies = (2 * e * shape.classes if passes else 0) + (2 * e * shape.patch_inputs if "emb" in trained else 0)
    return each, copies if size < 4 else 0


def _block(shape: Shape, graph: Graph, size: int, fused: bool, lora_rank: int) -> int:
    """Bytes that one block keeps for an image."""
    n, m, e, h = shape.tokens, graph.tokens, shape.width, shape.hidden
    weights = graph.weights
    total = 0
    if graph.after("LN1"):
        total += n * (4 * e + 8)
    if "MHA" in weights:
        total += size * n * e
        total += 2 * size * n * lora_rank
    if graph.after("MHA"):
        total += _attention(shape, size, fused, "MHA" in weights, lora_rank)
    if "LS1" in weights:
        total += size * n * e
    if graph.after("LN2"):
        total += 4 * n * e + 8 * m  # of a slice autograd keeps the whole
    if "FC1" in weights:
        total += size * m * (e + (lora_rank if not shape.gated else 2 * lora_rank))
    if graph.after("FC1"):
        total += size * m * h * (3 if shape.gated else 1)
    if "FC2" in weights:
        total += size * m * (h + lora_rank)
    if "LS2" in weights:
        total += size * m * e
    return total


def _attention(shape: Shape, size: int, fused: bool, trains: bool, lora_rank: int) -> int:
    """Fused: queries, keys, values, output and one number a token and head. Written out: copies, and the n x n map."""
    n, e, heads = shape.tokens, shape.width, shape.heads
    if fused:
        copied = size * n * e if trains and lora_rank and size < 4 else 0
        return size * 4 * n * e + 4 * heads * n + copied
    return size * (3 * n * e + heads * n * n) + (size * n * e if trains else 0)


def _weight_copies(shape: Shape, graph: Graph, lora_rank: int) -> int:
    """Two bytes for each weight of a linear layer through which a gradient passes, in one block."""
    total, earlier = 0, ""
    for part, _, i, o in parts_with_tokens(shape, graph):
        reached = graph.after(part) if part == earlier else graph.inputs[part]
        total += 2 * i * o if reached else 0
        if lora_rank and part in graph.weights:
            total += 2 * lora_rank * (o + (i if reached else 0))
        earlier = part
    return total
