"""Which text models there are: GPT-2 of the transformers hub by name, or one in a local folder as `hf:PATH`."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitplast.errors import InputError, LayoutError, nearest

FOLDER = "hf:"
#: Name to repository on the hub, and width, blocks and heads, from which random weights are drawn.
GPT2_SIZES = {
    "distilgpt2": ("distilbert/distilgpt2", 768, 6, 12),
    "gpt2": ("openai-community/gpt2", 768, 12, 12),
    "gpt2-medium": ("openai-community/gpt2-medium", 1024, 24, 16),
    "gpt2-large": ("openai-community/gpt2-large", 1280, 36, 20),
    "gpt2-xl": ("openai-community/gpt2-xl", 1600, 48, 25),
}
#: What `weights` may say for a text model.
ORIGINS = ("auto", "hub", "random")


def is_text_model(name: str) -> bool:
    """Whether it names a model that reads text.

    Examples
    --------
    >>> is_text_model("gpt2"), is_text_model("vit_base_patch16_224")
    (True, False)
    """
    return name in GPT2_SIZES or name.startswith(FOLDER)


def check_text_name(name: str, weights: str) -> None:
    """Refuses a folder that holds no GPT-2, and a `weights` value that a text model has not.

    Raises
    ------
    InputError
        If the folder does not exist or lacks a file, or the weights can't be meant.
    LayoutError
        If the folder holds another kind of model.
    """
    if weights not in ORIGINS:
        raise InputError(
            f"weights of a text model are {', '.join(ORIGINS)}, got {weights!r}. {nearest(weights, ORIGINS)} Your own "
            "weights are a folder of transformers: model hf:PATH"
        )
    if not name.startswith(FOLDER):
        return
    if weights == "hub":
        raise InputError(f"model {name!r} is a folder, its weights are not on the hub; leave weights at auto")
    folder = folder_of(name)
    config = _config(folder)
    if config.get("model_type") != "gpt2":
        raise LayoutError(
            f"{folder.name} holds a {config.get('model_type')!r} model; of text models only gpt2 is known"
        )
    needed = ["config.json"] if weights == "random" else ["config.json", "model.safetensors"]
    lacking = [file for file in needed if not (folder / file).is_file()]
    if lacking:
        raise InputError(f"folder {folder.name} has no {' and no '.join(lacking)} (safetensors in one file are read)")


def folder_of(name: str) -> Path:
    """The folder that `hf:PATH` means."""
    return Path(name.removeprefix(FOLDER)).expanduser()


def model_key(name: str) -> str:
    """What stands for a model in the key of a result: its name; of a folder its last part and a hash of its files."""
    if not name.startswith(FOLDER):
        return name
    folder = folder_of(name).absolute()
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stamp = tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return f"{FOLDER}{folder.name}#{_folder_hash(folder, stamp)}"


@lru_cache(maxsize=8)
def _folder_hash(folder: Path, stamp: tuple) -> str:
    found = hashlib.sha256()
    for name, *_ in stamp:
        with (folder / name).open("rb") as file:
            found.update(f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"folder {str(folder)!r} of model {FOLDER}PATH does not exist")
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"folder {folder.name} has no config.json, so it holds no model of transformers") from None
    except ValueError as error:
        raise InputError(f"config.json of {folder.name} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"config.json of {folder.name} is no mapping")
    return found
