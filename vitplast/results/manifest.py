"""The list of the files in a folder of gathered results: their hashes, and what made them.

`manifest.json` lies beside the files. It is written when results are kept (`vitplast gather --keep`) and says of each
file how many runs it holds, which notebook made them, with what code, on what machine, and when.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from vitplast.errors import IntegrityError
from vitplast.places import notebook_path
from vitplast.results import store
from vitplast.results.gathering import known_keys

NAME = "manifest.json"
VERSION = 1
#: Software whose versions are listed.
SOFTWARE = ("vitplast", "torch", "timm", "numpy", "python")


def describe(path: Path) -> dict[str, Any]:
    """What the manifest says of one gathered file, after all its checks.

    Raises
    ------
    IntegrityError
        If the file is damaged or holds no gathered results.
    """
    ds = store.read(path)
    if not store.is_gathered(ds):
        raise IntegrityError(f"{path} holds one result, not gathered ones")
    kind = str(ds.attrs["kind"])
    notebook = notebook_path(kind)
    created = sorted(_values(ds, "created"))
    return {
        "kind": kind,
        "sha256": _hash(path),
        "bytes": path.stat().st_size,
        "runs": int(ds.sizes["run"]),
        "missing_runs": len(json.loads(ds.attrs.get("missing_runs", "[]"))),
        "notebook": f"notebooks/{notebook.name}",
        "notebook_sha256": _hash(notebook),
        "commits": _values(ds, "commit"),
        "uncommitted_changes": _values(ds, "dirty"),
        "versions": {name: _values(ds, f"{name}_version") for name in SOFTWARE},
        "created": [created[0], created[-1]],
        "machines": _values(ds, "machine"),
        "devices": _values(ds, "device"),
    }


def write(folder: str | Path, profile: str) -> Path:
    """Writes the manifest of all gathered files in `folder` and of its `profile.yaml`; returns its path.

    Raises
    ------
    IntegrityError
        As in `describe`; the manifest that was there stays.
    """
    folder = Path(folder)
    files = {path.name: describe(path) for path in sorted(folder.glob("*.nc"))}
    own = folder / "profile.yaml"
    content = {
        "version": VERSION,
        "profile": profile,
        "profile_sha256": _hash(own) if own.is_file() else "",
        "runs": sum(one["runs"] for one in files.values()),
        "files": files,
    }
    path = folder / NAME
    temporary = folder / f".{NAME}.tmp"
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def read(folder: str | Path) -> dict[str, Any]:
    """The manifest in `folder`.

    Raises
    ------
    IntegrityError
        If there is none, or it can't be read.
    """
    path = Path(folder) / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["version"], content["profile"], content["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path} is no manifest ({type(error).__name__}: {error})") from error
    return content


def faults(folder: str | Path) -> list[str]:
    """All that differs between the manifest and the files in `folder`, in words; nothing if they agree.

    Raises
    ------
    IntegrityError
        If there is no manifest that can be read.
    """
    folder = Path(folder)
    content = read(folder)
    found = [f"{p.name} is not in the manifest" for p in sorted(folder.glob("*.nc")) if p.name not in content["files"]]
    for name, said in content["files"].items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif _hash(path) != said.get("sha256"):
            found.append(f"{name} has another SHA-256 than the manifest says")
        elif (runs := len(known_keys(path).get(said.get("kind"), ()))) != said.get("runs"):
            found.append(f"{name} holds {runs} runs of kind {said.get('kind')}, the manifest says {said.get('runs')}")
    own = folder / "profile.yaml"
    if (_hash(own) if own.is_file() else "") != content.get("profile_sha256"):
        found.append("profile.yaml has another SHA-256 than the manifest says")
    total = sum(int(said.get("runs", 0)) for said in content["files"].values())
    if total != content.get("runs"):
        found.append(f"the files hold {total} runs, the manifest says {content.get('runs')}")
    return found


def rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a file of a manifest, for a terminal or a page."""
    return [
        {
            "file": name,
            "runs": one["runs"],
            "missing": one["missing_runs"],
            "kB": round(one["bytes"] / 1000),
            "notebook": one["notebook"],
            "made": " to ".join(dict.fromkeys(day[:10] for day in one["created"])),
            "commit": _joined(c[:12] for c in one["commits"]),
            "sha256": one["sha256"][:16],
        }
        for name, one in content["files"].items()
    ]


def _joined(words: Iterable[str]) -> str:
    words = list(words)
    return ", ".join(words if len(words) < 4 else [*words[:2], f"{len(words) - 2} more"])


def _values(ds: xr.Dataset, name: str) -> list[str]:
    """The different values of an attribute of the runs, as text."""
    coordinate = next((n for n in (name, f"attr_{name}") if n in ds.coords), None)
    if coordinate:
        return [str(v) for v in pd.unique(ds[coordinate].values.ravel())]
    return [str(ds.attrs[name])] if name in ds.attrs else []


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
