"""Table of kind "criteria": which component to finetune first, by every criterion."""

from __future__ import annotations

from vitplast.criteria.catalogue import CRITERIA as NAMES
from vitplast.results.tables.variable import COMPONENT, LAYER, Schema, Variable

_BY_CRITERION = ("criterion",)
_NONE = "the criterion says nothing of this component (attribute no_score)"

CRITERIA = Schema(
    "Criteria for the choice of a component, from a sample of labelled target images; larger = finetune first",
    coords={
        "criterion": Variable(_BY_CRITERION, "str", "1", "name of the criterion", choices=tuple(NAMES)),
        "words": Variable(_BY_CRITERION, "str", "1", "what the criterion measures"),
        "reference": Variable(_BY_CRITERION, "str", "1", "where the criterion is from"),
        "data": Variable(_BY_CRITERION, "str", "1", "what the criterion looks at"),
        "layer": LAYER,
        "component": COMPONENT,
    },
    variables={
        "score": Variable(
            (*_BY_CRITERION, "layer", "component"), "float64", "1", "score of the component of one block", _NONE
        ),
        "total": Variable(
            (*_BY_CRITERION, "component"), "float64", "1", "score of the component, all blocks at once", _NONE
        ),
        "forward_passes": Variable(
            _BY_CRITERION, "float64", "1", "forward passes of one image that the criterion needs on its own", low=0.0
        ),
        "backward_passes": Variable(
            _BY_CRITERION, "float64", "1", "backward passes of one image that the criterion needs on its own", low=0.0
        ),
    },
    attrs={
        "pairs": "pairs of a source and a target image",
        "images": "target images whose gradients were taken, of the training images",
        "head_images": "other training images on which the head was fitted",
        "head": "how the head was made: probe, steps or random",
        "head_accuracy": "fraction of the images that the head classifies right",
        "no_score": "why a score is missing: JSON, criterion to component to reason",
    },
)
