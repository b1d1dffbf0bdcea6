"""The six domains of DomainNet: `domainnet_clipart` and so on, with the authors' division or the official lists.

Below the data folder: domainnet/DOMAIN/CLASS/picture, domainnet/DOMAIN_train.txt, domainnet/DOMAIN_test.txt.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy as np

from vitplast.errors import IntegrityError
from vitplast.images.image_folder import class_pictures
from vitplast.images.marker import facts_of
from vitplast.images.presence import require
from vitplast.images.problems import raise_all
from vitplast.images.sets import Records
from vitplast.images.splits import authors_split
from vitplast.images.torchvision_sets import from_files

#: Bad lines of a list that are named; the rest are counted.
MOST_LINES = 20


def load_domain(domain: str, *, root: Path | None = None, download: bool = False) -> Records:
    """All pictures of a domain; 80 % pool, 20 % test by the authors' rule over the files in alphabetical order.

    Raises
    ------
    LayoutError, IntegrityError
        If the folders are laid out wrongly, or there are more or fewer than the 345 classes.
    """
    data, base = require(f"domainnet_{domain}", root, download)
    facts = facts_of(f"domainnet_{domain}", data)
    paths = class_pictures(base)
    classes = tuple(dict.fromkeys(path.parent.name for path in paths))
    if len(classes) != facts.classes:
        raise IntegrityError(f"{base} has {len(classes)} class folders, expected {facts.classes}")
    number = {name: k for k, name in enumerate(classes)}
    labels = np.array([number[path.parent.name] for path in paths], dtype=np.int64)
    sources = (base, *(base / name for name in classes))
    return from_files(paths, base, classes, labels, authors_split(len(paths)), sources, facts.made_up)


def load_official(domain: str, *, root: Path | None = None, download: bool = False) -> Records:
    """The pictures that the official lists of a domain name: training list as pool, test list as test.

    The lists say `DOMAIN/CLASS/picture number`, one picture a line. A class may be in one of the lists only (in
    painting there are such). Pictures that are listed and missing are named by the data check, or when they are read.

    Raises
    ------
    LayoutError, IntegrityError
        If a list is damaged, or a number and a class do not belong together; names the lines.
    """
    name = f"domainnet_{domain}_official"
    data, base = require(name, root, download)
    facts = facts_of(name, data)
    lists = {part: data / "domainnet" / f"{domain}_{file}.txt" for part, file in (("pool", "train"), ("test", "test"))}
    paths, numbers, given, bad = [], [], {}, []
    for part, file in lists.items():
        found, wrong = read_list(file, domain)
        bad += wrong
        given[part] = np.arange(len(paths), len(paths) + len(found))
        paths += [data / "domainnet" / path for path, _ in found]
        numbers += [number for _, number in found]
    raise_all(bad)
    classes: dict[int, str] = {}
    for path, number in zip(paths, numbers, strict=True):
        if classes.setdefault(number, path.parent.name) != path.parent.name:
            bad.append(f"{path}: class {number} is {classes[number]!r} elsewhere")
    raise_all(bad[:MOST_LINES])
    if sorted(classes) != list(range(facts.classes)) or len(set(classes.values())) != facts.classes:
        raise IntegrityError(
            f"{' and '.join(map(str, lists.values()))} name {len(set(classes.values()))} classes under "
            f"{len(classes)} numbers, expected {facts.classes}"
        )
    names = tuple(classes[k] for k in range(facts.classes))
    labels = np.array(numbers, dtype=np.int64)
    return from_files(paths, base, names, labels, given, (base, *lists.values()), facts.made_up)


def read_list(file: Path, domain: str) -> tuple[list[tuple[str, int]], list[str]]:
    """(path, number) of each line of a list, and what is wrong with the lines that are not of that form."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [], [f"{file} cannot be read as a list of pictures: {error}"]
    found, bad = [], []
    for k, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"(\S.*?)\s+(\d+)\s*", line)
        parts = PurePosixPath(match[1]).parts if match else ()
        if len(parts) != 3 or parts[0] != domain or ".." in parts:
            bad.append(f"{file}, line {k}: {line[:80]!r} is not {domain}/CLASS/picture number")
        else:
            found.append((match[1], int(match[2])))
    if not found and not bad:
        bad.append(f"{file} is empty")
    if len(bad) > MOST_LINES:
        bad = [*bad[:MOST_LINES], f"{file}: {len(bad) - MOST_LINES} more lines like these"]
    return found, bad
