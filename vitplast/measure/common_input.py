"""Common input: every component of every block is fed the same pair, the embeddings of two images (paper).

No forward pass is made. All forms are exact: biases cancel, `||D W^T||^2 = <D^T D, W^T W>` (proof of Theorem 4)
serves the linear layers of all blocks with one product per pair, the layer norms of all blocks share one
normalisation per image, and attention has one output projection per pair.
"""

from __future__ import annotations

import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitplast.components import COMPONENTS, MHA_INPUTS, parts
from vitplast.errors import ShapeError, UnknownNameError
from vitplast.layouts import layout_of
from vitplast.layouts.linear import inputs_of, linear_weight
from vitplast.measure.distances import coincide, column_energies, distances, norms, rough_norms, wide
from vitplast.measure.maps import Map, alone, heads, padded, projection, same

#: Bytes of component outputs that the crossed design keeps, so that each image goes through the model once.
KEPT_BYTES = 2**28
#: Largest `||D^T D|| ||W^T W|| / <D^T D, W^T W>` at which the Gram form is trusted; beyond, it loses digits.
CANCELLATION = 250.0
#: Gram matrices in memory at a time.
GRAMS_AT_ONCE = 4

LAYER_NORMS = (nn.LayerNorm, timm.layers.LayerNorm, timm.layers.LayerNormFp32)


def embedding(model: nn.Module, inputs: Tensor) -> Tensor:
    """Tokens (B, n, E) that enter the first block: patches, prefix tokens and positions; token and position of a text.

    Raises
    ------
    LayoutError
        If the model does not make its tokens as its family does.
    """
    return layout_of(model).embed(model, inputs).tokens


