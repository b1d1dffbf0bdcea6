"""Table of kind "pretrain": the training of the project's own model from random weights."""

from __future__ import annotations

from dataclasses import fields

from vitplast.parameters import PretrainParameters
from vitplast.results.tables.variable import Schema, Variable, scalar


def _share(what: str) -> Variable:
    return scalar("float64", "1", f"fraction of {what} images classified right", low=0.0, high=1.0)


_IN_ATTRS = ("epochs", "batch_size", "weight_decay", "lr")
PRETRAIN = Schema(
    "Supervised pretraining of the project's own model",
    coords={
        "epoch": Variable(("epoch",), "int64", "1", "passes over the training images, from 1"),
        "dataset": scalar("str", "1", "image set that the model was trained on", required=False),
        "seed": scalar("int64", "1", "seed of weights, split, order and moved images", required=False),
    },
    variables={
        "train_loss": Variable(("epoch",), "float64", "nat", "mean cross-entropy over batches of the pass", low=0.0),
        "validation_accuracy": Variable(
            ("epoch",), "float64", "1", "fraction of validation images classified right", low=0.0, high=1.0
        ),
        "validation_loss": Variable(
            ("epoch",), "float64", "nat", "mean cross-entropy on the validation images", low=0.0
        ),
        "validation_accuracy_last": _share("validation"),
        "test_accuracy": _share("test"),
        "test_loss": scalar("float64", "nat", "mean cross-entropy on the test images", low=0.0),
        "n_train": scalar("int64", "1", "training images", low=0),
        "n_validation": scalar("int64", "1", "validation images", low=0),
        "n_test": scalar("int64", "1", "test images", low=0),
        "seconds": scalar("float64", "s", "wall-clock time, validation included", low=0.0, timing=True),
        "images_per_second": scalar("float64", "s-1", "training images per second", low=0.0, timing=True),
    },
    attrs={
        **{f.name: f.metadata["help"] for f in fields(PretrainParameters) if f.name in _IN_ATTRS},
        "trained_sha256": "SHA-256 of the backbone after training, rounded to half precision",
    },
)
