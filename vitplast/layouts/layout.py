"""What has to be known of a family of models, as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

#: The components of a block, in the order in which tables and figures show them.
COMPONENTS = ("LN1", "MHA", "LN2", "FC1", "FC2")


@dataclass(frozen=True)
class Embedded:
    """`tokens` (B, n, E) that enter block 0, and what the model hands to the attention of each block beside them.

    `passed` holds keyword arguments: one dictionary for all blocks, or one a block.
    """

    tokens: Tensor
    passed: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(default_factory=dict)

    def beside(self, layer: int) -> Mapping[str, Any]:
        """The keyword arguments of the attention of block `layer`."""
        return self.passed[layer] if isinstance(self.passed, tuple) else self.passed


@dataclass(frozen=True)
class Layout:
    """A family of models.

    Parameters
    ----------
    name, words
        The name in the package, and what to call a member in a message.
    classes
        Full names of classes; a model of one of them, or of a subclass, is of this family.
    blocks
        Paths at which the list of blocks may be; the first that exists is taken.
    paths
        Component to its places in a block: alternatives, each a tuple of paths. Several paths in one alternative are
        linear maps of the same input whose outputs, one after the other, are the output of the component.
    up
        Of such an alternative the path of the projection that is not gated (the authors' FC1); empty if there is none.
    groups
        Group to the pattern that the whole name of a parameter must match.
    embed
        `embed(model, inputs)`: what enters block 0, for normalised images or token ids.
    attend
        `attend(module, x, passed)`: the output (B, n, E) of an attention layer, fed x as inside the model.
    features
        `features(model, inputs)`: the forward pass through all blocks.
    reading
        `reading(model)`: what `read_attention` must be told: `causal`, `rotary`.
    width
        `width(model)`: E.
    text
        Whether the inputs are token ids (B, n), not images (B, C, H, W).
    """

    name: str
    words: str
    classes: tuple[str, ...]
    blocks: tuple[str, ...]
    paths: Mapping[str, tuple[tuple[str, ...], ...]]
    groups: Mapping[str, str]
    embed: Callable[[nn.Module, Tensor], Embedded]
    attend: Callable[[nn.Module, Tensor, Mapping[str, Any]], Tensor]
    features: Callable[[nn.Module, Tensor], Any]
    reading: Callable[[nn.Module], dict[str, bool]]
    width: Callable[[nn.Module], int]
    up: str = ""
    text: bool = False

    def block_list(self, model: nn.Module) -> str:
        """Path of the list of blocks inside the model; empty if it has none."""
        modules = dict(model.named_modules(remove_duplicate=False))
        return next((path for path in self.blocks if path in modules), "")

    def first_block(self, model: nn.Module) -> nn.Module:
        """The block that the embedding enters."""
        return model.get_submodule(f"{self.block_list(model)}.0")
