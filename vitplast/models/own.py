"""The project's own small vision transformer, pretrained here from scratch with labels, and its weights in `data/`.

Everything about it is in this project: the architecture below, the notebook `pretrain` that trains it, and the weight
file. It stands beside the packaged model, which was pretrained without labels on other images.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitplast.errors import IntegrityError, MissingDependencyError
from vitplast.models.packaged import content_hash

if TYPE_CHECKING:
    from torch import Tensor, nn

ARCHITECTURE = "vit_micro_patch14_56"
TAG = "fashion_mnist"
NAME = f"{ARCHITECTURE}.{TAG}"
#: Side of the input in pixels: four patches of 14 a side.
SIZE = 56
SHAPE = {"patch_size": 14, "embed_dim": 128, "depth": 8, "num_heads": 4}
SOURCE = "this project's notebook pretrain"
LICENCE = "MIT (this project); pretraining images: Fashion-MNIST, MIT"
#: Mean and deviation of its input, whatever the images: one number for the three channels, as its images are grey.
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def build(**options: Any) -> nn.Module:
    """timm's plain vision transformer with `SHAPE`: 8 blocks of width 128, 1.65 million parameters.

    `options` as timm gives them to a model: `img_size`, `num_classes`, `pretrained` (which must be false), ...
    """
    register()
    import timm

    return timm.create_model(ARCHITECTURE, **options)


@cache
def register() -> None:
    """Makes `ARCHITECTURE` known to timm; further calls do nothing."""
    from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
    from timm.models.vision_transformer import VisionTransformer

    config = {
        "input_size": (3, SIZE, SIZE), "num_classes": 10, "mean": MEAN, "std": STD, "interpolation": "bicubic",
        "crop_pct": 1.0, "first_conv": "patch_embed.proj", "classifier": "head", "license": LICENCE,
    }  # fmt: skip

    def vit_micro_patch14_56(pretrained: bool = False, **options: Any) -> nn.Module:
        return build_model_with_cfg(
            VisionTransformer, ARCHITECTURE, pretrained, **{"img_size": SIZE, **SHAPE, **options}
        )

    vit_micro_patch14_56.__module__ = __name__
    globals()["default_cfgs"] = generate_default_cfgs({ARCHITECTURE: config})
    register_model(vit_micro_patch14_56)


def weights_path() -> Path:
    """`data/models/NAME.safetensors` of the project."""
    from vitplast.places import PACKAGE, project_root

    folders = [PACKAGE.parent / "data" / "models", project_root() / "data" / "models"]
    return next((f / f"{NAME}.safetensors" for f in folders if (f / f"{NAME}.safetensors").is_file()),
                folders[0] / f"{NAME}.safetensors")  # fmt: skip


def load_tensors(path: Path | None = None) -> dict[str, Tensor]:
    """The backbone's tensors by timm name, in float32 (the file holds half precision, which is what was evaluated).

    Raises
    ------
    MissingDependencyError
        If the file is not there.
    IntegrityError
        If it is damaged: the file names the hash of its own tensors.
    """
    from safetensors import SafetensorError, safe_open

    path = path or weights_path()
    if not path.is_file():
        raise MissingDependencyError(
            f"the weights of {NAME} are not there ({path}): they come with a checkout of the project, and "
            "`make pretrain` makes them"
        )
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            wanted = (file.metadata() or {}).get("content_sha256", "")
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path.name} is not a complete safetensors file ({error})") from error
    if content_hash(tensors) != wanted:
        raise IntegrityError(f"{path.name} does not hold the tensors that it was written with; get the file anew")
    return {name: tensor.float() for name, tensor in tensors.items()}


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Half precision, with the hash of the tensors, written to a temporary name and renamed."""
    import os

    import torch
    from safetensors.torch import save_file

    half = {name: tensor.detach().cpu().to(torch.float16).contiguous() for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(half, part, metadata={"architecture": ARCHITECTURE, "content_sha256": content_hash(half)})
    os.replace(part, path)
