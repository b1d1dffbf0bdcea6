"""Parameters of the notebook that searches for counterexamples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitplast.errors import UnknownNameError
from vitplast.parameters.base import PROFILE, STORE, Parameters, option


@dataclass(frozen=True)
class SearchParameters(Parameters):
    """Parameters of `notebooks/search.ipynb`."""

    kind: ClassVar[str] = "search"
    swept: ClassVar[dict[str, str]] = {"cases": "case"}

    cases: list = option(["all"], "statements attacked, one result each; all: every one")
    starts: int = option(16, "pairs from which the ascent starts", low=2)
    steps: int = option(200, "steps of the ascent", low=1)
    seed: int = option(0, "seed of the starts", low=0)
    table: str = option("", "file for all cases together, such as data/search/search.nc; empty: none", key=False)
    store: str = option("", STORE, key=False)
    profile: str = option("", PROFILE, key=False)

    def check(self) -> None:
        from vitplast.search import cases

        known = [case.name for case in cases()]
        if "all" in self.cases:
            self._set("cases", known)
        for name in self.cases:
            if name not in known:
                raise UnknownNameError("case", name, known)
        self._set("cases", [name for name in known if name in self.cases])
