"""Whether the image and text sets of runs are on this machine and large enough, before any other work is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitplast.errors import InputError, MissingDependencyError, VitplastError

ROLES = ("source", "target", "dataset")


def check_sets(runs: Iterable[dict[str, Any]]) -> None:
    """Opens each set of the runs (items of `Parameters.runs()`) once, at a small size; no picture is decoded.

    A set is downloaded now if its run allows that.

    Raises
    ------
    InputError
        If sets are not on this machine (MissingDependencyError), laid out wrongly or too small for the pairs.
    VitplastError
        If a set can't be downloaded or its files are not what they should be. Several faults are one error.
    """
    from vitplast import images, texts
    from vitplast.pairs import pairs_of

    runs = list(runs)
    sizes: dict[tuple[str, bool], dict[str, int]] = {}
    faults: dict[str, VitplastError] = {}
    for name, download in dict.fromkeys((run[role], run["download"]) for run in runs for role in ROLES if role in run):
        try:
            if texts.is_text(name):
                sizes[name, download] = dict.fromkeys(("source", "test"), len(texts.read_texts(name).texts))
                continue
            found = images.open_images(name, size=32, download=download)
            sizes[name, download] = {split: len(part) for split, part in found.splits.items()}
        except VitplastError as error:
            faults.setdefault(str(error), error)
    for run in runs:
        allowed = run.get("download", False)
        source, target = (sizes.get((run.get(role, ""), allowed)) for role in ("source", "target"))
        if source and target:
            try:
                pairs_of(run, source.get("source", 0), target.get("test", 0))
            except InputError as error:
                faults.setdefault(str(error), InputError(f"{run['source']} and {run['target']}: {error}"))
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        found = set(map(type, faults.values()))
        kind = next((k for k in (MissingDependencyError, InputError) if all(issubclass(t, k) for t in found)), None)
        raise (kind or VitplastError)("\n".join(map(str, faults.values())))
