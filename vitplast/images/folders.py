"""Where files of image sets are: installed packages, system folders, the user's data folder; what to say if not."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from vitplast.errors import MissingDependencyError

#: Distribution on the package index of an import name, and how this project's extras install it.
DISTRIBUTIONS = {"skimage": "scikit-image", "mlxtend": "mlxtend", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def package_folder(package: str, image_set: str) -> Path:
    """Folder of an installed Python package, found without importing it.

    Raises
    ------
    MissingDependencyError
        If it is not installed; names the distribution.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"image set {image_set!r} needs the Python package {DISTRIBUTIONS[package]}, which is not installed: "
            "pip install 'vitplast[images]'"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def share_folders() -> list[Path]:
    """Folders of system-wide data: those of XDG_DATA_DIRS."""
    listed = os.environ.get("XDG_DATA_DIRS") or os.pathsep.join(("/usr/local/share", "/usr/share"))
    return [Path(folder) for folder in listed.split(os.pathsep) if folder]


def system_files(image_set: str, packages: tuple[str, ...], relative: tuple[str, ...], root: Path | None) -> list[Path]:
    """Each of the files or folders of Debian `packages`, below `root` or below one of `share_folders()`.

    Raises
    ------
    MissingDependencyError
        If one is absent; names the packages and the command that installs them.
    """
    roots = [Path(root)] if root is not None else share_folders()
    found = [next((r / name for r in roots if (r / name).exists()), None) for name in relative]
    lacking = [name for name, path in zip(relative, found, strict=True) if path is None]
    if lacking:
        raise MissingDependencyError(
            f"image set {image_set!r} needs {', '.join(lacking)} below {' or '.join(map(str, roots))}. On Debian and "
            f"Ubuntu: apt-get install {' '.join(packages)}"
        )
    return [path for path in found if path is not None]


def data_folder() -> Path:
    """Where sets that are downloaded are kept: the environment variable VITPLAST_DATA, else the user's data folder."""
    import platformdirs

    return Path(os.environ.get("VITPLAST_DATA") or platformdirs.user_data_dir("vitplast")).expanduser()


def not_found(
    image_set: str, expected: list[Path], what: str, variable: str = "VITPLAST_DATA"
) -> MissingDependencyError:
    """The error for a set that is not on the disk and may not be downloaded unasked."""
    return MissingDependencyError(
        f"image set {image_set!r} is not on this machine: expected {', '.join(map(str, expected))}. {what} "
        "Allow it with download=True (on the command line --download), or put the files there; the environment "
        f"variable {variable} names another folder."
    )
