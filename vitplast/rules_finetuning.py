"""The rules that decide the claims about finetuning, C4 to C7, from the tables of `Evidence`.

Each returns verdict, statistic in words, number and p-value. They decide on the paper's input convention and report
the others beside it.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from vitplast.analysis.association import rank_association
from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.omnibus import friedman, page_trend
from vitplast.analysis.tests import paired_tests, power_floor
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.finetuning_evidence import MEASURES, MOMENTS, Evidence, clusters_of
from vitplast.rules import ALPHA, PRIMARY, Verdict, in_words

#: Mean Spearman correlation that C4 and C5 ask for.
STRONG = 0.5
OTHERS = tuple(c for c in COMPONENTS if c != "MHA")


def gain_follows_plasticity(evidence: Evidence, *, draws: int = 10_000, seed: int = 0) -> Verdict:
    """C4: mean over clusters of `Spearman_k(P_k, gain_k)`: PASS at 0.5 or more, p <= 0.05 and lower limit > 0.

    FAIL: mean <= 0. See `rank_association` for p, interval, terciles of depth and the control for parameters.

    Raises
    ------
    InputError
        If no dataset has both plasticity and gain.
    """
    primary, texts, decided = primary_convention(evidence.rates), [], Verdict("INCONCLUSIVE", "", np.nan)
    for convention in evidence.rates["convention"].values:
        found = rank_association(
            evidence.rates.sel(convention=convention, drop=True),
            evidence.gain,
            clusters_of(evidence.gain),
            parameters=evidence.parameters,
            draws=draws,
            seed=seed,
        )
        texts.append(f"{in_words(convention)}: mean Spearman {_association_text(found)}")
        if convention == primary:
            decided = Verdict(association_verdict(found), "", float(found["mean"]), float(found["p"]))
    return decided._replace(statistic=_with_notes(texts, evidence))


def gradients_follow_plasticity(evidence: Evidence, *, draws: int = 10_000, seed: int = 0) -> Verdict:
    """C5: C4 with gradient norms, at the first step and as mean of 100: PASS if the raw norm passes at both moments,
    and so does the norm per parameter or the elasticity. FAIL: the raw mean is <= 0 at both.

    The number is the smaller of the two raw means; p is the largest of those that the PASS rests on.
    See `vitplast.finetuning_evidence.gradient_norms` for what stands for the first step of a head of zeros.

    Raises
    ------
    InputError
        If no dataset has both plasticity and gradients.
    """
    primary, texts, decided = primary_convention(evidence.rates), [], Verdict("INCONCLUSIVE", "", np.nan)
    for convention in evidence.rates["convention"].values:
        rates = evidence.rates.sel(convention=convention, drop=True)
        found = {
            (measure, moment): rank_association(
                rates,
                evidence.norms.sel(measure=measure, moment=moment, drop=True),
                clusters_of(evidence.norms),
                parameters=evidence.parameters,
                draws=draws,
                seed=seed,
            )
            for measure in MEASURES
            for moment in MOMENTS
        }
        texts.append(f"{in_words(convention)}: {_gradient_text(found)}")
        if convention == primary:
            decided = _gradient_verdict(found)
    if evidence.undivided is not None:
        as_measured = rank_association(
            evidence.rates.sel(convention=primary, drop=True), evidence.undivided, clusters_of(evidence.undivided)
        )
        texts.append(
            "the head starts at zero: norms at the first step with a gradient, divided by the learning rate "
            f"(undivided: {float(as_measured['mean']):.2f})"
        )
    return decided._replace(statistic=_with_notes(texts, evidence))


def plastic_are_robust(evidence: Evidence) -> Verdict:
    """C6: Page's trend test on the ranges of accuracy over the learning rates, by cluster, in the order of plasticity.

    The prediction is one for all clusters: the larger the mean plasticity, the smaller the range. PASS: p <= 0.05 and
    the median range of MHA below those of LN1 and LN2. FAIL: p <= 0.05 for the opposite order. The number is the mean
    Spearman correlation of ranges with the prediction.

    Raises
    ------
    InputError
        If no dataset has plasticity and all ranges.
    """
    rates, gaps = _shared(evidence.rates, evidence.gap)
    table = cluster_means(gaps.rename(component="configuration"))
    if table.sizes["cluster"] < 2:
        return Verdict(
            "INCONCLUSIVE", _with_notes(["Page's test needs two clusters or more, there is 1"], evidence), np.nan
        )
    median = table.median("cluster")
    ranges = ", ".join(f"{c} {100 * float(median.sel(configuration=c)):.1f}" for c in COMPONENTS)
    primary, texts, decided = primary_convention(rates), [], Verdict("INCONCLUSIVE", "", np.nan)
    for convention in rates["convention"].values:
        plasticity = cluster_means(rates.sel(convention=convention, drop=True).mean("layer")).mean("cluster")
        trend = page_trend(table, -plasticity.rename(component="configuration"))
        order = " > ".join(
            str(c) for c in plasticity["component"].values[np.argsort(-plasticity.values, kind="stable")]
        )
        texts.append(
            f"{in_words(convention)} ({order}): Page's L = {trend.statistic:g} over {table.sizes['cluster']} clusters, "
            f"p = {trend.p:.4f} for smaller ranges with plasticity, {trend.p_opposite:.4f} for larger ones"
        )
        if convention == primary:
            mha, ln1, ln2 = (float(median.sel(configuration=c)) for c in ("MHA", "LN1", "LN2"))
            verdict = "PASS" if trend.p <= ALPHA and mha < min(ln1, ln2) else "INCONCLUSIVE"
            verdict = "FAIL" if trend.p_opposite <= ALPHA else verdict
            decided = Verdict(verdict, "", trend.mean_correlation, trend.p)
    texts.append(f"median ranges in points: {ranges}")
    return decided._replace(statistic=_with_notes(texts, evidence))


def attention_is_best(evidence: Evidence) -> Verdict:
    """C7: MHA against each other component on cluster means of accuracy: exact signed ranks and t, one-sided, Holm.

    PASS: all four adjusted p <= 0.05 in both tests. FAIL: some mean difference < 0 with two-sided adjusted p <= 0.05
    in both. With fewer clusters than `power_floor` asks for, the verdict is INCONCLUSIVE by design, whatever the data,
    and Friedman's and Page's tests stand in the statistic (Page's in the order of plasticity, where it is known). The
    number is the smallest mean difference, in points; p is the largest of the eight before adjustment.

    Raises
    ------
    InputError
        If no dataset has the accuracies of all components.
    """
    whole = evidence.accuracy.dropna("dataset")
    if not whole.sizes["dataset"]:
        raise InputError("no dataset has the accuracy of every component")
    table = cluster_means(whole.rename(component="configuration"))
    clusters = table.sizes["cluster"]
    floor = power_floor(clusters, len(OTHERS))
    if clusters < 2:
        return Verdict("INCONCLUSIVE", _with_notes([floor.text], evidence), np.nan)
    found, both = (paired_tests(table, "MHA", alternative, OTHERS) for alternative in ("greater", "two-sided"))
    lines = [
        f"{c} {100 * float(one['difference']):+.2f} points (p Wilcoxon {float(one['wilcoxon']):.4f}, Holm "
        f"{float(one['wilcoxon_holm']):.4f}; t {float(one['t']):.4f}, Holm {float(one['t_holm']):.4f})"
        for c in OTHERS
        for one in [found.sel(other=c)]
    ]
    texts = [f"MHA minus {', '.join(lines)}, {clusters} clusters ({whole.sizes['dataset']} datasets)"]
    passed = bool(((found["wilcoxon_holm"] <= ALPHA) & (found["t_holm"] <= ALPHA)).all())
    worse = (both["difference"] < 0) & (both["wilcoxon_holm"] <= ALPHA) & (both["t_holm"] <= ALPHA)
    verdict = "PASS" if passed else "FAIL" if bool(worse.any()) else "INCONCLUSIVE"
    if not floor.reachable:
        verdict = "INCONCLUSIVE"
        texts = [floor.text, *texts, _omnibus(table, evidence)]
    p = float(np.max([found["wilcoxon"].max(), found["t"].max()]))
    return Verdict(verdict, _with_notes(texts, evidence), 100 * float(found["difference"].min()), p)


def primary_convention(rates: xr.DataArray) -> str:
    """The convention that decides: the paper's, or the first there is."""
    known = [str(c) for c in rates["convention"].values]
    return PRIMARY if PRIMARY in known else known[0]


def association_verdict(found: xr.Dataset) -> str:
    """PASS: mean >= 0.5, p <= 0.05, lower limit > 0 (NaN is not above 0). FAIL: mean <= 0. Else INCONCLUSIVE."""
    mean, p, low = (float(found[n]) for n in ("mean", "p", "low"))
    if mean >= STRONG and p <= ALPHA and low > 0:
        return "PASS"
    return "FAIL" if mean <= 0 else "INCONCLUSIVE"


def _gradient_verdict(found: dict[tuple[str, str], xr.Dataset]) -> Verdict:
    by_measure = {m: [found[m, moment] for moment in MOMENTS] for m in MEASURES}
    passed = {m: all(association_verdict(f) == "PASS" for f in fs) for m, fs in by_measure.items()}
    raw = [float(f["mean"]) for f in by_measure["raw"]]
    worst = {m: float(np.max([f["p"] for f in fs])) for m, fs in by_measure.items()}  # NaN if one is not known
    known = [worst[m] for m in ("rms", "elasticity") if np.isfinite(worst[m])]
    p = max(worst["raw"], min(known)) if known else worst["raw"]
    if passed["raw"] and (passed["rms"] or passed["elasticity"]):
        return Verdict("PASS", "", min(raw), p)
    return Verdict("FAIL" if max(raw) <= 0 else "INCONCLUSIVE", "", float(np.min(raw)), p)


def _gradient_text(found: dict[tuple[str, str], xr.Dataset]) -> str:
    words = {"raw": "gradient norm", "rms": "per parameter", "elasticity": "elasticity"}
    parts = []
    for measure, moment in found:
        one = found[measure, moment]
        if measure != "raw" and not np.isfinite(float(one["mean"])):
            if moment == MOMENTS[0]:
                parts.append(f"{words[measure]} not known")
            continue
        parts.append(f"{words[measure]}, {moment}: {_association_text(one, brief=measure != 'raw')}")
    return "; ".join(parts)


def _association_text(found: xr.Dataset, *, brief: bool = False) -> str:
    text = f"{float(found['mean']):.2f}, p = {float(found['p']):.4f}, 95% interval {float(found['low']):.2f} to "
    text += f"{float(found['high']):.2f}"
    if brief:
        return text
    text += f" ({int(found['n_clusters'])} clusters, {int(found['n_datasets'])} datasets)"
    if int(found["n_left_out"]):
        text += f", {int(found['n_left_out'])} left out"
    text += f"; partial given log parameters {float(found['partial']):.2f}" if np.isfinite(found["partial"]) else ""
    if "tercile_mean" in found:
        text += f"; by thirds of depth {', '.join(f'{v:.2f}' for v in found['tercile_mean'].values)}"
    return text


def _shared(rates: xr.DataArray, table: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Both on the datasets that have plasticity and all values of the table."""
    table = table.dropna("dataset")
    names = [d for d in table["dataset"].values if d in rates["dataset"].values]
    if not names:
        raise InputError("no dataset has plasticity and the results of every component")
    return rates.sel(dataset=names), table.sel(dataset=names)


def _omnibus(table: xr.DataArray, evidence: Evidence) -> str:
    test = friedman(table, COMPONENTS)
    text = f"Friedman over the five components: p = {test.p:.4f}, W = {test.agreement:.2f}"
    if evidence.rates is None:
        return text
    plasticity = evidence.rates.sel(convention=primary_convention(evidence.rates)).mean(["layer", "dataset"])
    trend = page_trend(table, plasticity.reset_coords(drop=True).rename(component="configuration"))
    return f"{text}; Page in the order of plasticity: p = {trend.p:.4f}"


def _with_notes(texts: list[str], evidence: Evidence) -> str:
    return "; ".join([*texts, *evidence.notes])
