"""Changes of the parameters that leave the network's function as it is, and what they do to plasticity and gradients.

`change` makes them (Prop. 18) and checks that the function stays; `orbit` follows plasticity and gradient norms along
them; `survey` does so for all kinds, as one dataset; `loaded` starts an experiment from a changed model.
"""

from vitplast.rescale.change import check_kind, moved_parts, rescale, verify_same_function
from vitplast.rescale.loaded import rescaled
from vitplast.rescale.orbit import BRANCHES, orbit
from vitplast.rescale.survey import gradients_survey
from vitplast.rescalings import KINDS

__all__ = [
    "BRANCHES",
    "KINDS",
    "check_kind",
    "gradients_survey",
    "moved_parts",
    "orbit",
    "rescale",
    "rescaled",
    "verify_same_function",
]
