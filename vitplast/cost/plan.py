"""The cost plan of a profile: one row an experiment with results, operations, hours, memory and disk, and their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from vitplast.cost import disk
from vitplast.cost.devices import UTILISATION, Gpu, gpu_named
from vitplast.cost.memory import GIB
from vitplast.cost.units import UnitCost, shape_of, unit_cost
from vitplast.errors import InputError

if TYPE_CHECKING:
    from vitplast.runs.unit import Unit

#: Columns of the table, with their units in the names.
COLUMNS = ("experiment", "kind", "units", "results", "million images", "PFLOP", "GPU hours", "CPU hours", "GiB",
           "micro-batch", "parts", "does not fit", "disk GB")  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """`table` as of `estimate`; `units` and their `costs`; the GPU and the share of its peak that is assumed."""

    table: pd.DataFrame
    units: tuple[Unit, ...]
    costs: tuple[UnitCost, ...]
    gpu: Gpu
    utilisation: Mapping[str, float]

    def seconds(self, number: int) -> float:
        """Seconds of one unit, its work on the processor included, during which the GPU waits."""
        cost = self.costs[number]
        return cost.gpu_seconds(self.gpu, self.utilisation) + cost.cpu_seconds

    def hours_with(self, gpus: int) -> float:
        """Hours with that many GPUs: the longest units first, each to the GPU that is free next.

        Raises
        ------
        InputError
            If there is no GPU.
        """
        import heapq

        if type(gpus) is not int or gpus < 1:
            raise InputError(f"gpus must be a whole number of at least 1, got {gpus!r}")
        ends = [0.0] * gpus
        for length in sorted((self.seconds(i) for i in range(len(self.units))), reverse=True):
            heapq.heapreplace(ends, ends[0] + length)
        return max(ends) / 3600

    def disk_gb(self) -> dict[str, float | list[str]]:
        """GB of results, archives and unpacked sets and weights; `unknown`: sets whose size is not known here."""
        archives, unpacked, unknown = disk.sets_gb(name for cost in self.costs for name in cost.sets)
        runs = [p for p in (unit.parameters.to_dict() for unit in self.units) if "model" in p]
        named = {(p["model"], p.get("img_size", 0)): p for p in runs}
        return {
            "results": round(sum(cost.disk_bytes for cost in self.costs) / 1e9, 2),
            "archives": archives,
            "unpacked": unpacked,
            "weights": disk.weights_gb(shape_of(p) for p in named.values()),
            "unknown": unknown,
        }


def estimate(
    units: Iterable[Unit], *, gpu: str | Gpu = "H100", utilisation: float | Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Cost of units by experiment and kind, with a last row for all.

    GPU hours = (units x `START_SECONDS` + operations / (utilisation x peak)) / 3600, one unit after the other on one
    GPU. CPU hours are of logistic regressions and singular values, at `CPU_RATE`. GiB is the largest run at the
    micro-batch that fits the GPU; `parts` the most micro-batches of a step.

    Parameters
    ----------
    units : iterable of Unit
        As `load_profile(...).units`.
    gpu : str or Gpu
        See `vitplast.cost.devices.gpu_named`.
    utilisation : float or mapping, optional
        Share of the peak, one for all or one a precision; default `devices.UTILISATION`.

    Returns
    -------
    DataFrame with the columns `COLUMNS`.

    Raises
    ------
    UnknownNameError, InputError
        For an unknown GPU or model, or a share outside (0, 1].
    """
    return plan(units, gpu=gpu, utilisation=utilisation).table


def plan(
    units: Iterable[Unit], *, gpu: str | Gpu = "H100", utilisation: float | Mapping[str, float] | None = None
) -> Plan:
    """As `estimate`, with what it was made from."""
    device = gpu_named(gpu) if isinstance(gpu, str) else gpu
    share = _shares(device, utilisation)
    units = tuple(units)
    if not units:
        raise InputError("there are no units to plan")
    costs = tuple(unit_cost(unit, device) for unit in units)
    groups: dict[tuple[str, str], list[UnitCost]] = {}
    for unit, cost in zip(units, costs, strict=True):
        groups.setdefault((getattr(unit, "experiment", ""), unit.kind), []).append(cost)
    rows = [_row(*name, own, device, share) for name, own in groups.items()]
    rows.append(_row("all", "all", costs, device, share))
    return Plan(pd.DataFrame(rows, columns=list(COLUMNS)), units, costs, device, share)


def _shares(gpu: Gpu, utilisation: float | Mapping[str, float] | None) -> dict[str, float]:
    given = utilisation if isinstance(utilisation, Mapping) else dict.fromkeys(UTILISATION, utilisation)
    found = {name: UTILISATION[name] if given.get(name) is None else float(given[name]) for name in UTILISATION}
    for name, share in found.items():
        gpu.rate(name, share)
    return found


def _row(
    experiment: str, kind: str, costs: Iterable[UnitCost], gpu: Gpu, share: Mapping[str, float]
) -> dict[str, object]:
    costs = list(costs)
    return {
        "experiment": experiment,
        "kind": kind,
        "units": len(costs),
        "results": sum(c.results for c in costs),
        "million images": round(sum(c.images for c in costs) / 1e6, 3),
        "PFLOP": round(sum(sum(c.flops.values()) for c in costs) / 1e15, 3),
        "GPU hours": round(sum(c.gpu_seconds(gpu, share) for c in costs) / 3600, 3),
        "CPU hours": round(sum(c.cpu_seconds for c in costs) / 3600, 3),
        "GiB": round(max(c.memory_bytes for c in costs) / GIB, 2),
        "micro-batch": min((c.micro_batch for c in costs if c.micro_batch), default=0),
        "parts": max(c.parts for c in costs),
        "does not fit": sum(not c.fits for c in costs),
        "disk GB": round(sum(c.disk_bytes for c in costs) / 1e9, 3),
    }
