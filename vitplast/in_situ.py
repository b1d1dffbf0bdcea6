"""In situ: every component on the input that really reaches it, distances taken as the forward pass goes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.distances import coincide, distances, rough_norms
from vitplast.errors import LayoutError

#: Of a component's input or output for all images: fills in distances per pair, and which pairs coincide.
Compare = Callable[[Tensor, Tensor, Tensor], None]
#: Input or output, layer, column of the component.
Place = tuple[int, int, int]


class InSitu:
    """Distances at the inputs and outputs of all components in one forward pass over both images of each pair.

    Raises
    ------
    LayoutError
        If a block lacks a component, or a component is not called exactly once in the forward pass.
    """

    name = "in_situ"

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parts = parts(model)
        self.shape = (1 + self.parts[-1].layer, len(COMPONENTS))

    def pairwise(self, x: Tensor, targets: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each target batch: distances in and out (layer, component, B), and which pairs coincide (B,).

        All targets go through the model together with the source, which so goes through it once.
        """
        count = len(x)

        def compare(z: Tensor, d: Tensor, same: Tensor) -> None:
            norm = rough_norms(z)
            for t in range(len(targets)):
                here, there = slice(t * count, (t + 1) * count), slice((t + 1) * count, (t + 2) * count)
                d[here] = distances(z[:count], z[there])
                same[here] = coincide(d[here], norm[:count], norm[there])

        d_in, d_out, same = self._pass(torch.cat([x, *targets]), compare, count * len(targets))
        places = [slice(t * count, (t + 1) * count) for t in range(len(targets))]
        return [(d_in[..., p], d_out[..., p], same[p]) for p in places]

    def image(self, images: Tensor) -> Tensor:
        """All that a crossed measurement needs from these images: the images."""
        return images

    def tile(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `pairwise`, for all combinations of the images of `x` and `y`, source by source."""

        height, width = len(x), len(y)

        def compare(z: Tensor, d: Tensor, same: Tensor) -> None:
            norm = rough_norms(z)
            for i in range(height):
                here = slice(i * width, (i + 1) * width)
                d[here] = distances(z[i : i + 1], z[height:])
                same[here] = coincide(d[here], norm[i], norm[height:])

        return self._pass(torch.cat([x, y]), compare, height * width)

    def tile_sizes(self, sample: Tensor, batch_size: int) -> tuple[int, int]:
        """Source and target images at a time: together `batch_size` in a forward pass."""
        return max(1, batch_size // 2), max(1, batch_size - batch_size // 2)

    def pairs_at_once(self, targets: int, batch_size: int) -> int:
        """Pairs in one call of `pairwise`, so that no more than `batch_size` images are in the forward pass."""
        return max(1, batch_size // (1 + targets))

    def _pass(self, z: Tensor, compare: Compare, count: int) -> tuple[Tensor, Tensor, Tensor]:
        # made before the pass: small results that outlive large activations would leave holes in the memory
        d = torch.full((2, *self.shape, count), torch.nan, dtype=torch.float64, device=z.device)
        same = torch.zeros(d.shape, dtype=torch.bool, device=z.device)
        with watched(self.parts, lambda t, place: compare(t, d[place], same[place])) as watch:
            getattr(self.model, "forward_features", self.model)(z)
        for part in self.parts:
            calls = watch.calls[part.layer, part.component]
            if calls != 1:
                raise LayoutError(
                    f"{part.name} was called {calls} times in a forward pass of {type(self.model).__name__}, not once"
                )
        for place, earlier in watch.repeated.items():
            d[place], same[place] = d[earlier], same[earlier]
        return d[0], d[1], same[0].flatten(0, 1).any(dim=0)


@dataclass
class Watch:
    """What the hooks have seen: calls of each part, and places whose tensor was compared at an earlier place."""

    calls: Counter[tuple[int, str]] = field(default_factory=Counter)
    repeated: dict[Place, Place] = field(default_factory=dict)


@contextmanager
def watched(found: list[Part], compare: Callable[[Tensor, Place], None]) -> Iterator[Watch]:
    """Hooks on all parts, always removed at the end, that compare each input (side 0) and output (side 1).

    A tensor that leaves one component and enters the next is compared once. No activation is kept.
    """
    watch = Watch()
    last: list[Any] = [lambda: None, 0, None]

    def see(z: Tensor, place: Place) -> None:
        # the version tells an activation that worked in place on the very tensor that was compared
        if last[0]() is z and last[1] == z._version:
            watch.repeated[place] = last[2]
        else:
            compare(z, place)
            last[:] = weakref.ref(z), z._version, place

    def hook(part: Part) -> Callable[..., None]:
        column = COMPONENTS.index(part.component)

        def note(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            watch.calls[part.layer, part.component] += 1
            see(args[0] if args else next(iter(kwargs.values())), (0, part.layer, column))
            see(output[0] if isinstance(output, tuple) else output, (1, part.layer, column))

        return note

    handles = []
    try:
        for part in found:
            handles.append(part.module.register_forward_hook(hook(part), with_kwargs=True))
        yield watch
    finally:
        for handle in handles:
            handle.remove()
