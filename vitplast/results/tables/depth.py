"""Table of kind "depth": linear probes after each point of every block."""

from __future__ import annotations

from vitplast.results.tables.variable import LAYER, UNSEEN, Schema, Variable, scalar

#: Points of a block in the order of the forward pass, named as by the authors.
POINTS = ("attn_norm", "attn", "attn_res", "ffn_norm", "ffn_fc1", "ffn_activation", "ffn_fc2", "ffn_res")
#: Before the first block, and after the last one and the final norm.
ENDS = ("embedding", "final_norm")

_PLACE = ("layer", "point")
_SOLVER = "iterations of the solver"


def _share(dims: tuple[str, ...], meaning: str) -> Variable:
    return Variable(dims, "float64", "1", meaning, low=0.0, high=1.0)


def _set(dims: tuple[str, ...], prefix: str) -> dict[str, Variable]:
    return {
        f"{prefix}test_accuracy": _share(dims, "fraction of test images classified right"),
        f"{prefix}train_accuracy": _share(dims, "fraction of training images classified right"),
        f"{prefix}standard_error": _share(dims, "binomial standard error of the test accuracy, sqrt(p (1 - p) / n)"),
        f"{prefix}n_iter": Variable(dims, "int64", "1", _SOLVER, low=0),
        f"{prefix}converged": Variable(dims, "int64", "1", "1 if the solver converged, else 0", low=0, high=1),
    }


DEPTH = Schema(
    "Linear probes of the frozen model after each point of every block",
    coords={
        "dataset": scalar("str", "1", "downstream image set", required=False),
        "seed": scalar("int64", "1", "seed of the split", required=False),
        "layer": LAYER,
        "point": Variable(("point",), "str", "1", "point of a block that is probed", choices=POINTS),
        "end": Variable(("end",), "str", "1", "probed before the first or after the last block", choices=ENDS),
    },
    variables={
        **_set(_PLACE, ""),
        **_set(("end",), "end_"),
        "n_train": scalar("int64", "1", "training images", low=0),
        "n_test": scalar("int64", "1", "test images", low=0),
        "seconds": scalar("float64", "s", "wall-clock time", low=0.0, timing=True, required=False),
    },
    attrs={
        "features": "what of the tokens is classified: mean or cls, divided by its norm",
        "classifier": "how features are scaled and classified",
        "classes_missing_in_train": UNSEEN,
    },
    later={
        "view": "how training images were seen: as test images (plain), or random crops of whole batches (paper)",
    },
)
