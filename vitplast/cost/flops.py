"""Floating-point operations of a forward and a backward pass, an image at a time: matrix products and attention.

A multiply-add counts as two operations, as in PyTorch's own counter. Norms, activations, softmax and additions are
left out: about one operation in a hundred at the width of ViT-Base, though more of the time.
"""

from __future__ import annotations

from vitplast.cost.graph import blocks, check_lora, parts_with_tokens, trained_groups, upstream_of_head
from vitplast.cost.shapes import Shape

#: Products of n x n and n x E in the backward pass of attention: written out two for each of the two of the forward
#: pass; the fused kernel computes the scores anew, five in all.
ATTENTION_BACKWARD = {False: 4, True: 5}


def forward_parts(shape: Shape, lora_rank: int = 0, components: str = "head") -> dict[str, int]:
    """Operations for one image by part, over all blocks: 2 (3 n E^2, 2 n^2 E, n E^2, m E H, m E H) times L.

    m is n, or `last_tokens` in the last block. `LoRA` is there with a rank: 2 t r (in + out) for each linear layer of
    the component, on t tokens.

    Raises
    ------
    InputError
        If LoRA is asked for on a component without linear layers.

    Examples
    --------
    >>> vit_base = Shape(768, 12, 12, 3072, 197, 1000, 768)
    >>> forward_parts(vit_base)["attention"], sum(forward_parts(vit_base).values()) / 2e9
    (1430654976, 17.56...)
    """
    check_lora(components, lora_rank) if lora_rank else None
    e, n, m = shape.width, shape.tokens, shape.mlp_tokens
    found = {
        "patches": 2 * shape.patches * shape.patch_inputs * e,
        "qkv": 2 * 3 * n * e * e * shape.depth,
        "attention": 2 * 2 * n * n * e * shape.depth,
        "proj": 2 * n * e * e * shape.depth,
        "FC1": 2 * m * e * shape.hidden * (2 if shape.gated else 1),
        "FC2": 2 * m * e * shape.hidden,
        "head": 2 * e * shape.classes,
    }
    if lora_rank:
        found["LoRA"] = sum(
            2 * lora_rank * t * (i + o) * graph.count
            for graph in blocks(shape, trained_groups(components))
            for part, t, i, o in parts_with_tokens(shape, graph)
            if part in graph.weights
        )
    return found


def forward_flops(shape: Shape, lora_rank: int = 0, components: str = "head") -> int:
    """Sum of `forward_parts`."""
    return sum(forward_parts(shape, lora_rank, components).values())


def backward_flops(
    shape: Shape,
    components: str,
    *,
    lora_rank: int = 0,
    fused_attention: bool = True,
    train_head: bool = True,
    train_norm: bool = True,
) -> int:
    """Operations of the backward pass for one image, by what trains.

    A linear layer costs its forward pass once more for the gradient of its input, if something before it trains, and
    once more for that of its weight, if it trains itself. With LoRA the frozen weight costs the former alone, its
    factors both. Attention costs 4 (written out) or 5 (fused) products of n^2 E where its forward pass costs 2.

    Raises
    ------
    InputError
        If LoRA is asked for on a component without linear layers.
    UnknownNameError
        If `components` names no group.
    """
    check_lora(components, lora_rank)
    trained = trained_groups(components, train_head=train_head, train_norm=train_norm)
    total = 2 * shape.width * shape.classes * (("head" in trained) + (upstream_of_head(trained) or "norm" in trained))
    if "emb" in trained:
        total += 2 * shape.patches * shape.patch_inputs * shape.width
    for graph in blocks(shape, trained):
        one, earlier = 0, ""
        for part, t, i, o in parts_with_tokens(shape, graph):
            second = part == earlier  # proj, whose input comes from qkv
            reached = graph.after(part) if second else graph.inputs[part]
            own = part in graph.weights
            one += 2 * t * i * o * (reached + (own and not lora_rank))
            if own and lora_rank:
                one += 2 * t * lora_rank * (i * (1 + reached) + 2 * o)
            if part == "MHA" and not second and graph.after(part):
                one += 2 * ATTENTION_BACKWARD[fused_attention] * shape.tokens**2 * shape.width
            earlier = part
        total += one * graph.count
    return total


def training_flops(shape: Shape, components: str, **options: object) -> int:
    """Forward and backward pass of one training image; options as of `backward_flops`."""
    lora_rank = int(options.get("lora_rank", 0))
    return forward_flops(shape, lora_rank, components) + backward_flops(shape, components, **options)
