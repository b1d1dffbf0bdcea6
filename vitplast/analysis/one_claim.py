"""One claim about finetuning decided on the main grid of one model, for the page that shows its data."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from vitplast.claims_finetuning import RULES, not_run
from vitplast.errors import InputError
from vitplast.rules import Verdict
from vitplast.verdict_table import evidence


def one_claim(results: Mapping[str, xr.Dataset | None], model: str, claim: str) -> Verdict:
    """Verdict on C4, C5, C6 or C7 of one model in its main grid; NOT RUN says what is missing.

    Parameters
    ----------
    results
        Kind (plasticity, finetune, probe, gradients) to gathered runs of any models, None where there are none.
    claim
        Name of the claim, of `vitplast.claims_finetuning.RULES`.

    Source: section 4 of the decision rules.
    """
    rule, tables = RULES[claim]
    try:
        found = evidence(results, model)
        lacking = found.lacking(*tables)
        if lacking:
            return not_run("; ".join([f"{', '.join(lacking)} of this model", *found.notes]))
        return rule(found)
    except InputError as error:
        return not_run(str(error))
