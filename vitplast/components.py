"""The parts of a vision transformer: which module is LN1, MHA, LN2, FC1, FC2, and which group a parameter is in.

The paper's components are the five parts of every block, "this part of all blocks at once". Every parameter
of a model belongs to exactly one group; a parameter that no rule knows is an error, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitplast.errors import InputError, LayoutError, UnknownNameError

if TYPE_CHECKING:
    from torch import nn

#: The components of a block, in the order in which tables and figures show them.
COMPONENTS = ("LN1", "MHA", "LN2", "FC1", "FC2")
#: What the authors train in turn (head and final norm are trained in each), and the head alone.
CONFIGURATIONS = ("all", "emb", *COMPONENTS, "head")

#: Where each component lives inside a timm block.
PATHS = {"LN1": "norm1", "MHA": "attn", "LN2": "norm2", "FC1": "mlp.fc1", "FC2": "mlp.fc2"}

#: Group of a parameter by its timm name; each pattern matches the whole name, so `norm1` never matches `norm10`.
GROUP_RULES = {
    "emb": r"(cls_token|reg_token|mask_token|pos_embed|patch_embed\..+)",
    "LN1": r"blocks\.\d+\.norm1\.(weight|bias)",
    "MHA": r"blocks\.\d+\.attn\.(qkv|proj)\.(weight|bias)",
    "LN2": r"blocks\.\d+\.norm2\.(weight|bias)",
    "FC1": r"blocks\.\d+\.mlp\.fc1\.(weight|bias)",
    "FC2": r"blocks\.\d+\.mlp\.fc2\.(weight|bias)",
    "LayerScale": r"blocks\.\d+\.ls[12]\.gamma",
    "QK-norm": r"blocks\.\d+\.attn\.[qk]_norm\.(weight|bias)",
    "inner-norm": r"blocks\.\d+\.(attn|mlp)\.norm\.(weight|bias)",
    "pre-norm": r"norm_pre\.(weight|bias)",
    "pool": r"attn_pool\..+",
    "norm": r"(norm|fc_norm)\.(weight|bias)",
    "head": r"head\.(weight|bias)",
}


@dataclass(frozen=True)
class Part:
    """One component of one block: `name` is its path inside the model, `module` the module itself."""

    component: str
    layer: int
    name: str
    module: nn.Module


def parts(model: nn.Module) -> list[Part]:
    """The parts of every block, first block first, in the order of `COMPONENTS`.

    Raises
    ------
    LayoutError
        If the model has no `blocks` or a block lacks one of the parts; the message lists what was found.
    """
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        found = ", ".join(name for name, _ in model.named_children())
        raise LayoutError(f"{type(model).__name__} has no 'blocks'; its children are: {found}")
    found_parts = []
    for layer, block in enumerate(blocks):
        modules = dict(block.named_modules())
        missing = [f"{c} ({path})" for c, path in PATHS.items() if path not in modules]
        if missing:
            names = ", ".join(name for name in modules if name and name.count(".") < 2)
            raise LayoutError(
                f"block {layer} of {type(model).__name__} is a {type(block).__name__} without {', '.join(missing)}; "
                f"it has: {names}"
            )
        found_parts += [Part(c, layer, f"blocks.{layer}.{path}", modules[path]) for c, path in PATHS.items()]
    return found_parts


def groups(model: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters in each group, every parameter in exactly one; empty groups are left out.

    Raises
    ------
    LayoutError
        If a parameter matches no rule; the message lists all such names.
    """
    found: dict[str, list[str]] = {group: [] for group in GROUP_RULES}
    unknown = []
    for name, _ in model.named_parameters():
        matches = [group for group, rule in GROUP_RULES.items() if re.fullmatch(rule, name)]
        if len(matches) == 1:
            found[matches[0]].append(name)
        else:
            unknown.append(name)
    if unknown:
        short = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in unknown})
        raise LayoutError(
            f"{type(model).__name__} is not laid out as a plain vision transformer: "
            f"{len(unknown)} parameters belong to no group: {', '.join(short)}"
        )
    return {group: names for group, names in found.items() if names}


def parse_components(text: str | Iterable[str]) -> tuple[str, ...]:
    """`"MHA+FC1"` or `["MHA", "FC1"]` to `("MHA", "FC1")`, in the order of `CONFIGURATIONS`, without repetition.

    Raises
    ------
    UnknownNameError
        If a name is not in `CONFIGURATIONS` (or another group name such as `LayerScale`).
    InputError
        If nothing is named, or `all` or `head` stands beside other names.
    """
    names = text.split("+") if isinstance(text, str) else list(text)
    names = [n.strip() for n in names if n.strip()]
    known = (*CONFIGURATIONS, *(g for g in GROUP_RULES if g not in CONFIGURATIONS))
    for name in names:
        if name not in known:
            raise UnknownNameError("component", name, known, "Combine with '+', as in MHA+FC1.")
    if not names:
        raise InputError(f"no component named; choose from {', '.join(known)}, combined with '+'")
    for alone in ("all", "head"):
        if alone in names and len(set(names)) > 1:
            raise InputError(f"{alone!r} stands alone, it can't be combined as in {'+'.join(names)!r}")
    return tuple(k for k in known if k in names)


def select(
    model: nn.Module, components: str | Iterable[str], *, train_head: bool = True, train_norm: bool = True
) -> dict[str, list[str]]:
    """Sets `requires_grad` so that just the named groups train; returns the trained parameter names by group.

    As in the authors' code head and final norm are trained in every configuration; `train_head=False` and
    `train_norm=False` leave them frozen (unless they are named themselves or `all` is).

    Raises
    ------
    UnknownNameError, InputError
        See `parse_components`.
    LayoutError
        If the model lacks a named group.
    """
    wanted = parse_components(components)
    by_group = groups(model)
    chosen = set(by_group) if wanted == ("all",) else set(wanted)
    if wanted == ("all",):
        chosen -= ({"head"} if not train_head else set()) | ({"norm"} if not train_norm else set())
    if train_head and "head" in by_group:
        chosen.add("head")
    if train_norm and "norm" in by_group:
        chosen.add("norm")
    lacking = sorted(chosen - set(by_group))
    if lacking:
        raise LayoutError(f"the model has no {' or '.join(lacking)}; its groups are {', '.join(by_group)}")
    trained = {group: names for group, names in by_group.items() if group in chosen}
    names = {name for group in trained.values() for name in group}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return trained
