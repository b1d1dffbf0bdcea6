"""The estimated peak of memory in a training step against the one that PyTorch's profiler sees on a CPU."""

from __future__ import annotations

import pytest
import timm
import torch

from vitplast.cost import check
from vitplast.cost.memory import activation_bytes, transient_bytes
from vitplast.cost.shapes import Shape


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_estimated_peak_is_just_above_the_real_one(precision, fused):
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=64, patch_size=8, embed_dim=96, depth=3, num_heads=4, num_classes=7
    ).eval()
    shape = Shape.of(model)
    for components in ("all", "LN2", "MHA"):
        real = check.peak(model, components, images=16, precision=precision, fused=fused)
        kept = activation_bytes(shape, components=components, images=16, precision=precision, fused_attention=fused)
        moment = transient_bytes(shape, images=16, precision=precision, fused_attention=fused)
        need = kept + moment + 4 * shape.trained_parameters(components)
        assert kept < real <= need < (1.4 if fused else 1.5) * real, (components, need / real)
