"""What the verdicts depend on: the same rules on runs that differ in one choice, all else alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.study import MAIN, span
from vitplast.claims import verdicts
from vitplast.claims_finetuning import by_dataset, finetuning_verdicts
from vitplast.components import COMPONENTS
from vitplast.evidence import clean, runs
from vitplast.finetuning_evidence import gather_evidence, parameter_norms
from vitplast.rules import PRIMARY, measured_ranking
from vitplast.rules_finetuning import gain_follows_plasticity, gradients_follow_plasticity
from vitplast.verdict_table import Gathered, choose, column, kept, main_runs, of_model, with_unmoved

#: Claims that finetuning decides, and those that are repeated for a rescaled model.
TRAINED, REPEATED = ("C4", "C5", "C6", "C7"), ("C2", "C4", "C5")
#: Claims that know an input convention.
OF_CONVENTION = ("C1", "C2", "C3", "C3b", "C4", "C5", "C6")
COLUMNS = ("group", "variant", "claim", "verdict", "number", "p", "datasets", "seeds", "statistic")


@dataclass(frozen=True)
class Group:
    """One choice: its variants, each an experiment and parameters of its runs, and what must agree to be compared."""

    name: str
    variants: Mapping[str, Mapping[str, Any]]
    alike: tuple[str, ...] = ("dataset", "components", "lr", "seed")


def groups(finetune: xr.Dataset | None) -> list[Group]:
    """Choices that were run again: steps, clipping, optimizer and training images, the main experiment first in each.

    Variants are named by what the runs have: number of steps, of training images, of images of each class.
    """
    if finetune is None or "experiment" not in finetune.coords:
        return []

    def of(experiment: str, name: str) -> list[Any]:
        runs = choose(finetune, experiment=experiment)
        return [] if runs is None else sorted(set(column(runs, name).tolist()))

    main, few = of(MAIN, "train_images"), of("low_data", "per_class")
    steps = {f"{span(of(MAIN, 'steps'))} steps": {}}
    steps |= {f"{n} steps": {"experiment": "budget", "steps": n} for n in of("budget", "steps")}
    many = f"{main[0]}" if len(main) == 1 and main[0] else "all"
    each = f"{few[0]} a class" if len(few) == 1 and few[0] else "few a class"
    # Rates of AdamW are others than those of SGD by design, so only the rest must agree.
    return [
        Group("steps", steps),
        Group("clipping", {"joint": {}, "head apart": {"experiment": "clipping"}}),
        Group("optimizer", {"SGD": {}, "AdamW": {"experiment": "adamw"}}, ("dataset", "components", "seed")),
        Group("training images", {many: {}, each: {"experiment": "low_data"}}),
    ]


def variations(
    results: Gathered, model: str, *, img_size: int | None = None, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Verdicts of one model under each variant of each choice, one row a claim: columns `COLUMNS`.

    The first variant of a group is the main experiment cut down to what the others have: the same datasets, components,
    learning rates and seeds. So within a group verdicts differ by the choice alone; between groups also by the number
    of datasets and seeds. Groups: selection (rate chosen on validation or on test accuracy), convention (common or in
    situ decides), those of `groups`, and parametrisation. A group with fewer than two variants has no rows.

    Parameters
    ----------
    results, model, img_size
        As `vitplast.verdict_table.verdict_table`.
    draws, seed
        As `vitplast.claims.verdicts`.
    """
    own = of_model(results, model, img_size=img_size)
    how = {"draws": draws, "seed": seed}
    rates = choose(own["plasticity"], rescale="")
    main = main_runs(own["finetune"])
    rows: list[dict[str, Any]] = []
    if main is not None:
        test = main.assign(validation_accuracy=main["test_accuracy"].where(main["validation_accuracy"].notnull()))
        for variant, chosen in (("validation", main), ("test", test)):
            rows += _rows("selection", variant, TRAINED, main, _trained(own, rates, chosen, how))
    for convention in _conventions(rates):
        one = {k: _of_convention(own[k], convention) for k in ("bounds", "theory")}
        one |= {"plasticity": _of_convention(rates, convention), "gradients": own["gradients"], "probe": own["probe"]}
        rows += _rows("convention", convention, OF_CONVENTION, main, verdicts(finetune=main, **one, **how))
    for group in groups(own["finetune"]):
        for variant, cut in comparable(own["finetune"], group).items():
            rows += _rows(group.name, variant, TRAINED, cut, _trained(own, rates, cut, how))
    rows += _rescaled(own, how)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def comparable(finetune: xr.Dataset | None, group: Group) -> dict[str, xr.Dataset]:
    """Runs by variant, cut down to those whose `alike` every variant has; empty for fewer than two variants.

    A variant counts once one dataset has runs of all components, so that one that is not run yet hides no other.
    """
    found = {name: main_runs(finetune, **changes) for name, changes in group.variants.items()}
    found = {name: one for name, one in found.items() if one is not None and _all_components(one)}
    if len(found) < 2:
        return {}
    keys = {n: list(zip(*(column(r, a).tolist() for a in group.alike), strict=True)) for n, r in found.items()}
    shared = set.intersection(*map(set, keys.values()))
    cut = {n: kept(r, np.array([k in shared for k in keys[n]])) for n, r in found.items()}
    return {n: r for n, r in cut.items() if r is not None} if shared else {}


