"""Parameters of the notebooks that train: finetune and probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitplast import images
from vitplast.components import parse_components
from vitplast.errors import InputError
from vitplast.pairs import pair_indices
from vitplast.parameters.base import PRECISIONS, RESCALE, ModelParameters, option
from vitplast.rescalings import canonical
from vitplast.training.rules import check_combination

#: Image set of the pretraining side wherever finetuning measures plasticity.
SOURCE = "photos"


@dataclass(frozen=True)
class FinetuneParameters(ModelParameters):
    """Parameters of `notebooks/finetune.ipynb`."""

    kind: ClassVar[str] = "finetune"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed", "lrs": "lr"}

    dataset: str = option("mnist5k", "downstream image set")
    components: str = option("MHA", "all, emb, LN1, MHA, LN2, FC1, FC2, head, or a combination as MHA+FC1")
    lrs: list = option([0.03], "peak learning rates, one result each", low=0.0, of=float)
    seeds: list = option([0], "seeds of split, order and head, one result each", low=0, of=int)
    optimizer: str = option("sgd", "sgd or adamw", choices=("sgd", "adamw"))
    momentum: float = option(0.9, "of SGD", low=0.0, high=1.0)
    weight_decay: float = option(0.0, "of SGD or AdamW", low=0.0)
    steps: int = option(50, "optimizer steps", low=1)
    batch_size: int = option(32, "images per optimizer step", low=1)
    accumulation: int = option(1, "micro-batches per optimizer step", low=1)
    warmup: int = option(5, "steps of linear warm-up from 0", low=0)
    schedule: str = option("cosine", "after the warm-up: cosine (to 0) or constant", choices=("cosine", "constant"))
    clip: float = option(1.0, "largest gradient norm; 0: no clipping", low=0.0)
    clipping: str = option(
        "joint", "joint (as the authors) or separate (head and final norm apart)", choices=("joint", "separate")
    )
    precision: str = option(
        "auto", "auto (what this hardware is fast in), float32, bfloat16 or float16", choices=("auto", *PRECISIONS)
    )
    augment: str = option(
        "none",
        "none, paper (random resized crop and flip), original (the same of pictures at their own size)",
        choices=("none", "paper", "original"),
    )
    head_init: str = option(
        "zero", "new head: zero or default (PyTorch's, as the authors)", choices=("zero", "default")
    )
    train_head: bool = option(True, "train the head in every configuration, as the authors")
    train_norm: bool = option(True, "train the final norm in every configuration, as the authors")
    evaluations: int = option(2, "validation points, the last at the last step", low=1)
    train_images: int = option(0, "training images used, 0 for all", low=0)
    validation_images: int = option(200, "validation images used, 0 for all", low=0)
    test_images: int = option(500, "test images used, 0 for all", low=0)
    lora_rank: int = option(0, "rank of LoRA on MHA, FC1 or FC2, 0 to train their weights", low=0, added=True)
    lora_alpha: float = option(16.0, "factors of LoRA count alpha / rank", low=0.0, added=True)
    rescale: str = option("", RESCALE, added=True)
    per_class: int = option(0, "training images of each class, 0 for no such limit", low=0, added=True)
    plasticity_pairs: int = option(
        0, "pairs (photos, test images) to measure plasticity on before and after, 0 for none", low=0, added=True
    )
    validate_every: int = option(
        0, "steps between validations, 0 for as many as evaluations says, equally spaced", low=0, added=True
    )
    log_every: int = option(1, "steps between logged points of loss and gradient norms", low=1, added=True)
    accuracy_batch: int = option(
        0, "0: accuracies count images; n: mean of the accuracies of batches of n (the authors')", low=0, added=True
    )
    last_batch: str = option(
        "used",
        "incomplete last batch of a pass: used, or dropped (as the authors)",
        choices=("used", "dropped"),
        added=True,
    )
    compile: bool = option(False, "compile the training step", added=True)
    workers: int = option(
        0, "processes that read pictures for augment original; decides no number", low=0, key=False, added=True
    )
    memory_gib: float = option(
        0.0,
        "memory for a run in GiB, batches are cut to fit; 0: what is free on a GPU, no limit on a CPU",
        low=0.0,
        key=False,
        added=True,
    )

    def check(self) -> None:
        super().check()
        self._set("dataset", images.check_splits(self.dataset, "train", "validation", "test"))
        self._set("rescale", canonical(self.rescale))
        if self.lora_rank == 0:  # then alpha decides nothing
            self._set("lora_alpha", 16.0)
        if self.validate_every:  # then the number of evaluations decides nothing
            self._set("evaluations", 2)
        self._set("components", "+".join(parse_components(self.components)))
        if min(self.lrs) <= 0:
            raise InputError(f"learning rates must be above 0, got {self.lrs!r}")
        check_combination(self)
        if self.per_class and self.train_images:
            raise InputError(
                f"per_class={self.per_class} and train_images={self.train_images} exclude each other; set one to 0"
            )
        source, target = images.sizes(SOURCE), images.sizes(self.dataset)
        if self.plasticity_pairs == 1:
            raise InputError("plasticity_pairs must be 0 or at least 2, got 1")
        if self.plasticity_pairs and source and target:
            try:
                pair_indices(source["source"], target["test"], self.plasticity_pairs)
            except InputError as error:
                raise InputError(f"plasticity_pairs={self.plasticity_pairs}: {error}") from None


@dataclass(frozen=True)
class ProbeParameters(ModelParameters):
    """Parameters of `notebooks/probe.ipynb`."""

    kind: ClassVar[str] = "probe"
    swept: ClassVar[dict[str, str]] = {"seeds": "seed"}

    dataset: str = option("mnist5k", "downstream image set")
    seeds: list = option([0], "seeds of the split, one result each", low=0, of=int)
    features: str = option("mean", "mean over tokens, cls, or both", choices=("mean", "cls", "both"))
    batch_size: int = option(64, "images at a time", low=1, key=False)
    train_images: int = option(0, "training images used, 0 for all", low=0)
    test_images: int = option(0, "test images used, 0 for all", low=0)

    def check(self) -> None:
        super().check()
        self._set("dataset", images.check_splits(self.dataset, "train", "test"))
