"""In situ: every component on the input that really reaches it, distances taken as the forward pass goes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitplast.components import COMPONENTS, Part, parts
from vitplast.distances import coincide, distances, rough_norms
from vitplast.errors import LayoutError

#: Of a component's input or output for all images: distances per pair, and which pairs coincide.
Compare = Callable[[Tensor], tuple[Tensor, Tensor]]


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

        def compare(z: Tensor) -> tuple[Tensor, Tensor]:
            first, *others = z.split(len(x))
            norm_x = rough_norms(first)
            d = [distances(first, y) for y in others]
            same = [coincide(a, norm_x, rough_norms(y)) for a, y in zip(d, others, strict=True)]
            return torch.stack(d), torch.stack(same)

        d_in, d_out, same = self._pass(torch.cat([x, *targets]), compare)
        return [(d_in[:, :, t], d_out[:, :, t], same[t]) for t in range(len(targets))]

    def image(self, images: Tensor) -> Tensor:
        """All that a crossed measurement needs from these images: the images."""
        return images

    def tile(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `pairwise`, for all combinations of the images of `x` and `y`, source by source."""

        def compare(z: Tensor) -> tuple[Tensor, Tensor]:
            rows, cols = z[: len(x)], z[len(x) :]
            d = torch.cat([distances(rows[i : i + 1], cols) for i in range(len(rows))])
            norm_x, norm_y = rough_norms(rows), rough_norms(cols)
            return d, coincide(d, norm_x.repeat_interleave(len(cols)), norm_y.repeat(len(rows)))

        return self._pass(torch.cat([x, y]), compare)

    def tile_sizes(self, sample: Tensor, batch_size: int) -> tuple[int, int]:
        """Source and target images at a time: together `batch_size` in a forward pass."""
        return max(1, batch_size // 2), max(1, batch_size - batch_size // 2)

    def pairs_at_once(self, targets: int, batch_size: int) -> int:
        """Pairs in one call of `pairwise`, so that no more than `batch_size` images are in the forward pass."""
        return max(1, batch_size // (1 + targets))

    def _pass(self, z: Tensor, compare: Compare) -> tuple[Tensor, Tensor, Tensor]:
        with watched(self.parts, compare) as seen:
            getattr(self.model, "forward_features", self.model)(z)
        for part in self.parts:
            calls = len(seen[part.layer, part.component])
            if calls != 1:
                raise LayoutError(
                    f"{part.name} was called {calls} times in a forward pass of {type(self.model).__name__}, not once"
                )
        grid = [[seen[layer, c][0] for c in COMPONENTS] for layer in range(self.shape[0])]
        d_in, d_out, same = (torch.stack([torch.stack([cell[i] for cell in row]) for row in grid]) for i in range(3))
        return d_in, d_out, same.flatten(0, 1).any(dim=0)


@contextmanager
def watched(found: list[Part], compare: Compare) -> Iterator[dict[tuple[int, str], list[tuple[Tensor, ...]]]]:
    """Hooks on all parts, always removed at the end; the dict fills with (distance in, out, coinciding) per call.

    A tensor that leaves one component and enters the next is compared once. No activation is kept.
    """
    seen: dict[tuple[int, str], list[tuple[Tensor, ...]]] = {(p.layer, p.component): [] for p in found}
    last: list[Any] = [lambda: None, 0, None]

    def compared(z: Tensor) -> tuple[Tensor, Tensor]:
        # the version tells an activation that worked in place on the very tensor that was compared
        if last[0]() is not z or last[1] != z._version:
            last[:] = weakref.ref(z), z._version, compare(z)
        return last[2]

    def hook(part: Part) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            inputs = args[0] if args else next(iter(kwargs.values()))
            output = output[0] if isinstance(output, tuple) else output
            d_in, same = compared(inputs)
            d_out, _ = compared(output)
            seen[part.layer, part.component].append((d_in, d_out, same))

        return note

    handles = []
    try:
        for part in found:
            handles.append(part.module.register_forward_hook(hook(part), with_kwargs=True))
        yield seen
    finally:
        for handle in handles:
            handle.remove()
