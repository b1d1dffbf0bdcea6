"""What several test files share: the two reference models, a tiny timm model, and a cache folder of the tests' own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from torch import nn

os.environ["VITPLAST_PIXEL_CACHE"] = "0"  # nothing of a test stays on the machine
torch.set_num_threads(1)  # two threads on busy cores wait for each other

REFERENCE = Path(__file__).parent / "reference"


def load_reference(name: str, dtype: torch.dtype) -> SimpleNamespace:
    """Numbers of the authors' code on a tiny model (`z`), and that model rebuilt in timm with the stored weights."""
    with np.load(REFERENCE / f"{name}.npz") as file:
        z = {key: file[key] for key in file.files}
    cfg = {key.removeprefix("cfg/"): value for key, value in z.items() if key.startswith("cfg/")}
    weights = {k.removeprefix("weights/"): torch.from_numpy(v) for k, v in z.items() if k.startswith("weights/")}
    channels, height, width = (int(v) for v in cfg["image_dim"])
    hidden = weights["blocks.0.mlp.fc1.weight"].shape[0]
    embed_dim = weights["cls_token"].shape[-1]
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=(height, width),
        patch_size=weights["patch_embed.proj.weight"].shape[-1],
        in_chans=channels,
        num_classes=weights["head.weight"].shape[0],
        embed_dim=embed_dim,
        depth=z["ratio"].shape[0],
        num_heads=z["attention1"].shape[2],
        mlp_ratio=hidden / embed_dim,
        global_pool="token",
        norm_layer=partial(nn.LayerNorm, eps=1e-12),
    )
    model.load_state_dict(weights, strict=True)
    model.to(dtype).eval()
    x1, x2 = (torch.from_numpy(z[k]).to(dtype) for k in ("x1", "x2"))
    return SimpleNamespace(name=name, model=model, z=z, x1=x1, x2=x2, y1=torch.from_numpy(z["y1"]), dtype=dtype)


@pytest.fixture(params=["tiny_a", "tiny_b"])
def reference_name(request):
    return request.param


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def reference(request, reference_name):
    """Both reference models in both precisions; a fresh copy for each test."""
    return load_reference(reference_name, request.param)


@pytest.fixture
def tiny_vit():
    """A plain vision transformer of width 32, 2 blocks, 4 heads for 32-pixel images, random weights, 10 classes."""
    torch.manual_seed(0)
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=10
    ).eval()
