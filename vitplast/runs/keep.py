"""The gathered results of a profile, kept with the project: `data/PROFILE/KIND.nc`, the profile and a manifest."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vitplast.results import manifest
from vitplast.results.gathering import known_keys
from vitplast.runs.plan import Profile, expected
from vitplast.runs.sweep import gather, gathered_path


@dataclass(frozen=True)
class Kept:
    """`folder`: where the files are; `missing`: results that are not there yet, in words; `dropped`: kind to the keys
    that were kept before and are not of the profile any more."""

    folder: Path
    missing: list[str]
    dropped: dict[str, list[str]]


def keep(profile: Profile, *, data: str | Path, store: str | Path = "") -> Kept:
    """Gathers what there is of a profile, in the store and in `data`, into `data/PROFILE`, and writes the manifest.

    It may be called at any time: what was kept before counts, so a store that holds the newest results only is enough.
    A file whose runs are all there already is left as it is.

    Raises
    ------
    IntegrityError
        If results are damaged or contradict each other; what was kept before stays.
    """
    folder = Path(data) / profile.name
    before = known_keys(folder)
    missing = gather(profile, store=store, data=data)
    wanted = expected(profile.units)
    folder.mkdir(parents=True, exist_ok=True)
    for kind, keys in wanted.items():
        fresh = gathered_path(profile, kind, store)
        found = known_keys(fresh).get(kind, set()) & set(keys) if fresh.is_file() else set()
        if found and (found != before.get(kind, set()) or _differs(fresh, folder / fresh.name)):
            _copy(fresh, folder / fresh.name)
    for path in folder.glob("*.nc"):
        if path.stem not in wanted:
            path.unlink()
    (folder / "profile.yaml").write_text(profile.text, encoding="utf-8")
    manifest.write(folder, profile.name)
    dropped = {kind: sorted(keys - set(wanted.get(kind, ()))) for kind, keys in before.items()}
    return Kept(folder, missing, {kind: keys for kind, keys in dropped.items() if keys})


def _differs(fresh: Path, kept: Path) -> bool:
    """Whether two gathered files hold other numbers, labels or gaps; when each was gathered does not matter."""
    import xarray as xr

    if not kept.is_file():
        return True
    told = []
    for path in (fresh, kept):
        with xr.open_dataset(path, engine="netcdf4", decode_times=False, decode_timedelta=False) as ds:
            told.append((ds.attrs["content_sha256"], ds.attrs.get("missing_runs")))
    return told[0] != told[1]


def _copy(source: Path, target: Path) -> None:
    """A copy that is there whole or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)
