"""One writer and one reader of result files, and the lock that keeps a result from being made twice.

A file under its final name is complete and valid: it is checked before it gets that name, and again by `read`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

from vitplast.errors import AlreadyRunningError, InputError, IntegrityError, VitplastError
from vitplast.parameters import SCHEMA_VERSION
from vitplast.results import netcdf
from vitplast.results.provenance import attributes, public
from vitplast.results.schema import schema_of
from vitplast.results.validation import complete, validate

#: Version that a file has to the function that turns it into the next one.
MIGRATIONS: dict[int, Callable[[xr.Dataset], xr.Dataset]] = {}
#: Attributes in which the computation knows better than the record made on writing.
KNOWN_BY_COMPUTATION = ("weights_origin", "weights_sha256", "device", "threads")
FIXED = (*netcdf.CHECKSUMS, "kind", "run_key", "params_json", "vitplast_schema")


def write(ds: xr.Dataset, path: str | Path, *, run: dict[str, Any], kind: str, profile: str = "", **attrs: Any) -> Path:
    """Adds origin and checksums to `ds` and writes it to `path`, whole or not at all; returns the path.

    `run` are the parameters of the single run (an item of `Parameters.runs()`); `attrs` are further attributes, and
    win over those of `ds`.

    Raises
    ------
    IntegrityError
        If `ds` is not what the schema of `kind` says, or its coordinates contradict `run`.
    VitplastError
        If the file can't be written; nothing is then left under that name.
    """
    table = schema_of(kind)
    fixed = sorted(set(attrs) & set(FIXED))
    if fixed:
        raise InputError(
            f"{', '.join(fixed)} can't be given, {'it follows' if len(fixed) == 1 else 'they follow'} from the run"
        )
    ds = complete(ds, kind)
    shown = public(run)
    for name in [n for n, v in table.coords.items() if not v.dims and n in run]:
        asked = given(run[name])
        if name in ds.variables and given(ds[name].item()) != asked:
            raise IntegrityError(f"{name} is {ds[name].item()!r} in the data but {asked!r} in the run")
        ds = ds.assign_coords({name: given(shown[name])})
    ds = complete(ds, kind)
    origin = attributes(kind, run, profile)
    own = {k: v for k, v in ds.attrs.items() if k not in origin or k in KNOWN_BY_COMPUTATION}
    ds.attrs = {name: netcdf.attribute(name, value) for name, value in public(origin | own | attrs).items()}
    return save(ds, Path(path), kind, gathered=False)


def save(ds: xr.Dataset, path: Path, kind: str, gathered: bool) -> Path:
    """Adds the checksums to a dataset that has all its other attributes, and writes it as `write` does.

    Raises
    ------
    IntegrityError, VitplastError
        As in `write`.
    """
    ds = ds.copy()
    ds.attrs |= {"content_sha256": netcdf.content_checksum(ds)}
    ds.attrs |= {"attrs_sha256": netcdf.attrs_checksum(ds)}
    validate(ds, kind, gathered)

    def check(written: xr.Dataset) -> None:
        verify(written, path.name)
        validate(written, kind, gathered)

    return netcdf.save(ds, path, check)


def read(path: str | Path) -> xr.Dataset:
    """The result (or gathered results) in a file, in memory, after all checks.

    Raises
    ------
    IntegrityError
        If the file is absent, damaged, renamed, or no result; the message names it and says how to make it again.
    InputError
        If it was written by a newer version.
    """
    path = Path(path)
    try:
        ds = netcdf.load(path)
        verify(ds, path.name)
        version = int(ds.attrs["vitplast_schema"])
        if version > SCHEMA_VERSION:
            raise InputError(
                f"{path} has schema version {version}, this vitplast knows versions up to "
                f"{SCHEMA_VERSION}: update vitplast"
            )
        for old in range(version, SCHEMA_VERSION):
            ds = MIGRATIONS[old](ds)
        validate(ds, str(ds.attrs["kind"]), is_gathered(ds))
    except IntegrityError as error:
        raise IntegrityError(
            f"{_named(path, str(error))}. Run the command that makes it again "
            "(vitplast run or vitplast sweep): it sets a bad file aside by itself"
        ) from error
    return ds


def _named(path: Path, message: str) -> str:
    return message if str(path) in message else f"{path}: {message}"


def verify(ds: xr.Dataset, name: str) -> None:
    """Checks that `ds` is a result, that its checksums hold, and that a file named by a key holds that key."""
    missing = [a for a in ("kind", "vitplast_schema", *netcdf.CHECKSUMS) if a not in ds.attrs]
    if missing:
        raise IntegrityError(f"this is no vitplast result, it lacks the attributes {', '.join(missing)}")
    for checksum, compute in (("content_sha256", netcdf.content_checksum), ("attrs_sha256", netcdf.attrs_checksum)):
        if compute(ds) != ds.attrs[checksum]:
            raise IntegrityError(f"damaged: {checksum} does not match what the file holds")
    key = re.fullmatch(r"([0-9a-f]{16})\.nc", name)
    if key and ds.attrs.get("run_key") != key[1]:
        raise IntegrityError(f"the file holds the result {ds.attrs.get('run_key')}, not the one of its name")


def is_gathered(ds: xr.Dataset) -> bool:
    """Whether `ds` holds many runs along `run`."""
    return ds.attrs.get("gathered") == "yes"


def is_valid(path: str | Path) -> bool:
    """Whether `read` would accept the file."""
    try:
        read(path)
    except VitplastError:
        return False
    return True


def quarantine(path: str | Path) -> Path:
    """Renames a bad file to `NAME.bad-N`, N the first free number, and returns the new path."""
    path = Path(path)
    n = 1
    while (bad := path.with_name(f"{path.name}.bad-{n}")).exists():
        n += 1
    path.rename(bad)
    return bad


@contextmanager
def lock(path: Path, what: str, wait: float | None = None) -> Iterator[None]:
    """Holds the lock file `path`; the system frees it when its owner ends, however that comes about.

    `wait` is the longest time to wait in seconds; None: for ever, 0: not at all.

    Raises
    ------
    AlreadyRunningError
        If another process holds it for longer than `wait`.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(path)
        held.acquire(timeout=-1 if wait is None else wait)
    except Timeout:
        raise AlreadyRunningError(
            f"another process is working on {what}; wait for it, or stop it and run this command again"
        ) from None
    except OSError as error:
        raise VitplastError(f"can't lock {path}: {error}. Choose a store on a disk that can be written to") from error
    try:
        yield
    finally:
        held.release()


def given(value: Any) -> Any:
    """A parameter as the user gave it: floats to 12 digits, so that 0.1 + 0.2 is 0.3; bool and list as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return "+".join(str(given(v)) for v in value)
    return float(f"{value:.12g}") if isinstance(value, float) else value
