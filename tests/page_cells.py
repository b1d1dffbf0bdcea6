"""Executes the code cells of a page of the book in this process, for tests that look at what a page says."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myst_nb.core.read import read_myst_markdown_notebook

from vitplast import book


@dataclass
class Page:
    """What a page made: `glued` by name, and `shown`, the Markdown of its outputs in order."""

    glued: dict[str, Any] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)

    def show(self, *values: Any) -> None:
        self.shown += [text for v in values if (text := getattr(v, "data", None)) and isinstance(text, str)]

    @property
    def text(self) -> str:
        """All that the outputs and the glued values say."""
        return "\n".join([*self.shown, *(f"{n} = {v}" for n, v in self.glued.items())])


def execute(path: Path) -> Page:
    """The code cells of a MyST page, one after the other; the error of a cell is raised as it is.

    Figures are drawn (backend agg) and closed; values given to the text are kept as Python values.
    """
    from matplotlib import pyplot as plt

    page = Page()
    names = {"__name__": "__page__", "display": page.show}
    cells = read_myst_markdown_notebook(path.read_text(encoding="utf-8")).cells
    kept, book.glue = (
        book.glue,
        lambda **values: page.glued.update({n: v.item() if hasattr(v, "item") else v for n, v in values.items()}),
    )
    try:
        for number, cell in enumerate(c for c in cells if c.cell_type == "code"):
            tree = ast.parse(cell.source, f"{path.name}, code cell {number}")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{path.name}, code cell {number}", "exec"), names)
            if last is not None:
                page.show(eval(compile(ast.Expression(last.value), f"{path.name}, code cell {number}", "eval"), names))
            plt.close("all")
    finally:
        book.glue = kept
    return page
