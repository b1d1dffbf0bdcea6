"""Many result files into one labelled dataset a kind, along a new dimension `run`; and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vitplast import __version__
from vitplast.errors import IntegrityError, VitplastError
from vitplast.parameters import SCHEMA_VERSION, added_defaults
from vitplast.results import netcdf, store
from vitplast.results.provenance import REFERENCES
from vitplast.results.schema import schema_of
from vitplast.results.validation import complete, dtype_name

#: Attributes that become coordinates along `run` even when all runs agree.
PER_RUN = (
    "run_key",
    "params_json",
    "content_sha256",
    "profile",
    "commit",
    "dirty",
    "created",
    "machine",
    "device",
    "threads",
    "weights_origin",
    "weights_sha256",
    "weights_source",
    "torch_version",
    "vitplast_version",
)
#: Attributes of a single run that a gathered file writes anew.
RENEWED = ("source", "history")
FILL = {"str": "", "int64": -1, "float64": np.nan}

Expected = Mapping[str, Mapping[str, Any]]
Paths = str | Path | Iterable[str | Path]
#: Kind to key to a result and the file that it is in.
Found = dict[str, dict[str, tuple[xr.Dataset, Path]]]

log = logging.getLogger(__name__)


def gather(paths: Paths, expected: Expected | None = None, *, behind: Paths = ()) -> dict[str, xr.Dataset]:
    """All results in files and folders: kind to a dataset along `run`, padded where runs differ in length.

    Coordinates along `run`: `run_key`, every parameter of the run (lists joined by +, floats to 12 digits), and the
    origin. The padding is NaN, -1 or empty text. `expected` maps kind to key to anything; keys not found are listed
    in the attribute `missing_runs` (see also `missing`). Files in folders named `gathered` are left out. Results in
    `behind` count where `paths` hold none; where the two differ, a warning says so.

    Raises
    ------
    IntegrityError
        If files are bad (all are listed), or two of `paths`, or of `behind`, hold different numbers for one run. The
        same numbers count once.
    InputError
        If a file was written by a newer version.
    """
    bad: list[str] = []
    found, committed = _collected(paths, bad), _collected(behind, bad)
    if bad:
        raise IntegrityError(f"{len(bad)} bad files, nothing was gathered:\n" + "\n".join(bad))
    for kind, by_key in committed.items():
        for key, (one, path) in by_key.items():
            own, where = found.setdefault(kind, {}).setdefault(key, (one, path))
            if own is not one and _numbers(own) != _numbers(one):
                log.warning("%s holds other numbers for the run %s than %s, which counts", path, key, where)
    gathered = {}
    for kind, by_key in found.items():
        order = {key: i for i, key in enumerate((expected or {}).get(kind, ()))}
        rows = [one for one, _ in by_key.values()]
        rows.sort(key=lambda one: (order.get(one.attrs["run_key"], len(order)), one.attrs["params_json"]))
        gathered[kind] = _concatenate(rows, kind)
    for kind, keys in missing(gathered, expected or {}).items():
        if kind in gathered:
            gathered[kind].attrs["missing_runs"] = json.dumps(keys)
    return gathered


def missing(gathered: Mapping[str, xr.Dataset], expected: Expected) -> dict[str, list[str]]:
    """Kind to the expected keys that are not there; empty lists for complete kinds."""
    return {
        kind: [k for k in keys if kind not in gathered or k not in set(gathered[kind].run_key.values.tolist())]
        for kind, keys in expected.items()
    }


def write_gathered(ds: xr.Dataset, path: str | Path) -> Path:
    """Writes what `gather` made of one kind, whole or not at all; `vitplast.results.read` reads it."""
    return store.save(ds, Path(path), str(ds.attrs["kind"]), gathered=True)


def known_keys(folder: str | Path) -> dict[str, set[str]]:
    """Kind to the keys of all runs in the gathered files below `folder`; nothing if there is no such folder.

    The keys alone are read, so that each of a thousand units can ask; the numbers are checked when they are read or
    gathered. `folder` may be one file.

    Raises
    ------
    IntegrityError
        If a file can't be read.
    """
    known: dict[str, set[str]] = {}
    folder = Path(folder)
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.nc")):
        state = path.stat()
        kind, keys = _keys_in(path, state.st_mtime_ns, state.st_size)
        known.setdefault(kind, set()).update(keys)
    return {kind: keys for kind, keys in known.items() if keys}


@lru_cache(maxsize=64)
def _keys_in(path: Path, changed: int, size: int) -> tuple[str, frozenset[str]]:
    """Kind and keys of a gathered file, read once as long as it stays the same; no keys for other files."""
    ds = netcdf.load(path, only=("run_key",))
    if "kind" not in ds.attrs:
        raise IntegrityError(f"{path} is no vitplast result, it lacks the attribute kind")
    keys = ds.run_key.values.tolist() if store.is_gathered(ds) else ()
    return str(ds.attrs["kind"]), frozenset(keys)


def singles(ds: xr.Dataset) -> list[xr.Dataset]:
    """The single runs in `ds`, as they were before gathering, padding and all; `ds` itself if it is one.

    Raises
    ------
    IntegrityError
        If a run does not come out with the checksum that it went in with.
    """
    if not store.is_gathered(ds):
        return [ds]
    table = schema_of(str(ds.attrs["kind"]))
    known = set(table.coords | table.variables)
    ones = []
    for i in range(ds.sizes["run"]):
        row = ds.isel(run=i)
        attrs = {str(n): row[n].item() for n in row.coords if n in PER_RUN or str(n).startswith("attr_")}
        for dim, values in json.loads(row["indexes_json"].item()).items():
            if values is not None:
                row = row.sel({dim: values})
            else:  # a dimension that the run has not, or a variable that it has not along those that it has
                row = row.drop_dims(dim) if dim in row.dims else row.drop_vars(dim, errors="ignore")
        row = row.drop_vars([n for n in row.coords if n not in known])
        shared = {k: v for k, v in ds.attrs.items() if k not in ("gathered", "missing_runs", *netcdf.CHECKSUMS)}
        row.attrs = shared | {k.removeprefix("attr_"): v for k, v in attrs.items()}
        if netcdf.content_checksum(row) != row.attrs["content_sha256"]:
            raise IntegrityError(f"run {row.attrs['run_key']} of a gathered file does not match its checksum")
        ones.append(row)
    return ones


def _collected(paths: Paths, bad: list[str]) -> Found:
    """All results in `paths`; bad files are added to `bad`, in words."""
    found: Found = {}
    for path in _files(paths):
        try:
            ones = singles(store.read(path))
        except IntegrityError as error:
            bad.append(str(error))
            continue
        for one in ones:
            kind, key = str(one.attrs["kind"]), str(one.attrs["run_key"])
            other, where = found.setdefault(kind, {}).setdefault(key, (one, path))
            if one is not other and _numbers(one) != _numbers(other):
                raise IntegrityError(
                    f"{where} and {path} hold different numbers for the same run {key} "
                    f"({one.attrs['params_json']}); remove the wrong one"
                )
    return found


def _files(paths: Paths) -> list[Path]:
    paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*.nc")) if not p.name.startswith(".")]
            files += [p for p in inside if "gathered" not in p.relative_to(path).parts[:-1]]
        elif path.exists():
            files.append(path)
        else:
            raise VitplastError(f"nothing to gather: {path} is not there")
    return list(dict.fromkeys(files))


def _numbers(ds: xr.Dataset) -> str:
    """Checksum of all but the clock's readings, which no rerun reproduces."""
    timing = [n for n, v in schema_of(str(ds.attrs["kind"])).variables.items() if v.timing]
    return netcdf.content_checksum(ds, skip=timing)


