"""Whether a set lies below the data folder, one level too high or too low, as an archive, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vitplast.errors import IntegrityError, LayoutError, MissingDependencyError
from vitplast.images.download import check_archive, fetch, lying
from vitplast.images.folders import data_folder, not_found
from vitplast.images.problems import BadFilesError
from vitplast.images.published import DOMAINNET
from vitplast.images.sources import PIECES


@dataclass(frozen=True)
class Layout:
    """Where a set lies: `path` below the data folder; `signs`: what is in that folder, by which it is known."""

    path: str
    signs: tuple[str, ...]
    files: tuple[str, ...] = ()
    contents: str = ""


def _domain(domain: str, *files: str) -> Layout:
    return Layout(f"domainnet/{domain}", ("aircraft_carrier", "airplane", "zigzag"), files, "CLASS/*.jpg")


LAYOUTS = MappingProxyType({
    "cifar10": Layout("cifar10/cifar-10-batches-py", ("batches.meta", "data_batch_1"),
                      contents="data_batch_1 to data_batch_5, test_batch, batches.meta"),
    "cifar100": Layout("cifar100/cifar-100-python", ("meta",), contents="train, test, meta"),
    "cifar10_c": Layout("cifar10_c", ("labels.npy",), contents="labels.npy, CORRUPTION.npy"),
    "cifar100_c": Layout("cifar100_c", ("labels.npy",), contents="labels.npy, CORRUPTION.npy"),
    "flowers102": Layout("flowers102/flowers-102", ("imagelabels.mat", "setid.mat"),
                         contents="jpg/image_00001.jpg, imagelabels.mat, setid.mat"),
    "pets": Layout("pet/oxford-iiit-pet", ("annotations",), contents="images/*.jpg, annotations/trainval.txt"),
    "imagenet_val": Layout("imagenet/val", ("n01440764", "n01443537"), contents="WORDNET-ID/*.JPEG"),
    **{f"domainnet_{d}": _domain(d) for d in DOMAINNET},
    **{f"domainnet_{d}_official": _domain(d, f"domainnet/{d}_train.txt", f"domainnet/{d}_test.txt")
       for d in DOMAINNET},
})  # fmt: skip

#: Folder names under which a set is often kept.
ALIASES = {"cifar10_c": ("CIFAR-10-C", "cifar-10-c"), "cifar100_c": ("CIFAR-100-C", "cifar-100-c")}


def require(name: str, root: Path | None, download: bool) -> tuple[Path, Path]:
    """The data folder and the set's folder in it, after a download if it is not there and that is allowed.

    Raises
    ------
    LayoutError
        If the set lies a level too high or too low; says where, and where it should be. It is not fetched then.
    MissingDependencyError
        If it is not there and may not be fetched; says how it must lie.
    BadFilesError
        If its archive lies there and is cut off or another file.
    VitplastError
        If it can't be downloaded.
    """
    data = Path(root) if root is not None else data_folder()
    layout = LAYOUTS[name]
    base = data / layout.path
    if not has_signs(base, layout.signs):
        for found in around(name, data):
            raise LayoutError(
                f"image set {name!r} is laid out wrongly: found {found} (with {_sign(found, layout)}), expected "
                f"{base} (with {layout.contents}). Move it there, or name the right folder in VITPLAST_DATA, now {data}"
            )
    needed = [layout.path, *layout.files]
    absent = [data / path for path in needed if not (data / path).exists()]
    archives = [(piece, path) for piece in PIECES.get(name, ()) if (path := lying(piece, data)) is not None]
    absent += [data / piece.target for piece in PIECES.get(name, ()) if download and not piece.there(data)]
    absent += [data / piece.target for piece, _ in archives if not piece.there(data)]
    if not absent:
        return data, base
    if name not in PIECES:
        raise MissingDependencyError(
            f"image set {name!r} is not on this machine: expected {base / layout.contents}. It is never downloaded "
            "here: get it from its publisher, sort its pictures into class folders, and put or link them there; the "
            "environment variable VITPLAST_DATA names another data folder"
        )
    bad = []
    for piece, path in archives:
        try:
            check_archive(piece, path, data)
        except IntegrityError as error:
            bad.append(str(error))
    if bad:
        raise BadFilesError(bad)
    if not download:
        size = sum(piece.megabytes for piece in PIECES[name] if data / piece.target in absent)
        there = f"{', '.join(str(path) for _, path in archives)} would be unpacked." if archives else ""
        raise not_found(name, list(dict.fromkeys(absent)), there or f"It would be downloaded (about {size or 1} MB).")
    fetch(name, data)
    return data, base


def has_signs(folder: Path, signs: tuple[str, ...]) -> bool:
    """Whether one of the names by which a set is known is in the folder."""
    return any((folder / sign).exists() for sign in signs)


def around(name: str, data: Path) -> Iterator[Path]:
    """Folders with the set's signs that are one level off its place: a level left out, one too many, another name."""
    layout = LAYOUTS[name]
    parts = layout.path.split("/")
    places = [data.joinpath(*parts[:k], *parts[k + 1 :]) for k in range(len(parts))] if len(parts) > 1 else []
    places += [data / alias for alias in ALIASES.get(name, ())]
    for k in range(len(parts) + 1):
        above = data.joinpath(*parts[:k])
        deeper = _folders(above)
        places += [path.joinpath(*parts[k:]) for path in deeper]
    places.append(data.parent.joinpath(*parts))
    base = data / layout.path
    yield from (path for path in dict.fromkeys(places) if path != base and has_signs(path, layout.signs))


def _sign(found: Path, layout: Layout) -> str:
    return next(sign for sign in layout.signs if (found / sign).exists())


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))[:2000]
    except OSError:
        return []
