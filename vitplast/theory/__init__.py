"""Every statement at once: for a model and two image sets, all bounds, predictions and measured values in one table."""

from vitplast.statements import BOUNDS, LAWS, MAPS
from vitplast.theory.survey import survey

__all__ = ["BOUNDS", "LAWS", "MAPS", "survey"]
