"""Numbers that say what the pictures of a landscape show: curvature, rise, and gains of directions."""

from __future__ import annotations

import numpy as np
import xarray as xr
from torch import nn

from vitplast.components import groups
from vitplast.errors import InputError

#: Half the side of the square about the weights in which the loss is fitted.
WITHIN = 0.2


def curvature(loss: xr.DataArray, within: float = WITHIN) -> xr.Dataset:
    """`L(u, v) = a + s_u u + s_v v + (h_u u^2 + h_v v^2) / 2 + m u v`, least squares with u, v up to `within`.

    On a grid that is symmetric about 0 cubic terms of the loss change the slopes, and not the curvatures; quartic ones
    change the curvatures.

    Parameters
    ----------
    loss : DataArray
        Dims u, v and any others, in nat.
    within : float
        In the unit of u and v.

    Returns
    -------
    Dataset with dims of `loss` other than u and v: slope_u, slope_v (nat per unit), curvature_u, curvature_v, mixed
    (nat per squared unit), level (fitted loss at 0) and misfit, the root mean square residual over the deviation of
    the loss in the square.

    Raises
    ------
    InputError
        If the square holds fewer than three values of u or of v.
    """
    square = loss.sel(u=np.abs(loss["u"]) <= within + 1e-12, v=np.abs(loss["v"]) <= within + 1e-12)
    if min(square.sizes["u"], square.sizes["v"]) < 3:
        raise InputError(f"a curvature needs three values of u and of v within {within:g} of 0; take a larger square")
    flat = square.stack(at=("u", "v"))
    u, v = (flat[name].values for name in ("u", "v"))
    columns = np.stack([np.ones_like(u), u, v, u**2 / 2, v**2 / 2, u * v], axis=1)
    fit = np.linalg.pinv(columns)
    flat = flat.transpose("at", ...)
    values = flat.values.reshape(len(u), -1)
    found = fit @ values
    rest = np.sqrt(np.square(values - columns @ found).mean(axis=0))
    spread = values.std(axis=0)
    misfit = np.divide(rest, spread, out=np.zeros_like(rest), where=spread > 0)
    shape, dims = flat.shape[1:], flat.dims[1:]
    names = ("level", "slope_u", "slope_v", "curvature_u", "curvature_v", "mixed")
    columns_found = dict(zip(names, found, strict=True)) | {"misfit": misfit}
    coords = {d: loss[d].values for d in dims if d in loss.coords}
    return xr.Dataset({n: (dims, one.reshape(shape)) for n, one in columns_found.items()}, coords)


def summary(landscape: xr.Dataset, within: float = WITHIN) -> xr.Dataset:
    """Numbers of the surfaces of one result of kind landscape, by variant and component.

    Returns
    -------
    Dataset (variant, component): those of `curvature`; start and end (loss before and after the descent, nat), length
    (of the descent), rise and fall (largest and smallest loss of the surface minus start), ratio (curvature_u over
    curvature_v); rate_mean, rate_low, rate_high over the plane of inputs; gain_u, gain_v, and gain_ratio, their ratio.
    """
    table = curvature(landscape["loss"], within)
    start = landscape["trajectory_loss"].isel(step=0, drop=True)
    rate = landscape["rate"]
    gain = {a: landscape["gain"].sel(axis=a, drop=True) for a in ("u", "v")}
    return table.assign(
        start=start,
        end=landscape["trajectory_loss"].isel(step=-1, drop=True),
        length=landscape["displacement"].isel(step=-1, drop=True),
        rise=landscape["loss"].max(("u", "v")) - start,
        fall=landscape["loss"].min(("u", "v")) - start,
        ratio=table["curvature_u"] / table["curvature_v"],
        rate_mean=rate.mean(("u", "v")),
        rate_low=rate.min(("u", "v")),
        rate_high=rate.max(("u", "v")),
        gain_u=gain["u"],
        gain_v=gain["v"],
        gain_ratio=gain["u"] / gain["v"],
    )


def weight_norm(model: nn.Module, component: str) -> float:
    """`sqrt(sum of w^2)` over all parameters of a component in all blocks: the length that u and v compare with.

    Examples
    --------
    >>> import timm
    >>> model = timm.models.vision_transformer.VisionTransformer(32, 16, embed_dim=8, depth=2, num_heads=2)
    >>> weight_norm(model, "LN1")  # 16 scales of 1, shifts of 0
    4.0
    """
    named = dict(model.named_parameters())
    return sum(float(named[n].detach().double().square().sum()) for n in groups(model)[component]) ** 0.5
