"""Gradients of the components, one image at a time, and the inequalities that hold for them (Prop. 17).

`inequalities` are the bounds as functions of tensors, `passes` makes one backward pass and keeps what they need,
`norms` collects everything as labelled arrays, `association` compares with plasticity and decides rule C9.
"""

from vitplast.gradients.association import (
    MEASURES,
    component_totals,
    gradient_rule,
    largest_ratio,
    spearman,
    spearman_table,
)
from vitplast.gradients.norms import gradient_inequalities, gradient_norms
from vitplast.gradients.passes import PARTS

__all__ = [
    "MEASURES",
    "PARTS",
    "component_totals",
    "gradient_inequalities",
    "gradient_norms",
    "gradient_rule",
    "largest_ratio",
    "spearman",
    "spearman_table",
]
