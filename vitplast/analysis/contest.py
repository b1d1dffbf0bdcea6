"""Does any selection criterion beat constant advice? An exact paired test over clusters, adjusted by Holm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from vitplast.analysis.scoring import ALWAYS
from vitplast.analysis.tests import DIGITS, holm
from vitplast.errors import InputError, UnknownNameError

ALPHA = 0.05
#: Clusters up to which all patterns of signs are gone through.
MOST = 20
#: What the order of adding may do to a sum, relative to the sum of absolute values.
_ROUNDING = 1e-12


def against_advice(scores: xr.Dataset, advice: str = "MHA") -> xr.Dataset:
    """`mean_c (regret of the advice - regret of the criterion)`, its exact one-sided p over 2^C signs, and Holm's.

    Parameters
    ----------
    scores
        From `score_criteria`, with its constant advice.
    advice
        The component that the advice always names.

    Returns
    -------
    xarray.Dataset
        Over criterion, without the constant ones: `saved` (points of accuracy, larger = better than the advice), `p`,
        `p_holm`, `n_clusters` (those with both); `beats` where `p_holm` <= 0.05 and `saved` > 0. `floor`: the smallest
        p that as many clusters can give, times the number of criteria; above 0.05 nothing can be shown.

    Raises
    ------
    UnknownNameError
        If the advice was not scored.
    InputError
        If no criterion competes, or there are more than `MOST` clusters.

    Notes
    -----
    Sign-flip test: if criterion and advice were equally good, each cluster's difference could have had either sign.
    """
    names = [str(c) for c in scores["criterion"].values]
    reference = f"{ALWAYS}{advice}"
    if reference not in names:
        raise UnknownNameError(
            "constant advice", advice, [n.removeprefix(ALWAYS) for n in names if n.startswith(ALWAYS)]
        )
    rivals = [n for n in names if not n.startswith(ALWAYS)]
    if not rivals:
        raise InputError("only constant advice was scored: nothing to compare it with")
    regret = scores["cluster_regret"]
    if regret.sizes["cluster"] > MOST:
        raise InputError(f"the exact test takes up to {MOST} clusters, got {regret.sizes['cluster']}")
    saved = regret.sel(criterion=reference, drop=True) - regret.sel(criterion=rivals)
    saved = saved.round(DIGITS).transpose("criterion", "cluster")  # what is equal but for rounding has no sign
    known = np.isfinite(saved.values)
    p = np.array([sign_flip_p(row[k]) for row, k in zip(saved.values, known, strict=True)])
    mean, adjusted = saved.mean("cluster").values, holm(p)
    count = known.sum(axis=1)
    return xr.Dataset(
        {
            "saved": ("criterion", mean),
            "p": ("criterion", p),
            "p_holm": ("criterion", adjusted),
            "n_clusters": ("criterion", count),
            "beats": ("criterion", (adjusted <= ALPHA) & (mean > 0)),
            "floor": float(min(1.0, len(rivals) * 2.0 ** -count.max())),
        },
        coords={"criterion": rivals},
        attrs={"advice": advice},
    )


def advice_verdict(scores: xr.Dataset, advice: str = "MHA") -> tuple[str, str]:
    """ "YES", "NO" or "INCONCLUSIVE by design", and the finding in words: does any criterion beat the constant advice?

    NO means that none was shown to, by `against_advice` at 5%. Raises what that raises.
    """
    found = against_advice(scores, advice)
    regret = scores["mean"].sel(measure="regret")
    lowest = str(found["criterion"].values[np.nanargmax(found["saved"].values)])
    text = (
        f"always {advice} loses {float(regret.sel(criterion=f'{ALWAYS}{advice}')):.2f} points to the best component; "
        f"of {found.sizes['criterion']} criteria the one that loses least is {lowest} "
        f"({float(regret.sel(criterion=lowest)):.2f} points, p = {float(found['p'].sel(criterion=lowest)):.4f}, "
        f"Holm {float(found['p_holm'].sel(criterion=lowest)):.4f}; {int(found['n_clusters'].max())} clusters)"
    )
    winners = found["criterion"].values[found["beats"].values].tolist()
    if winners:
        return "YES", f"{text}; better than the advice: {', '.join(winners)}"
    if float(found["floor"]) > ALPHA:
        return "INCONCLUSIVE by design", f"{text}; no adjusted p below {float(found['floor']):.3f} is possible"
    return "NO", f"{text}; none is shown to be better than the advice"


def contest_in_words(verdicts: Mapping[str, str], advice: str = "MHA") -> str:
    """One sentence from the verdicts of `advice_verdict` by model; it says where nothing was compared.

    Examples
    --------
    >>> contest_in_words({"a": "NO", "b": "INCONCLUSIVE by design"})
    'on a no criterion is shown to lose less than always MHA; on b there are too few clusters to show anything'
    """
    words = {
        "YES": f"some criterion is shown to lose less than always {advice}",
        "NO": f"no criterion is shown to lose less than always {advice}",
    }
    few = "there are too few clusters to show anything"
    said = [f"on {model} {words.get(verdict, few)}" for model, verdict in verdicts.items()]
    return "; ".join(said) or "nothing can be compared yet"


def sign_flip_p(differences: np.ndarray) -> float:
    """Share of the 2^n sign patterns whose mean is as large or larger than that of `differences` (n,); 1 for none.

    Examples
    --------
    >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))
    0.125
    """
    differences = np.asarray(differences, dtype=np.float64)
    if not np.any(differences):
        return 1.0
    sums = np.zeros(1)
    for d in differences:
        sums = np.concatenate([sums + d, sums - d])
    return float((sums >= sums[0] - _ROUNDING * np.abs(differences).sum()).mean())
