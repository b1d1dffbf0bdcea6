"""The parameters of each notebook, checked: names, types, ranges and choices, before any work starts.

One frozen dataclass a notebook. Its fields, defaults and comments are those of the notebook's `parameters` cell
(a test holds them equal). `runs()` splits a unit of work into the single results that it writes, each with the key
under which the result is stored: a hash of everything that decides the numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vitplast import images, models
from vitplast.components import parse_components
from vitplast.errors import InputError, UnknownNameError
from vitplast.pairs import DESIGNS

SCHEMA_VERSION = 1
#: Default side in pixels for the packaged weights, whose own 518 is no work for a laptop.
PACKAGED_SIZE = 56
CONVENTIONS = ("common", "in_situ")
PRECISIONS = ("float32", "bfloat16", "float16")


def _help(default: Any, text: str, *, key: bool = True, **rule: Any) -> Any:
    """A field with the comment of its notebook line and the rule it must meet; `key=False`: not part of the key."""
    metadata = {"help": text, "key": key, **rule}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Parameters:
    """What every notebook takes. Subclasses add their own fields."""

    kind: ClassVar[str] = ""
    #: The list parameters that are taken apart, one result per combination: `{list name: single name}`.
    swept: ClassVar[dict[str, str]] = {}

    model: str = _help(models.PACKAGED, "any plain timm vision transformer, or the packaged DINOv2 weights")
    weights: str = _help("auto", "auto (packaged, else hub), hub, random, or the path of a weight file")
    img_size: int = _help(0, "side of the input in pixels; 0: the model's own (packaged weights: 56)", low=0, high=1024)
    normalization: str = _help("checkpoint", "checkpoint or imagenet (the authors')", choices=models.NORMALIZATIONS)
    init_seed: int = _help(0, "seed of random weights", low=0)
    download: bool = _help(False, "allow image sets to be downloaded", key=False)
    device: str = _help("auto", "auto, cpu, cuda or cuda:N", key=False)
    store: str = _help("", "folder for results; empty: the project's own", key=False)
    profile: str = _help("", "name of the profile this run belongs to, for the record", key=False)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, _checked(f, getattr(self, f.name)))
        self.check()

    def check(self) -> None:
        """Names and combinations, all without loading anything."""
        models.check_name(self.model, self.weights)
        models.check_device(self.device)
        if self.img_size == 0 and self.model == models.PACKAGED:
            object.__setattr__(self, "img_size", PACKAGED_SIZE)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Key to parameters of each single result, in the order in which the notebook makes them."""
        combinations: list[dict[str, Any]] = [{}]
        for plural, single in self.swept.items():
            combinations = [{**c, single: value} for c in combinations for value in getattr(self, plural)]
        plain = {k: v for k, v in self.to_dict().items() if k not in self.swept}
        off_key = {f.name for f in dataclasses.fields(self) if not f.metadata.get("key", True)}
        runs = {}
        for combination in combinations:
            single = {**plain, **combination}
            runs[run_key(self.kind, {k: v for k, v in single.items() if k not in off_key})] = single
        return runs


@dataclass(frozen=True)
class PlasticityParameters(Parameters):
    """Parameters of `notebooks/plasticity.ipynb`."""

    kind: ClassVar[str] = "plasticity"
    swept: ClassVar[dict[str, str]] = {"targets": "target"}

    source: str = _help("photos", "image set of the pretraining side, x")
    targets: list = _help(["mnist5k"], "image sets of the downstream side, y; one result each")
    pairs: int = _help(64, "pairs (disjoint, cycled) or images per side (crossed)", low=2)
    conventions: list = _help(["common", "in_situ"], "input conventions: common, in_situ", each=CONVENTIONS)
    design: str = _help("disjoint", "disjoint, crossed or cycled (Definition 3)", choices=DESIGNS)
    precision: str = _help("float32", "of the forward pass: float32, bfloat16 or float16", choices=PRECISIONS)
    batch_size: int = _help(16, "images in the model at a time, both sides together", low=1, key=False)
    seed: int = _help(0, "seed of the choice of images", low=0)

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "source", images.check_name(self.source))
        object.__setattr__(self, "targets", _unique("targets", [images.check_name(t) for t in self.targets]))


@dataclass(frozen=True)
class BoundsParameters(Parameters):
    """Parameters of `notebooks/bounds.ipynb`."""

    kind: ClassVar[str] = "bounds"
    swept: ClassVar[dict[str, str]] = {"targets": "target"}

    source: str = _help("photos", "image set of the pretraining side, x")
    targets: list = _help(["mnist5k"], "image sets of the downstream side, y; one result each")
    pairs: int = _help(64, "images per side whose token norms and deviations enter the bounds", low=2)
    design: str = _help("disjoint", "disjoint, crossed or cycled: as in the measurement to compare", choices=DESIGNS)
    batch_size: int = _help(16, "images at a time", low=1, key=False)
    seed: int = _help(0, "seed of the choice of images", low=0)

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "source", images.check_name(self.source))
        object.__setattr__(self, "targets", _unique("targets", [images.check_name(t) for t in self.targets]))


