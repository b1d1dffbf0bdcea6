"""Plasticity and gradients along an orbit of parameters that all give the same function (Prop. 18)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from vitplast.errors import HypothesisError, InputError, ShapeError
from vitplast.gradients import gradient_norms, spearman_table
from vitplast.gradients.passes import Loss
from vitplast.measure import measure
from vitplast.measure.common_input import embedding
from vitplast.measure.distances import distances
from vitplast.rescale.change import check_kind, moved_parts, relative_difference, rescale
from vitplast.rescalings import FACTORS

#: Components together with the norm before them: their plasticity does not depend on the parametrisation.
BRANCHES = ("MHA(LN1)", "FC1(LN2)")
#: Images in the model at a time.
BATCH = 16
#: Largest difference of the logits, relatively, that counts as rounding.
SAME = 1e-8

Progress = Callable[[int, int], None]


def orbit(
    model: Any,
    images_x: Tensor,
    images_y: Tensor,
    labels: Tensor,
    factors: Sequence[float] = (0.25, 1.0, 4.0),
    kind: str = "LN2/FC1",
    *,
    loss: Loss = F.cross_entropy,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`P` and `||grad||` at `rescale(model, kind, c)` for each c: one function, many plasticities (Prop. 18).

    Along LN2/FC1 and LN1/qkv the product of a norm's plasticity with its gradient norm is constant, and so is that of
    the linear layer behind it: the log-log slope of gradient against plasticity is -1.

    Parameters
    ----------
    model
        As for `gradient_norms`; `model` itself stays, all is computed in float64 on copies.
    images_x, images_y
        Pairs of normalised images (N, C, H, W): source and target.
    labels
        Shape (M,), M <= N: classes of the first M target images, on which the gradients are taken.
    factors
        The values of c, from 1e-6 to 1e6.
    kind
        One of `KINDS`.
    loss, progress
        As for `gradient_norms`; progress counts the images of all factors.

    Returns
    -------
    Dataset along `factor` with rate, plasticity, branch_plasticity, the variables of `gradient_norms`, logit_difference
    (from c = 1), spearman, product (plasticity times gradient norm of the moved parameters, mean over images) and slope
    (of log gradient against log plasticity; NaN where nothing moves, or plasticity stays).

    Raises
    ------
    InputError
        If factors are not different numbers from 1e-6 to 1e6.
    ShapeError
        If the numbers of images differ, or there are more labels than images.
    HypothesisError
        If the logits change by more than rounding.
    UnknownNameError, LayoutError, ModeError
        As `rescale` and `gradient_norms`.
    """
    base, factors, logits = prepared(model, images_x, images_y, labels, factors, [kind])
    done = 0

    def step(_: int, __: int) -> None:
        nonlocal done
        done += 1
        progress(done, len(factors) * len(labels))

    states = {
        c: state(base, kind, c, images_x, images_y, labels, logits, loss, None if progress is None else step)
        for c in factors
    }
    return along(states, kind)


def prepared(
    model: Any, images_x: Tensor, images_y: Tensor, labels: Tensor, factors: Sequence[float], kinds: Sequence[str]
) -> tuple[nn.Module, list[float], Callable[[], Tensor]]:
    """The model in float64, the factors, and its logits of the targets, computed when first asked for.

    Errors as `orbit`, for all factors, kinds and images before any pass.
    """
    for kind in kinds:
        moved_parts(kind)
    factors = [float(c) for c in factors]
    low, high = FACTORS
    if not factors or not all(low <= c <= high for c in factors) or len(set(factors)) < len(factors):
        raise InputError(f"factors must be different numbers from {low:g} to {high:g}, got {factors}")
    if len(images_x) != len(images_y):
        raise ShapeError(f"{len(images_x)} source images for {len(images_y)} target images")
    if not 0 < len(labels) <= len(images_y):
        raise ShapeError(f"between 1 and {len(images_y)} labels are needed, got {len(labels)}")
    network = model if isinstance(model, nn.Module) else model.model
    for kind in kinds:
        check_kind(network, kind)
    with torch.inference_mode(False):
        base = copy.deepcopy(network).double()
    return base, factors, cache(partial(_logits, base, images_y))


