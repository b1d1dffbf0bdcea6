"""One pass over the pairs: what bounds on averages and predictions need to know of the inputs of the components."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitplast.bounds.attention_local import attention_maps
from vitplast.bounds.canonical import Canonical
from vitplast.bounds.layernorm import token_deviations, two_point_factor
from vitplast.components import parts
from vitplast.measure.sides import Side
from vitplast.predictions.attention import entropy, pooling
from vitplast.predictions.linear import second_moment

#: Convention, layer, component.
Key = tuple[str, int, str]


class Walk:
    """What a pass over the pairs found; sums over pairs until `mean` is asked.

    By the names of `add`: `two_point` of a key, over all pairs, `max (tau tau)^(-1/2)` (Theorem 6); `square`, over the
    tokens of the pairs used, the squared deviation; `pooled`, over the pairs used, the rate that pooling predicts;
    `entropy` of a convention and layer, over all images. `moment` is the second moment of the embedding over the pairs
    used, `reach[convention, layer]` the largest distance of a token from its centre at the input of MHA, and
    `kept[key]` the inputs (2, pairs, n, d) of the first pairs.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, Any], float] = defaultdict(float)
        self.counts: dict[tuple[str, Any], int] = defaultdict(int)
        self.moment_sum: Tensor | None = None
        self.moment_pairs = 0
        self.reach: dict[tuple[str, int], float] = defaultdict(float)
        self.kept: dict[Key, list[Tensor]] = defaultdict(list)

    def add(self, name: str, key: Any, values: Tensor) -> None:
        self.sums[name, key] += float(values.double().sum())
        self.counts[name, key] += values.numel()

    def mean(self, name: str, key: Any) -> float:
        """Mean of what was added, NaN where nothing was."""
        count = self.counts.get((name, key), 0)
        return self.sums[name, key] / count if count else float("nan")

    @property
    def moment(self) -> Tensor | None:
        return self.moment_sum / self.moment_pairs if self.moment_pairs else None

    def inputs(self, key: Key) -> tuple[Tensor, Tensor]:
        """Inputs of the first pairs, both sides, each (pairs, n, d)."""
        x, y = torch.cat(self.kept[key], dim=1).unbind(0)
        return x, y


@torch.no_grad()
def walk(
    model: nn.Module,
    x: Side,
    y: Side,
    source_index: np.ndarray,
    target_index: np.ndarray,
    forms: dict[int, Canonical],
    eps: dict[tuple[int, str], float],
    centres: dict[tuple[str, int], Tensor],
    used: np.ndarray,
    *,
    keep: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> Walk:
    """One forward pass over both images of each pair.

    Parameters
    ----------
    forms
        Layer to its attention, where that has a canonical form.
    eps
        Layer and LN1 or LN2 to the constant of that norm, where it is a layer norm.
    centres
        Convention and layer to the point from which `reach` is taken, (E,).
    used
        Which pairs predictions may use, bool.
    keep
        Pairs whose inputs are kept.
    """
    found = Walk()
    step = max(1, batch_size // 2)
    for start in range(0, len(source_index), step):
        places = np.arange(start, min(start + step, len(source_index)))
        images = torch.cat([x(source_index[places]), y(target_index[places])])
        even = torch.from_numpy(used[places])
        kept = max(0, min(len(places), keep - start))
        with _listening(model, found, forms, eps, centres, even, kept):
            getattr(model, "forward_features", model)(images)
        if progress is not None:
            progress(int(places[-1]) + 1, len(source_index))
    return found


def _see_norm(found: Walk, key: Key, z: Tensor, eps: float, even: Tensor) -> None:
    deviations, differ = token_deviations(*z.unbind(0))
    found.add("two_point", key, two_point_factor(deviations, differ, eps))
    squares = deviations.square().masked_fill(~differ, torch.nan)[:, even]
    found.add("square", key, squares[~squares.isnan()])


def _see_attention(found: Walk, key: Key, z: Tensor, form: Canonical, even: Tensor) -> None:
    if bool(even.any()):
        found.add("pooled", key, pooling(form, z[0, even], z[1, even]))
    for image in z.flatten(0, 1):
        found.add("entropy", key[:2], entropy(attention_maps(form, image[None])))


@contextmanager
def _listening(
    model: nn.Module,
    found: Walk,
    forms: dict[int, Canonical],
    eps: dict[tuple[int, str], float],
    centres: dict[tuple[str, int], Tensor],
    even: Tensor,
    kept: int,
) -> Iterator[None]:
    """Hooks on the embedding and on the inputs of LN1, MHA and LN2; gone when the block ends, whatever happened."""

    def sides(args: tuple, kwargs: dict[str, Any]) -> Tensor:
        z = args[0] if args else next(iter(kwargs.values()))
        return z.detach().double().cpu().unflatten(0, (2, -1))

    def keep(key: Key, z: Tensor) -> None:
        if kept:
            found.kept[key].append(z[:, :kept].clone())

    def see_reach(convention: str, layer: int, z: Tensor) -> None:
        if (convention, layer) in centres:
            distance = torch.linalg.vector_norm(z - centres[convention, layer], dim=-1)
            found.reach[convention, layer] = max(found.reach[convention, layer], float(distance.max()))

    def embedding(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        z = sides(args, kwargs)
        if bool(even.any()):
            moment = second_moment(z[0, even], z[1, even]) * int(even.sum())
            found.moment_sum = moment if found.moment_sum is None else found.moment_sum + moment
            found.moment_pairs += int(even.sum())
        for (layer, component), value in eps.items():
            _see_norm(found, ("common", layer, component), z, value, even)
        for layer, form in forms.items():
            _see_attention(found, ("common", layer, "MHA"), z, form, even)
        see_reach("common", 0, z)
        keep(("common", 0, "MHA"), z)

    def part(layer: int, component: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            key, z = ("in_situ", layer, component), sides(args, kwargs)
            if (layer, component) in eps:
                _see_norm(found, key, z, eps[layer, component], even)
            if component == "MHA" and layer in forms:
                _see_attention(found, key, z, forms[layer], even)
            if component == "MHA":
                see_reach("in_situ", layer, z)
            keep(key, z)

        return note

    handles = [model.blocks[0].register_forward_pre_hook(embedding, with_kwargs=True)]
    try:
        for p in parts(model):
            if p.component in ("LN1", "MHA", "LN2"):
                handles.append(p.module.register_forward_pre_hook(part(p.layer, p.component), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