class CommonInput:
    """What the measurement needs from the weights of `model`, computed once; stale when the weights change.

    `gated` as in `components.parts`. `mha_input="normed"` measures MHA after LN1 of the same block, still relative to
    the distance of the embeddings.

    Raises
    ------
    UnknownNameError
        If `mha_input` is not in `MHA_INPUTS`.
    ShapeError
        If a component does not take the embedding: hidden size smaller than the width, or another width.
    LayoutError
        If a block lacks a component.
    """

    name = "common"

    def __init__(self, model: nn.Module, *, gated: str = "both", mha_input: str = "embedding") -> None:
        if mha_input not in MHA_INPUTS:
            raise UnknownNameError("input of MHA", mha_input, MHA_INPUTS)
        self.model, self.layout = model, layout_of(model)
        found = parts(model, gated=gated)
        self.width = self.layout.width(model)
        self.shape = (1 + found[-1].layer, len(COMPONENTS))
        self.maps: list[Map] = []
        scales: dict[float, list[tuple[int, int, Tensor]]] = {}
        linear: list[tuple[int, int, Tensor]] = []
        ln1 = {part.layer: part.module for part in found if part.component == "LN1"}
        for part in found:
            place, module = (part.layer, COMPONENTS.index(part.component)), part.module
            weight = None
            if part.component in ("FC1", "FC2"):
                self._check_width(part.name, module, padded=part.component == "FC2")
                weight = linear_weight(module)
            if _plain(module, LAYER_NORMS) and module.normalized_shape == (self.width,):
                scales.setdefault(module.eps, []).append((*place, _scale(module, model)))
            elif weight is not None:
                linear.append((*place, weight[:, : self.width]))
            elif part.component == "MHA":
                self.maps.append(self._attention(place, module, ln1[part.layer] if mha_input == "normed" else None))
            elif part.component == "FC2":
                self.maps.append(Map(*place, alone(padded(module, self.width)), same))
            else:
                self.maps.append(Map(*place, alone(module), same))
        with torch.no_grad():
            self.scales = [_Scales(eps, entries, self.width) for eps, entries in scales.items()]
            self.linear = _Linear(linear, self.width) if linear else None

    def _attention(self, place: tuple[int, int], module: nn.Module, norm: nn.Module | None) -> Map:
        """Attention in two halves where its class says what it computes, else as a whole; after `norm` if given."""
        if _plain(module, (timm.layers.Attention,)) and _plain(module.proj, (nn.Linear,)):
            first, last = alone(heads(module)), projection(module)
        else:
            first, last = (lambda x, passed: self.layout.attend(module, x, passed)), same
        return Map(*place, first if norm is None else lambda x, passed: first(norm(x), passed), last)

    def _check_width(self, name: str, module: nn.Module, *, padded: bool) -> None:
        size = inputs_of(module, self.width)
        if padded and size < self.width:
            raise ShapeError(
                f"{name} takes {size} inputs, fewer than the embedding has ({self.width}): it can't be fed the "
                "zero-padded embedding, measure it in situ"
            )
        if not padded and size != self.width:
            raise ShapeError(f"{name} takes {size} inputs, but the embedding has {self.width}; measure it in situ")

    def pairwise(self, x: Tensor, targets: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each target batch y: distances in (B,) and out (layer, component, B), and which pairs coincide (B,).

        The source's part of the work is done once for all targets.
        """
        a = self.layout.embed(self.model, x)
        others = [self.layout.embed(self.model, y) for y in targets]
        x, targets = a.tokens, [b.tokens for b in others]
        out = [torch.full((*self.shape, len(x)), torch.nan, dtype=torch.float64, device=x.device) for _ in targets]
        hats = [scale.normalise(x) for scale in self.scales]
        for y, o in zip(targets, out, strict=True):
            for scale, hat in zip(self.scales, hats, strict=True):
                scale.fill(o, wide(hat) - wide(scale.normalise(y)))
            if self.linear:
                self.linear.fill(o, wide(x) - wide(y))
        del hats
        for m in self.maps:
            fx = m(a)
            for b, o in zip(others, out, strict=True):
                o[m.layer, m.column] = norms(wide(m.last(fx - m(b))))
        norm_x = rough_norms(x)
        found = []
        for y, o in zip(targets, out, strict=True):
            d = distances(x, y)
            found.append((d, o, coincide(d, norm_x, rough_norms(y))))
        return found

    def image(self, images: Tensor) -> list[Tensor]:
        """All that a crossed measurement needs from these images: embedding, normalised embeddings, outputs."""
        x = self.layout.embed(self.model, images)
        hats = [scale.normalise(x.tokens) for scale in self.scales]
        return [x.tokens, *hats, *(m.last(m(x)) for m in self.maps)]

    def tile(self, x: list[Tensor], y: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """As `pairwise`, for all combinations of the images that `x` and `y` stand for, source by source."""
        count = len(y[0])
        out = torch.full((*self.shape, len(x[0]) * count), torch.nan, dtype=torch.float64, device=x[0].device)
        d = torch.cat([distances(a[None], y[0]) for a in x[0]])
        first_map = 1 + len(self.scales)
        for i in range(len(x[0])):
            o = out[..., i * count : (i + 1) * count]
            for scale, hx, hy in zip(self.scales, x[1:first_map], y[1:first_map], strict=True):
                scale.fill(o, wide(hx[i]) - wide(hy))
            if self.linear:
                self.linear.fill(o, wide(x[0][i]) - wide(y[0]))
            for m, fx, fy in zip(self.maps, x[first_map:], y[first_map:], strict=True):
                o[m.layer, m.column] = distances(fx[i : i + 1], fy)
        norm_x, norm_y = rough_norms(x[0]), rough_norms(y[0])
        return d, out, coincide(d, norm_x.repeat_interleave(count), norm_y.repeat(len(x[0])))

    def tile_sizes(self, sample: Tensor, batch_size: int) -> tuple[int, int]:
        """Source and target images at a time, so that the kept outputs of the source stay below `KEPT_BYTES`."""
        size = sum(t.numel() * t.element_size() for t in self.image(sample)) // len(sample)
        return max(1, KEPT_BYTES // size), batch_size

    def pairs_at_once(self, targets: int, batch_size: int) -> int:
        """Pairs in one call of `pairwise`: source and first target together have `batch_size` images."""
        return max(1, batch_size // 2)


class _Scales:
    """`||w * d||` for the scales w of all layer norms with one eps, d the difference of the normalised tokens."""

    def __init__(self, eps: float, entries: list[tuple[int, int, Tensor]], width: int) -> None:
        self.eps, self.width = eps, width
        self.layers, self.columns = ([e[i] for e in entries] for i in (0, 1))
        self.squares = torch.stack([e[2].double() for e in entries], dim=1).square()

    def normalise(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,), None, None, self.eps)

    def fill(self, out: Tensor, difference: Tensor) -> None:
        energy = column_energies(difference)
        out[self.layers, self.columns] = (energy @ self.squares).sqrt().T


class _Linear:
    """`||D W^T|| = sqrt(<D^T D, W^T W>)` for all linear layers fed the embedding (proof of Theorem 4)."""

    def __init__(self, entries: list[tuple[int, int, Tensor]], width: int) -> None:
        self.layers, self.columns, self.weights = ([e[i] for e in entries] for i in (0, 1, 2))
        first = wide(self.weights[0])
        self.grams = first.new_empty(width, width, len(entries))
        with torch.autocast(first.device.type, enabled=False):
            for k, weight in enumerate(self.weights):
                self.grams[..., k] = wide(weight).T @ wide(weight)
        self.sizes = torch.stack([torch.linalg.vector_norm(g) for g in self.grams.unbind(-1)]).double()

    def fill(self, out: Tensor, difference: Tensor) -> None:
        with torch.autocast(difference.device.type, enabled=False):
            for start in range(0, len(difference), GRAMS_AT_ONCE):
                some = difference[start : start + GRAMS_AT_ONCE]
                gram = some.transpose(1, 2) @ some
                # one row of the Gram matrix at a time in the precision of the model, then the rows in float64
                inner = (gram.transpose(0, 1) @ self.grams).sum(dim=0, dtype=torch.float64)
                bound = rough_norms(gram)[:, None] * self.sizes
                for b, k in ((bound > CANCELLATION * inner) & (bound > 0)).nonzero().tolist():
                    inner[b, k] = norms(F.linear(some[b : b + 1], wide(self.weights[k])))[0].square()
                out[self.layers, self.columns, start : start + len(some)] = inner.clamp(min=0).sqrt().T


def _plain(module: nn.Module, classes: tuple[type, ...]) -> bool:
    """Whether `module` computes what its class says: exactly one of the classes, and no hooks of anyone."""
    return type(module) in classes and not module._forward_hooks and not module._forward_pre_hooks


def _scale(norm: nn.Module, model: nn.Module) -> Tensor:
    if norm.weight is not None:
        return norm.weight
    return next(model.parameters()).new_ones(norm.normalized_shape)