def state(
    base: nn.Module,
    kind: str,
    c: float,
    images_x: Tensor,
    images_y: Tensor,
    labels: Tensor,
    logits: Callable[[], Tensor],
    loss: Loss = F.cross_entropy,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Everything at one point of the orbit; `logits` gives those of `base` on the target images."""
    model = rescale(base, kind, c)
    # gradients first: they refuse a model without head before anything long is done
    gradients = gradient_norms(model, images_y[: len(labels)], labels, loss=loss, progress=progress)
    difference = relative_difference(logits(), _logits(model, images_y))
    if difference > SAME:
        raise HypothesisError(f"{kind} with c = {c:g} changed the logits by {difference:.3g} relatively")
    rates = measure(model, images_x, images_y, batch_size=BATCH)
    plasticity = rates["rate"].mean("pair").assign_attrs(units="1", long_name="plasticity")
    found = gradients.assign(
        rate=rates["rate"],
        plasticity=plasticity,
        branch_plasticity=_branches(model, images_x, images_y, rates),
        logit_difference=((), difference, {"units": "1", "long_name": "largest relative difference of the logits"}),
        spearman=spearman_table(plasticity, gradients),
    )
    return found.assign_attrs(design="disjoint", pairs=rates.sizes["pair"], dropped_pairs=rates.attrs["dropped_pairs"])


def along(states: dict[float, xr.Dataset], kind: str) -> xr.Dataset:
    """One dataset from the points of an orbit, with the products and slopes of Prop. 18."""
    axis = xr.Variable("factor", list(states), {"units": "1", "long_name": "factor of the rescaling"})
    joined = xr.concat(
        [s.drop_vars("part_parameters") for s in states.values()],
        axis, data_vars="all", coords="minimal", compat="equals", join="exact", combine_attrs="override",
    )  # fmt: skip
    moved = moved_gradient(joined, kind)
    product = (joined["plasticity"] * moved).transpose("factor", "convention", ...)
    return joined.assign(
        part_parameters=next(iter(states.values()))["part_parameters"],
        product=product.assign_attrs(units="1", long_name="plasticity times gradient norm of the moved parameters"),
        slope=_slope(joined["plasticity"], moved),
    ).assign_attrs(kind=kind)


def moved_gradient(ds: xr.Dataset, kind: str) -> xr.DataArray:
    """Gradient norm of the parameters that `kind` moves, mean over images; NaN for components that it leaves alone."""
    moved = xr.zeros_like(ds["part_gradient_norm"].isel(image=0, drop=True), dtype=bool)
    for component, (times, divided) in moved_parts(kind).items():
        moved.loc[{"component": component, "part": [*times, *divided]}] = True
    squares = np.square(ds["part_gradient_norm"]).where(moved).sum("part", min_count=1)
    return np.sqrt(squares).mean("image")


def _slope(plasticity: xr.DataArray, gradient: xr.DataArray) -> xr.DataArray:
    """Least squares slope of log gradient against log plasticity over the factors."""
    with np.errstate(divide="ignore"):
        p, g = np.log(plasticity), np.log(gradient)
    p, g = p - p.mean("factor"), g - g.mean("factor")
    spread = np.square(p).sum("factor")
    slope = (p * g).sum("factor", skipna=False) / spread.where(spread > 1e-12)
    return slope.assign_attrs(units="1", long_name="log-log slope of gradient against plasticity")


@torch.no_grad()
def _logits(model: nn.Module, images: Tensor) -> Tensor:
    weight = next(model.parameters())
    return torch.cat([model(part.to(weight)) for part in images.split(BATCH)])


@torch.no_grad()
def _branches(model: nn.Module, images_x: Tensor, images_y: Tensor, rates: xr.Dataset) -> xr.DataArray:
    """Mean rate of `MHA(LN1(.))` and `FC1(LN2(.))`: on the embeddings, and on what reaches the norm in the network."""
    weight, pairs = next(model.parameters()), rates["pair"].values
    common = np.empty((len(model.blocks), len(BRANCHES), len(pairs)))
    for start in range(0, len(pairs), BATCH):
        place = slice(start, start + BATCH)
        at = torch.tensor(pairs[place])
        x, y = (embedding(model, images[at].to(weight)) for images in (images_x, images_y))
        d = distances(x, y)
        for layer, block in enumerate(model.blocks):
            for k, (norm, after) in enumerate(((block.norm1, block.attn), (block.norm2, block.mlp.fc1))):
                common[layer, k, place] = (distances(after(norm(x)), after(norm(y))) / d).cpu().numpy()
    d_in, d_out = rates["distance_in"].sel(convention="in_situ"), rates["distance_out"].sel(convention="in_situ")
    in_situ = [
        (d_out.sel(component=after, drop=True) / d_in.sel(component=norm, drop=True)).mean("pair")
        for norm, after in (("LN1", "MHA"), ("LN2", "FC1"))
    ]
    values = np.stack([common.mean(-1), np.stack([b.transpose("layer").values for b in in_situ], axis=1)])
    return xr.DataArray(
        values,
        dims=("convention", "layer", "branch"),
        coords={"convention": ["common", "in_situ"], "branch": list(BRANCHES), "layer": rates["layer"]},
        attrs={"units": "1", "long_name": "plasticity of a component together with the norm before it"},
    )
