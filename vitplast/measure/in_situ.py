"""In situ: every component on the input that really reaches it, distances taken as the forward pass goes."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.errors import LayoutError
from vitplast.layouts import layout_of
from vitplast.measure.distances import coincide, distances, rough_norms

#: Distances per pair of a component's input or output for all images: fills in the second argument.
Compare = Callable[[Tensor, Tensor], None]
#: Which pairs of a component's input coincide, from its distances: fills in the third argument.
Check = Callable[[Tensor, Tensor, Tensor], None]
#: Input or output, layer, column of the component.
Place = tuple[int, int, int]
#: Gets a tensor, its place and the earlier place of the very same tensor; True after these for what is stacked on it.
See = Callable[..., None]


class InSitu:
    """Distances at the inputs and outputs of all components in one forward pass over both images of each pair.

    `gated` as in `components.parts`. MHA is fed what reaches it, so there is no choice of `mha_input` here.

    Raises
    ------
    LayoutError
        If a block lacks a component, or a component is not called exactly once in the forward pass.
    """

    name = "in_situ"

    def __init__(self, model: nn.Module, *, gated: str = "both", mha_input: str = "embedding") -> None:
        self.model, self.layout = model, layout_of(model)
        self.parts = parts(model, gated=gated)
        self.shape = (1 + self.parts[-1].layer, len(COMPONENTS))

    def pairwise(self, x: Tensor, targets: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each target batch: distances in and out (layer, component, B), and which pairs coincide (B,).

        All targets go through the model together with the source, which so goes through it once.
        """
        count = len(x)

        def compare(z: Tensor, d: Tensor) -> None:
            for t, y in enumerate(z[count:].split(count)):
                d[t * count : (t + 1) * count] = distances(z[:count], y)

        def check(z: Tensor, d: Tensor, same: Tensor) -> None:
            norm = rough_norms(z)
            same[:] = coincide(d, norm[:count].repeat(len(targets)), norm[count:])

        d_in, d_out, same = self._pass(torch.cat([x, *targets]), compare, check, count * len(targets))
        places = [slice(t * count, (t + 1) * count) for t in range(len(targets))]
        return [(d_in[..., p], d_out[..., p], same[p]) for p in places]

    def image(self, images: Tensor) -> Tensor:
        """All that a crossed measurement needs from these images: the images."""
        return images

    def tile(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `pairwise`, for all combinations of the images of `x` and `y`, source by source."""

        height, width = len(x), len(y)

        def compare(z: Tensor, d: Tensor) -> None:
            for i in range(height):
                d[i * width : (i + 1) * width] = distances(z[i : i + 1], z[height:])

        def check(z: Tensor, d: Tensor, same: Tensor) -> None:
            norm = rough_norms(z)
            same[:] = coincide(d, norm[:height].repeat_interleave(width), norm[height:].repeat(height))

        return self._pass(torch.cat([x, y]), compare, check, height * width)

    def tile_sizes(self, sample: Tensor, batch_size: int) -> tuple[int, int]:
        """Source and target images at a time: together `batch_size` in a forward pass."""
        return max(1, batch_size // 2), max(1, batch_size - batch_size // 2)

    def pairs_at_once(self, targets: int, batch_size: int) -> int:
        """Pairs in one call of `pairwise`, so that no more than `batch_size` images are in the forward pass."""
        return max(1, batch_size // (1 + targets))

    def _pass(self, z: Tensor, compare: Compare, check: Check, count: int) -> tuple[Tensor, Tensor, Tensor]:
        # made before the pass: small results that outlive large activations would leave holes in the memory
        d = torch.full((2, *self.shape, count), torch.nan, dtype=torch.float64, device=z.device)
        same = torch.zeros(d.shape[1:], dtype=torch.bool, device=z.device)

        def see(t: Tensor, place: Place, earlier: Place | None, more: bool = False) -> None:
            if more:
                # another part of the same output, stacked: the squares of the distances add up
                rest = torch.empty_like(d[place])
                compare(t, rest)
                d[place] = torch.hypot(d[place], rest)
            elif earlier is None:
                compare(t, d[place])
            else:
                d[place] = d[earlier]
            if place[0] == 0 and not more:
                check(t, d[place], same[place[1:]])

        with watched(self.parts, see) as calls:
            self.layout.features(self.model, z)
        for name in (name for part in self.parts for name in part.members):
            if calls[name] != 1:
                raise LayoutError(
                    f"{name} was called {calls[name]} times in a forward pass of {type(self.model).__name__}, not once"
                )
        return d[0], d[1], same.flatten(0, 1).any(dim=0)


@contextmanager
def watched(found: list[Part], see: See) -> Iterator[Counter[str]]:
    """Hooks on all parts, always removed at the end; gives the number of calls of each member of a part by name.

    `see(tensor, place, earlier)` gets each input and output; `earlier` is the place at which the very same tensor was
    seen just before, as the output of a component that is the input of the next. Of a component of several modules it
    gets the output of each, from the second on as `see(tensor, place, None, True)`. No activation is kept.
    """
    calls: Counter[str] = Counter()
    last: list[Any] = [lambda: None, 0, None]

    def look(z: Tensor, place: Place) -> None:
        # the version tells an activation that worked in place on the very tensor that was seen
        known = last[0]() is z and last[1] == z._version
        see(z, place, last[2] if known else None)
        last[:] = weakref.ref(z), z._version, place

    def hook(part: Part, name: str, more: bool) -> Callable[..., None]:
        column = COMPONENTS.index(part.component)

        def note(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            calls[name] += 1
            output = output[0] if isinstance(output, tuple) else output
            if more:
                see(output, (1, part.layer, column), None, True)
                return
            look(args[0] if args else next(iter(kwargs.values())), (0, part.layer, column))
            look(output, (1, part.layer, column))

        return note

    handles = []
    try:
        for part in found:
            for number, (name, module) in enumerate(part.members.items()):
                handles.append(module.register_forward_hook(hook(part, name, number > 0), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()
