"""The parameters of each notebook, checked: names, types, ranges and choices, before any work starts.

One frozen dataclass a notebook. Its fields, defaults and comments are those of the notebook's `parameters` cell
(a test holds them equal). `runs()` splits a unit of work into the single results that it writes, each with the key
under which the result is stored: a hash of everything that decides the numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from vitplast import images, models
from vitplast.components import parse_components
from vitplast.errors import InputError, UnknownNameError
from vitplast.fields import checked, unique
from vitplast.pairs import DESIGNS, pair_indices
from vitplast.training.rules import check_combination

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
            object.__setattr__(self, f.name, checked(f, getattr(self, f.name)))
        self.check()

    def check(self) -> None:
        """Names and combinations, all without loading anything; one spelling for what gives the same numbers."""
        models.check_name(self.model, self.weights)
        models.check_device(self.device)
        models.check_size(self.model, self.img_size)
        if self.img_size == 0 and self.model == models.PACKAGED:
            self._set("img_size", PACKAGED_SIZE)
        origin = models.origin(self.model, self.weights)
        if origin in ("packaged", "hub"):
            self._set("weights", "auto" if origin == "packaged" else "hub")
        if origin != "random":  # the head of finetuning is drawn from the run's seed
            self._set("init_seed", 0)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Key to parameters of each single result, in the order in which the notebook makes them."""
        return {key: dict(single) for key, single in self._runs.items()}

    @cached_property
    def _runs(self) -> dict[str, dict[str, Any]]:
        combinations: list[dict[str, Any]] = [{}]
        for plural, single in self.swept.items():
            combinations = [{**c, single: value} for c in combinations for value in getattr(self, plural)]
        plain = {k: v for k, v in self.to_dict().items() if k not in self.swept}
        singles = [{**plain, **combination} for combination in combinations]
        return {key_of(self.kind, single): single for single in singles}


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
        self._set("conventions", [c for c in CONVENTIONS if c in self.conventions])
        _check_sides(self)


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
        _check_sides(self)


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
        "auto", "auto (what this hardware is fast in), float32, bfloat16 or float16", choices=("auto", *PRECISIONS)
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
        self._set("dataset", images.check_splits(self.dataset, "train", "validation", "test"))
        self._set("components", "+".join(parse_components(self.components)))
        if min(self.lrs) <= 0:
            raise InputError(f"learning rates must be above 0, got {self.lrs!r}")
        check_combination(self)


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
        self._set("dataset", images.check_splits(self.dataset, "train", "test"))


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


def _check_sides(p: PlasticityParameters | BoundsParameters) -> None:
    """Refuses sides without their split or, as far as their sizes are stated, with too few images for the pairs."""
    p._set("source", images.check_splits(p.source, "source"))
    p._set("targets", unique("targets", [images.check_splits(t, "test") for t in p.targets]))
    source = images.sizes(p.source)
    for name in p.targets:
        target = images.sizes(name)
        if source and target:
            try:
                pair_indices(source["source"], target["test"], p.pairs, p.design)
            except InputError as error:
                raise InputError(f"{p.source} and {name}: {error}") from None


def key_of(kind: str, run: dict[str, Any]) -> str:
    """Key of a single run (an item of `Parameters.runs()`), of what decides its numbers.

    Weight files and folders of images count as what they hold, not as where they are.
    """
    off_key = {f.name for f in dataclasses.fields(KINDS[kind]) if not f.metadata.get("key", True)}
    values = {name: value for name, value in run.items() if name not in off_key}
    values["weights"] = models.weights_key(values["weights"])
    values |= {name: images.key_name(values[name]) for name in ("source", "target", "dataset") if name in values}
    return run_key(kind, values)


def run_key(kind: str, values: dict[str, Any]) -> str:
    """Sixteen hex digits of the SHA-256 of kind, schema version and parameters in canonical JSON."""
    text = json.dumps([kind, SCHEMA_VERSION, values], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
