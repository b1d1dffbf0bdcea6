"""Table of kind "gradients": gradient norms, their inequalities, and both along rescalings of the same function."""

from __future__ import annotations

from vitplast.components import COMPONENTS
from vitplast.results.tables.variable import CONVENTION, LAYER, Schema, Variable

#: Rescalings that leave the function of the network alone (Prop. 18).
RESCALINGS = ("LN2/FC1", "LN1/qkv", "V/O", "Q/K")
PARAMETER_PARTS = ("weight", "bias", "Q", "b_Q", "K", "b_K", "V", "b_V", "O", "b_O")
BRANCHES = ("MHA(LN1)", "FC1(LN2)")
MEASURES = ("raw", "rms", "elasticity")

_ORBIT = ("kind", "factor")
_BY_IMAGE = (*_ORBIT, "layer", "component", "image")
_PART = "the component has no such parameter"


def _number(dims: tuple[str, ...], meaning: str, missing: str = "", low: float | None = 0.0) -> Variable:
    return Variable(dims, "float64", "1", meaning, missing, low=low)


GRADIENTS = Schema(
    "Gradient norms of the components, one image at a time, and along rescalings that leave the network's function",
    coords={
        "kind": Variable(("kind",), "str", "1", "what is rescaled against what", choices=RESCALINGS),
        "factor": Variable(("factor",), "float64", "1", "factor of the first of the two", low=0.0),
        "convention": CONVENTION,
        "layer": LAYER,
        "component": Variable(("component",), "str", "1", "part of a block", choices=COMPONENTS),
        "part": Variable(("part",), "str", "1", "parameter of a component", choices=PARAMETER_PARTS),
        "branch": Variable(("branch",), "str", "1", "parts put together", choices=BRANCHES),
        "measure": Variable(("measure",), "str", "1", "how a gradient is counted", choices=MEASURES),
        "image": Variable(("image",), "int64", "1", "number of the image in the target images, from 0"),
        "pair": Variable(("pair",), "int64", "1", "number of the pair, from 0"),
        "source_id": Variable(("pair",), "str", "1", "image of the pretraining side"),
        "target_id": Variable(("pair",), "str", "1", "image of the downstream side"),
        "source_group": Variable(("pair",), "str", "1", "photo or object that the source image comes from"),
        "target_group": Variable(("pair",), "str", "1", "photo or object that the target image comes from"),
    },
    variables={
        "rate": _number(
            (*_ORBIT, "convention", "layer", "component", "pair"), "rate of change: distance after over before"
        ),
        "plasticity": _number((*_ORBIT, "convention", "layer", "component"), "mean rate of change over the pairs"),
        "branch_plasticity": _number(
            (*_ORBIT, "convention", "layer", "branch"), "mean rate of change of parts put together"
        ),
        "logit_difference": _number(_ORBIT, "largest relative difference of the logits from those at factor 1"),
        "gradient_norm": _number(_BY_IMAGE, "norm of the loss gradient of all parameters of the component"),
        "gradient_rms": _number(_BY_IMAGE, "root mean square gradient of a parameter of the component"),
        "elasticity": _number(_BY_IMAGE, "root of the sum over parameters of (norm times gradient norm) squared"),
        "part_gradient_norm": _number(
            (*_ORBIT, "layer", "component", "part", "image"), "norm of the loss gradient of one parameter", _PART
        ),
        "part_parameter_norm": _number(
            (*_ORBIT, "layer", "component", "part"), "norm of one parameter of the component", _PART
        ),
        "part_parameters": _number(("layer", "component", "part"), "numbers in one parameter", _PART),
        "output_gradient_norm": _number(_BY_IMAGE, "norm of the loss gradient of the component's output"),
        "input_norm": _number(_BY_IMAGE, "Frobenius norm of the component's input"),
        "input_spectral_norm": _number(_BY_IMAGE, "spectral norm of the component's input"),
        "ratio": _number(
            (*_ORBIT, "layer", "component", "part", "image"),
            "gradient norm over its bound (Prop. 17), largest of the heads",
            f"{_PART}, or no bound is stated for it",
        ),
        "key_bias": _number(
            (*_ORBIT, "layer", "image"), "gradient norm of the key bias over its scale", "keys have no bias"
        ),
        "product": _number(
            (*_ORBIT, "convention", "layer", "component"),
            "plasticity times gradient norm of the parameters moved",
            "the rescaling does not move it",
        ),
        "slope": _number(
            ("kind", "convention", "layer", "component"),
            "slope of log gradient norm against log plasticity along the factors",
            "the rescaling does not move it",
            low=None,
        ),
        "spearman": _number(
            (*_ORBIT, "measure", "convention"),
            "Spearman correlation of plasticity and gradients over the components",
            "all values are equal",
            low=None,
        ),
    },
    attrs={
        "design": "how pairs are formed",
        "loss": "what is differentiated",
        "pairs": "pairs measured",
        "dropped_pairs": "pairs left out",
        "images": "images whose gradients were taken",
    },
)
