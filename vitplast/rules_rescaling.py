"""C10: whether the verdicts of C2, C4 and C5 stay when weights are rescaled and the network's function is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from vitplast.finetuning_evidence import Evidence
from vitplast.rules import Verdict, measured_ranking
from vitplast.rules_finetuning import gain_follows_plasticity, gradients_follow_plasticity

#: Rescalings of C10: the first of the two by the factor, the second by its inverse.
VARIANTS = ("LN2/FC1:0.25", "LN2/FC1:4", "LN1/qkv:0.25", "LN1/qkv:4")
REPEATED = ("C2", "C4", "C5")

#: Plasticity results by dataset, and the tables of one parametrisation.
State = tuple[Mapping[str, list[xr.Dataset]], Evidence]


def parametrisation_does_not_matter(
    itself: State, rescaled: Mapping[str, State], *, draws: int = 2000, seed: int = 0
) -> Verdict:
    """C10: PASS if no verdict of `REPEATED` changes under any of `VARIANTS`, FAIL if a PASS becomes FAIL.

    The model itself is judged again for each variant, on the datasets that the variant has, so that fewer datasets
    are no change of parametrisation. Where a verdict of a variant cannot be had, the missing ones are named and the
    claim can't PASS. The number is the share of the verdicts compared that stayed. NOT RUN if none can be compared.

    Parameters
    ----------
    itself, rescaled
        Plasticity results and tables of the model as it is, and by variant.
    draws, seed
        Bootstrap samples of C2 (C4 and C5 use their own 10,000), and the seed.
    """
    lines, missing, kept, broken = [], [], [], []
    for variant in VARIANTS:
        for claim in REPEATED:
            pair = _verdicts(claim, itself, rescaled.get(variant), draws, seed)
            if pair is None:
                missing.append(f"{claim} under {variant}")
                continue
            kept.append(pair[0] == pair[1])
            if pair[0] != pair[1]:
                lines.append(f"{claim} {pair[0]} becomes {pair[1]} under {variant}")
            broken.append(pair == ("PASS", "FAIL"))
    lacking = f"missing: {', '.join(missing)}" if missing else ""
    if not kept:
        return Verdict("NOT RUN", f"nothing to compare; {lacking}", np.nan)
    text = "; ".join([f"{sum(kept)} of {len(kept)} verdicts stay", *lines, *([lacking] if lacking else [])])
    passed = all(kept) and not missing
    return Verdict("FAIL" if any(broken) else "PASS" if passed else "INCONCLUSIVE", text, float(np.mean(kept)))


def _verdicts(claim: str, itself: State, other: State | None, draws: int, seed: int) -> tuple[str, str] | None:
    """A claim's verdicts on the model itself and on the variant, on the datasets of both; None if it can't be had."""
    if other is None:
        return None
    if claim == "C2":
        shared = [name for name in other[0] if name in itself[0]]
        if not shared:
            return None
        both = (measured_ranking(_flat(rates, shared), draws=draws, seed=seed) for rates in (itself[0], other[0]))
    else:
        rule: Callable[..., Verdict] = gain_follows_plasticity if claim == "C4" else gradients_follow_plasticity
        table = "gain" if claim == "C4" else "norms"
        if itself[1].lacking("rates", table) or other[1].lacking("rates", table):
            return None
        shared = _whole(itself[1], table) & _whole(other[1], table)
        if not shared:
            return None
        both = (rule(evidence.on(sorted(shared)), seed=seed) for evidence in (itself[1], other[1]))
    first, second = (found.verdict for found in both)
    return first, second


def _whole(evidence: Evidence, table: str) -> set[Any]:
    """Datasets with plasticity and all values of the table (of the raw norms, where it holds norms)."""
    values = getattr(evidence, table)
    values = values.sel(measure="raw") if "measure" in values.dims else values
    rest = [d for d in values.dims if d != "dataset"]
    return set(values["dataset"].values[values.notnull().all(rest).values]) & set(evidence.rates["dataset"].values)


def _flat(rates: Mapping[str, list[xr.Dataset]], names: list[str]) -> dict[Any, xr.Dataset]:
    return {(name, i): ds for name in names for i, ds in enumerate(rates[name])}
