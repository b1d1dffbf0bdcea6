"""Checks a dataset against the tables of its kind (`vitplast.results.schema`), and fills in what follows from them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.errors import IntegrityError
from vitplast.parameters import SCHEMA_VERSION
from vitplast.results.schema import ATTRIBUTES, Schema, Variable, schema_of


def complete(ds: xr.Dataset, kind: str) -> xr.Dataset:
    """A copy with the schema's types (safe casts only), units and long names filled in where they are absent."""
    table = schema_of(kind)
    ds = ds.copy()
    for name, variable in (table.coords | table.variables).items():
        if name in ds.variables:
            wanted = np.dtype(variable.dtype)
            if wanted.kind in "if" and ds[name].dtype != wanted and np.can_cast(ds[name].dtype, wanted):
                ds[name] = ds[name].astype(wanted)
            found = ds.variables[name]
            found.attrs = {"units": variable.units, "long_name": variable.meaning, **found.attrs}
    return ds


def validate(ds: xr.Dataset, kind: str, gathered: bool = False) -> None:
    """Checks names, dimensions, types, units, missing and impossible values against the tables of `kind`.

    Raises
    ------
    IntegrityError
        With all that is wrong, one clause a fault.
    """
    table = schema_of(kind)
    faults = _fault_of_names(ds, table, gathered)
    for name, variable in (table.coords | table.variables).items():
        if name in ds.variables:
            faults += [f"{name} {fault}" for fault in _faults(ds, name, variable, gathered)]
    needed = [*ATTRIBUTES, *table.attrs] if not gathered else ["kind", "vitplast_schema", "content_sha256"]
    faults += [f"attribute {name} is missing" for name in needed if name not in ds.attrs]
    if ds.attrs.get("vitplast_schema", SCHEMA_VERSION) != SCHEMA_VERSION:
        faults.append(f"attribute vitplast_schema is {ds.attrs['vitplast_schema']}, not {SCHEMA_VERSION}")
    if faults:
        raise IntegrityError(f"not a {kind} result: {'; '.join(faults)}")


def _fault_of_names(ds: xr.Dataset, table: Schema, gathered: bool) -> list[str]:
    known = table.coords | table.variables
    faults = [f"{name} is missing" for name, v in known.items() if v.required and name not in ds.variables]
    for name in ds.variables:
        along_run = gathered and name in ds.coords and ds.variables[name].dims == ("run",)
        if name not in known and not along_run:
            faults.append(f"{name} is not a variable of this kind")
    faults += [f"{name} must be a coordinate" for name in table.coords if name in ds.data_vars]
    faults += [f"{name} must not be a coordinate" for name in table.variables if name in ds.coords]
    if gathered and ("run" not in ds.dims or "run_key" not in ds.coords):
        faults.append("the dimension run with its coordinate run_key is missing")
    return faults


def _faults(ds: xr.Dataset, name: str, variable: Variable, gathered: bool) -> list[str]:
    array = ds.variables[name]
    is_index = name in variable.dims
    dims = ("run", *variable.dims) if gathered and not is_index else variable.dims
    if array.dims != dims:
        return [f"has dims {array.dims}, not {dims}"]
    if dtype_name(array.values) != variable.dtype:
        return [f"has type {dtype_name(array.values)}, not {variable.dtype}"]
    faults = [
        f"has {key} {array.attrs.get(key)!r}, not {value!r}"
        for key, value in (("units", variable.units),)
        if array.attrs.get(key) != value
    ]
    if not array.attrs.get("long_name"):
        faults.append("has no long_name")
    if is_index and len(set(array.values.tolist())) < array.size:
        faults.append("holds a value twice")
    if variable.choices and not set(array.values.ravel().tolist()) <= set(variable.choices):
        faults.append(f"holds other values than {', '.join(variable.choices)}")
    if gathered:
        return faults
    if variable.dtype == "float64":
        if not variable.missing and not np.isfinite(array.values).all():
            faults.append("holds values that are not finite")
        with np.errstate(invalid="ignore"):
            if variable.low is not None and (array.values < variable.low).any():
                faults.append(f"holds values below {variable.low:g}")
            if variable.high is not None and (array.values > variable.high).any():
                faults.append(f"holds values above {variable.high:g}")
    return faults


def dtype_name(values: np.ndarray) -> str:
    """`float64`, `int64`..., and `str` for text however it is stored."""
    if values.dtype.kind in "UT" or (
        values.dtype.kind == "O" and all(isinstance(v, str) for v in values.ravel().tolist())
    ):
        return "str"
    return values.dtype.name
