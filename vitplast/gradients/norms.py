"""Gradient norms of all components and their ratios to the bounds of Prop. 17, as labelled arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import timm.layers
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part
from vitplast.gradients.inequalities import attention_bounds, linear_bounds, norm_bounds, spectral_norm
from vitplast.gradients.passes import PARTS, Loss, Seen, checked, named_parts, one_pass, split_heads, working_copy
from vitplast.measure.common_input import LAYER_NORMS

Progress = Callable[[int, int], None]

#: Variables of `gradient_norms`: dimensions and meaning.
VARIABLES = {
    "gradient_norm": (("layer", "component", "image"), "gradient norm of all parameters of the component"),
    "gradient_rms": (("layer", "component", "image"), "gradient norm over the root of the number of parameters"),
    "elasticity": (("layer", "component", "image"), "root of the sum of (parameter norm x gradient norm)^2 over parts"),
    "part_gradient_norm": (("layer", "component", "part", "image"), "gradient norm of one part of the parameters"),
    "part_parameter_norm": (("layer", "component", "part"), "norm of one part of the parameters"),
    "part_parameters": (("layer", "component", "part"), "number of parameters of one part"),
    "output_gradient_norm": (("layer", "component", "image"), "norm of the gradient at the output of the component"),
    "input_norm": (("layer", "component", "image"), "Frobenius norm of the input of the component"),
    "input_spectral_norm": (("layer", "component", "image"), "spectral norm of the input of the component"),
    "ratio": (("layer", "component", "part", "image"), "gradient norm over its bound, largest over heads (Prop. 17)"),
    "key_bias": (("layer", "image"), "gradient norm of the key bias over that of the terms that cancel in it"),
}


def gradient_norms(
    model: Any, images: Tensor, labels: Tensor, *, loss: Loss = F.cross_entropy, progress: Progress | None = None
) -> xr.Dataset:
    """`||grad_theta L||` of every component for each image alone, with the inequalities of Prop. 17 (a) to (c).

    One forward and one backward pass an image, in float64, on a copy of the model: no averaging over a batch (which
    would cancel), no clipping, no head and no final norm. All component parameters count, frozen or not.

    Parameters
    ----------
    model
        A plain timm vision transformer in evaluation mode with a linear head, or a `LoadedModel` (`num_classes` > 0).
        A head of zeros hides all components from the loss: use the default one or a fitted one.
    images
        Normalised floats (N, C, H, W).
    labels
        Shape (N,), classes of the head.
    loss
        Takes logits (1, classes) and a label (1,), gives a scalar.
    progress
        Called with (images done, images in all).

    Returns
    -------
    Dataset with the variables of `VARIABLES`, float64, without unit. `part` is weight and bias, or Q, b_Q, K, b_K, V,
    b_V, O, b_O for MHA; NaN where a component has no such part. `ratio` is NaN as well where no bound is known
    (norms inside attention, other kinds of layers), and for b_K, whose gradient is 0: `key_bias` says how nearly.

    `gradient_rms` is `gradient_norm / sqrt(number of parameters)`. `elasticity` is the root of the sum over parts of
    `(||theta_p|| ||grad_p||)^2`: unlike the product of whole norms it stays the same under every rescaling of Prop. 18.

    Raises
    ------
    ModeError
        If a submodule is in training mode.
    InputError
        If the model has no head, or images or labels are not what they must be (ShapeError, PixelError).
    LayoutError
        If a component is missing, has no parameters or others than `part` names (QK-norm with a scale, gates, tables of
        positions), shares them, or is not called exactly once.
    HypothesisError
        If a component has no gradient (never reported as 0), or a loss or gradient is not finite.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False, num_classes=3).eval()
    >>> ds = gradient_norms(model, torch.zeros(2, 3, 160, 160), torch.tensor([0, 1]))
    >>> ds.gradient_norm.sizes["component"], bool((ds.ratio.max() <= 1 + 1e-6))
    (5, True)
    """
    model = model if isinstance(model, nn.Module) else model.model
    with working_copy(model) as (twin, found):
        images, labels = checked(twin, images, labels)
        layers = 1 + found[-1].layer
        sizes = {"layer": layers, "component": len(COMPONENTS), "part": len(PARTS), "image": len(images)}
        table = {name: np.full([sizes[d] for d in dims], np.nan) for name, (dims, _) in VARIABLES.items()}
        for part in found:
            _fill_parameters(table, part)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            with torch.no_grad():
                for seen in _passed(twin, found, image, label, loss):
                    _fill(table, seen, i)
            if progress is not None:
                progress(i + 1, len(images))
    count = np.nansum(table["part_parameters"], axis=2)[..., None]
    table["gradient_rms"] = table["gradient_norm"] / np.sqrt(count)
    changes = table["part_parameter_norm"][..., None] * table["part_gradient_norm"]
    table["elasticity"] = np.sqrt(np.nansum(np.square(changes), axis=2))
    return xr.Dataset(
        {n: (dims, table[n], {"units": "1", "long_name": words}) for n, (dims, words) in VARIABLES.items()},
        coords={
            "layer": ("layer", np.arange(layers), {"units": "1", "long_name": "block, counted from 0"}),
            "component": ("component", list(COMPONENTS), {"long_name": "component"}),
            "part": ("part", list(PARTS), {"long_name": "part of the parameters"}),
            "image": ("image", np.arange(len(images)), {"units": "1", "long_name": "image"}),
        },
        attrs={"loss": getattr(loss, "__name__", type(loss).__name__), "images": len(images)},
    )


def gradient_inequalities(
    model: Any, images: Tensor, labels: Tensor, *, loss: Loss = F.cross_entropy, progress: Progress | None = None
) -> xr.DataArray:
    """`max over images and heads of ||grad_theta|| / bound` for each part of each component (Prop. 17 (a) to (c)).

    Arguments and errors as `gradient_norms`. Dims layer, component, part; at most 1 in exact arithmetic.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False, num_classes=3).eval()
    >>> ratio = gradient_inequalities(model, torch.zeros(1, 3, 160, 160), torch.tensor([2]))
    >>> ratio.dims, bool(ratio.max() > 0.1)
    (('layer', 'component', 'part'), True)
    """
    return gradient_norms(model, images, labels, loss=loss, progress=progress).ratio.max("image", keep_attrs=True)


def _passed(twin: nn.Module, found: list[Part], image: Tensor, label: Tensor, loss: Loss) -> list[Seen]:
    with torch.enable_grad():
        return one_pass(twin, found, image, label, loss)


def _fill_parameters(table: dict[str, np.ndarray], part: Part) -> None:
    place = part.layer, COMPONENTS.index(part.component)
    for name, values in split_heads(part, {k: p.detach() for k, p in named_parts(part).items()}).items():
        at = (*place, PARTS.index(name))
        table["part_parameter_norm"][at] = float(torch.linalg.vector_norm(values))
        table["part_parameters"][at] = values.numel()


def _fill(table: dict[str, np.ndarray], seen: Seen, image: int) -> None:
    place = seen.part.layer, COMPONENTS.index(seen.part.component)
    gradients = split_heads(seen.part, seen.gradients)
    bounds = _bounds(seen)
    whole = [torch.linalg.vector_norm(g) for g in gradients.values()]
    table["gradient_norm"][(*place, image)] = float(torch.linalg.vector_norm(torch.stack(whole)))
    table["output_gradient_norm"][(*place, image)] = float(torch.linalg.vector_norm(seen.delta))
    table["input_norm"][(*place, image)] = float(torch.linalg.vector_norm(seen.x))
    table["input_spectral_norm"][(*place, image)] = float(spectral_norm(seen.x))
    for (name, gradient), norm in zip(gradients.items(), whole, strict=True):
        at = (*place, PARTS.index(name), image)
        table["part_gradient_norm"][at] = float(norm)
        if name in bounds:
            table["ratio"][at] = float(_ratio(gradient, bounds[name]).max())
    if "b_K" in gradients and "b_K_scale" in bounds:
        table["key_bias"][seen.part.layer, image] = float(_ratio(gradients["b_K"], bounds["b_K_scale"]).max())


def _ratio(gradient: Tensor, bound: Tensor) -> Tensor:
    """Norm over bound, head by head where the bound has heads; 0 / 0 is 0."""
    norm = torch.linalg.vector_norm(gradient.flatten(bound.ndim) if bound.ndim else gradient.flatten(), dim=-1)
    return torch.where(norm == 0, 0.0, norm / bound)


def _bounds(seen: Seen) -> dict[str, Tensor]:
    """The bounds that are known for this kind of module; none for a kind that Prop. 17 does not name."""
    module, x = seen.part.module, seen.x
    if seen.part.component == "MHA":
        return _attention(module, x, seen.delta)
    if type(module) is nn.Linear:
        return linear_bounds(x, seen.delta)
    if type(module) in LAYER_NORMS:
        return norm_bounds(F.layer_norm(x, module.normalized_shape, eps=module.eps), seen.delta)
    if type(module) in (nn.RMSNorm, timm.layers.RmsNorm):
        eps = torch.finfo(torch.float64).eps if module.eps is None else module.eps
        return norm_bounds(x / (x.square().mean(-1, keepdim=True) + eps).sqrt(), seen.delta)
    return {}


def _attention(module: nn.Module, x: Tensor, delta: Tensor) -> dict[str, Tensor]:
    between = [getattr(module, name, None) for name in ("q_norm", "k_norm", "norm")]
    plain = type(module) is timm.layers.Attention and all(isinstance(m, nn.Identity) for m in between)
    if not plain or getattr(module, "gate", None) is not None:
        return {}
    heads, width = module.num_heads, module.head_dim
    query, key, value = module.qkv(x).reshape(len(x), 3, heads, width).permute(1, 2, 0, 3)
    output = module.proj.weight.reshape(-1, heads, width).transpose(0, 1)
    scale = width**-0.5 if module.fused_attn else module.scale
    return attention_bounds(x, delta, query, key, value, output, scale)
