"""Image sets by name: `open_images("mnist5k", size=56)`. Listing and checking names loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitplast.errors import InputError
from vitplast.images.image_folder import listing_hash
from vitplast.images.loading import divided, load_records
from vitplast.images.marker import key_suffix
from vitplast.images.names import parse
from vitplast.images.registry import REGISTRY
from vitplast.images.sets import Corruption, ImageSet, ImageSplit

__all__ = [
    "ImageSet",
    "ImageSplit",
    "check_name",
    "check_splits",
    "describe",
    "key_name",
    "names",
    "open_images",
    "sizes",
]


def names() -> tuple[str, ...]:
    """Names of all sets; `folder:PATH` and corrupted versions (`NAME:CORRUPTION:SEVERITY`) come on top."""
    return tuple(REGISTRY)


def check_name(text: str) -> str:
    """The full name of an image set (with its severity); refuses unknown ones. Opens nothing.

    Raises
    ------
    UnknownNameError, InputError
        See `names.parse`.
    """
    return parse(text).canonical


def check_splits(text: str, *needed: str) -> str:
    """The full name of an image set, as `check_name`, that has images in the splits `needed`.

    Raises
    ------
    InputError
        If it lacks one; names the sets that have them.
    """
    name = parse(text)
    have = {split: n for split, n in describe(text)["splits"].items() if n}
    lacking = [split for split in needed if split not in have]
    if lacking:
        others = [e.name for e in REGISTRY.values() if set(needed) <= set(e.sizes)]
        raise InputError(
            f"image set {name.public!r} has no {' and no '.join(lacking)} images; it has: {', '.join(have)}. "
            f"Sets that have {', '.join(needed)}: {', '.join(others)}"
        )
    return name.canonical


def sizes(text: str) -> dict[str, int]:
    """Images of those splits where that is certain before the set is opened (not of system packages, for one)."""
    name = parse(text)
    if key_suffix(name.entry.name):  # a made-up set has other sizes than the published one
        return {}
    return describe(text)["splits"] if name.path else dict(name.entry.certain)


def key_name(text: str) -> str:
    """What stands for a set in the key of a result: its full name; of a folder its name and a hash of its listing.

    While made-up sets are allowed (`marker`), sets of the data folder have another key than the real ones.
    """
    name = parse(text)
    if not name.path:
        return name.canonical + key_suffix(name.entry.name)
    return f"folder:{Path(name.path).resolve().name}#{listing_hash(Path(name.path))}{name.suffix}"


def open_images(
    text: str, *, size: int, seed: int = 0, download: bool = False, root: str | Path | None = None
) -> ImageSet:
    """The image set `text` at `size` x `size` pixels; pictures are decoded when asked for.

    `seed` decides which images of the pool are for validation and which for training, nothing else. `download` allows
    a download. `root` is the folder of the set's files, in place of the usual one.

    Raises
    ------
    UnknownNameError, InputError
        If name, size or seed is not allowed.
    MissingDependencyError
        If the files are not on this machine; says how to get them.
    IntegrityError, LayoutError
        If the files are not what they should be.
    """
    name = parse(text)
    if type(size) is not int or not 8 <= size <= 1024:
        raise InputError(f"size must be a whole number of pixels 8..1024, got {size!r}")
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed must be a whole number from 0, got {seed!r}")
    entry = name.entry
    folder = Path(name.path or root) if name.path or root is not None else None
    records = load_records(entry, folder, download, **name.given)
    rows = divided(records, entry.name, seed)
    return ImageSet(
        name.public,
        entry.name,
        records,
        rows,
        size=size,
        corruption=Corruption(name.corruption, name.severity, bool(entry.corruptions)) if name.corruption else None,
        title=entry.title,
        licence=entry.licence,
        origin=entry.origin,
        unit=entry.unit,
    )


def describe(text: str) -> dict[str, Any]:
    """What a set is, as plain values for a table; for `folder:PATH` its file names are listed, else nothing is opened.

    `images` is `splits` in words, some of them rough (`registry.Entry`); `unit` is what is independent in the set;
    `corruptions` are those that the set has in files of its own.
    """
    name = parse(text, whole=True)
    entry = name.entry
    classes, sizes = entry.classes, dict(entry.sizes)
    if name.path:
        found = open_images(text, size=32)
        classes, sizes = len(found.classes), {split: len(part) for split, part in found.splits.items()}
    return {
        "name": name.public,
        "title": entry.title + (f"; {name.corruption}, severity {name.severity}" if name.corruption else ""),
        "images": ", ".join(f"{split} {n}" for split, n in sizes.items()),
        "splits": sizes,
        "classes": classes,
        "licence": entry.licence,
        "origin": entry.origin,
        "needs": entry.needs,
        "unit": entry.unit,
        "corruptions": entry.corruptions,
    }
