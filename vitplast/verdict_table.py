"""From the gathered results of all kinds to the verdicts on one model: what the page on verdicts and its test share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from vitplast.analysis.clusters import cluster_means
from vitplast.analysis.grid import grid
from vitplast.analysis.study import MAIN
from vitplast.analysis.tables import best_rate, probe_accuracy
from vitplast.claims import verdicts
from vitplast.claims_finetuning import by_dataset
from vitplast.components import COMPONENTS
from vitplast.errors import InputError
from vitplast.evidence import clean, runs
from vitplast.finetuning_evidence import Evidence, gather_evidence, parameter_norms
from vitplast.rescale.change import moved_parts

#: Kinds of results that the rules read.
KINDS = ("plasticity", "bounds", "finetune", "theory", "gradients", "probe")
#: Defaults of what a result may lack, being older than the option.
ABSENT = {
    "rescale": "", "lora_rank": 0, "per_class": 0, "plasticity_pairs": 0, "weights": "auto", "experiment": MAIN,
}  # fmt: skip
#: Experiments whose runs the rules read, by kind; those of other ones vary what the rules take as given.
READ = {
    "plasticity": ("plasticity", "rescaling"), "bounds": ("bounds",), "theory": ("theory",),
    "gradients": ("gradients",), "probe": ("probe", "probing"),
}  # fmt: skip

Gathered = Mapping[str, xr.Dataset | None]


def verdict_table(
    results: Gathered, model: str, *, img_size: int | None = None, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """C1 to C10 of one model from results of all models: columns of `vitplast.claims.verdicts`, one row a claim.

    Finetuning counts in the experiment `main` alone, on the seeds that are whole (`whole_seeds`). For C10, components
    that a rescaling leaves alone take their runs from the model as it is (`with_unmoved`), which is judged again on the
    seeds of the rescaled runs, so that seeds make no difference.

    Parameters
    ----------
    results
        Kind to gathered runs of any models, None or absent where there are none.
    model, img_size
        Which runs count, see `of_model`; None for any size.
    draws, seed
        As `vitplast.claims.verdicts`.

    Raises
    ------
    InputError, HypothesisError
        As `vitplast.claims.verdicts`.
    """
    own = of_model(results, model, img_size=img_size)
    main = main_runs(own["finetune"])
    settled = {k: own[k] for k in ("bounds", "theory", "gradients", "probe")} | {"draws": draws, "seed": seed}
    rates = own["plasticity"]
    table = verdicts(choose(rates, rescale=""), finetune=main, **settled)
    rescaled = with_unmoved(own["finetune"])
    if rescaled is not None and rates is not None and set(column(rates, "rescale")) != {""}:
        again = verdicts(rates, finetune=rescaled, **settled)
        for name in ("verdict", "statistic", "number"):
            table.loc[table.id == "C10", name] = again.loc[again.id == "C10", name].item()
    return table


def evidence(results: Gathered, model: str, *, img_size: int | None = None, rescale: str = "") -> Evidence:
    """The tables behind C4 to C7 of one model in its main grid, or of one of its rescalings; see `Evidence`."""
    own = of_model(results, model, img_size=img_size)
    runs_of = main_runs(own["finetune"]) if not rescale else choose(with_unmoved(own["finetune"]), rescale=rescale)
    rates = {k: clean(ds) for k, ds in runs(own["plasticity"], "plasticity").items()}
    sizes = parameter_norms(runs(own["gradients"], "gradients"), rescale)
    return gather_evidence(by_dataset(rates, rescale), runs_of, own["probe"], sizes)


def of_model(results: Gathered, model: str, *, img_size: int | None = None) -> dict[str, xr.Dataset | None]:
    """All `KINDS`: the runs of one model (at one image size) that the rules read; None where there is none.

    Of labelled runs (`vitplast.analysis.study.Study.label`) those of the experiments `READ`, and all finetuning runs;
    of others all with weights that are not random.

    Raises
    ------
    InputError
        If `results` has a kind that no rule reads.
    """
    unknown = [k for k in results if k not in KINDS]
    if unknown:
        raise InputError(f"no rule reads results of kind {', '.join(unknown)}; they read {', '.join(KINDS)}")
    found = {}
    for kind in KINDS:
        size = {} if img_size is None else {"img_size": img_size}
        ds = choose(results.get(kind), model=model, **size)
        if ds is None:
            found[kind] = None
        elif "experiment" not in ds.coords:
            found[kind] = kept(ds, column(ds, "weights") != "random")
        else:
            found[kind] = choose(ds, experiment=READ[kind]) if kind in READ else ds
    return found


def column(gathered: xr.Dataset, name: str) -> np.ndarray:
    """A parameter of every run; its default where the results do not have it."""
    if name not in gathered.coords:
        return np.full(gathered.sizes["run"], ABSENT.get(name, ""))
    values = np.broadcast_to(gathered[name].values, gathered.sizes["run"])
    if name in ABSENT and values.dtype.kind in "fi":
        return np.where(values >= 0, values, ABSENT[name])
    return values


def choose(gathered: xr.Dataset | None, **equal: Any) -> xr.Dataset | None:
    """The runs with these parameters (a list or tuple allows each of its values); None if there is none."""
    if gathered is None:
        return None
    keep = np.ones(gathered.sizes["run"], dtype=bool)
    for name, value in equal.items():
        allowed = list(value) if isinstance(value, (list, tuple, set)) else [value]
        if name in gathered.coords or name in ABSENT:
            keep &= np.array([v in allowed for v in column(gathered, name).tolist()])
    return kept(gathered, keep)


def kept(gathered: xr.Dataset, keep: np.ndarray) -> xr.Dataset | None:
    """The runs that are marked; None if there is none."""
    return gathered.isel(run=np.flatnonzero(keep)) if keep.any() else None


def main_runs(finetune: xr.Dataset | None, experiment: str = MAIN, **equal: Any) -> xr.Dataset | None:
    """The runs of an experiment with these parameters, on the seeds that are whole."""
    return whole_seeds(choose(finetune, experiment=experiment, **equal))


def whole_seeds(finetune: xr.Dataset | None, components: Iterable[str] = COMPONENTS) -> xr.Dataset | None:
    """Runs of the pairs (dataset, seed) for which all components and rates were run, if there is such a pair.

    A grid that is still running has more seeds of one component than of another; a comparison of such means would be
    one of seeds. All rates means as many as some dataset and seed has of the component, since datasets may have rates
    of their own.
    """
    if finetune is None:
        return None
    cells: dict[tuple[str, int], dict[str, set[float]]] = {}
    place = list(zip(column(finetune, "dataset"), column(finetune, "seed"), strict=True))
    for where, name, lr in zip(place, column(finetune, "components"), column(finetune, "lr"), strict=True):
        if name in components:
            cells.setdefault(where, {}).setdefault(name, set()).add(lr)
    counts = {where: {name: len(rates) for name, rates in of.items()} for where, of in cells.items()}
    needed = {c: max(of.get(c, 0) for of in counts.values()) for c in {c for of in counts.values() for c in of}}
    whole = {where for where, there in counts.items() if there == needed}
    return kept(finetune, np.array([where in whole for where in place])) if whole else finetune


def with_unmoved(finetune: xr.Dataset | None) -> xr.Dataset | None:
    """The main grid and its rescaled variants, these made whole with the runs of components that are not rescaled.

    A rescaling of two components leaves the function, and so the gradients of all others, as they are (Proposition 18);
    by a power of two not even the rounding differs. So their runs serve as runs of the rescaled model: they get its
    label. All are on the datasets and seeds that the rescaled runs have. None without rescaled runs.
    """
    every = [v for v in pd.unique(column(finetune, "rescale")) if v] if finetune is not None else []
    rescaled = [main_runs(finetune, "rescaling", rescale=v) for v in every]
    rescaled = {v: ds for v, ds in zip(every, rescaled, strict=True) if ds is not None}
    if not rescaled:
        return None
    seeds = sorted({int(s) for ds in rescaled.values() for s in column(ds, "seed")})
    plain = choose(main_runs(finetune), seed=seeds)
    if plain is None:
        return None
    parts = [labelled(plain, "")]
    for variant, ds in rescaled.items():
        moved = moved_parts(variant.rpartition(":")[0])
        others = choose(
            plain, components=[c for c in COMPONENTS if c not in moved], dataset=list(column(ds, "dataset"))
        )
        parts += [labelled(one, variant) for one in (ds, others) if one is not None]
    return xr.concat(parts, "run", coords="minimal", compat="override", join="outer", combine_attrs="override")


def labelled(gathered: xr.Dataset, rescale: str) -> xr.Dataset:
    """The same runs under the label of a rescaling."""
    return gathered.assign_coords(rescale=("run", np.full(gathered.sizes["run"], rescale, dtype=object)))


def gain_errors(
    results: Gathered, model: str, datasets: Iterable[str], *, img_size: int | None = None
) -> xr.DataArray | None:
    """`s / sqrt(S) / probe`: standard error over seeds of the relative gain, as the mean over the sets of a cluster.

    Seeds share their split over corruptions of one set, so the errors of a cluster are averaged, not divided further.
    (cluster, component), NaN below two seeds; None without finetuning runs or probes.
    """
    own = of_model(results, model, img_size=img_size)
    chosen = main_runs(own["finetune"])
    if chosen is None or own["probe"] is None:
        return None
    best, base, names = best_rate(grid(chosen)), probe_accuracy(own["probe"]), list(datasets)
    error = (best["std"] / np.sqrt(best["seeds"])).sel(dataset=names, configuration=list(COMPONENTS))
    return cluster_means((error / base.sel(dataset=names)).rename(configuration="component"))
