"""Loss surface and rate-of-change surface of each component, done right, and as the authors' figure was made.

The loss surface moves one component in all blocks, in the plane of its own descent; the rate surface moves the input of
that component in one block, along the direction that its Jacobian stretches most and one orthogonal to it. `survey`
puts the two together, `trajectory` and `surfaces` make them, `head` fits the classifier for the task.
"""

from vitplast.landscape.head import fitted_head
from vitplast.landscape.surfaces import loss_surface, orthogonal_to, rate_surface
from vitplast.landscape.survey import PUBLISHED_IMAGES, landscape
from vitplast.landscape.trajectory import Descent, Plane, descend, longest_descent, plane_of, project

__all__ = [
    "PUBLISHED_IMAGES",
    "Descent",
    "Plane",
    "descend",
    "fitted_head",
    "landscape",
    "longest_descent",
    "loss_surface",
    "orthogonal_to",
    "plane_of",
    "project",
    "rate_surface",
]
