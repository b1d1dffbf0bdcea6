"""From a timm module to the statement that covers it, or NoBoundError with the reason in words.

The readers take the tensors out of attention (`reading_attention`), linear, norm, MLP and LayerScale layers
(`reading_layers`) and patch embeddings (`reading_patches`); the functions of tensors turn them into bounds.
"""

from __future__ import annotations

from torch import nn

from vitplast.bounds.reading_attention import ATTENTION_CLASSES, NO_STATEMENT, ReadAttention, read_attention
from vitplast.bounds.reading_layers import (
    LAYERSCALE_CLASSES,
    MLP_CLASSES,
    NO_MLP,
    NORM_CLASSES,
    ReadLinear,
    ReadMlp,
    ReadNorm,
    class_of,
    is_linear,
    read_layerscale,
    read_linear,
    read_mlp,
    read_norm,
)
from vitplast.bounds.reading_patches import PATCH_CLASSES, ReadPatchEmbedding, read_patch_embedding
from vitplast.errors import NoBoundError

__all__ = [
    "ReadAttention",
    "ReadLinear",
    "ReadMlp",
    "ReadNorm",
    "ReadPatchEmbedding",
    "read_attention",
    "read_layerscale",
    "read_linear",
    "read_mlp",
    "read_norm",
    "read_patch_embedding",
    "statement",
]


def statement(module: nn.Module) -> str:
    """Which of our statements covers a module, and what it asks for.

    Raises
    ------
    NoBoundError
        If none does; the message says why.

    Examples
    --------
    >>> statement(nn.LayerNorm(4))
    'Theorem 6, from a floor of the deviation'
    >>> statement(nn.MultiheadAttention(4, 2))
    Traceback (most recent call last):
    vitplast.errors.NoBoundError: is a MultiheadAttention: no statement is known for this class
    """
    name = class_of(module)
    if name in ATTENTION_CLASSES or name in NO_STATEMENT:
        return _of_attention(read_attention(module))
    if is_linear(module):
        read_linear(module)
        return "Theorem 3, for all inputs"
    if name in NORM_CLASSES or isinstance(module, nn.GroupNorm):
        kind = read_norm(module).kind
        return "Theorem 3, for all inputs" if kind == "affine" else "Theorem 6, from a floor of the deviation"
    if name in MLP_CLASSES or name in NO_MLP:
        gated = read_mlp(module).kind == "gated"
        return f"Proposition 15, {'on a ball' if gated else 'for all inputs'}"
    if name in LAYERSCALE_CLASSES:
        read_layerscale(module)
        return "Proposition 15, for all inputs"
    if name in PATCH_CLASSES or isinstance(module, nn.Conv2d | nn.Sequential):
        read = read_patch_embedding(module)
        many = "a product over convolutions" if len(read.stages) > 1 else "for all inputs"
        return f"Proposition 16, {many}" + ("" if read.norm is None else "; then Theorem 6")
    raise NoBoundError(f"is a {type(module).__name__}: no statement is known for this class")


def _of_attention(read: ReadAttention) -> str:
    if read.kind == "plain":
        return "Theorem 10, first member, on a ball" if read.fixed_bias else "Theorems 10 to 12, on a ball"
    return "Theorem 13, on a ball" + ("" if read.kind == "rope" else ", with floors for queries and keys")
