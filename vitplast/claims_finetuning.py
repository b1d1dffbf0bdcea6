"""The claims C4 to C7 and C10 from results: what can be decided, and what exactly is missing where it can't."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from vitplast.evidence import labels
from vitplast.finetuning_evidence import Evidence, gather_evidence, parameter_norms, rescalings, select_runs
from vitplast.rules import Verdict
from vitplast.rules_finetuning import (
    attention_is_best,
    gain_follows_plasticity,
    gradients_follow_plasticity,
    plastic_are_robust,
)
from vitplast.rules_rescaling import VARIANTS, State, parametrisation_does_not_matter

#: Claim to its rule, the tables of `Evidence` it reads, and the results that these come from.
RULES: dict[str, tuple[Callable[[Evidence], Verdict], tuple[str, ...]]] = {
    "C4": (gain_follows_plasticity, ("rates", "gain")),
    "C5": (gradients_follow_plasticity, ("rates", "norms")),
    "C6": (plastic_are_robust, ("rates", "gap")),
    "C7": (attention_is_best, ("accuracy",)),
}
#: Table of `Evidence` to what has to be given for it.
SOURCES = {
    "rates": ("plasticity",),
    "accuracy": ("finetune",),
    "gap": ("finetune",),
    "gain": ("finetune", "probe"),
    "norms": ("finetune",),
}


def finetuning_verdicts(
    rates: Mapping[Any, xr.Dataset],
    finetune: xr.Dataset | None,
    probe: xr.Dataset | None,
    gradients: Mapping[Any, xr.Dataset],
    *,
    equal: Mapping[str, Any] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, Verdict]:
    """Verdicts of C4, C5, C6, C7 and C10; NOT RUN says which results are missing.

    Parameters
    ----------
    rates
        Results of kind plasticity, of the model as it is and rescaled, one a run.
    finetune, probe
        Gathered results of these kinds; None where there are none. Probes of rescaled models are not used: the
        function is the same, and so are the features.
    gradients
        Results of kind gradients, for the norms of the parameters.
    equal
        Parameters of the finetuning runs that decide, where the runs have several (see `vitplast.analysis.grid`).
    draws, seed
        Bootstrap samples of C2 within C10; seed of all bootstraps.

    Raises
    ------
    InputError
        If the finetuning runs make no grid.
    """
    given = {"plasticity": bool(rates), "finetune": finetune is not None, "probe": probe is not None}
    plain = select_runs(probe, "")
    states: dict[str, State] = {}
    for variant in ("", *VARIANTS):
        of_variant = by_dataset(rates, variant)
        runs = select_runs(finetune, variant)
        if variant and not of_variant and runs is None:
            continue
        sizes = parameter_norms(gradients, variant)
        states[variant] = of_variant, gather_evidence(of_variant, runs, plain, sizes, equal=equal)
    evidence = states[""][1]
    decided = {claim: _decide(claim, evidence, given, seed) for claim in RULES}
    rescaled = {v: s for v, s in states.items() if v}
    found = {*rescalings(finetune), *(str(labels(ds).get("rescale", "")) for ds in rates.values())} - {""}
    if rescaled:
        decided["C10"] = parametrisation_does_not_matter(states[""], rescaled, draws=draws, seed=seed)
    else:
        others = f" (there are {', '.join(sorted(found))})" if found else ""
        decided["C10"] = not_run(f"plasticity and finetune runs with rescale = {', '.join(VARIANTS)}{others}")
    return decided


def by_dataset(rates: Mapping[Any, xr.Dataset], rescale: str) -> dict[str, list[xr.Dataset]]:
    """Plasticity results of one rescaling by target; the run's key where it does not say its target."""
    found: dict[str, list[xr.Dataset]] = {}
    for key, ds in rates.items():
        names = labels(ds)
        if str(names.get("rescale", "")) == rescale:
            found.setdefault(str(names.get("target", key)), []).append(ds)
    return found


def not_run(missing: str) -> Verdict:
    """The verdict of a claim without its results."""
    return Verdict("NOT RUN", f"missing: {missing}", np.nan)


def _decide(claim: str, evidence: Evidence, given: Mapping[str, bool], seed: int) -> Verdict:
    rule, tables = RULES[claim]
    kinds = list(dict.fromkeys(kind for table in tables for kind in SOURCES[table]))
    absent = [kind for kind in kinds if not given[kind]]
    if absent:
        return not_run(", ".join(absent))
    lacking = evidence.lacking(*tables)
    if lacking:
        return not_run("; ".join(evidence.notes) or f"{', '.join(lacking)} of the model as it is")
    shared = set.intersection(*(set(getattr(evidence, t)["dataset"].values.tolist()) for t in tables))
    if not shared:
        sets = "; ".join(f"{t} of {', '.join(map(str, getattr(evidence, t)['dataset'].values))}" for t in tables)
        return not_run(f"a dataset with all of {' and '.join(kinds)} (there is {sets})")
    table = getattr(evidence, tables[-1])
    table = table.sel(measure="raw") if "measure" in table.dims else table
    rest = [d for d in table.dims if d != "dataset"]
    if not bool(table.sel(dataset=sorted(shared)).notnull().all(rest).any()):
        what = " at two learning rates or more" if tables[-1] == "gap" else ""
        return not_run("; ".join([f"a dataset with runs of every component{what}", *evidence.notes]))
    return rule(evidence, seed=seed) if claim in ("C4", "C5") else rule(evidence)
