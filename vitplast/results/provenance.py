"""Where a result comes from: versions, commit, machine and parameters, as attributes that netCDF can hold.

No names of hosts or people and no absolute paths are recorded.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from vitplast import __version__
from vitplast.images import marker
from vitplast.parameters import SCHEMA_VERSION, key_of
from vitplast.places import store_folder
from vitplast.results.schema import schema_of

PACKAGE = Path(__file__).parent.parent
REFERENCES = "arXiv:2602.06883"
#: Packages whose versions `vitplast info` shows.
PACKAGES = (
    "vitplast",
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "pandas",
    "xarray",
    "netCDF4",
    "scikit-learn",
    "papermill",
    "ipykernel",
    "matplotlib",
    "seaborn",
    "safetensors",
    "jupyter-book",
)


def attributes(kind: str, run: dict[str, Any], profile: str = "") -> dict[str, str | int]:
    """Attributes of a result of `run` (an item of `Parameters.runs()`); the checksums are added on writing."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    commit, dirty = git_state()
    shown = public(run)
    sets = [
        f"{shown[name]} ({role})"
        for name, role in (("source", "source"), ("target", "target"), ("dataset", "downstream"))
        if name in run
    ]
    return {
        "title": schema_of(kind).title,
        "source": f"vitplast {__version__}, {kind} of {shown.get('model') or shown.get('case', '')}"
        + (f" on {', '.join(sets)}" if sets else ""),
        "history": f"{now} made by vitplast {__version__}",
        "references": REFERENCES,
        "Conventions": "CF-1.11, ACDD-1.3",
        "vitplast_schema": SCHEMA_VERSION,
        "vitplast_version": __version__,
        "kind": kind,
        "run_key": key_of(kind, run),
        "params_json": json.dumps(shown, sort_keys=True),
        "profile": profile or run.get("profile", ""),
        "commit": commit,
        "dirty": dirty,
        "created": now,
        "machine": machine(),
        "device": device(run.get("device", "auto")),
        "threads": threads(),
        "torch_version": version_of("torch"),
        "timm_version": version_of("timm"),
        "numpy_version": version_of("numpy"),
        "python_version": platform.python_version(),
        "weights_origin": "not recorded",
        "weights_sha256": "not recorded",
    } | marker.attributes()


def public(run: dict[str, Any]) -> dict[str, Any]:
    """The parameters as they may be shown to others: without the store, and of absolute paths the last part only."""
    return {name: _public_value(value) for name, value in run.items() if name != "store"}


def _public_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_public_value(v) for v in value]
    if isinstance(value, str):
        for mark in ("folder:", "hf:"):
            prefix, colon, path = value.rpartition(mark)
            if Path(path).is_absolute() or path.startswith("~"):
                return f"{prefix}{colon}{Path(path).name}"
    return value


def git_state() -> tuple[str, str]:
    """Commit of the checkout that the package is in, and whether it has uncommitted changes; `unknown` outside one."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return "unknown", "unknown"
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *command], env=env, capture_output=True, text=True, timeout=10, check=True
            )
            answers.append(done.stdout.strip())
        except (OSError, subprocess.SubprocessError):
            answers.append(None)
    commit, changes = answers
    if not commit or changes is None:
        return commit or "unknown", "unknown"
    return commit, "yes" if changes else "no"


def machine() -> str:
    """Processor, usable cores and operating system."""
    return f"{_processor()}, {cores()} cores, {platform.system()}"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown processor"


def device(asked: str) -> str:
    """The device in words, with the name of the GPU that it is; `auto`: what PyTorch offers, `cpu` if not loaded."""
    torch = sys.modules.get("torch")
    available = torch is not None and torch.cuda.is_available()
    if asked == "cpu" or (asked == "auto" and not available):
        return "cpu"
    if not available:
        return asked
    used = "cuda" if asked == "auto" else asked
    return f"{used} ({torch.cuda.get_device_name(torch.device(used))})"


def threads() -> int:
    """Threads of PyTorch, 0 if it was not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else 0


def version_of(package: str) -> str:
    """Installed version of a distribution, or `not installed`."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, str]:
    """Versions, machine, commit and folders in use, for `vitplast info` and bug reports."""
    commit, dirty = git_state()
    facts = {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}
    facts |= {"machine": machine(), "commit": commit, "uncommitted changes": dirty}
    try:
        import torch

        facts |= {
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "threads": str(torch.get_num_threads()),
            "cpu capability": torch.backends.cpu.get_cpu_capability(),
        }
    except ImportError as error:
        facts["gpu"] = f"unknown: {error}"
    home = str(Path.home())
    store = str(store_folder())
    facts["store"] = store.replace(home, "~", 1) if store.startswith(home + os.sep) else store
    return facts
