"""How each image and text set of a profile lies on the disk: folder, contents, counts, source, check."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from vitplast import images, texts
from vitplast.images.presence import LAYOUTS
from vitplast.images.published import FACTS
from vitplast.images.sources import PIECES
from vitplast.runs import Profile
from vitplast.runs.sets import ROLES


def sets_of(profile: Profile) -> list[str]:
    """Names of the image and text sets of a profile, in the order of its units."""
    runs = (run for unit in profile.units for run in unit.runs.values())
    return list(dict.fromkeys(run[role] for run in runs for role in ROLES if role in run))


def bases(names: Iterable[str]) -> list[str]:
    """Names without corruption and severity, each once.

    Examples
    --------
    >>> bases(["cifar10_c:snow:5", "cifar10_c:contrast:5", "pets"])
    ['cifar10_c', 'pets']
    """
    return list(dict.fromkeys(name.partition(":")[0] for name in names))


def counts(names: Iterable[str]) -> pd.DataFrame:
    """Classes and images of each split of these image sets, their licence and what must be known about the numbers.

    Columns: set, classes, train, validation, test, source (images; missing where there is no such split), certain (no
    where they are those of one copy and others exist), licence. A text set has no row.
    """
    rows = []
    for name in (n for n in bases(names) if not texts.is_text(n)):
        told = images.describe(name if name not in ("cifar10_c", "cifar100_c") else f"{name}:snow:5")
        splits = told["splits"]
        rows.append({
            "set": f"`{name}`",
            "classes": told["classes"],
            **{split: splits.get(split) for split in ("train", "validation", "test", "source")},
            "certain": "no" if name in FACTS and not FACTS[name].exact else "yes",
            "licence": told["licence"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def checks(names: Iterable[str]) -> pd.DataFrame:
    """What is fetched for each image set, how large it is, and how files and archives are verified.

    Columns: set, source (address, or that it is never fetched), MB, archive (hash), files (hash).
    """
    rows = []
    for name in (n for n in bases(names) if n in LAYOUTS):
        pieces = PIECES.get(name, ())
        known = sum(bool(piece.md5) for piece in pieces)
        files = len(FACTS[name].md5)
        rows.append({
            "set": f"`{name}`",
            "fetched": "; ".join(f"`{piece.file}`" for piece in pieces) or "never: your own copy",
            "from": ", ".join(dict.fromkeys(piece.url.split("/")[2] for piece in pieces)) or "image-net.org",
            "MB": sum(piece.megabytes for piece in pieces) or None,
            "archives": "not fetched" if not pieces else "MD5, published" if known == len(pieces) else
            "SHA-256, recorded at the first download",
            "files": f"MD5 of {files}" if files else "every picture is decoded",
        })  # fmt: skip
    return pd.DataFrame(rows)


def tree(names: Iterable[str], root: str = "$VITPLAST_DATA") -> str:
    """The folders in which these image and text sets are looked for, as a tree in text."""
    lines = []
    for name in names:
        if texts.is_text(name):
            lines.append((texts.describe(name)["file"], texts.describe(name)["holds"]))
        elif name in LAYOUTS:
            layout = LAYOUTS[name]
            lines.append((f"{layout.path}/", layout.contents))
            lines += [(file, "one picture and its number a line") for file in layout.files]
    width = max((len(path) for path, _ in lines), default=0)
    return "\n".join([f"{root}/", *(f"  {path:<{width}}  {contents}" for path, contents in sorted(set(lines)))])
