"""Finished runs computed anew from the parameters stored with them, and compared bit for bit.

The result that is compared goes through the same writer and reader as the first one. It is computed with as many
threads as the first one had, since the order of sums depends on them. All but the clock's readings must be the same.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vitplast import parameters, results
from vitplast.errors import InputError, UnknownNameError
from vitplast.places import result_path, store_folder
from vitplast.results import netcdf
from vitplast.results.schema import schema_of
from vitplast.runs.plan import Profile, expected

Compute = Callable[[str, dict[str, Any]], xr.Dataset]
#: A finished run: its kind and its key.
Name = tuple[str, str]


@dataclass(frozen=True)
class Rerun:
    """What came out: variables that differ, with the largest difference of each; none: bit-equal."""

    kind: str
    key: str
    run: dict[str, Any]
    differences: dict[str, float]
    seconds: float
    notes: list[str]

    @property
    def equal(self) -> bool:
        return not self.differences

    def row(self) -> dict[str, Any]:
        """One line for a terminal."""
        names = ("model", "dataset", "target", "case", "components", "lr", "seed")
        return {
            "kind": self.kind,
            "key": self.key,
            "run": " ".join(f"{self.run[n]}" for n in names if n in self.run),
            "seconds": round(self.seconds, 1),
            "bit-equal": "yes" if self.equal else "NO",
            "what differs": ", ".join(f"{n} by up to {d:.3g}" for n, d in self.differences.items())
            or "; ".join(self.notes)
            or "-",
        }


class Finished:
    """All finished runs of the store and of the gathered files below `data`; results are read when they are asked for.

    With a `profile`, those of the profile only.
    """

    def __init__(self, store: str | Path = "", data: str | Path | None = None, profile: Profile | None = None) -> None:
        self.store = store_folder(store)
        self.files: dict[Name, Path] = {}
        self._open: dict[Path, xr.Dataset] = {}
        if data:
            for path in sorted(Path(data).rglob("*.nc")):
                for kind, keys in results.known_keys(path).items():
                    self.files.update(dict.fromkeys(((kind, key) for key in keys), path))
        for kind in parameters.KINDS:
            for path in sorted((self.store / kind).glob("*.nc")):
                self.files[kind, path.stem] = path
        if profile:
            wanted = {(kind, key) for kind, keys in expected(profile.units).items() for key in keys}
            self.files = {name: path for name, path in self.files.items() if name in wanted}

    def named(self, beginning: str) -> Name:
        """The one run whose key begins with `beginning`; InputError if there is none, or more than one."""
        found = [name for name in sorted(self.files) if name[1].startswith(beginning)]
        if not found:
            raise UnknownNameError("key of a finished run", beginning, [key for _, key in sorted(self.files)])
        if len(found) > 1:
            raise InputError(f"{len(found)} runs begin with {beginning!r}: {', '.join(key for _, key in found[:5])}")
        return found[0]

    def sample(self, number: int, seed: int) -> list[Name]:
        """A random sample of finished runs without repeats, the same for a seed; all of them if there are no more."""
        known = sorted(self.files)
        if not known:
            raise InputError("there are no finished runs to draw from")
        drawn = np.random.default_rng(seed).permutation(len(known))[:number]
        return [known[i] for i in sorted(drawn)]

    def where(self, values: Mapping[str, Any]) -> list[Name]:
        """The runs whose parameters have these values, as they are shown (floats to 12 digits); InputError if none."""
        shown = {name: results.store.given(v) for name, v in values.items()}
        found = []
        for name in sorted(self.files):
            given = self.parameters(name)
            if all(n in given and results.store.given(given[n]) == v for n, v in shown.items()):
                found.append(name)
        if not found:
            raise InputError(f"no finished run has {', '.join(f'{n}={v}' for n, v in values.items())}")
        return found

    def read(self, name: Name) -> xr.Dataset:
        """The stored result, after all checks."""
        ds = self._dataset(self.files[name])
        if not results.is_gathered(ds):
            return ds
        return results.singles(ds.isel(run=ds.run_key.values == name[1]))[0]

    def _dataset(self, path: Path) -> xr.Dataset:
        if path.parent.parent == self.store:
            return results.read(result_path(self.store, path.parent.name, path.stem))
        if path not in self._open:
            self._open[path] = results.store.read(path)
        return self._open[path]

    def parameters(self, name: Name) -> dict[str, Any]:
        """The parameters stored with a run."""
        ds = self._dataset(self.files[name])
        if not results.is_gathered(ds):
            return json.loads(ds.attrs["params_json"])
        return json.loads(ds.params_json.values[ds.run_key.values == name[1]].item())


def parameters_of(ds: xr.Dataset) -> dict[str, Any]:
    """The parameters of the single run behind a result, options that are newer than it at their defaults.

    Raises
    ------
    InputError
        If they no longer stand for the same run: an option is gone, its meaning has changed (another revision), or a
        path was recorded by its last part only.
    """
    kind, key = str(ds.attrs["kind"]), str(ds.attrs["run_key"])
    single = json.loads(ds.attrs["params_json"])
    cls = parameters.KINDS[kind]
    plural = {one: many for many, one in cls.swept.items()}
    values = {plural.get(n, n): [v] if n in plural else v for n, v in single.items()}
    runs = parameters.make(kind, values).runs()
    if key not in runs:
        raise InputError(
            f"the parameters stored with {kind} {key} stand for the run {next(iter(runs))} today, so it can't be "
            f"computed anew; use the version of vitplast that made it: {ds.attrs.get('commit', 'unknown')[:12]}"
        )
    return runs[key]


def rerun(ds: xr.Dataset, compute: Compute | None = None) -> Rerun:
    """Computes the run behind a stored result again and compares all variables but the timings.

    Raises
    ------
    InputError
        As in `parameters_of`.
    """
    if compute is None:
        from vitplast.units import compute
    kind, key, run = str(ds.attrs["kind"]), str(ds.attrs["run_key"]), parameters_of(ds)
    start = time.perf_counter()
    with _threads(int(ds.attrs.get("threads", 0))), tempfile.TemporaryDirectory(prefix="vitplast-") as folder:
        path = Path(folder) / f"{key}.nc"
        results.write(compute(kind, run), path, run=run, kind=kind)
        fresh = results.store.read(path)
    seconds = time.perf_counter() - start
    notes = [
        f"first on {what} {ds.attrs[name]}, now {fresh.attrs[name]}"
        for name, what in (
            ("machine", ""),
            ("device", "device"),
            ("torch_version", "torch"),
            ("weights_sha256", "weights"),
        )
        if ds.attrs.get(name) != fresh.attrs.get(name)
    ]
    return Rerun(kind, key, run, differences(ds, fresh), seconds, notes)


def differences(first: xr.Dataset, second: xr.Dataset) -> dict[str, float]:
    """Variables that are not bit for bit the same in two results of a kind, each with its largest absolute difference.

    NaN equals NaN; timings are left out. The difference is infinite for text, and where names, sizes, types, labels
    or gaps differ.
    """
    timing = {n for n, v in schema_of(str(first.attrs["kind"])).variables.items() if v.timing}
    names = sorted({str(n) for ds in (first, second) for n in ds.variables} - timing)
    found = {}
    for name in names:
        skip = [{str(n) for n in ds.variables} - {name} for ds in (first, second)]
        if netcdf.content_checksum(first, skip[0]) != netcdf.content_checksum(second, skip[1]):
            found[name] = _largest(first, second, name)
    return found


def _largest(first: xr.Dataset, second: xr.Dataset, name: str) -> float:
    if name not in first.variables or name not in second.variables:
        return float("inf")
    a, b = (ds.variables[name].values for ds in (first, second))
    if a.shape != b.shape or a.dtype.kind not in "fiu" or b.dtype.kind not in "fiu":
        return float("inf")
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if (np.isnan(a) != np.isnan(b)).any():
        return float("inf")
    return float(np.abs(np.where(same, 0.0, a - b)).max(initial=0.0))


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """As many threads in PyTorch as the first run had (0: not recorded)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rerun_all(finished: Finished, names: Sequence[Name], compute: Compute | None = None) -> Iterator[Rerun]:
    """`rerun` of several finished runs, one after the other."""
    for name in names:
        yield rerun(finished.read(name), compute)
