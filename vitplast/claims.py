"""The paper's claims as data, and verdicts on them by rules fixed before any run.

Verdicts are PASS, FAIL, INCONCLUSIVE (neither rule is met, or it cannot be decided yet) and NOT RUN (results are
missing). Claims about pretrained ViT-B/L/H say nothing when the results come from another model: see `scope`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.tests import holm
from vitplast.claims_finetuning import finetuning_verdicts
from vitplast.errors import InputError
from vitplast.evidence import Results, clean, gathered_runs, labels, matched, one_model, runs
from vitplast.gradients import gradient_rule
from vitplast.rules import (
    PAPER_BIAS,
    Verdict,
    bound_order,
    bound_ranking,
    bounds_hold,
    measured_ranking,
    predictions_closer,
)


@dataclass(frozen=True)
class Claim:
    """A claim in our words, the rule that decides it in words, the results it needs, and the models it speaks of."""

    id: str
    statement: str
    rule: str
    needs: str
    scope: str


_PAPER, _ANY = "pretrained ViT-B/L/H", "any model"
CLAIMS = (
    Claim(
        "C1",
        "The bounds rank MHA above FC1 and FC2, and these above LN2 and LN1.",
        "PASS: in 90% of the blocks or more B_MHA > max B_FC and min B_FC > max B_LN, and FC1 ~ FC2 and LN2 ~ LN1 "
        "within a factor 2 (median), for the paper's bound with query bias and for the new one. FAIL: this ranking in "
        "half of the blocks or fewer, for the new bound.",
        "bounds",
        _PAPER,
    ),
    Claim(
        "C2",
        "The measured plasticity has the same ranking.",
        "PASS: all six paired gaps above 0 (simultaneous 95% bootstrap limits) in 80% of the datasets or more. "
        "FAIL: some gap below 0 in half of the datasets or more.",
        "plasticity",
        _PAPER,
    ),
    Claim(
        "C3",
        "The bounds predict the measured order.",
        "PASS: mean Kendall tau_b >= 0.6 and permutation p <= 0.05. FAIL: mean tau_b <= 0.",
        "plasticity, bounds",
        _PAPER,
    ),
    Claim(
        "C3b",
        "Second-moment and layer norm predictions come closer than the bounds.",
        "PASS: median |log(measured/predicted)| <= 0.25 and smaller than for the bound. FAIL: larger than for the "
        "bound.",
        "theory",
        _ANY,
    ),
    Claim(
        "C4",
        "More plastic components gain more from finetuning.",
        "PASS: mean Spearman over clusters of datasets >= 0.5, p <= 0.05, lower limit > 0. FAIL: mean <= 0.",
        "plasticity, finetune, probe",
        _PAPER,
    ),
    Claim(
        "C5",
        "More plastic components get larger gradients.",
        "PASS: as C4 with gradient norms, at the first step and as mean of 100, raw and also per parameter or as "
        "elasticity. FAIL: raw mean <= 0 at both.",
        "plasticity, finetune (and gradients for elasticity)",
        _PAPER,
    ),
    Claim(
        "C6",
        "More plastic components depend less on the learning rate.",
        "PASS: Page's trend test p <= 0.05 and the median range of MHA below those of LN1 and LN2. FAIL: p <= 0.05 "
        "in the opposite direction.",
        "plasticity, finetune over a grid of learning rates",
        _PAPER,
    ),
    Claim(
        "C7",
        "Finetuning MHA beats finetuning any other component.",
        "PASS: all four Holm-adjusted p <= 0.05 by Wilcoxon and by t-test on cluster means. FAIL: some mean "
        "difference below 0 with two-sided adjusted p <= 0.05 in both. Fewer than 7 clusters: INCONCLUSIVE by design.",
        "finetune; at least 7 clusters of datasets",
        _PAPER,
    ),
    Claim(
        "C8",
        "The valid bounds hold.",
        "PASS: no rate exceeds its bound by more than 1e-6 of it. FAIL: one does (a bug or a broken hypothesis).",
        "plasticity, bounds",
        _ANY,
    ),
    Claim(
        "C9",
        "The gradient inequalities hold.",
        "PASS: no ratio of Proposition 17 above 1 + 1e-6, and the gradient of the key bias is 0 (at most 1e-9 of the "
        "terms that cancel in it). FAIL: one ratio is above, or that gradient is not 0.",
        "gradients",
        _ANY,
    ),
    Claim(
        "C10",
        "The verdicts do not depend on the parametrisation.",
        "PASS: C2, C4, C5 unchanged when LN2/FC1 and LN1/qkv are rescaled by 1/4 and 4. FAIL: a PASS becomes FAIL.",
        "plasticity, finetune of rescaled models; probe",
        _ANY,
    ),
)


#: Claims whose p-values are adjusted together. C2 has simultaneous limits in place of a p-value.
ADJUSTED = ("C2", "C3", "C4", "C5", "C6", "C7")


def verdicts(
    plasticity: Results = None,
    bounds: Results = None,
    finetune: xr.Dataset | None = None,
    theory: Results = None,
    gradients: Results = None,
    *,
    probe: xr.Dataset | None = None,
    equal: Mapping[str, Any] | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """One row a claim: id, claim, verdict, statistic (words), number, p, p_holm, needs, scope.

    `p` is the raw p-value of the claim's test and `p_holm` Holm's adjustment over those of `ADJUSTED` that have one;
    verdicts are decided on the raw ones, as the rules say. Runs of rescaled models (parameter `rescale`) count for C10
    alone.

    Parameters
    ----------
    plasticity, bounds
        Results of these kinds: a gathered dataset with dimension `run`, a dataset of one run, or a dict from target
        to dataset; each run counts as one data set. Runs belong together if their `RUN_NAMES` agree (as far as they
        are known) and, for two dicts, their keys.
    finetune, probe
        Gathered results of these kinds. Their `dataset` is the `target` (or the key) of the plasticity results.
    theory, gradients
        Results of these kinds, in the same forms as plasticity; the norms of the parameters in gradients give C5 its
        elasticity.
    equal
        Parameters by name that decide which finetuning runs are read, where they differ in more than data set,
        components, rate and seed, as `{"steps": 200, "optimizer": "sgd"}`.
    draws, seed
        Bootstrap samples of C2 and the seed of all bootstraps.

    Raises
    ------
    HypothesisError
        If rates are not finite, or plasticity and bounds have no run in common.
    InputError
        If a result is no dataset, is of another kind or lacks what the rules read, if the runs are of several models,
        if the finetuning runs make no grid, or if it is not clear which bounds belong to a measurement.
    """
    measured = {key: clean(ds) for key, ds in runs(plasticity, "plasticity").items()}
    rates = {key: ds for key, ds in measured.items() if not labels(ds).get("rescale")}
    limits, stated, slopes = runs(bounds, "bounds"), runs(theory, "theory"), runs(gradients, "gradients")
    trained, probed = gathered_runs(finetune, "finetune"), gathered_runs(probe, "probe")
    single = [ds for found in (measured, limits, stated, slopes) for ds in found.values()]
    one_model([*single, *(ds for ds in (trained, probed) if ds is not None)])
    both_rates, both_limits = matched(plasticity, bounds, rates, limits)
    for key, ds in both_limits.items():
        if PAPER_BIAS not in ds["variant"].values:
            raise InputError(f"bounds of run {key!r} lack the variant {PAPER_BIAS!r}, which C3 and C8 need")
    decided: dict[str, Verdict] = {}
    if limits:
        decided["C1"] = bound_ranking(limits)
    if rates:
        decided["C2"] = measured_ranking(rates, draws=draws, seed=seed)
    if rates and limits:
        decided["C3"] = bound_order(both_rates, both_limits)
        decided["C8"] = bounds_hold(both_rates, both_limits, stated)
    if stated:
        decided["C3b"] = predictions_closer(stated)
    if slopes:
        decided["C9"] = Verdict(*gradient_rule(slopes))
    decided |= finetuning_verdicts(measured, trained, probed, slopes, equal=equal, draws=draws, seed=seed)
    return _table(decided)


def _table(decided: Mapping[str, Verdict]) -> pd.DataFrame:
    p = {c: decided[c].p for c in ADJUSTED if c in decided and np.isfinite(decided[c].p)}
    adjusted = dict(zip(p, holm(list(p.values())), strict=True))
    rows = []
    for claim in CLAIMS:
        found = decided.get(claim.id, Verdict("NOT RUN", "", np.nan))
        text = f"needs {claim.needs}{'; ' * bool(found.statistic)}" if found.verdict == "NOT RUN" else ""
        text += found.statistic
        if claim.id in p:
            text += f"; p of the claim {p[claim.id]:.4f}, {adjusted[claim.id]:.4f} by Holm over {', '.join(p)}"
        row = (claim.id, claim.statement, found.verdict, text, found.number, found.p)
        rows.append((*row, adjusted.get(claim.id, np.nan), claim.needs, claim.scope))
    return pd.DataFrame(
        rows, columns=["id", "claim", "verdict", "statistic", "number", "p", "p_holm", "needs", "scope"]
    )