def changed(table: pd.DataFrame) -> pd.DataFrame:
    """One row a group and claim: compared (number of variants), verdicts in their order, and changes (are any two
    different); claims that were not run in a group are left out.
    """
    ran = table[table.verdict != "NOT RUN"]
    rows = [
        {
            "group": group, "claim": claim, "compared": len(one), "verdicts": " → ".join(one.verdict),
            "changes": one.verdict.nunique() > 1,
        }
        for (group, claim), one in ran.groupby(["group", "claim"], sort=False)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["group", "claim", "compared", "verdicts", "changes"])


def _trained(
    own: Mapping[str, xr.Dataset | None], rates: xr.Dataset | None, chosen: xr.Dataset, how: Mapping[str, int]
) -> pd.DataFrame:
    """The claims about finetuning on these runs alone."""
    measured = {k: clean(ds) for k, ds in runs(rates, "plasticity").items()}
    found = finetuning_verdicts(measured, chosen, own["probe"], runs(own["gradients"], "gradients"), **how)
    return pd.DataFrame([{"id": c, **v._asdict()} for c, v in found.items()])


def _rescaled(own: Mapping[str, xr.Dataset | None], how: Mapping[str, int]) -> list[dict[str, Any]]:
    """C2, C4 and C5 of the model as it is and of every rescaling, on the datasets that all of them have."""
    every, rows = with_unmoved(own["finetune"]), []
    if every is None or own["plasticity"] is None:
        return rows
    rates = {k: clean(ds) for k, ds in runs(own["plasticity"], "plasticity").items()}
    names = [v for v in pd.unique(column(every, "rescale")) if by_dataset(rates, v)]
    sets = set.intersection(*(set(column(choose(every, rescale=v), "dataset")) for v in names)) if names else set()
    sets &= set.intersection(*(set(by_dataset(rates, v)) for v in names)) if names else set()
    for name in names if len(names) > 1 and sets else ():
        measured = {d: ds for d, ds in by_dataset(rates, name).items() if d in sets}
        chosen = choose(every, rescale=name, dataset=sets)
        sizes = parameter_norms(runs(own["gradients"], "gradients"), name)
        found = gather_evidence(measured, chosen, own["probe"], sizes)
        flat = {(d, i): ds for d, several in measured.items() for i, ds in enumerate(several)}
        decided = {"C2": measured_ranking(flat, **how)}
        if not found.lacking("gain"):
            decided["C4"] = gain_follows_plasticity(found, seed=how["seed"])
        if not found.lacking("norms"):
            decided["C5"] = gradients_follow_plasticity(found, seed=how["seed"])
        table = pd.DataFrame([{"id": c, **v._asdict()} for c, v in decided.items()])
        rows += _rows("parametrisation", name or "as it is", REPEATED, chosen, table)
    return rows


def _rows(
    group: str, variant: str, claims: tuple[str, ...], trained: xr.Dataset | None, table: pd.DataFrame
) -> list[dict[str, Any]]:
    sets, seeds = (len(set(column(trained, n))) if trained is not None else 0 for n in ("dataset", "seed"))
    about = {"group": group, "variant": variant, "datasets": sets, "seeds": seeds}
    chosen = table[table.id.isin(claims)]
    return [
        about | {"claim": r.id, "verdict": r.verdict, "number": r.number, "p": r.p, "statistic": r.statistic}
        for r in chosen.itertuples()
    ]


def _conventions(rates: xr.Dataset | None) -> list[str]:
    """Input conventions that were measured, the one that decides first; none if there is only one."""
    known = [] if rates is None else [str(c) for c in rates["convention"].values]
    return sorted(known, key=lambda c: c != PRIMARY) if len(known) > 1 else []


def _of_convention(gathered: xr.Dataset | None, convention: str) -> xr.Dataset | None:
    return None if gathered is None else gathered.sel(convention=[convention])


def _all_components(trained: xr.Dataset) -> bool:
    place, names = column(trained, "dataset"), column(trained, "components")
    return any(set(COMPONENTS) <= set(names[place == d]) for d in set(place))
