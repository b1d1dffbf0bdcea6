"""The two published files of texts, read strictly: a byte or a row that is not what it should be is named."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from vitplast.errors import IntegrityError

#: A title of the first level alone on its line, as ` = Robert Boulter = `; deeper ones have more signs.
_TITLE = re.compile(r" = (?!= )(.+?)(?<! =) = ?\n?")


@dataclass(frozen=True)
class Texts:
    """Texts in the order of the file, the name of each, and the unit (article) that each belongs to."""

    texts: list[str]
    ids: list[str]
    units: list[str]


def wikitext(path: Path) -> Texts:
    """One text a line, as it is in the file with its end of line; lines without a visible character are left out.

    A title of the first level begins an article, and the lines of an article are one unit.

    Raises
    ------
    IntegrityError
        If the file is not UTF-8 or has no text.
    """
    texts, ids, units, article = [], [], [], "before the first title"
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        title = _TITLE.fullmatch(line)
        article = f"{number}: {title[1]}" if title else article
        texts.append(f"{line}\n")
        ids.append(f"line {number}")
        units.append(article)
    return _some(path, Texts(texts, ids, units))


def ag_news(path: Path) -> Texts:
    """One text a row of class, title and description: `title description`; each is a unit.

    A first row that has no number as its class is a heading.

    Raises
    ------
    IntegrityError
        If the file is not UTF-8, a row has not three columns or no class 1 to 4, or there is no text.
    """
    texts, ids = [], []
    rows = csv.reader(io.StringIO(_decoded(path), newline=""), skipinitialspace=True, strict=True)
    try:
        for number, row in enumerate(rows, start=1):
            if number == 1 and row and not row[0].strip().isdigit():
                continue
            if len(row) != 3 or row[0].strip() not in ("1", "2", "3", "4"):
                raise IntegrityError(
                    f"{path.name}, row {number}: expected a class 1 to 4, a title and a description, got {len(row)} "
                    f"columns that begin with {row[0][:20] if row else ''!r}"
                )
            if text := f"{row[1]} {row[2]}".strip():
                texts.append(text)
                ids.append(f"row {number}")
    except csv.Error as error:
        raise IntegrityError(f"{path.name}, line {rows.line_num}: {error}") from error
    return _some(path, Texts(texts, ids, list(ids)))


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path.name} is not UTF-8 text: byte {error.start} can't be read") from error


def _some(path: Path, texts: Texts) -> Texts:
    if not texts.texts:
        raise IntegrityError(f"{path.name} holds no text")
    return texts
