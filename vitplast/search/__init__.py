"""Attacking the statements: pairs of large rate are searched for, by climbing, on the set of each statement.

`cases` lists what is attacked, `search_case` runs one case and `search_table` all of them; `ascend` is the climb, for
any map and set. A search can refute a bound or show that it is nearly reached. It proves nothing.
"""

from vitplast.search.ascent import Pairs, Points, ascend, climb, pairs_of
from vitplast.search.cases import CHEAP, cases, cases_named
from vitplast.search.problems import HOLDS, VIOLATED, Case, Problem, Version
from vitplast.search.table import search_case, search_table, table_of

__all__ = [
    "CHEAP",
    "HOLDS",
    "VIOLATED",
    "Case",
    "Pairs",
    "Points",
    "Problem",
    "Version",
    "ascend",
    "cases",
    "cases_named",
    "climb",
    "pairs_of",
    "search_case",
    "search_table",
    "table_of",
]
