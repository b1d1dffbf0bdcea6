"""What autograd has to do when some parts train: which inputs and which weights get a gradient, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from vitplast.components import parse_components
from vitplast.cost.shapes import BLOCK_ORDER, Shape
from vitplast.errors import InputError

#: Parts of a block that are linear layers, so that LoRA can train them.
LINEAR = ("MHA", "FC1", "FC2")


@dataclass(frozen=True)
class Graph:
    """Gradients of one block: `inputs[p]`: the input of part p has one; `weights`: the parts that train.

    `count` blocks look alike; `tokens` go through their MLP. `residual` holds for what leaves the attention half.
    """

    count: int
    tokens: int
    inputs: dict[str, bool]
    weights: frozenset[str]
    residual: bool

    def after(self, part: str) -> bool:
        """Whether the output of `part` has a gradient."""
        return self.inputs[part] or part in self.weights


def trained_groups(components: str, *, train_head: bool = True, train_norm: bool = True) -> frozenset[str]:
    """Groups that train, `LS1` and `LS2` for LayerScale; head and final norm as in `vitplast.components.select`."""
    wanted = set(parse_components(components))
    if wanted == {"all"}:
        wanted = {"emb", *BLOCK_ORDER, "norm", "head"}
        wanted -= ({"head"} if not train_head else set()) | ({"norm"} if not train_norm else set())
    if "LayerScale" in wanted:
        wanted |= {"LS1", "LS2"}
    return frozenset(wanted | ({"head"} if train_head else set()) | ({"norm"} if train_norm else set()))


def check_lora(components: str, lora_rank: int) -> None:
    """Refuses LoRA on anything but MHA, FC1 and FC2."""
    if type(lora_rank) is not int or lora_rank < 0:
        raise InputError(f"lora_rank must be a whole number of at least 0, got {lora_rank!r}")
    odd = [name for name in parse_components(components) if name not in LINEAR]
    if lora_rank and odd:
        raise InputError(f"lora_rank={lora_rank} needs components among {', '.join(LINEAR)}, got {components}")


@lru_cache(maxsize=512)
def blocks(shape: Shape, trained: frozenset[str]) -> tuple[Graph, ...]:
    """The first block, those in the middle and the last one, as far as the shape has them.

    A part's input has a gradient if anything before it trains. As a component trains in all blocks, that is so from
    the second block on for every part, and in the first block from the trained part on.
    """
    inner = frozenset(p for p in BLOCK_ORDER if p in trained)
    first = "emb" in trained
    later = first or bool(inner)
    last = shape.last_tokens or shape.tokens
    spans = [(1, first, last if shape.depth == 1 else shape.tokens)]
    if shape.depth > 2:
        spans.append((shape.depth - 2, later, shape.tokens))
    if shape.depth > 1:
        spans.append((1, later, last))
    return tuple(_graph(count, tokens, entry, inner, shape) for count, entry, tokens in spans)


def upstream_of_head(trained: frozenset[str]) -> bool:
    """Whether anything before the final norm trains."""
    return bool(trained - {"head", "norm"})


def _graph(count: int, tokens: int, entry: bool, inner: frozenset[str], shape: Shape) -> Graph:
    weights = frozenset(p for p in inner if shape.layer_scale or not p.startswith("LS"))
    reached, inputs, residual = entry, {}, entry
    for part in BLOCK_ORDER:
        inputs[part] = reached
        reached = reached or part in weights
        if part == "LS1":
            residual = reached
    return Graph(count, tokens, inputs, weights, residual)


def parts_with_tokens(shape: Shape, graph: Graph) -> Iterator[tuple[str, int, int, int]]:
    """(part, tokens, inputs, outputs) of every linear layer of a block; MHA gives two, qkv first."""
    e, h = shape.width, shape.hidden
    yield "MHA", shape.tokens, e, 3 * e
    yield "MHA", shape.tokens, e, e
    yield "FC1", graph.tokens, e, h * (2 if shape.gated else 1)
    yield "FC2", graph.tokens, h, e
