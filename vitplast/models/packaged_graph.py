"""The ONNX graph of the packaged wheel turned into tensors under timm's names, and its way of resizing positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vitplast.errors import IntegrityError

if TYPE_CHECKING:
    from torch import Tensor

#: timm's architecture that the backbone in the graph is.
ARCHITECTURE = "vit_small_patch14_dinov2"


def resize_positions(pos_embed: Tensor, grid: tuple[int, int]) -> Tensor:
    """Position embedding (1, 1 + 37*37, E) for a `grid` of patches: bicubic, no antialiasing, CLS position kept.

    This is the resizing of the graph in the wheel. timm's own antialiases and gives other tokens.
    """
    from torch.nn import functional as F

    cls, patches = pos_embed[:, :1], pos_embed[:, 1:]
    side = round(patches.shape[1] ** 0.5)
    if (side, side) == tuple(grid):
        return pos_embed
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = F.interpolate(square, size=tuple(grid), mode="bicubic", align_corners=False, antialias=False)
    return _cat([cls, square.permute(0, 2, 3, 1).reshape(1, grid[0] * grid[1], -1)], dim=1)


def convert(onnx_bytes: bytes) -> dict[str, Tensor]:
    """The backbone of the ONNX graph as tensors under timm's names.

    Weights of linear layers have no names of their own in the graph: they are found as the second input of a named
    MatMul node. (Their numbers do not follow the order query, key, value.)

    Raises
    ------
    IntegrityError
        If the graph lacks a node, or shapes differ from timm's architecture, or a value is not finite.
    """
    import onnx
    import torch
    from onnx import numpy_helper

    graph = onnx.load_from_string(onnx_bytes).graph
    stored = {i.name: i for i in graph.initializer}
    nodes = {node.name: node for node in graph.node}

    def named(name: str) -> Tensor:
        if name not in stored:
            raise IntegrityError(f"the ONNX graph has no tensor {name!r}")
        return torch.from_numpy(numpy_helper.to_array(stored[name]).copy())

    def matmul(node: str) -> Tensor:
        if node not in nodes or nodes[node].op_type != "MatMul":
            raise IntegrityError(f"the ONNX graph has no MatMul node {node!r}")
        return named(nodes[node].input[1]).T.contiguous()

    emb = "backbone.embeddings"
    out = {
        "cls_token": named(f"{emb}.cls_token"),
        "pos_embed": _cat([named("onnx::Concat_1957"), named("onnx::Reshape_1962")], dim=1),
    }
    linear = {"attn.proj": "attention.output.dense", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    for kind in ("weight", "bias"):
        out[f"patch_embed.proj.{kind}"] = named(f"{emb}.patch_embeddings.projection.{kind}")
        out[f"norm.{kind}"] = named(f"backbone.layernorm.{kind}")
    for i in range(12):
        theirs, node = f"backbone.encoder.layer.{i}", f"/backbone/encoder/layer.{i}"
        qkv = [f"attention.attention.{part}" for part in ("query", "key", "value")]
        out[f"blocks.{i}.attn.qkv.weight"] = _cat([matmul(f"{node}/{p.replace('.', '/')}/MatMul") for p in qkv])
        out[f"blocks.{i}.attn.qkv.bias"] = _cat([named(f"{theirs}.{p}.bias") for p in qkv])
        for ours, name in linear.items():
            out[f"blocks.{i}.{ours}.weight"] = matmul(f"{node}/{name.replace('.', '/')}/MatMul")
            out[f"blocks.{i}.{ours}.bias"] = named(f"{theirs}.{name}.bias")
        for n in (1, 2):
            out[f"blocks.{i}.ls{n}.gamma"] = named(f"{theirs}.layer_scale{n}.lambda1")
            for kind in ("weight", "bias"):
                out[f"blocks.{i}.norm{n}.{kind}"] = named(f"{theirs}.norm{n}.{kind}")
    verify(out)
    return out


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    import torch

    return torch.cat(tensors, dim=dim)


def verify(tensors: Mapping[str, Tensor]) -> None:
    """Same names and shapes as timm's architecture, every value finite."""
    import timm
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        expected = {k: tuple(v.shape) for k, v in timm.create_model(ARCHITECTURE, num_classes=0).state_dict().items()}
    got = {k: tuple(v.shape) for k, v in tensors.items()}
    if got != expected:
        wrong = sorted(k for k in got.keys() | expected.keys() if got.get(k) != expected.get(k))
        raise IntegrityError(f"the converted tensors don't fit timm's {ARCHITECTURE}: {', '.join(wrong)}")
    bad = [k for k, v in tensors.items() if not bool(torch.isfinite(v).all())]
    if bad:
        raise IntegrityError(f"the converted tensors hold values that are not finite: {', '.join(bad)}")
