"""The validation pictures of ImageNet-1k: `imagenet_val`, a source of pretraining images; imagenet/val/WORDNET-ID/*."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vitplast.errors import LayoutError
from vitplast.images.image_folder import class_pictures
from vitplast.images.marker import facts_of
from vitplast.images.presence import require
from vitplast.images.problems import raise_all
from vitplast.images.sets import Records
from vitplast.images.torchvision_sets import from_files


def load_imagenet_val(*, root: Path | None = None, download: bool = False) -> Records:
    """50,000 photos in 1,000 folders of 50, classes in the order of the WordNet ids; all are source.

    Raises
    ------
    MissingDependencyError
        If it is not there; it is never downloaded.
    LayoutError
        If the pictures are not in folders named by WordNet ids.
    BadFilesError
        If a class has another number of pictures than 50, or there are not 1,000; names them all.
    """
    data, base = require("imagenet_val", root, download)
    facts = facts_of("imagenet_val", data)
    flat = sum(1 for path in base.iterdir() if path.suffix.lower() in (".jpeg", ".jpg"))
    if flat:
        raise LayoutError(
            f"{base} has {flat} pictures in it: expected {base / 'WORDNET-ID' / 'picture.JPEG'}. Sort them into "
            "folders by class first"
        )
    paths = class_pictures(base)
    names, counts = np.unique([path.parent.name for path in paths], return_counts=True)
    odd = [name for name in names if not re.fullmatch(r"n\d{8}", name)]
    if odd:
        raise LayoutError(
            f"{base} has folders that are no WordNet ids: {', '.join(odd[:5])}; expected such as n01440764"
        )
    each = facts.images["source"] // facts.classes
    bad = [f"{base} has {len(names)} class folders, expected {facts.classes}"] if len(names) != facts.classes else []
    bad += [f"{base / c} has {n} pictures, expected {each}" for c, n in zip(names, counts, strict=True) if n != each]
    raise_all(bad)
    number = {name: k for k, name in enumerate(names.tolist())}
    labels = np.array([number[path.parent.name] for path in paths], dtype=np.int64)
    given = {"source": np.arange(len(paths))}
    sources = (base, *(base / name for name in names))
    return from_files(paths, base, tuple(names.tolist()), labels, given, sources, facts.made_up)
