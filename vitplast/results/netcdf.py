"""One netCDF file, written whole or not at all: temporary file, read back, flush, rename; and its checksums."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vitplast.errors import InputError, IntegrityError, VitplastError
from vitplast.results.seal import check_seal, seal
from vitplast.results.validation import dtype_name

CHECKSUMS = ("content_sha256", "attrs_sha256")
#: Age in seconds after which a temporary file of another machine counts as left behind.
ABANDONED = 24 * 3600
#: How arrays are stored: without loss, and with a checksum for each chunk.
COMPRESSED = {"zlib": True, "complevel": 4, "shuffle": True, "fletcher32": True}


def content_checksum(ds: xr.Dataset, skip: Iterable[str] = ()) -> str:
    """SHA-256 over role, name, dimensions, type and raw values of every variable, in alphabetical order.

    Text counts as its characters and every NaN as the same NaN, so the sum survives writing and reading.
    """
    skip = set(skip)
    digest = hashlib.sha256()
    coords = set(ds.coords)
    for name in sorted(set(map(str, ds.variables)) - skip):
        variable = ds.variables[name]
        values = np.asarray(variable.values)
        head = [name in coords, name, list(variable.dims), dtype_name(values), list(values.shape)]
        digest.update(json.dumps(head).encode())
        if head[3] == "str":
            digest.update(json.dumps([str(v) for v in values.ravel().tolist()]).encode())
            continue
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.nan, values)
        digest.update(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def attrs_checksum(ds: xr.Dataset) -> str:
    """SHA-256 over the attributes of the dataset (without the checksums) and of its variables."""
    own = {name: attribute(name, value) for name, value in ds.attrs.items() if name not in CHECKSUMS}
    variables = {str(n): {a: attribute(a, x) for a, x in v.attrs.items()} for n, v in ds.variables.items()}
    return hashlib.sha256(json.dumps([own, variables], sort_keys=True).encode()).hexdigest()


def attribute(name: str, value: Any) -> str | int | float:
    """`value` as an attribute that reads back the same: yes or no for a bool, JSON for a list or a mapping.

    Raises
    ------
    InputError
        If netCDF can't hold it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63) or isinstance(value, float):
        return value
    raise InputError(f"attribute {name}={value!r} of type {type(value).__name__} does not fit into a result file")


def load(path: Path, only: Iterable[str] | None = None) -> xr.Dataset:
    """A netCDF file in memory, or `only` those of the named variables that it has; IntegrityError if it can't be read.

    The attributes come along in both cases.
    """
    if not path.is_file():
        raise IntegrityError(f"{path} is not there or not a file")
    try:
        check_seal(path)
        with xr.open_dataset(path, engine="netcdf4", decode_times=False, decode_timedelta=False) as ds:
            left_out = set(ds.variables) - set(only) if only is not None else set()
            return ds.drop_vars(left_out).load()
    except IntegrityError:
        raise
    except Exception as error:
        raise IntegrityError(f"{path} can't be read as netCDF ({type(error).__name__}: {error})") from error


def save(ds: xr.Dataset, path: Path, check: Callable[[xr.Dataset], None]) -> Path:
    """Writes `ds` under `path`: complete and passing `check`, or not at all. Returns the path.

    Raises
    ------
    VitplastError
        If the disk is full, the folder can't be written to, or the file does not read back the same.
    """
    temporary = path.with_name(f".{path.name}.{_owner()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ds.drop_encoding().to_netcdf(temporary, engine="netcdf4", format="NETCDF4", encoding=_encoding(ds))
        seal(temporary)
        check(load(temporary))
        os.replace(temporary, path)
    except IntegrityError as error:
        raise VitplastError(
            f"{path} was not written: what was written does not read back the same (is the disk full?): {error}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise VitplastError(
            f"{path} was not written: {error}. Nothing was left under that name; "
            "make room or choose another store, then run the same command again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)
    return path


def sync_folder(folder: Path) -> None:
    """Flushes a rename to the disk, where the system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def remove_abandoned(path: Path) -> None:
    """Removes temporary files of `path` whose writer is dead: killed here, or elsewhere more than a day ago."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        owner, _, rest = temporary.name[len(path.name) + 2 :].partition("-")
        pid = rest.partition("-")[0]
        try:
            here = owner == _owner() and pid.isdigit()
            if not _alive(int(pid)) if here else time.time() - temporary.stat().st_mtime > ABANDONED:
                temporary.unlink(missing_ok=True)
        except OSError:
            continue


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _owner() -> str:
    """A tag of this machine and its process numbers, the same for all processes that see each other."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()}{namespace}".encode()).hexdigest()[:8]


def _encoding(ds: xr.Dataset) -> dict[str, dict[str, Any]]:
    encoding: dict[str, dict[str, Any]] = {}
    for name, variable in ds.variables.items():
        if variable.dtype.kind not in "fiu":
            if variable.ndim and variable.size and dtype_name(np.asarray(variable.values)) == "str":
                # as characters, since netCDF compresses no text of varying length
                encoding[str(name)] = {"dtype": "S1", **COMPRESSED}
            continue
        settings: dict[str, Any] = {"_FillValue": None}
        if variable.ndim and variable.size:
            settings |= COMPRESSED
        encoding[str(name)] = settings
    return encoding
