"""The search as results of kind "search": one file a case; and back to one table of all cases."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from vitplast import results
from vitplast.search.cases import cases
from vitplast.search.problems import Case
from vitplast.search.table import table_of

_BY_FORMULA = ("bound", "claimed", "tight", "reference_tight")
_OF_CASE = ("random", "adversarial", "seconds")


def as_result(case: Case, found: dict[str, Any]) -> xr.Dataset:
    """What `search_case` found, as a dataset of kind "search" along `formula`."""
    table = table_of([case], [found])
    return xr.Dataset(
        {
            **{name: ("formula", table[name].values) for name in _BY_FORMULA},
            "exact": ("formula", table["exact"].values.astype(np.int64)),
            **{name: float(table[name][0]) for name in _OF_CASE},
        },
        coords={
            "formula": table["formula"].values,
            **{name: ("formula", table[name].values) for name in ("id", "expected")},
            **{name: str(table[name].values[0]) for name in ("statement", "setting")},
        },
        attrs={"weights_origin": "random", "weights_sha256": "drawn anew from the fixed seed of the case"},
    )


def as_table(gathered: xr.Dataset) -> xr.Dataset:
    """Results of many cases as the table that `table_of` makes: one row a formula, along `case`.

    Cases come in the order of `cases`, unknown ones at the end. The attributes starts, steps and seed are those of the
    first case.
    """
    known = {case.name: place for place, case in enumerate(cases())}
    singles = [(json.loads(one.attrs["params_json"]), one) for one in results.singles(gathered)]
    singles.sort(key=lambda single: known.get(single[0]["case"], len(known)))
    rows = []
    for given, one in singles:
        row = one.reset_coords().drop_vars("case").rename(formula="case")
        row["formula"] = ("case", row["case"].values)
        row["case"] = [f"{given['case']}: {formula}" for formula in row["formula"].values]
        scalars = [n for n in row.data_vars if not row[n].dims]
        rows.append(row.assign({n: ("case", [row[n].item()] * row.sizes["case"]) for n in scalars}))
    table = xr.concat(rows, "case", combine_attrs="drop_conflicts")
    table["exact"] = table["exact"].astype(bool)
    attrs = gathered.attrs | {name: singles[0][0][name] for name in ("starts", "steps", "seed")}
    return table.set_coords(["id", "statement", "setting", "formula"]).assign_attrs(attrs)
