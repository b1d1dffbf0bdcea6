"""Records of a set and the rows of its splits, kept in this process as long as the files do not change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vitplast.cache import cache_folder
from vitplast.images.folders import data_folder, share_folders
from vitplast.images.marker import allowed
from vitplast.images.pixel_cache import file_stamp
from vitplast.images.registry import FOLDER, Entry
from vitplast.images.sets import Records
from vitplast.images.splits import divide


def load_records(entry: Entry, root: Path | None, download: bool, **published: Any) -> Records:
    """What the loader of a set returns; not loaded again while `Records.sources` have the size and time they had.

    `published`: corruption and severity of a set that has them in files of its own.

    Raises
    ------
    VitplastError
        What the loader raises.
    """
    load = entry.load_function()
    if entry is FOLDER:
        return load(root=root, download=download)
    places = (cache_folder(), data_folder(), *share_folders())
    extra = (*published.items(), ("made up", allowed()))
    records, stamps = _loaded(load, root, download, places, extra)
    if not stamps or stamps != _stamps(records):
        _loaded.cache_clear()
        records, _ = _loaded(load, root, download, places, extra)
    return records


@lru_cache(maxsize=8)
def _loaded(
    load: Callable, root: Path | None, download: bool, places: tuple, extra: tuple
) -> tuple[Records, tuple[str, ...]]:
    published = {name: value for name, value in extra if name != "made up"}
    records = load(root=root, download=download, **published)
    return records, _stamps(records)


def _stamps(records: Records) -> tuple[str, ...]:
    try:
        return tuple(file_stamp(path) for path in records.sources)
    except OSError:
        return ()


@lru_cache(maxsize=8)
def divided(records: Records, base: str, seed: int) -> dict[str, np.ndarray]:
    """Rows of each split, as `splits.divide`; not to be changed."""
    units = records.units if records.together and records.units is not None else records.ids
    return divide(records.ids, records.labels, units, records.given, base=base, seed=seed)
