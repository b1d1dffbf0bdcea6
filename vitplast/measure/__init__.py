"""Rates of change of all components, in either input convention.

`rates` is the measurement itself; `common_input` and `in_situ` are its two conventions (Definition 2); `sides` checks
and feeds the images of a pair, `texts` the texts; `distances` are the norms between outputs, `rate_table` collects what
was measured.
"""

from vitplast.measure.common_input import CommonInput
from vitplast.measure.rates import CONVENTIONS, PRECISIONS, measure, rates_of_change

__all__ = ["CONVENTIONS", "PRECISIONS", "CommonInput", "measure", "rates_of_change"]
