"""The paper's own accuracies under the same tests: what its table supports and what it leaves open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats

from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.omnibus import friedman, page_trend
from vitplast.analysis.tables import relative_gain
from vitplast.analysis.tests import ALPHA, ALTERNATIVES, holm, paired_tests
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.runs import project_root

#: Seeds behind every mean of the table.
SEEDS = 3
#: Column of the linear probe.
PROBE = "LP"
#: The order in which the paper expects plasticity, from the smallest.
ORDER = ("LN1", "LN2", "FC2", "FC1", "MHA")
#: What counts as one observation: every image set, as in the paper, or every cluster of sets that share images.
UNITS = ("sets", "clusters")


def paper_table(path: Path | None = None) -> xr.Dataset:
    """`mean` and `std` of the published test accuracies, fractions, in the form of our own best-rate tables.

    The file prints deviations with ddof 0 (`std_printed`); `std = sqrt(3 / 2) std_printed` is with ddof 1, as
    everywhere here. The probe, which has no seeds, has none.

    Returns
    -------
    Dataset (dataset, configuration): mean, std, std_printed.

    Raises
    ------
    InputError
        If the file lacks a column.

    Source: the authors' public code, see the head of `data/paper_table.csv`; rates chosen on test accuracy.
    """
    table = pd.read_csv(project_root() / "data" / "paper_table.csv" if path is None else path, comment="#")
    missing = [c for c in ("dataset", "configuration", "mean", "std") if c not in table]
    if missing:
        raise InputError(f"the table has no column {', '.join(missing)}, only {', '.join(map(str, table.columns))}")
    sets, configurations = (list(dict.fromkeys(table[c])) for c in ("dataset", "configuration"))
    wide = table.set_index(["dataset", "configuration"])
    index = pd.MultiIndex.from_product([sets, configurations])
    shape = (len(sets), len(configurations))
    mean, std = (wide[c].reindex(index).to_numpy().reshape(shape) / 100 for c in ("mean", "std"))
    attrs = {"units": "1"}
    dims = ("dataset", "configuration")
    return xr.Dataset(
        {
            "mean": (dims, mean, attrs | {"long_name": "test accuracy, mean over seeds"}),
            "std": (dims, std * np.sqrt(SEEDS / (SEEDS - 1)), attrs | {"long_name": "deviation over seeds, ddof 1"}),
            "std_printed": (dims, std, attrs | {"long_name": "deviation over seeds, ddof 0"}),
        },
        coords={"dataset": sets, "configuration": configurations},
        attrs={"references": "arXiv:2602.06883", "seeds": SEEDS, "select": "test"},
    )


def units(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """`{"sets": values, "clusters": their cluster means}`."""
    return {"sets": values, "clusters": cluster_means(values)}


def gains(table: xr.Dataset) -> xr.Dataset:
    """`(mean - LP) / LP` by set, and its mean over sets and over clusters.

    The probe's column is out of date in the source (errata, entry B4): differences of gains between configurations
    stand on it, their sign on one set does not.

    Returns
    -------
    Dataset: gain (dataset, configuration), a fraction, without the probe itself; mean_gain (unit, configuration).
    """
    accuracy = table["mean"]
    gain = relative_gain(accuracy.drop_sel(configuration=PROBE), accuracy.sel(configuration=PROBE))
    means = [v.mean(v.dims[0]).drop_vars("sets", errors="ignore") for v in units(gain).values()]
    return xr.Dataset({"gain": gain, "mean_gain": xr.concat(means, dim="unit").assign_coords(unit=list(UNITS))})


def comparisons(table: xr.Dataset, reference: str = "MHA") -> xr.Dataset:
    """`paired_tests` of `reference` against the other components, for both units and all three alternatives.

    Returns
    -------
    Dataset (unit, alternative, other) of `vitplast.analysis.tests.paired_tests`; n and floor (unit, alternative) are
    the number of observations and the smallest adjusted p of the signed ranks, `floor_text` says it.
    """
    rows = []
    for values in units(table["mean"]).values():
        found = [paired_tests(values, reference, alternative) for alternative in ALTERNATIVES]
        for one in found:
            for name, key in (("n", "n_clusters"), ("floor", "floor"), ("floor_text", "floor_text")):
                one[name] = one.attrs[key]
        rows.append(xr.concat(found, dim="alternative", combine_attrs="drop_conflicts"))
    joined = xr.concat(rows, dim="unit", combine_attrs="drop_conflicts")
    return joined.assign_coords(unit=list(UNITS), alternative=list(ALTERNATIVES))


def omnibus(table: xr.Dataset) -> xr.Dataset:
    """Friedman's test of the five components, and Page's of the paper's order, for both units.

    Returns
    -------
    Dataset (unit): friedman, friedman_p, agreement (Kendall's W), page_l, page_p, page_p_opposite, mean_correlation;
    mean_rank (unit, configuration), 1 best.
    """
    names = ("friedman", "friedman_p", "agreement", "page_l", "page_p", "page_p_opposite", "mean_correlation")
    rows, ranks = [], []
    for values in units(table["mean"]).values():
        any_difference, order = friedman(values), page_trend(values, ORDER)
        rows.append((*any_difference[:3], *order))
        ranks.append([any_difference.mean_ranks[c] for c in COMPONENTS])
    data = {name: ("unit", list(column)) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    data["mean_rank"] = (("unit", "configuration"), ranks)
    return xr.Dataset(data, coords={"unit": list(UNITS), "configuration": list(COMPONENTS)})


def seed_resolved(table: xr.Dataset, reference: str = "MHA") -> xr.Dataset:
    """`d / sqrt(s_a^2 / 3 + s_b^2 / 3)`: on which sets seed noise alone explains the difference from `reference`.

    Welch's t-test from means and deviations, two-sided, Holm over all sets and comparisons. It speaks of these sets
    only, and treats seeds as unpaired, since the table does not say more.

    Returns
    -------
    Dataset: difference, p, p_holm (dataset, other); better, worse (other): sets with a resolved difference.
    """
    others = [c for c in COMPONENTS if c != reference]
    a, b = table.sel(configuration=reference, drop=True), table.sel(configuration=others).rename(configuration="other")
    difference = (b["mean"] * -1 + a["mean"]).transpose("dataset", "other")
    mean, std = (xr.broadcast(a[n], b[n].transpose("dataset", "other")) for n in ("mean", "std"))
    p = stats.ttest_ind_from_stats(mean[0], std[0], SEEDS, mean[1], std[1], SEEDS, equal_var=False).pvalue
    dims = difference.dims
    found = xr.Dataset({"difference": difference, "p": (dims, p), "p_holm": (dims, holm(p.ravel()).reshape(p.shape))})
    found["better"] = ((found["p_holm"] <= ALPHA) & (difference > 0)).sum("dataset")
    found["worse"] = ((found["p_holm"] <= ALPHA) & (difference < 0)).sum("dataset")
    return found


def without_one(table: xr.Dataset, reference: str = "MHA") -> xr.DataArray:
    """`mean_{h != g} d_h`: mean difference from `reference` over the clusters with one left out, (left_out, other)."""
    others = [c for c in COMPONENTS if c != reference]
    means = cluster_means(table["mean"])
    gaps = means.sel(configuration=reference, drop=True) - means.sel(configuration=others)
    gaps = gaps.rename(configuration="other").drop_vars("sets")
    left = (gaps.sum("cluster") - gaps) / (gaps.sizes["cluster"] - 1)
    return left.rename(cluster="left_out").transpose("left_out", "other")


def supported(table: xr.Dataset, reference: str = "MHA") -> pd.DataFrame:
    """What the table decides at 5%: one row a statement and unit, by the rules of C7, Friedman and Page.

    Columns: statement, unit, n, value (mean difference, agreement or mean correlation), p_t and p_wilcoxon (Holm) or p,
    and decided: yes (all p-values at most 0.05 in the claimed direction), no (the opposite two-sided, or for an order
    the opposite one), or open; `reachable`: whether the signed ranks could have decided for the claim at all.
    """
    rows = []
    paired, all_at_once = comparisons(table, reference), omnibus(table)
    for unit in UNITS:
        claim, both = (paired.sel(unit=unit, alternative=a) for a in ("greater", "two-sided"))
        for other in paired["other"].values:
            one, two = claim.sel(other=other), both.sel(other=other)
            p = {"p_t": float(one["t_holm"]), "p_wilcoxon": float(one["wilcoxon_holm"])}
            against = float(one["difference"]) < 0 and min(float(two["t_holm"]), float(two["wilcoxon_holm"])) <= ALPHA
            rows.append({
                "statement": f"{reference} > {other}", "unit": unit, "n": int(one["n"]),
                "value": float(one["difference"]), **p,
                "decided": "yes" if max(p.values()) <= ALPHA else "no" if against else "open",
                "reachable": float(one["floor"]) <= ALPHA,
            })  # fmt: skip
        one = all_at_once.sel(unit=unit)
        friedman_p, up, down = (float(one[n]) for n in ("friedman_p", "page_p", "page_p_opposite"))
        shared = {"unit": unit, "n": int(claim["n"]), "reachable": True}
        rows.append({
            "statement": "components differ", "value": float(one["agreement"]), "p": friedman_p,
            "decided": "yes" if friedman_p <= ALPHA else "open", **shared,
        })  # fmt: skip
        rows.append({
            "statement": " < ".join(ORDER), "value": float(one["mean_correlation"]), "p": up,
            "decided": "yes" if up <= ALPHA else "no" if down <= ALPHA else "open", **shared,
        })  # fmt: skip
    return pd.DataFrame(rows)
