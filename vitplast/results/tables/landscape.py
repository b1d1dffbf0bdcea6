"""Table of kind "landscape": loss over a plane of weights, rate of change over a plane of inputs."""

from __future__ import annotations

from vitplast.parameters.experiments import VARIANTS
from vitplast.results.tables.variable import COMPONENT, Schema, Variable, scalar

AXES = ("u", "v")

_EACH = ("variant", "component")


def _number(dims: tuple[str, ...], units: str, meaning: str, **rest) -> Variable:
    return Variable(dims, "float64", units, meaning, **rest)


LANDSCAPE = Schema(
    "Loss over a plane of the weights of a component, and its rate of change over a plane of its inputs",
    coords={
        "dataset": scalar("str", "1", "downstream image set", required=False),
        "seed": scalar("int64", "1", "seed of images and random directions", required=False),
        "variant": Variable(("variant",), "str", "1", "done right, or as the authors' figure", choices=VARIANTS),
        "component": COMPONENT,
        "u": _number(("u",), "1", "way along the first direction"),
        "v": _number(("v",), "1", "way along the second direction"),
        "step": Variable(("step",), "int64", "1", "steps of gradient descent taken"),
        "axis": Variable(("axis",), "str", "1", "direction: first or second", choices=AXES),
    },
    variables={
        "loss": _number((*_EACH, "u", "v"), "nat", "cross-entropy with the component moved in all blocks", low=0.0),
        "rate": _number(
            (*_EACH, "u", "v"),
            "1",
            "distance of outputs over distance of inputs, mean over inputs",
            missing="u and v are 0",
            low=0.0,
        ),
        "trajectory": _number((*_EACH, "step", "axis"), "1", "gradient descent along the directions of the loss"),
        "trajectory_loss": _number((*_EACH, "step"), "nat", "cross-entropy along the gradient descent", low=0.0),
        "lr": _number(_EACH, "1", "rate of the gradient descent", low=0.0),
        "displacement": _number((*_EACH, "step"), "1", "distance of the moved weights from their start", low=0.0),
        "explained_variance": _number(
            (*_EACH, "axis"), "1", "share of the trajectory's variance along a direction of the loss", low=0.0
        ),
        "gain": _number(
            (*_EACH, "axis"), "1", "||J e|| of a direction e of the rate surface, mean over inputs", low=0.0
        ),
        "images": Variable(("variant",), "int64", "1", "images in the loss", low=1),
        "start_accuracy": _number(
            ("variant",), "1", "fraction of these images classified right before the component moves", low=0.0, high=1.0
        ),
        "moved_parameters": Variable(("component",), "int64", "1", "numbers that move in the loss surface", low=1),
    },
    attrs={
        "layer": "block whose rate of change is shown (as published: 0)",
        "head": "classifier of the corrected variant",
        "published_head": "classifier of the variant as published",
    },
)
