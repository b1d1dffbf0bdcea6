"""Both surfaces of every component, done right and as the authors' figure was made, as one labelled dataset."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from vitplast.components import groups, parts
from vitplast.errata.landscape import norm_direction, seeded_each, seeded_once
from vitplast.errors import InputError
from vitplast.forward_mode import in_precision, math_attention, push_forward
from vitplast.landscape.head import fitted_head
from vitplast.landscape.surfaces import loss_surface, orthogonal_to, rate_surface
from vitplast.landscape.trajectory import descend, longest_descent, plane_of, project
from vitplast.local import local_lipschitz
from vitplast.measure.common_input import embedding
from vitplast.measure.sides import check_mode
from vitplast.parameters import VARIANTS
from vitplast.results import schema_of
from vitplast.training.batches import Images, Split, labelled
from vitplast.training.origin import classes, initialise_head
from vitplast.training.stages import Stages

if TYPE_CHECKING:
    from vitplast.models import LoadedModel

#: The authors' head, images, seed and rate.
PUBLISHED_OUTPUTS, PUBLISHED_IMAGES, PUBLISHED_SEED, PUBLISHED_LR = 1000, 4, 42, 1e-3
#: Relative change at which the power iteration stops.
TOLERANCE = 1e-3

Loss = Callable[[], Tensor]


def landscape(
    model: nn.Module | LoadedModel,
    head_split: Split,
    split: Split,
    published_split: Split | None = None,
    *,
    components: Sequence[str] = ("LN1", "MHA"),
    variants: Sequence[str] = VARIANTS,
    steps: int = 20,
    lr: float = 0.0,
    extent: float = 0.5,
    grid: int = 20,
    layer: int = 0,
    rate_images: int = 4,
    seed: int = 0,
    prepare: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """`L(w + u d_1 + v d_2)` of each component w, and `||f(x + h) - f(x)|| / ||h||` with `h = u e_1 + v e_2`.

    **corrected**: the head is fitted to the task (`fitted_head`, on images of its own) and then fixed, like the final
    norm; L is the cross-entropy of `split`, with the labels of the task. w is the component in all blocks; d_1, d_2
    are the principal directions of its gradient descent, the start among the points. f is the component of one block,
    x the embeddings of the first `rate_images` images (for FC2 with zeros behind, as in the common convention); e_1 is
    the direction found by power iteration on `J^T J`, e_2 random signs made orthogonal to it, the same whatever other
    components are asked for. The surface is the mean over these images.

    **as_published** (B9): a head of 1,000 outputs, of which the labels 0, 1, ... of the task are taken; 4 test images;
    the rate is 1e-3; the start is not among the points of the plane; block 0; e_1 is the gradient of `||f(x)||` at the
    first image, and the signs depend on the components before. The authors' head came with their checkpoint; backbones
    loaded here have none, so it is drawn from their seed.

    Parameters
    ----------
    model
        A timm vision transformer in evaluation mode with a linear head, or a `LoadedModel`; never changed.
    head_split, split, published_split
        Labelled images as `vitplast.finetune.finetune` takes them; the last is needed for `as_published` alone.
    components
        Names of `COMPONENTS`; their order matters to the random signs of `as_published`.
    steps, lr
        Of the gradient descent, on all images of `split` at once. 0: `longest_descent` within `extent`.
    extent, grid
        u and v are `grid` values evenly from `-extent` to `extent`, in the unit of weights or of embeddings. An even
        number leaves out 0; at 0 the rate of change is NaN.
    layer
        Block whose rate of change is shown, from 0.
    progress
        Called with (points done, points in all).

    Returns
    -------
    xarray.Dataset
        Kind "landscape" of `vitplast.results.schema`.

    Raises
    ------
    InputError
        If a split is missing or wrong, there are fewer images than `rate_images`, or there is no block `layer`.
    ModeError
        If the model is in training mode.
    HypothesisError
        If a component gets no gradient, or the descent does not stay finite.
    """
    if not isinstance(model, nn.Module):
        model, prepare = model.model, prepare or model.prepare
    check_mode(model)
    if not 0 <= layer < len(model.blocks):
        raise InputError(f"the model has blocks 0 to {len(model.blocks) - 1}, there is no block {layer}")
    twin, outputs = copy.deepcopy(model).requires_grad_(False), classes(model)
    known, sizes = groups(twin), {name: p.numel() for name, p in twin.named_parameters()}
    values = np.linspace(-extent, extent, grid)
    count = _counter(len(variants) * len(components) * grid**2, grid, progress)

    def opened(chosen: Split | None, name: str) -> tuple[Images, Tensor]:
        images, labels = labelled(chosen, name, classes=outputs, model=model, can_prepare=prepare is not None)
        like = next(twin.parameters())
        return Images(images, prepare, like.device, like.dtype), labels.to(like.device)

    fitting, shown = opened(head_split, "head"), opened(split, "landscape")
    if len(shown[0]) < rate_images:
        raise InputError(f"rate_images must be at most the {len(shown[0])} images, got {rate_images}")
    tables = []
    for variant in variants:
        ours = variant == "corrected"
        inputs, labels = shown if ours else opened(published_split, "published")
        twin.head = fitted_head(twin, *fitting) if ours else _published_head(twin)
        batch = inputs.at(torch.arange(len(inputs)))
        loss, right = _objective(twin, batch, labels)
        with torch.no_grad():
            x = embedding(twin, batch[: rate_images if ours else 1])
        signs = (seeded_each if ours else seeded_once)(x.shape[1:], components, seed if ours else PUBLISHED_SEED)
        rows = []
        for name in components:
            with _moving(twin, known[name]) as moving:
                one = _loss_part(loss, moving, steps, lr if ours else PUBLISHED_LR, values, ours, seed, count)
            f = _part(twin, name, layer if ours else 0)
            rows.append(one | _rate_part(f, x, signs[name].to(x.device), values, ours, seed))
        tables.append({n: np.stack([row[n] for row in rows]) for n in rows[0]})
        tables[-1] |= {"images": np.int64(len(inputs)), "start_accuracy": np.float64(right)}
        twin.head = copy.deepcopy(model.head).requires_grad_(False)
    stacked = {n: np.stack([t[n] for t in tables]) for n in tables[0]}
    stacked["moved_parameters"] = np.array([sum(sizes[name] for name in known[c]) for c in components])
    table = schema_of("landscape").variables
    return xr.Dataset(
        {n: (v.dims, stacked[n], {"units": v.units, "long_name": v.meaning}) for n, v in table.items()},
        coords={
            "variant": list(variants), "component": list(components), "u": values, "v": values,
            "step": np.arange(steps + 1), "axis": ["u", "v"],
        },
        attrs={
            "layer": layer,
            "head": f"logistic regression on {len(fitting[0])} images",
            "published_head": f"{PUBLISHED_OUTPUTS} outputs, default initialisation, seed {PUBLISHED_SEED}",
        },
    )  # fmt: skip


def _counter(points: int, every: int, progress: Callable[[int, int], None] | None) -> Callable[[], None]:
    done = [0]

    def count() -> None:
        done[0] += 1
        if progress is not None and done[0] % every == 0:
            progress(done[0], points)

    return count


def _objective(model: nn.Module, batch: Tensor, labels: Tensor) -> tuple[Loss, float]:
    """Mean cross-entropy of the batch for the weights as they are when it is called, and the accuracy now."""
    forward = Stages(model)
    with torch.no_grad():
        right = float((forward(batch).argmax(1) == labels).double().mean())
    return lambda: F.cross_entropy(forward(batch), labels), right


@contextmanager
def _moving(model: nn.Module, names: Sequence[str]) -> Iterator[list[nn.Parameter]]:
    """The parameters of these names, which have gradients inside; all others of the model stay without."""
    named = dict(model.named_parameters())
    moving = [named[name].requires_grad_(True) for name in names]
    try:
        yield moving
    finally:
        for parameter in moving:
            parameter.requires_grad_(False)


def _loss_part(
    loss: Loss, moving: list[nn.Parameter], steps: int, lr: float, values: np.ndarray, ours: bool, seed: int,
    count: Callable[[], None],
) -> dict[str, np.ndarray]:  # fmt: skip
    """Descent of the parameters, its plane, and the loss over it."""
    if lr > 0:
        found, rate = descend(loss, moving, steps=steps, lr=lr), lr
    else:
        found, rate = longest_descent(loss, moving, steps=steps, within=float(values[-1]))
    plane = plane_of(found.moves, with_start=ours, seed=seed)
    return {
        "loss": loss_surface(loss, moving, plane.directions, values, count),
        "trajectory": project(found.moves, plane.directions),
        "trajectory_loss": found.losses,
        "lr": np.float64(rate),
        "displacement": torch.linalg.vector_norm(found.moves, dim=1).double().numpy(force=True),
        "explained_variance": plane.explained,
    }


def _rate_part(
    f: nn.Module, x: Tensor, signs: Tensor, values: np.ndarray, ours: bool, seed: int
) -> dict[str, np.ndarray]:
    """The two directions at each input, their gains, and the rate over their plane."""
    with math_attention(f):
        g, x = in_precision(f, torch.float64), x.double()
        if ours:
            first = local_lipschitz(f, x, tolerance=TOLERANCE, seed=seed).direction.double()
        else:
            first = torch.stack([norm_direction(g, one[None])[0] for one in x])
        second = orthogonal_to(signs.double().expand_as(x), first)
        gains = [torch.linalg.vector_norm(push_forward(g, x, d).flatten(1), dim=1).mean() for d in (first, second)]
        return {"rate": rate_surface(f, x, first, second, values), "gain": torch.stack(gains).numpy(force=True)}


class _Padded(nn.Module):
    """A module fed the embedding in its first inputs and zeros in the others."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(F.pad(x, (0, self.module.in_features - x.shape[-1])))


def _part(model: nn.Module, component: str, layer: int) -> nn.Module:
    module = next(p.module for p in parts(model) if (p.component, p.layer) == (component, layer))
    return _Padded(module).eval() if component == "FC2" and module.in_features > model.embed_dim else module


def _published_head(model: nn.Module) -> nn.Linear:
    """1,000 outputs with PyTorch's default initialisation, drawn from the authors' seed; put on the model."""
    old = model.head
    model.head = nn.Linear(old.in_features, PUBLISHED_OUTPUTS, device=old.weight.device, dtype=old.weight.dtype)
    initialise_head(model, "default", PUBLISHED_SEED)
    return model.head.requires_grad_(False)
