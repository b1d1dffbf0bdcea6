"""Numbers that came from running the authors' code, read from `data/errata_reference.csv`; none is computed here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vitplast.errors import IntegrityError, UnknownNameError
from vitplast.runs import project_root

#: Column types of the table.
TYPES = {"entry": str, "quantity": str, "value": float, "setting": str}


def read_reference(path: Path | None = None) -> pd.DataFrame:
    """The table: entry, quantity, value (a number) and setting, one quantity a row.

    Raises
    ------
    IntegrityError
        If the columns are others, a value is no finite number, a setting is missing or a quantity comes twice.
    """
    path = project_root() / "data" / "errata_reference.csv" if path is None else path
    table = pd.read_csv(path, comment="#", dtype=TYPES)
    if list(table.columns) != list(TYPES):
        raise IntegrityError(f"{path.name} has the columns {', '.join(table.columns)}, expected {', '.join(TYPES)}")
    if not table.value.abs().lt(float("inf")).all() or table.isna().any(axis=None):
        raise IntegrityError(f"{path.name} has a row without a finite value, or without a setting")
    if table.duplicated(["entry", "quantity"]).any():
        raise IntegrityError(f"{path.name} has a quantity twice")
    return table


def quoted(entry: str, table: pd.DataFrame | None = None) -> dict[str, float]:
    """Quantity to value, for one entry.

    Raises
    ------
    UnknownNameError
        If the table has no such entry.
    """
    table = read_reference() if table is None else table
    rows = table[table.entry == entry]
    if rows.empty:
        raise UnknownNameError("entry of the errata", entry, table.entry.unique())
    return dict(zip(rows.quantity, rows.value.astype(float), strict=True))
