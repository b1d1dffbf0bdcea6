"""The orbits of all kinds of rescaling as one dataset: what a notebook stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
import xarray as xr
from torch import Tensor

from vitplast.errors import InputError, ShapeError, UnknownNameError
from vitplast.gradients.passes import Loss
from vitplast.rescale.orbit import Progress, along, prepared, state
from vitplast.rescalings import KINDS

#: Coordinates of the pairs that the caller may name; by default every pair is a group of its own.
PAIR_COORDS = ("source_id", "target_id", "source_group", "target_group")


def gradients_survey(
    loaded_model: Any,
    source_images: Tensor,
    target_images: Tensor,
    labels: Tensor,
    *,
    factors: Sequence[float] = (0.25, 1.0, 4.0),
    kinds: Sequence[str] = tuple(KINDS),
    pair_coords: Mapping[str, Sequence[str]] | None = None,
    loss: Loss = F.cross_entropy,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`orbit` for each of `kinds`, with a first dimension `kind`: plasticity, gradients, Prop. 17 and Prop. 18.

    At c = 1 all kinds are the model itself, which is measured once.

    Parameters
    ----------
    loaded_model, source_images, target_images, labels, factors, loss
        As `orbit`.
    kinds
        Some of `KINDS`.
    pair_coords
        Names of the N pairs: any of `PAIR_COORDS`, N strings each.
    progress
        Called with (backward passes done, all of them).

    Returns
    -------
    Dataset of `orbit` with dimension `kind`; the coordinates of the pairs are strings, everything else is float64.

    Raises
    ------
    UnknownNameError
        If a kind or a pair coordinate is not known.
    InputError
        If no kind is named, or one twice, or factors are not different numbers from 1e-6 to 1e6.
    ShapeError
        If a pair coordinate has not one entry a pair.
    LayoutError
        If one of the kinds would not keep the model's function; all are checked before any pass.
    HypothesisError, ModeError
        As `orbit`.
    """
    if not kinds or len(set(kinds)) < len(kinds):
        raise InputError(f"kinds must be different and at least one, got {list(kinds)}")
    base, factors, logits = prepared(loaded_model, source_images, target_images, labels, factors, kinds)
    names = _names(pair_coords or {}, len(target_images))
    total = len(labels) * (len(kinds) * sum(c != 1 for c in factors) + (1.0 in factors))
    done = 0

    def step(_: int, __: int) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    found, itself = [], None
    for kind in kinds:
        states = {}
        for c in factors:
            if c != 1 or itself is None:
                states[c] = state(base, kind, c, source_images, target_images, labels, logits, loss, step)
                itself = states[c] if c == 1 else itself
            else:
                states[c] = itself
        found.append(along(states, kind).drop_vars("part_parameters"))
        found[-1].attrs.pop("kind")
    axis = xr.Variable("kind", list(kinds), {"long_name": "kind of rescaling"})
    whole = xr.concat(
        found, axis, data_vars="all", coords="minimal", compat="equals", join="exact", combine_attrs="override"
    )
    places = whole["pair"].values
    whole = whole.assign(part_parameters=next(iter(states.values()))["part_parameters"])
    return whole.assign_coords(
        {k: ("pair", [v[i] for i in places], {"long_name": k.replace("_", " ")}) for k, v in names.items()}
    )


def _names(given: Mapping[str, Sequence[str]], pairs: int) -> dict[str, list[str]]:
    for name, values in given.items():
        if name not in PAIR_COORDS:
            raise UnknownNameError("pair coordinate", name, PAIR_COORDS)
        if len(values) != pairs:
            raise ShapeError(f"{name} has {len(values)} entries for {pairs} pairs")
    return {k: [str(v) for v in given.get(k, range(pairs))] for k in PAIR_COORDS}
