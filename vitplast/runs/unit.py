"""One unit of work: a notebook with its parameters, and all results that it makes."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS, Parameters


@dataclass(frozen=True)
class Unit:
    """One notebook with its parameters, and all results that it makes; `experiment`: the part of a study it is of."""

    kind: str
    parameters: Parameters
    experiment: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownNameError("notebook", self.kind, KINDS)
        if self.parameters.kind != self.kind:
            raise InputError(f"a {self.kind} unit can't have the parameters of {self.parameters.kind}")

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Key to parameters of each result."""
        return self.parameters.runs()

    @property
    def key(self) -> str:
        """Sixteen hex digits that stand for the unit's set of results."""
        return hashlib.sha256(" ".join(sorted(self.runs)).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A name for people and for files: what is run, then the start of the key."""
        p = self.parameters.to_dict()
        names = ("dataset", "targets", "cases", "components", "lrs", "seeds")
        parts = ["+".join(map(str, p[n])) if isinstance(p[n], list) else str(p[n]) for n in names if n in p]
        parts += ["random"] if p.get("weights") == "random" else []
        text = re.sub(r"[^A-Za-z0-9.+]+", "-", "-".join([self.kind, *parts])).strip("-.")
        return f"{text[:80]}-{self.key[:8]}"

    @property
    def work(self) -> float:
        """Images passed through the model, training counted three times: a measure of how long the unit takes."""
        p = self.parameters.to_dict()
        if self.kind == "finetune":
            seen = 3 * p["steps"] * p["batch_size"] + p["evaluations"] * p["validation_images"] + p["test_images"]
        elif self.kind == "landscape":
            shown = {"corrected": p["images"], "as_published": 4}
            seen = len(p["components"]) * p["grid"] ** 2 * sum(shown[v] for v in p["variants"])
        elif self.kind in ("probe", "depth"):
            seen = (p["train_images"] or 2000) + (p["test_images"] or 1000)
        elif self.kind == "pretrain":
            seen = p["epochs"] * (p["train_images"] or 48000)
        elif self.kind == "criteria":
            seen = 3 * p["images"] + p["head_images"] + 8 * p["pairs"]
        elif self.kind == "search":
            seen = p["starts"] * p["steps"] / 1200
        else:
            seen = 2 * p["pairs"]
        return float(seen * len(self.runs))

    def values(self) -> dict[str, Any]:
        """The parameters that differ from their defaults, without the store."""
        chosen = {}
        for f in fields(self.parameters):
            default = f.default if f.default is not MISSING else f.default_factory()  # type: ignore[misc]
            if f.name != "store" and getattr(self.parameters, f.name) != default:
                chosen[f.name] = getattr(self.parameters, f.name)
        return chosen

    def command(self, store: str | Path = "", data: str | Path | None = None) -> list[str]:
        """Arguments of `vitplast` that run this unit; `data`: None for the command's own, empty for nothing known."""
        folders = [*(["--store", str(store)] if store else []), *(["--data", str(data)] if data is not None else [])]
        return ["run", self.kind, "--json", json.dumps(self.values()), *folders]
