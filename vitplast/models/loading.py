"""Vision transformers with their weights: packaged, from the hub, from a file or random, ready to be measured.

A model comes back in evaluation mode with a new head; what was loaded is recorded as a hash of the backbone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitplast.errors import InputError, LayoutError, ShapeError, UnknownNameError
from vitplast.models import own, packaged
from vitplast.models import weights as model_weights
from vitplast.models.names import PACKAGED, check_name, matching, origin, size_error, split
from vitplast.models.text_names import is_text_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: Mean and deviation of the input are the checkpoint's own, or ImageNet's as in the authors' code.
NORMALIZATIONS = ("checkpoint", "imagenet")
HEAD_INITS = ("default", "zero")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode and everything that says where its numbers come from.

    `name` is timm's architecture, `tag` that of its weights (empty for random weights and for a file whose tag was
    not given), `origin` one of packaged, hub, file, random; `source` and `licence` are words for people.
    """

    model: nn.Module
    name: str
    tag: str
    origin: str
    source: str
    licence: str
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    img_size: int
    normalization: str
    init_seed: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def n_tokens(self) -> int:
        """Tokens of one image: patches and prefix tokens (class token, registers)."""
        return int(self.model.patch_embed.num_patches) + int(self.model.num_prefix_tokens)

    def prepare(self, images: Tensor) -> Tensor:
        """(image / 255 - mean) / std: uint8 (B, 3, S, S) to float32 of the same shape, on the model's device.

        Raises
        ------
        InputError
            If the images are not uint8 (floats would be read on a wrong scale without a sign of it).
        ShapeError
            If the shape is not (B, channels, img_size, img_size) or B is 0.
        """
        import torch

        if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8:
            kind = getattr(images, "dtype", type(images).__name__)
            raise InputError(f"images must be a torch.uint8 tensor with values 0 to 255, got {kind}")
        expected = (len(self.mean), self.img_size, self.img_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected or len(images) == 0:
            last = images.ndim == 4 and images.shape[-1] == len(self.mean)
            hint = " (channels come second, not last)" if last else ""
            raise ShapeError(f"images must have shape (B,) + {expected} with B > 0, got {tuple(images.shape)}{hint}")
        mean, std = (torch.tensor(v, device=self.device).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (images.to(self.device, torch.float32) / 255 - mean) / std

    @property
    def provenance(self) -> dict[str, str | int]:
        """The record as attributes of a result file."""
        return {
            "model": self.name, "model_tag": self.tag, "weights_origin": self.origin, "weights_source": self.source,
            "weights_licence": self.licence, "weights_sha256": self.weights_sha256,
            "normalization": self.normalization, "mean": " ".join(map(repr, self.mean)),
            "std": " ".join(map(repr, self.std)), "img_size": self.img_size, "n_tokens": self.n_tokens,
            "init_seed": self.init_seed,
        }  # fmt: skip


def load_model(
    name: str = PACKAGED,
    *,
    weights: str = "auto",
    img_size: int = 0,
    num_classes: int = 0,
    normalization: str = "checkpoint",
    init_seed: int = 0,
    device: str = "cpu",
    head_init: str = "default",
) -> LoadedModel:
    """Builds a vision transformer of timm and loads its weights; `name` and `weights` as in `check_name`.

    `img_size` 0 means the checkpoint's own; position embeddings are resampled for any other. `num_classes` 0 means
    no head. The new head is drawn from `init_seed` alone (`head_init` "default": uniform in +-1/sqrt(width), as
    `nn.Linear`; "zero": zeros), so it is the same whatever the weights come from. The global random state of torch
    stays as it was.

    Raises
    ------
    InputError
        For values refused by `check_name` and `check_device`, and an `img_size` that the patch does not divide.
    LayoutError
        If the model lacks one of the components, or has parameters of no known group.
    IntegrityError
        If a weight file is damaged, holds more than tensors, does not fit, or holds values that are not finite.
    VitplastError
        If the weights can't be fetched.
    """
    check_name(name, weights)
    if is_text_model(name):
        raise InputError(f"model {name!r} reads text, not images; load it with load_text_model")
    _check_choices(num_classes, normalization, init_seed, head_init)
    target = resolve_device(device)
    architecture, tag = split(name)
    where = origin(name, weights)
    timm_name = architecture if tag == "packaged" or architecture == own.ARCHITECTURE else name
    outline = model_weights.outline(timm_name)
    size = _checked_size(outline, img_size)
    if where == "packaged":
        model = model_weights.from_package(timm_name, size)
    elif where == "hub":
        model = model_weights.from_hub(timm_name, size)
        tag = str(model.pretrained_cfg.get("tag") or "")
    elif where == "file":
        model = model_weights.from_file(timm_name, Path(weights).expanduser(), size)
        tag = "" if tag == "packaged" else tag
    else:
        model, tag = model_weights.create(timm_name, init_seed, img_size=size, num_classes=0), ""
    model_weights.new_head(model, num_classes, init_seed, head_init)
    model_weights.check_finite(model, name)
    source, licence = model_weights.source_and_licence(where, model, weights, init_seed)
    mean, std = _normalization(model, normalization)
    return LoadedModel(
        model.eval().to(target), architecture, tag, where, source, licence, weights_hash(model),
        mean, std, size, normalization, init_seed,
    )  # fmt: skip


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers of the backbone (head excluded)."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return packaged.content_hash({k: v for k, v in named.items() if not k.startswith("head.")})


def check_device(device: str) -> None:
    """Refuses what is not auto, cpu, cuda or cuda:N; whether the device is there is not looked at."""
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")


def resolve_device(device: str) -> torch.device:
    """The device itself; auto is the first GPU where there is one, else the CPU.

    Raises
    ------
    InputError
        If the device is not there.
    """
    import torch

    check_device(device)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if count else "cpu")
    index = int(device.partition(":")[2] or 0)
    if device != "cpu" and index >= count:
        raise InputError(f"device {device!r} is not there: this machine offers {count} CUDA device(s); use auto or cpu")
    return torch.device(device)


def catalogue(pattern: str = "") -> list[str]:
    """Names `architecture.tag` of all vision transformers of a known layout with weights, that match `pattern`.

    Each architecture is built with one block and no memory to see whether it has the components.
    """
    plain: dict[str, bool] = {}
    names = matching(pattern)
    for architecture in dict.fromkeys(split(name)[0] for name in names):
        try:
            try:
                model_weights.outline(architecture, depth=1)
            except AssertionError:  # some architectures state something of every block, and take no other number
                model_weights.outline(architecture)
            plain[architecture] = True
        except LayoutError:
            plain[architecture] = False
    return [name for name in names if plain[split(name)[0]]]


def _check_choices(num_classes: int, normalization: str, init_seed: int, head_init: str) -> None:
    if normalization not in NORMALIZATIONS:
        raise UnknownNameError("normalization", normalization, NORMALIZATIONS)
    if head_init not in HEAD_INITS:
        raise UnknownNameError("head_init", head_init, HEAD_INITS)
    for label, value in (("num_classes", num_classes), ("init_seed", init_seed)):
        if type(value) is not int or value < 0:
            raise InputError(f"{label} must be an integer of at least 0, got {value!r}")


def _checked_size(outline: nn.Module, img_size: int) -> int:
    own = int(outline.pretrained_cfg["input_size"][-1])
    patch = int(outline.patch_embed.patch_size[0])
    if type(img_size) is not int or img_size < 0 or img_size % patch:
        raise size_error(img_size, patch)
    return img_size or own


def _normalization(model: nn.Module, normalization: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, resolve_model_data_config

    if normalization == "imagenet":
        return tuple(IMAGENET_DEFAULT_MEAN), tuple(IMAGENET_DEFAULT_STD)
    config = resolve_model_data_config(model)
    return tuple(map(float, config["mean"])), tuple(map(float, config["std"]))