@dataclass(frozen=True)
class FinetuneParameters(Parameters):
    """Parameters of `notebooks/finetune.ipynb`."""

    kind: ClassVar[str] = "finetune"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed", "lrs": "lr"}

    dataset: str = _help("mnist5k", "downstream image set")
    components: str = _help("MHA", "all, emb, LN1, MHA, LN2, FC1, FC2, head, or a combination as MHA+FC1")
    lrs: list = _help([0.03], "peak learning rates, one result each", low=0.0, of=float)
    seeds: list = _help([0], "seeds of split, order and head, one result each", low=0, of=int)
    optimizer: str = _help("sgd", "sgd or adamw", choices=("sgd", "adamw"))
    momentum: float = _help(0.9, "of SGD", low=0.0, high=1.0)
    weight_decay: float = _help(0.0, "of SGD or AdamW", low=0.0)
    steps: int = _help(50, "optimizer steps", low=1)
    batch_size: int = _help(32, "images per optimizer step", low=1)
    accumulation: int = _help(1, "micro-batches per optimizer step", low=1)
    warmup: int = _help(5, "steps of linear warm-up from 0", low=0)
    schedule: str = _help("cosine", "after the warm-up: cosine (to 0) or constant", choices=("cosine", "constant"))
    clip: float = _help(1.0, "largest gradient norm; 0: no clipping", low=0.0)
    clipping: str = _help(
        "joint", "joint (as the authors) or separate (head and final norm apart)", choices=("joint", "separate")
    )
    precision: str = _help(
        "auto", "auto (the fastest here), float32, bfloat16 or float16", choices=("auto", *PRECISIONS)
    )
    augment: str = _help("none", "none or paper (random resized crop and flip)", choices=("none", "paper"))
    head_init: str = _help("zero", "new head: zero or default (PyTorch's, as the authors)", choices=("zero", "default"))
    train_head: bool = _help(True, "train the head in every configuration, as the authors")
    train_norm: bool = _help(True, "train the final norm in every configuration, as the authors")
    evaluations: int = _help(2, "validation points, the last at the last step", low=1)
    train_images: int = _help(0, "training images used, 0 for all", low=0)
    validation_images: int = _help(200, "validation images used, 0 for all", low=0)
    test_images: int = _help(500, "test images used, 0 for all", low=0)

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "dataset", images.check_name(self.dataset))
        object.__setattr__(self, "components", "+".join(parse_components(self.components)))
        if min(self.lrs) <= 0:
            raise InputError(f"learning rates must be above 0, got {self.lrs!r}")
        if self.warmup >= self.steps:
            raise InputError(f"warmup must be smaller than steps, got warmup={self.warmup} and steps={self.steps}")
        if self.evaluations > self.steps:
            raise InputError(f"evaluations={self.evaluations} is more than steps={self.steps}")
        if self.batch_size % self.accumulation:
            raise InputError(f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}")


@dataclass(frozen=True)
class ProbeParameters(Parameters):
    """Parameters of `notebooks/probe.ipynb`."""

    kind: ClassVar[str] = "probe"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed"}

    dataset: str = _help("mnist5k", "downstream image set")
    seeds: list = _help([0], "seeds of the split, one result each", low=0, of=int)
    features: str = _help("mean", "mean over tokens, cls, or both", choices=("mean", "cls", "both"))
    batch_size: int = _help(64, "images at a time", low=1, key=False)
    train_images: int = _help(0, "training images used, 0 for all", low=0)
    test_images: int = _help(0, "test images used, 0 for all", low=0)

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "dataset", images.check_name(self.dataset))


#: Notebook name to its parameters.
KINDS: dict[str, type[Parameters]] = {
    cls.kind: cls for cls in (PlasticityParameters, BoundsParameters, FinetuneParameters, ProbeParameters)
}


def make(kind: str, values: dict[str, Any]) -> Parameters:
    """The checked parameters of notebook `kind`; unknown names are refused with the nearest ones."""
    if kind not in KINDS:
        raise UnknownNameError("notebook", kind, KINDS)
    known = [f.name for f in dataclasses.fields(KINDS[kind])]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"parameter of {kind}", name, known)
    return KINDS[kind](**values)


def from_namespace(kind: str, namespace: dict[str, Any]) -> Parameters:
    """The checked parameters of notebook `kind` from the variables of its `parameters` cell (pass `globals()`)."""
    return make(kind, {f.name: namespace[f.name] for f in dataclasses.fields(KINDS[kind])})


def run_key(kind: str, values: dict[str, Any]) -> str:
    """Sixteen hex digits of the SHA-256 of kind, schema version and parameters in canonical JSON."""
    text = json.dumps([kind, SCHEMA_VERSION, values], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked(f: dataclasses.Field, value: Any) -> Any:
    kind = {"str": str, "int": int, "float": float, "bool": bool, "list": list}[str(f.type)]
    rule = f.metadata
    if kind is not list:
        return _scalar(f.name, value, kind, rule)
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"{f.name} must be a list that is not empty, got {value!r}")
    item = {**rule, "choices": rule.get("each")}
    checked = [_scalar(f"{f.name}[{i}]", v, rule.get("of", str), item) for i, v in enumerate(value)]
    return _unique(f.name, checked)


def _unique(name: str, values: list) -> list:
    if len(set(values)) < len(values):
        raise InputError(f"{name} holds a value twice: {values!r}")
    return values


def _scalar(name: str, value: Any, kind: type, rule: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        hint = ""
        if isinstance(value, str) and kind in (int, float, bool):
            hint = " (YAML reads 1e-4 as text, write 1.0e-4; booleans are True and False)"
        raise InputError(f"{name} must be {kind.__name__}, got {value!r} of type {type(value).__name__}{hint}")
    if kind is float and not math.isfinite(value):
        raise InputError(f"{name} must be finite, got {value!r}")
    if rule.get("choices") and value not in rule["choices"]:
        raise UnknownNameError(name, value, rule["choices"])
    if kind in (int, float):
        if "low" in rule and value < rule["low"]:
            raise InputError(f"{name} must be at least {rule['low']}, got {value!r}")
        if "high" in rule and value > rule["high"]:
            raise InputError(f"{name} must be at most {rule['high']}, got {value!r}")
    return value
