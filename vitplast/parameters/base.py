"""What the parameters of all notebooks share: checked fields, single runs, and the key of each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from vitplast import images, models, texts
from vitplast.errors import InputError, LayoutError
from vitplast.fields import checked

SCHEMA_VERSION = 1
#: Raised for a kind when the same parameters give other numbers, or more of them; 1 where it is not named.
REVISIONS = {"bounds": 2}
#: Default side in pixels for the packaged weights, whose own 518 is no work for a laptop.
PACKAGED_SIZE = 56
CONVENTIONS = ("common", "in_situ")
#: Families of models (`vitplast.layouts`) that a notebook takes; plain vision transformers where it is not named.
FAMILIES = {
    "plasticity": ("plain", "eva", "gpt2"),
    "bounds": ("plain", "eva", "gpt2"),
    "finetune": ("plain", "eva"),
    "probe": ("plain", "eva"),
}
PRECISIONS = ("float32", "bfloat16", "float16")
STORE = "folder for results; empty: the project's own"
RESCALE = "rescaling that keeps the function, as LN2/FC1:4 or LN1/qkv:0.25; empty for none"
PROFILE = "name of the profile this run belongs to, for the record"


def option(default: Any, text: str, *, key: bool = True, added: bool = False, **rule: Any) -> Any:
    """A field with the comment of its notebook line and the rule it must meet; `key=False`: not part of the key.

    `added=True`: a later option, part of the key only where it differs from its default, so that results made before
    there was such an option keep their keys.
    """
    metadata = {"help": text, "key": key, "added": added, **rule}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Parameters:
    """What the parameters of all notebooks can do. Subclasses have the fields."""

    kind: ClassVar[str] = ""
    #: The list parameters that are taken apart, one result per combination: `{list name: single name}`.
    swept: ClassVar[dict[str, str]] = {}

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, checked(f, getattr(self, f.name)))
        self.check()

    def check(self) -> None:
        """Names and combinations, all without loading anything; one spelling for what gives the same numbers."""

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
        return {key_for(type(self), single): single for single in singles}


@dataclass(frozen=True)
class ModelParameters(Parameters):
    """What every notebook takes that looks at a model."""

    model: str = option(models.PACKAGED, "any plain timm vision transformer, or the packaged DINOv2 weights")
    weights: str = option("auto", "auto (packaged, else hub), hub, random, or the path of a weight file")
    img_size: int = option(
        0, "side of the input in pixels; 0: the model's own (packaged weights: 56)", low=0, high=1024
    )
    normalization: str = option("checkpoint", "checkpoint or imagenet (the authors')", choices=models.NORMALIZATIONS)
    init_seed: int = option(0, "seed of random weights", low=0)
    download: bool = option(False, "allow image sets to be downloaded", key=False)
    device: str = option("auto", "auto, cpu, cuda or cuda:N", key=False)
    store: str = option("", STORE, key=False)
    profile: str = option("", PROFILE, key=False)

    def check(self) -> None:
        models.check_name(self.model, self.weights)
        models.check_device(self.device)
        self._check_family()
        models.check_size(self.model, self.img_size)
        if self.img_size == 0 and self.model == models.PACKAGED:
            self._set("img_size", PACKAGED_SIZE)
        origin = models.origin(self.model, self.weights)
        if origin in ("packaged", "hub"):
            self._set("weights", "auto" if origin == "packaged" else "hub")
        if origin != "random":  # the head of finetuning is drawn from the run's seed
            self._set("init_seed", 0)

    def _check_family(self) -> None:
        """Refuses models that this notebook does not take, and options that are for plain vision transformers alone."""
        family, known = models.family(self.model), FAMILIES.get(self.kind, ("plain",))
        if family not in known:
            raise LayoutError(
                f"notebook {self.kind} takes models of the families {', '.join(known)} (plain: timm's plain vision "
                f"transformers), but {self.model!r} is of the family {family}"
            )
        for name in ("rescale", "lora_rank"):
            if family != "plain" and getattr(self, name, None):
                raise InputError(f"{name} is for plain vision transformers, {self.model!r} is of the family {family}")
        if family == "gpt2":  # one spelling for what texts have not
            self._set("img_size", 0)
            self._set("normalization", "checkpoint")


def key_for(cls: type[Parameters], run: dict[str, Any]) -> str:
    """Key of a single run (an item of `Parameters.runs()`), of what decides its numbers.

    Weight files and folders of images or of models count as what they hold, not as where they are.
    """
    off_key = {
        f.name
        for f in dataclasses.fields(cls)
        if not f.metadata.get("key", True) or (f.metadata.get("added") and run.get(f.name, f.default) == f.default)
    }
    values = {name: value for name, value in run.items() if name not in off_key}
    if "weights" in values:
        values["weights"] = models.weights_key(values["weights"])
    if "model" in values:
        values["model"] = models.model_key(values["model"])
    for name in ("source", "target", "dataset"):
        if name in values:
            sets = texts if texts.is_text(values[name]) else images
            values[name] = sets.key_name(values[name])
    return run_key(cls.kind, values)


def run_key(kind: str, values: dict[str, Any]) -> str:
    """Sixteen hex digits of the SHA-256 of kind, its revision and the parameters in canonical JSON."""
    text = json.dumps([kind, REVISIONS.get(kind, 1), values], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
