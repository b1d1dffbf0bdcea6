"""Tables for pages of the book."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd


def rows(table: pd.DataFrame, columns: Iterable[str] | None = None) -> str:
    """A table in Markdown: numbers to the right, thousands marked, missing values as a dash.

    Examples
    --------
    >>> print(rows(pd.DataFrame({"set": ["a"], "images": [1200]})))
    | set | images |
    | --- | ---: |
    | a | 1,200 |
    """
    names = list(table.columns if columns is None else columns)
    numeric = [pd.api.types.is_numeric_dtype(table[name]) for name in names]
    lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---:" if n else "---" for n in numeric) + " |"]
    lines += ["| " + " | ".join(cell(row[name]) for name in names) + " |" for row in table.to_dict("records")]
    return "\n".join(lines)


def cell(value: object) -> str:
    """One cell: `1,200`, `0.25`, text as it is, a dash for nothing."""
    if value is None or value == "" or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool | str):
        return str(value).replace("|", "/")
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
