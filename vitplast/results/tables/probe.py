"""Table of kind "probe": a linear probe of the frozen model."""

from __future__ import annotations

from vitplast.results.tables.variable import UNSEEN, Schema, scalar

PROBE = Schema(
    "Linear probe of the frozen model",
    coords={
        "dataset": scalar("str", "1", "downstream image set", required=False),
        "seed": scalar("int64", "1", "seed of the split", required=False),
    },
    variables={
        "test_accuracy": scalar("float64", "1", "fraction of test images classified right", low=0.0, high=1.0),
        "train_accuracy": scalar("float64", "1", "fraction of training images classified right", low=0.0, high=1.0),
        "n_train": scalar("int64", "1", "training images", low=0),
        "n_test": scalar("int64", "1", "test images", low=0),
        "seconds": scalar("float64", "s", "wall-clock time", low=0.0, timing=True, required=False),
    },
    attrs={
        "features": "what of the last hidden state is classified: mean, cls or both",
        "classifier": "how features are scaled and classified",
        "solver": "iterations of the solver, and its warnings if it did not converge",
        "classes_missing_in_train": UNSEEN,
    },
)
