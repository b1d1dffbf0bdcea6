"""Writes tiny invented sets in the true formats: same file names, types and layouts, few images. For tests, rehearsals.

`write(folder)` fills a data folder; VITPLAST_DATA names it and VITPLAST_MADE_UP=1 allows it. The marker file beside
the sets (`vitplast.images.marker`) holds the MD5 of every file whose real MD5 is known, and the numbers of images and
classes; the loaders compare with these as they compare with the published ones. A class is a colour pattern of its own
under noise, so that a model can learn it; nothing more can be learnt from numbers made with these sets.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from vitplast.errors import InputError, UnknownNameError
from vitplast.images import made_up_arrays, made_up_photos, marker
from vitplast.images.made_up_pictures import Amount
from vitplast.images.presence import LAYOUTS
from vitplast.images.published import CORRUPTIONS_C, FACTS, Facts

#: Names of what can be written; an official DomainNet set shares its pictures with the other of its domain.
SETS = tuple(FACTS)
#: The corruptions that the paper uses.
FIVE = ("contrast", "gaussian_noise", "motion_blur", "snow", "speckle_noise")


def write(
    folder: str | Path,
    sets: Iterable[str] = SETS,
    *,
    classes: int | None = None,
    pool: int = 8,
    test: int = 4,
    side: int = 48,
    corruptions: Iterable[str] = FIVE,
    seed: int = 0,
) -> dict[str, Facts]:
    """Writes the named sets into a data folder and its marker; returns the facts of each.

    Parameters
    ----------
    folder : path
        The data folder; made if it is not there.
    sets : names
        Of `SETS`. A corrupted set holds the test images of its clean one; a domain gets its two lists with it.
    classes : int or None
        Classes at most; None: as many as the real set has.
    pool, test : int
        Images of a class for training and for test. CIFAR-C and DomainNet are divided by the authors' rule, so these
        only fix their number.
    side : int
        About the side of photos, in pixels; they differ in size and shape. CIFAR has 32 x 32.
    corruptions : names
        Which corrupted files are written.

    Raises
    ------
    InputError
        If a name or number is not allowed, or a set lies there that is not made up; nothing is written then. A made-up
        set that lies there is replaced.
    """
    folder, sets, corruptions = Path(folder), tuple(sets), tuple(corruptions)
    _refuse(folder, sets, classes, pool, test, side, corruptions)
    amount = Amount(classes, pool, test, side, corruptions, seed)
    folder.mkdir(parents=True, exist_ok=True)
    made, there = {}, marker.read(folder)
    for name in sets:
        if name not in made:
            if name in there:  # nothing of an earlier, larger one stays
                shutil.rmtree(folder / LAYOUTS[name].path, ignore_errors=True)
            made |= _writer(name)(name, folder / LAYOUTS[name].path, amount)
            marker.write(folder, made)
    return made


def _refuse(
    folder: Path, sets: tuple, classes: int | None, pool: int, test: int, side: int, corruptions: tuple
) -> None:
    for name in sets:
        if name not in SETS:
            raise UnknownNameError("set that can be made up", name, SETS)
    for name in corruptions:
        if name not in CORRUPTIONS_C:
            raise UnknownNameError("corruption", name, CORRUPTIONS_C)
    most = 2 if classes is None else classes
    for what, value, least in (("classes", most, 2), ("pool", pool, 2), ("test", test, 2), ("side", side, 8)):
        if type(value) is not int or value < least:
            raise InputError(f"{what} must be a whole number from {least}, got {value!r}")
    there = marker.read(folder)
    places = dict.fromkeys(folder / LAYOUTS[name].path for name in sets if name not in there)
    real = [str(place) for place in places if place.exists()]
    if real:
        raise InputError(f"{', '.join(real)} holds a set that is not made up; name another folder")


def _writer(name: str) -> Callable[[str, Path, Amount], dict[str, Facts]]:
    if name.startswith("domainnet"):
        return made_up_photos.domainnet
    return {
        "cifar10": made_up_arrays.cifar,
        "cifar100": made_up_arrays.cifar,
        "cifar10_c": made_up_arrays.cifar_c,
        "cifar100_c": made_up_arrays.cifar_c,
        "flowers102": made_up_photos.flowers,
        "pets": made_up_photos.pets,
        "imagenet_val": made_up_photos.imagenet,
    }[name]
