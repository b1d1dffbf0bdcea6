"""What a notebook asks for each result: is it there already, and the result itself.

A result is in the store under its key, or among many in a gathered file below the folder that the environment
variable VITPLAST_GATHERED names (`run_unit` sets it for its kernel).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xarray as xr

from vitplast.errors import IntegrityError
from vitplast.results import netcdf, store
from vitplast.results.gathering import known_keys, singles

VARIABLE = "VITPLAST_GATHERED"


@contextmanager
def claim(path: str | Path, *, wait: float | None = None, force: bool | None = None) -> Iterator[bool]:
    """Holds the result `path` for this process: yields True if it must be computed, False if a valid one is known.

    A damaged file is set aside first (`quarantine`), and leftovers of killed writers are removed. `force`: compute
    even if a valid one is known (None: if the environment has VITPLAST_FORCE=yes). `wait` as in `lock`.

    Raises
    ------
    AlreadyRunningError
        If another process holds it for longer than `wait`.
    """
    path = Path(path)
    force = os.environ.get("VITPLAST_FORCE") == "yes" if force is None else force
    with store.lock(path.parent / "locks" / f"{path.name}.lock", str(path), wait):
        netcdf.remove_abandoned(path)
        there = False
        if path.exists():
            try:
                store.read(path)
                there = True
            except IntegrityError:
                store.quarantine(path)
        yield force or not (there or _is_gathered(path))


def read(path: str | Path) -> xr.Dataset:
    """The result in a file as `store.read`; if there is no such file, the one of its key in a gathered file.

    Raises
    ------
    IntegrityError
        If it is in neither, or damaged.
    InputError
        If it was written by a newer version.
    """
    path = Path(path)
    if not path.exists() and _is_gathered(path):
        for file in sorted(Path(os.environ[VARIABLE]).rglob("*.nc")):
            ds = store.read(file)
            if store.is_gathered(ds) and ds.attrs["kind"] == path.parent.name and path.stem in ds.run_key.values:
                return singles(ds.isel(run=ds.run_key.values == path.stem))[0]
    return store.read(path)


def _is_gathered(path: Path) -> bool:
    folder = os.environ.get(VARIABLE, "")
    is_result = re.fullmatch(r"[0-9a-f]{16}\.nc", path.name)
    return bool(folder and is_result) and path.stem in known_keys(folder).get(path.parent.name, ())
