"""Tables and sentences of the ablation pages: what several settings do to accuracies, orders and signs, in words."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.ablations import agreement, ranks
from vitplast.analysis.claim_signs import same_sign
from vitplast.analysis.selection import model_name
from vitplast.components import COMPONENTS

DASH = "–"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; `|` in cells is kept from ending them."""
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def progress(gathered: xr.Dataset | None, plan: pd.DataFrame) -> str:
    """Runs that are there of those planned, as "12 of 48"; they are found by their keys.

    Parameters
    ----------
    gathered : Dataset
        Along `run`; None where nothing is there.
    plan : DataFrame
        From `vitplast.analysis.study.Study.planned`.
    """
    there = 0 if gathered is None else int(np.isin(gathered["run_key"].values, plan["run_key"].values).sum())
    return f"{there:,} of {len(plan):,}"


def order_text(accuracy: xr.DataArray, components: tuple[str, ...] = COMPONENTS) -> str:
    """The components from the most accurate on, as `MHA > FC1 = FC2 > ...`; "not complete" where one is missing."""
    place = ranks(accuracy, components)
    if not bool(place.notnull().all()):
        return "not complete"
    names = [components[i] for i in np.argsort(place.values, kind="stable")]
    text = names[0]
    for a, b in itertools.pairwise(names):
        same = float(place.sel(configuration=a)) == float(place.sel(configuration=b))
        text += f"{' = ' if same else ' > '}{b}"
    return text


def percent(value: float, error: float = np.nan, digits: int = 1) -> str:
    """A fraction in percent, with its error; a dash where there is none."""
    if not np.isfinite(value):
        return DASH
    text = f"{100 * value:.{digits}f}"
    return f"{text} ± {100 * error:.{digits}f}" if np.isfinite(error) else text


def accuracy_rows(tables: Mapping[str, xr.Dataset]) -> str:
    """Accuracies in percent, a row a model, image set and setting, with the order of the components; Markdown."""
    names = list(dict.fromkeys(c for t in tables.values() for c in t["configuration"].values.tolist()))
    rows = []
    for model, table in tables.items():
        for d in table["dataset"].values:
            for s in table["setting"].values:
                one = table.sel(dataset=d, setting=s).reindex(configuration=names)
                if not bool(one["accuracy"].notnull().any()):
                    continue
                cells = [percent(float(a), float(e)) for a, e in zip(one["accuracy"], one["error"], strict=True)]
                rows.append([model_name(model), d, f"{s}", *cells, order_text(one["accuracy"])])
    return markdown_table(["model", "task", "setting", *names, "order of the components"], rows)


def agreement_rows(tables: Mapping[str, xr.Dataset], base: Hashable) -> str:
    """Kendall's tau with the order under `base`, and pairs that turn round, by model, set and setting; Markdown."""
    rows = []
    for model, table in tables.items():
        if base not in table["setting"].values:
            continue
        found = agreement(table, base, COMPONENTS)
        for d in table["dataset"].values:
            for s in [s for s in table["setting"].values.tolist() if s != base]:
                one = found.sel(dataset=d, setting=s)
                tau = f"{float(one['tau']):+.2f}" if np.isfinite(one["tau"]) else "not complete"
                pairs = f"{int(one['reversed'])} of {int(one['pairs'])}"
                rows.append([model_name(model), d, f"{s}", tau, pairs, f"{int(one['resolved'])}"])
    return markdown_table(
        ["model", "task", "setting", f"tau with {base}", "pairs turned round", "of these beyond noise in both"], rows
    )


def resolved_text(found: xr.Dataset, level: float = 0.05) -> str:
    """The cells of `vitplast.analysis.ablations.differences` that the noise does not explain (Holm), in words."""
    cells = found[["difference", "p_holm"]].stack(cell=("dataset", "configuration"))
    known = int(np.isfinite(cells["difference"]).sum())
    if not known:
        return "nothing to compare yet"
    chosen = cells.isel(cell=np.flatnonzero((cells["p_holm"] <= level).values))
    words = [
        f"{c} on {d} {100 * float(v):+.1f} points"
        for (d, c), v in zip(chosen["cell"].values.tolist(), chosen["difference"].values, strict=True)
    ]
    return f"{len(words)} of {known} differences are beyond noise" + (f": {', '.join(words)}" if words else "")


def sign_rows(tables: Mapping[str, xr.Dataset]) -> str:
    """`claim_signs` by model and setting, means over image sets, and whether all settings have one sign; Markdown."""
    rows = []
    for model, table in tables.items():
        for text, values in _statements(table):
            means = values.mean("dataset")
            cells = [
                f"{s}: {float(m):+.2f}" for s, m in zip(table["setting"].values, means, strict=True) if m.notnull()
            ]
            word = ("same" if same_sign(means) else "changes") if len(cells) > 1 else DASH
            every = ("same" if same_sign(values) else "changes") if len(cells) > 1 else DASH
            rows.append([model_name(model), text, "; ".join(cells) or "not run yet", word, every])
    return markdown_table(["model", "statement", "mean over tasks", "sign", "sign on every single task"], rows)


def stability(table: xr.Dataset) -> dict[str, str]:
    """For C7, C4 and C6: same, changes or unknown, by the means over image sets under each setting."""
    found = {}
    for text, values in _statements(table):
        means = values.mean("dataset")
        known = int(means.notnull().sum())
        found[text] = "unknown" if known < 2 else "same" if same_sign(means) else "changes"
    return found


def _statements(table: xr.Dataset) -> list[tuple[str, xr.DataArray]]:
    """What is asked of each setting, and its numbers (setting, dataset)."""
    found = [(f"C7: MHA minus {c} (points)", 100 * table["lead"].sel(other=c)) for c in table["other"].values]
    for convention in table["convention"].values if "gain" in table else ():
        words = {"common": "common input", "in_situ": "in situ"}.get(str(convention), str(convention))
        gain, robust = (table[n].sel(convention=convention) for n in ("gain", "robust"))
        found.append((f"C4: Spearman of plasticity ({words}) and accuracy", gain))
        found.append((f"C6: Spearman of plasticity ({words}) and minus the range over rates", robust))
    return found
