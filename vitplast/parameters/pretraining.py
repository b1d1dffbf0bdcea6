"""Parameters of the notebook that pretrains the project's own model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitplast import images, models
from vitplast.errors import InputError
from vitplast.parameters.base import PROFILE, STORE, Parameters, option


@dataclass(frozen=True)
class PretrainParameters(Parameters):
    """Parameters of `notebooks/pretrain.ipynb`."""

    kind: ClassVar[str] = "pretrain"
    swept: ClassVar[dict[str, str]] = {}

    dataset: str = option("fashion_mnist", "labelled image set that the model is trained on from random weights")
    epochs: int = option(8, "passes over the training images", low=1)
    batch_size: int = option(64, "images per optimizer step", low=1)
    lr: float = option(1e-3, "peak learning rate of AdamW", low=0.0)
    weight_decay: float = option(0.05, "of AdamW, on matrices alone", low=0.0)
    seed: int = option(0, "seed of weights, split, order and moved images", low=0)
    train_images: int = option(0, "training images used, 0 for all", low=0)
    test_images: int = option(0, "validation and test images used, 0 for all", low=0)
    weights_file: str = option(
        "", "file for the weights, such as data/models/NAME.safetensors of the project; empty: none", key=False
    )
    download: bool = option(False, "allow image sets to be downloaded", key=False)
    device: str = option("auto", "auto, cpu, cuda or cuda:N", key=False)
    store: str = option("", STORE, key=False)
    profile: str = option("", PROFILE, key=False)

    def check(self) -> None:
        models.check_device(self.device)
        self._set("dataset", images.check_splits(self.dataset, "train", "validation", "test"))
        if self.lr <= 0:
            raise InputError(f"lr must be above 0, got {self.lr!r}")
        if self.weights_file and not self.weights_file.endswith(".safetensors"):
            raise InputError(f"weights_file must end in .safetensors, got {self.weights_file!r}")
