"""Which text sets there are: names, files, origin, and what is independent in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitplast.errors import UnknownNameError
from vitplast.images.marker import allowed
from vitplast.texts.files import Texts, ag_news, wikitext


@dataclass(frozen=True)
class Entry:
    """A text set: `file` below the data folder, `holds` what the published file has, `unit` what is independent."""

    name: str
    title: str
    file: str
    read: Callable[[Path], Texts]
    holds: str
    unit: str
    origin: str
    licence: str


REGISTRY = {
    entry.name: entry
    for entry in (
        Entry(
            "wikitext103",
            "lines of Wikipedia articles, test part of WikiText-103 (raw)",
            "wikitext-103-raw/wiki.test.raw",
            wikitext,
            "4,358 lines, empty ones among them",
            "article",
            "Merity et al. 2016, archive wikitext-103-raw-v1.zip",
            "CC BY-SA 3.0 and GFDL",
        ),
        Entry(
            "ag_news",
            "titles and descriptions of news, test part of AG's News",
            "ag_news/test.csv",
            ag_news,
            "7,600 rows",
            "text",
            "Zhang et al. 2015, archive ag_news_csv",
            "for research, not commercial",
        ),
    )
}


def names() -> tuple[str, ...]:
    """Names of all text sets."""
    return tuple(REGISTRY)


def is_text(name: str) -> bool:
    """Whether it is the name of a text set.

    Examples
    --------
    >>> is_text("ag_news"), is_text("mnist5k")
    (True, False)
    """
    return name in REGISTRY


def check_name(name: str) -> str:
    """The name; UnknownNameError with the nearest ones if there is no such set."""
    if name not in REGISTRY:
        raise UnknownNameError("text set", name, REGISTRY)
    return name


def key_name(name: str) -> str:
    """What stands for a set in the key of a result: its name, marked while made-up sets are allowed."""
    return check_name(name) + ("#made-up" if allowed() else "")


def describe(name: str) -> dict[str, Any]:
    """What a set is, as plain values for a table; nothing is opened."""
    entry = REGISTRY[check_name(name)]
    return {
        "name": entry.name,
        "title": entry.title,
        "holds": entry.holds,
        "file": entry.file,
        "unit": entry.unit,
        "origin": entry.origin,
        "licence": entry.licence,
    }
