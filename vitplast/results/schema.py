"""What a result file holds: every variable's dimensions, type, unit and meaning, as data.

The same tables check a file (`vitplast.results.validation`) and make the data dictionary that readers see
(`dictionary`). A gathered file has the variables of its kind with a leading dimension `run`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pandas as pd

from vitplast.components import COMPONENTS
from vitplast.errors import UnknownNameError
from vitplast.parameters import CONVENTIONS, DESIGNS, FinetuneParameters
from vitplast.training.recipe import Recipe


@dataclass(frozen=True)
class Variable:
    """One variable; `missing`: when a value may be absent, in words (empty: never); `timing`: it reads a clock."""

    dims: tuple[str, ...]
    dtype: str
    units: str
    meaning: str
    missing: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = True
    timing: bool = False


@dataclass(frozen=True)
class Schema:
    """All variables, coordinates and own attributes of one kind of result."""

    title: str
    coords: dict[str, Variable]
    variables: dict[str, Variable]
    attrs: dict[str, str] = field(default_factory=dict)


#: Attributes that every result carries, with their meaning.
ATTRIBUTES = {
    "title": "what the file holds",
    "source": "how the numbers were made",
    "history": "when, and by which version",
    "references": "the paper",
    "Conventions": "metadata conventions followed",
    "vitplast_schema": "version of these tables",
    "vitplast_version": "version of the package",
    "kind": "plasticity, bounds, finetune or probe",
    "run_key": "hash of the parameters that decide the numbers",
    "params_json": "all parameters of the run",
    "profile": "profile that asked for the run, or empty",
    "commit": "git commit of the package, or unknown",
    "dirty": "yes if the package had uncommitted changes, no, or unknown",
    "created": "time of writing, UTC",
    "machine": "processor, cores and operating system",
    "device": "where the model ran",
    "threads": "threads of the numerical library, 0 if it was not loaded",
    "torch_version": "version of PyTorch",
    "timm_version": "version of timm",
    "numpy_version": "version of NumPy",
    "python_version": "version of Python",
    "weights_origin": "packaged, hub, file or random",
    "weights_sha256": "SHA-256 of the weights",
    "content_sha256": "SHA-256 of all names, dimensions, types and values",
    "attrs_sha256": "SHA-256 of all attributes",
}

_LAYER = Variable(("layer",), "int64", "1", "block of the model, from 0")
_COMPONENT = Variable(("component",), "str", "1", "part of a block", choices=COMPONENTS)
_CONVENTION = Variable(
    ("convention",), "str", "1", "inputs of the parts: the embeddings for all, or their own", choices=CONVENTIONS
)
_PARTS = ("convention", "layer", "component")


def _scalar(dtype: str, units: str, meaning: str, **rest) -> Variable:
    return Variable((), dtype, units, meaning, **rest)


_PLASTICITY = Schema(
    "Rates of change of the components on pairs of images",
    coords={
        "convention": _CONVENTION,
        "layer": _LAYER,
        "component": _COMPONENT,
        "pair": Variable(("pair",), "int64", "1", "number of the pair, from 0"),
        "source_id": Variable(("pair",), "str", "1", "image of the pretraining side"),
        "target_id": Variable(("pair",), "str", "1", "image of the downstream side"),
        "source_group": Variable(("pair",), "str", "1", "photo or object that the source image comes from"),
        "target_group": Variable(("pair",), "str", "1", "photo or object that the target image comes from"),
    },
    variables={
        "rate": Variable(
            (*_PARTS, "pair"), "float64", "1", "rate of change: distance after over distance before", low=0.0
        ),
        "distance_in": Variable((*_PARTS, "pair"), "float64", "1", "Frobenius distance of the two inputs", low=0.0),
        "distance_out": Variable((*_PARTS, "pair"), "float64", "1", "Frobenius distance of the two outputs", low=0.0),
    },
    attrs={"design": f"how pairs are formed: {', '.join(DESIGNS)}", "dropped_pairs": "pairs left out"},
)

_BOUNDS = Schema(
    "Upper bounds on the rates of change of the components",
    coords={
        "convention": _CONVENTION,
        "variant": Variable(
            ("variant",), "str", "1", "how the bound is computed", choices=("as_coded", "heads_fixed", "valid")
        ),
        "layer": _LAYER,
        "component": _COMPONENT,
    },
    variables={
        "bound": Variable(
            ("convention", "variant", "layer", "component"),
            "float64",
            "1",
            "upper bound on the rate of change (the coded LayerNorm formula may be negative)",
            "no bound of this variant is known",
        ),
        "radius_rms": Variable(
            _PARTS,
            "float64",
            "1",
            "root mean square of the token norms of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
        "radius_max": Variable(
            _PARTS,
            "float64",
            "1",
            "largest token norm of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
        "sigma_min": Variable(
            _PARTS,
            "float64",
            "1",
            "smallest standard deviation within a token of the inputs",
            "the bound does not use it",
            low=0.0,
            required=False,
        ),
    },
)

_DIVERGED = "the run diverged"
_NO_GRADIENT = f"{_DIVERGED}, or float16 overflowed in that step"
_UNSEEN = "labels tested (or validated) that no training image has, or none"
_IN_RECIPE = {f.name for f in fields(Recipe)} - {"components", "lr", "seed"}
_FINETUNE = Schema(
    "One finetuning run",
    coords={
        "step": Variable(("step",), "int64", "1", "optimizer step, from 0"),
        "evaluation": Variable(("evaluation",), "int64", "1", "optimizer steps taken before the evaluation"),
        "dataset": _scalar("str", "1", "downstream image set", required=False),
        "components": _scalar("str", "1", "groups of parameters that were trained", required=False),
        "lr": _scalar("float64", "1", "peak learning rate", required=False),
        "seed": _scalar("int64", "1", "seed of split, order and head", required=False),
    },
    variables={
        "test_accuracy": _scalar(
            "float64",
            "1",
            "fraction of test images classified right, at the best step",
            missing=_DIVERGED,
            low=0.0,
            high=1.0,
        ),
        "test_loss": _scalar(
            "float64", "nat", "mean cross-entropy on the test images, at the best step", missing=_DIVERGED, low=0.0
        ),
        "validation_accuracy": _scalar(
            "float64",
            "1",
            "largest fraction of validation images classified right",
            missing=_DIVERGED,
            low=0.0,
            high=1.0,
        ),
        "best_step": _scalar("int64", "1", "steps taken when the validation accuracy was largest, -1 if never"),
        "diverged_step": _scalar("int64", "1", "first step with a loss or gradient that is not finite, -1 if none"),
        "trainable_parameters": _scalar("int64", "1", "parameters trained, head and final norm included", low=0),
        "component_parameters": _scalar("int64", "1", "parameters trained in the named components alone", low=0),
        "seconds": _scalar("float64", "s", "wall-clock time of the training", low=0.0, timing=True),
        "images_per_second": _scalar(
            "float64", "s-1", "training images per second", low=0.0, timing=True, missing="no step was finished"
        ),
        "n_train": _scalar("int64", "1", "training images", low=0),
        "n_validation": _scalar("int64", "1", "validation images", low=0),
        "n_test": _scalar("int64", "1", "test images", low=0),
        "train_loss": Variable(("step",), "float64", "nat", "mean cross-entropy on the batch", _DIVERGED),
        "learning_rate": Variable(("step",), "float64", "1", "learning rate of the step", _DIVERGED, low=0.0),
        "gradient_norm": Variable(
            ("step",),
            "float64",
            "1",
            "gradient norm of the named components (of the head where it is the component), before clipping",
            _NO_GRADIENT,
            low=0.0,
        ),
        "gradient_norm_total": Variable(
            ("step",), "float64", "1", "gradient norm of all that trains, before clipping", _NO_GRADIENT, low=0.0
        ),
        "gradient_norm_head": Variable(
            ("step",),
            "float64",
            "1",
            "gradient norm of head and norm, before clipping",
            f"{_NO_GRADIENT}, or neither is trained",
            low=0.0,
        ),
        "validation_accuracy_curve": Variable(
            ("evaluation",),
            "float64",
            "1",
            "fraction of validation images classified right",
            _DIVERGED,
            low=0.0,
            high=1.0,
        ),
        "validation_loss": Variable(
            ("evaluation",), "float64", "nat", "mean cross-entropy on the validation images", _DIVERGED, low=0.0
        ),
    },
    attrs={
        **{f.name: f.metadata["help"] for f in fields(FinetuneParameters) if f.name in _IN_RECIPE},
        "trained_groups": "groups of parameters that were trained, head and norm included",
        "precision_resolved": "precision of the forward pass: what auto became, or float64 for weights in float64",
        "encoded_once": "yes if the frozen encoder was applied once to each image and not in every step, no otherwise",
        "classes_missing_in_train": _UNSEEN,
        "frozen_check": "how all that did not train compares with its start, after the last step",
        "trained_check": "whether every trained group was found changed; not checked after a divergence",
        "unmoved_groups": "trained groups that no gradient moved, as with a rate of 0, or none",
        "tested": "which parameters were tested",
    },
)

_PROBE = Schema(
    "Linear probe of the frozen model",
    coords={
        "dataset": _scalar("str", "1", "downstream image set", required=False),
        "seed": _scalar("int64", "1", "seed of the split", required=False),
    },
    variables={
        "test_accuracy": _scalar("float64", "1", "fraction of test images classified right", low=0.0, high=1.0),
        "train_accuracy": _scalar("float64", "1", "fraction of training images classified right", low=0.0, high=1.0),
        "n_train": _scalar("int64", "1", "training images", low=0),
        "n_test": _scalar("int64", "1", "test images", low=0),
        "seconds": _scalar("float64", "s", "wall-clock time", low=0.0, timing=True, required=False),
    },
    attrs={
        "features": "what of the last hidden state is classified: mean, cls or both",
        "classifier": "how features are scaled and classified",
        "solver": "iterations of the solver, and its warnings if it did not converge",
        "classes_missing_in_train": _UNSEEN,
    },
)

#: Kind of result to its tables.
SCHEMAS = {"plasticity": _PLASTICITY, "bounds": _BOUNDS, "finetune": _FINETUNE, "probe": _PROBE}


def schema_of(kind: str) -> Schema:
    """The tables of a kind; UnknownNameError with the nearest names if there is none."""
    if kind not in SCHEMAS:
        raise UnknownNameError("kind of result", str(kind), SCHEMAS)
    return SCHEMAS[kind]


def dictionary(kind: str) -> pd.DataFrame:
    """The data dictionary of a kind: one row a coordinate or variable; columns name, dims, dtype, unit, meaning."""
    table = schema_of(kind)
    rows = []
    for name, variable in (table.coords | table.variables).items():
        meaning = variable.meaning + (f" (missing if {variable.missing})" if variable.missing else "")
        rows.append(
            {
                "name": name,
                "dims": ", ".join(variable.dims) or "none",
                "dtype": variable.dtype,
                "unit": variable.units,
                "meaning": meaning,
            }
        )
    return pd.DataFrame(rows)
