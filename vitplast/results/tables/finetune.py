"""Table of kind "finetune": one finetuning run."""

from __future__ import annotations

from dataclasses import fields, replace

from vitplast.parameters import FinetuneParameters
from vitplast.results.tables.variable import COMPONENT, CONVENTION, LAYER, PARTS, UNSEEN, Schema, Variable, scalar
from vitplast.training.recipe import Recipe

_DIVERGED = "the run diverged"
_NO_GRADIENT = f"{_DIVERGED}, or float16 overflowed in that step"
_IN_RECIPE = {f.name for f in fields(Recipe)} - {"components", "lr", "seed"}
_HELP = {f.name: f.metadata["help"] for f in fields(FinetuneParameters)}
_ADDED = [f.name for f in fields(FinetuneParameters) if f.metadata.get("added")]
FINETUNE = Schema(
    "One finetuning run",
    coords={
        "step": Variable(("step",), "int64", "1", "optimizer step that was logged, from 0"),
        "evaluation": Variable(("evaluation",), "int64", "1", "optimizer steps taken before the evaluation"),
        "dataset": scalar("str", "1", "downstream image set", required=False),
        "components": scalar("str", "1", "groups of parameters that were trained", required=False),
        "lr": scalar("float64", "1", "peak learning rate", required=False),
        "seed": scalar("int64", "1", "seed of split, order and head", required=False),
        "convention": replace(CONVENTION, required=False),
        "layer": replace(LAYER, required=False),
        "component": replace(COMPONENT, required=False),
    },
    variables={
        "test_accuracy": scalar(
            "float64",
            "1",
            "fraction of test images classified right, at the best step",
            missing=_DIVERGED,
            low=0.0,
            high=1.0,
        ),
        "test_loss": scalar(
            "float64", "nat", "mean cross-entropy on the test images, at the best step", missing=_DIVERGED, low=0.0
        ),
        "validation_accuracy": scalar(
            "float64",
            "1",
            "largest fraction of validation images classified right",
            missing=_DIVERGED,
            low=0.0,
            high=1.0,
        ),
        "best_step": scalar("int64", "1", "steps taken when the validation accuracy was largest, -1 if never"),
        "diverged_step": scalar("int64", "1", "first step with a loss or gradient that is not finite, -1 if none"),
        "trainable_parameters": scalar("int64", "1", "parameters trained, head and final norm included", low=0),
        "component_parameters": scalar("int64", "1", "parameters trained in the named components alone", low=0),
        "seconds": scalar("float64", "s", "wall-clock time of the training", low=0.0, timing=True),
        "images_per_second": scalar(
            "float64", "s-1", "training images per second", low=0.0, timing=True, missing="no step was finished"
        ),
        "n_train": scalar("int64", "1", "training images", low=0),
        "n_validation": scalar("int64", "1", "validation images", low=0),
        "n_test": scalar("int64", "1", "test images", low=0),
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
        "plasticity_before": Variable(
            PARTS, "float64", "1", "mean rate of change before training, if asked for", low=0.0, required=False
        ),
        "plasticity_after": Variable(
            PARTS,
            "float64",
            "1",
            "mean rate of change at the best step, if asked for",
            _DIVERGED,
            low=0.0,
            required=False,
        ),
    },
    attrs={
        **{name: text for name, text in _HELP.items() if name in _IN_RECIPE and name not in _ADDED},
        "trained_groups": "groups of parameters that were trained, head and norm included",
        "precision_resolved": "precision of the forward pass: what auto became, or float64 for weights in float64",
        "encoded_once": "yes if the frozen encoder was applied once to each image and not in every step, no otherwise",
        "classes_missing_in_train": UNSEEN,
        "frozen_check": "how all that did not train compares with its start, after the last step",
        "trained_check": "whether every trained group was found changed; not checked after a divergence",
        "unmoved_groups": "trained groups that no gradient moved, as with a rate of 0, or none",
        "tested": "which parameters were tested",
    },
    later={
        **{name: _HELP[name] for name in _ADDED},
        "adapter": "what trained in place of the component's weights, or none",
        "per_class_counts": "training images of each class, in the order of the labels",
        "products": "how exact products of float32 numbers were",
        "attention": "kernel of the attention layers: fused, written out, or mixed",
        "pictures": "where the training images were",
        "peak_memory_gib": "largest memory of tensors on the GPU during training, in GiB; 0 on a CPU, not measured",
        "micro_batches": "parts into which a batch was cut at the end, for accumulation or for want of memory",
    },
)
