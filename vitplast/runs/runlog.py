"""The store's log of runs, one JSON object a line, only ever added to: shows what ran, when, and how it ended."""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitplast.runs.unit import Unit

NAME = "log.jsonl"


def append(store: Path, unit: Unit, status: str, start: float) -> None:
    """Adds one line: `started`, `done`, `failed` or `stopped`, with times in seconds since 1970.

    A log that can't be written to is reported and does not stop the run.
    """
    now = time.time()
    line = {
        "key": unit.key,
        "kind": unit.kind,
        "label": unit.label,
        "status": status,
        "results": list(unit.runs),
        "work": unit.work,
        "start": round(start, 3),
        "end": None if status == "started" else round(now, 3),
    }
    try:
        store.mkdir(parents=True, exist_ok=True)
        handle = os.open(store / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as error:
        logging.getLogger(__name__).warning("%s was not added to: %s", store / NAME, error)


def entries(store: Path) -> list[dict[str, Any]]:
    """All lines of the log, oldest first; lines cut short by a full disk are left out."""
    try:
        text = (store / NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and {"key", "kind", "status"} <= set(entry):
            found.append(entry)
    return found


def pace(store: Path) -> dict[str, float]:
    """Kind to the median seconds per image of the units done so far (see `Unit.work`)."""
    seen: dict[str, list[float]] = {}
    for entry in entries(store):
        if entry["status"] == "done" and entry.get("work"):
            seen.setdefault(entry["kind"], []).append((entry["end"] - entry["start"]) / entry["work"])
    return {kind: statistics.median(values) for kind, values in seen.items()}
