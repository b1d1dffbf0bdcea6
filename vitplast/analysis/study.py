"""A profile as a study: its planned runs by experiment, and what the runs of the main experiment share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.components import CONFIGURATIONS
from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS
from vitplast.results.provenance import public
from vitplast.runs.plan import Profile

#: The experiment that accuracies, tests and verdicts are about.
MAIN = "main"
#: Experiments of finetuning that the pages know, in the order in which they are listed, and their names in words.
EXPERIMENTS: Mapping[str, str] = {
    MAIN: "main grid",
    "rescaling": "rescaled weights",
    "plasticity_change": "plasticity before and after",
    "lora": "LoRA",
    "adamw": "AdamW",
    "low_data": "low data",
    "pixels": "larger images",
    "sizes": "larger models",
    "clipping": "separate clipping",
    "budget": "more steps",
    "components": "two components together",
}
#: What a profile at the scale of the paper finetunes in its main experiment (arXiv:2602.06883).
PAPER_MAIN: Mapping[str, Any] = {"model": "vit_base_patch16_224.orig_in21k", "img_size": 224, "batch_size": 512}
PAPER_RUNS, PAPER_STEPS = 924, 4000


@dataclass(frozen=True)
class Study:
    """The planned runs of a profile, by kind and experiment; nothing is read but the profile."""

    profile: Profile

    @property
    def name(self) -> str:
        """Name of the profile, with its variant."""
        return self.profile.name

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Kind to one row a planned run: its parameters, `run_key` and `experiment`."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for unit in self.profile.units:
            about = {"experiment": unit.experiment}
            runs = [public(run) | about | {"run_key": key} for key, run in unit.runs.items()]
            rows.setdefault(unit.kind, []).extend(runs)
        return {kind: pd.DataFrame(of) for kind, of in rows.items()}

    def planned(self, kind: str, experiment: str | Iterable[str] = (), **equal: Any) -> pd.DataFrame:
        """One row a run that the profile asks for: its parameters, `run_key` and `experiment`.

        Parameters
        ----------
        kind : str
            finetune, probe, plasticity and so on.
        experiment : str or names
            Only runs of these; empty for all.
        equal
            Values of parameters by name, tuples and lists of allowed ones.

        Raises
        ------
        UnknownNameError
            If there is no such kind, or `equal` names no parameter of it.
        """
        if kind not in KINDS:
            raise UnknownNameError("kind", kind, KINDS)
        names = list(dict.fromkeys([*_parameters(kind), "experiment", "run_key"]))
        table = self.tables.get(kind, pd.DataFrame(columns=names))
        wanted = [experiment] if isinstance(experiment, str) else list(experiment)
        if wanted:
            table = table[table["experiment"].isin(wanted)]
        for name, value in equal.items():
            if name not in table:
                raise UnknownNameError("parameter", name, map(str, table.columns))
            table = table[table[name].isin(list(value) if isinstance(value, (tuple, list)) else [value])]
        return table.reset_index(drop=True)

    def label(self, gathered: xr.Dataset, kind: str) -> xr.Dataset:
        """The runs with a coordinate `experiment` (run), found by their keys; empty text for runs of no experiment."""
        known = self.planned(kind)
        of = dict(zip(known["run_key"], known["experiment"], strict=True))
        keys = gathered["run_key"].values.ravel().tolist() if "run_key" in gathered.coords else []
        names = np.full(gathered.sizes["run"], "", dtype=object)
        names[: len(keys)] = [of.get(str(key), "") for key in keys]
        return gathered.assign_coords(experiment=("run", names))

    @cached_property
    def main(self) -> pd.DataFrame:
        """The planned finetuning runs of the main experiment."""
        return self.planned("finetune", MAIN)

    @property
    def configurations(self) -> tuple[str, ...]:
        """What is trained in the main experiment, in the usual order; all known ones where nothing is planned."""
        found = set(self.main["components"])
        return tuple(c for c in CONFIGURATIONS if c in found) or CONFIGURATIONS

    @property
    def at_paper_scale(self) -> bool:
        """Does the main experiment finetune the paper's model at its size, with its runs and steps, pretrained?"""
        plan = self.main
        if len(plan) < PAPER_RUNS or plan["steps"].min() < PAPER_STEPS or (plan["weights"] == "random").any():
            return False
        return all(bool((plan[name] == value).all()) for name, value in PAPER_MAIN.items())

    @property
    def scale(self) -> str:
        """The scale in words that no page may leave out."""
        return "at the scale of the paper" if self.at_paper_scale else "at small scale"

    def span(self, name: str, kind: str = "finetune", experiment: str = MAIN) -> str:
        """The planned values of a parameter in words: `40`, `4,000 to 20,000`, `sgd and adamw`; `none` without runs.

        Raises
        ------
        InputError
            If the kind has no such parameter.
        """
        table = self.planned(kind, experiment)
        if name not in table:
            raise InputError(f"{kind} has no parameter {name!r}")
        return span(table[name])


def span(values: Iterable[Any]) -> str:
    """Different values in words: one as it is, numbers as `smallest to largest`, others joined by `and`."""
    found = list(dict.fromkeys(values))
    if not found:
        return "none"
    numbers = all(isinstance(v, (int, float, np.number)) and not isinstance(v, (bool, np.bool_)) for v in found)
    if len(found) > 1 and numbers:
        return f"{_number(min(found))} to {_number(max(found))}"
    texts = [_number(v) if numbers else str(v) for v in found]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def _parameters(kind: str) -> list[str]:
    cls = KINDS[kind]
    return [cls.swept.get(name, name) for name in cls.__dataclass_fields__]