def _concatenate(rows: list[xr.Dataset], kind: str) -> xr.Dataset:
    shared = {k: v for k, v in rows[0].attrs.items() if all(r.attrs.get(k) == v for r in rows)}
    shared = {k: v for k, v in shared.items() if k not in PER_RUN and k not in RENEWED}
    varying = dict.fromkeys(k for r in rows for k in r.attrs if k not in (*shared, *PER_RUN, *RENEWED))
    numeric = {k for k in varying if len({type(r.attrs.get(k, "")) for r in rows} | {str}) == 2}
    numeric -= {k for k in varying if any(isinstance(r.attrs.get(k, ""), str) for r in rows)}
    dims = dict.fromkeys(str(d) for r in rows for d in r.dims)
    union = {d: set().union(*(r[d].values.tolist() for r in rows if d in r.dims)) for d in dims}
    table = schema_of(kind)
    described = set(table.coords | table.variables)
    variables = {str(n): set(v.dims) for r in rows for n, v in r.variables.items() if str(n) in described}
    labels: list[str] = ["indexes_json"]
    prepared = []
    for row in rows:
        # None: the run has no such dimension, and none of the variables along it
        own = {
            d: row[d].values.tolist() if d in row.dims else None for d in dims if row.sizes.get(d, 0) < len(union[d])
        }
        own |= {n: None for n, along in variables.items() if n not in row.variables and along <= set(row.dims)}
        asked = added_defaults(kind) | json.loads(row.attrs["params_json"])
        extra = {str(k): store.given(v) for k, v in asked.items()}
        extra |= {k: row.attrs.get(k, "") for k in PER_RUN}
        extra |= {f"attr_{k}": row.attrs[k] if k in numeric else str(row.attrs.get(k, "")) for k in varying}
        extra = {k: v for k, v in extra.items() if k not in row.variables} | {"indexes_json": json.dumps(own)}
        labels += [k for k in extra if k not in labels]
        prepared.append(row.reset_coords().assign({k: ((), v) for k, v in extra.items()}))
    fill = {n: FILL[dtype_name(r[n].values)] for r in prepared for n in r.data_vars}
    joined = xr.concat(
        prepared,
        dim="run",
        data_vars="all",
        coords="minimal",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
        fill_value=fill,
    )
    in_schema = [n for n in schema_of(kind).coords if n in joined.data_vars]
    joined = joined.set_coords([n for n in {*labels, *in_schema} if n in joined.data_vars])
    for name in labels:
        if name in joined.coords and not joined[name].attrs:
            joined[name].attrs = {"units": "1", "long_name": name.replace("_", " ")}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    joined.attrs = {
        **shared,
        "kind": kind,
        "gathered": "yes",
        "vitplast_schema": SCHEMA_VERSION,
        "source": f"{len(rows)} results of vitplast, gathered",
        "history": f"{now} gathered by vitplast {__version__}",
        "references": REFERENCES,
    }
    return complete(joined, kind)
