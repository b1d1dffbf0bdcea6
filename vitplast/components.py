"""The parts of a transformer: which module is LN1, MHA, LN2, FC1, FC2, and which group a parameter is in.

The paper's components are the five parts of every block, "this part of all blocks at once". Every parameter of a model
belongs to exactly one group; a parameter that no rule knows is an error, never ignored. Where a family of models keeps
its parts is data, in `vitplast.layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitplast.errors import InputError, LayoutError, UnknownNameError
from vitplast.layouts import COMPONENTS, LAYOUTS, layout_of
from vitplast.layouts.plain import GROUP_RULES, PATHS

if TYPE_CHECKING:
    from torch import nn

    from vitplast.layouts import Layout

__all__ = [
    "COMPONENTS", "CONFIGURATIONS", "GATED", "GROUP_RULES", "MHA_INPUTS", "PATHS", "Part",
    "groups", "parse_components", "parts", "select",
]  # fmt: skip

#: What the authors train in turn (head and final norm are trained in each), and the head alone.
CONFIGURATIONS = ("all", "emb", *COMPONENTS, "head")
#: What FC1 is in a gated MLP with two projections: both, stacked; or the up projection alone (the authors' choice).
GATED = ("both", "up")
#: What MHA is fed on the common input: the embedding as every other component, or LN1 of it (the authors' GPT-2).
MHA_INPUTS = ("embedding", "normed")


@dataclass(frozen=True)
class Part:
    """One component of one block: `name` is its path inside the model, `module` the module itself.

    Where several modules are one component (gate and up projection of a gated MLP), `module` is a `Stacked` of them
    that is no part of the model, and `members` are the modules that the model calls.
    """

    component: str
    layer: int
    name: str
    module: nn.Module

    @property
    def members(self) -> dict[str, nn.Module]:
        """Path inside the model to module, of all that the model calls for this component."""
        from vitplast.layouts.stacked import Stacked

        return self.module.members if isinstance(self.module, Stacked) else {self.name: self.module}


def parts(model: nn.Module, *, gated: str = "both") -> list[Part]:
    """The parts of every block, first block first, in the order of `COMPONENTS`.

    `gated="up"` makes FC1 of a gated MLP its up projection alone; of an MLP that is not gated FC1 is `fc1` anyway.

    Raises
    ------
    UnknownNameError
        If `gated` is not in `GATED`.
    LayoutError
        If the model has no blocks or a block lacks one of the parts; the message lists what was found. With
        `gated="up"` also if gate and up projection are one matrix.
    """
    if gated not in GATED:
        raise UnknownNameError("choice of gated", gated, GATED)
    layout = layout_of(model)
    root = layout.block_list(model)
    if not root:
        found = ", ".join(name for name, _ in model.named_children())
        raise LayoutError(f"{type(model).__name__} has no {layout.blocks[0]!r}; its children are: {found}")
    return [
        part
        for layer, block in enumerate(model.get_submodule(root))
        for part in _parts_of_block(model, layout, f"{root}.{layer}", layer, block, gated)
    ]


def _parts_of_block(
    model: nn.Module, layout: Layout, root: str, layer: int, block: nn.Module, gated: str
) -> Iterator[Part]:
    modules = dict(block.named_modules(remove_duplicate=False))
    chosen = {c: next((a for a in known if all(p in modules for p in a)), ()) for c, known in layout.paths.items()}
    missing = [f"{c} ({' or '.join(map(' + '.join, layout.paths[c]))})" for c, paths in chosen.items() if not paths]
    if missing:
        names = ", ".join(name for name in modules if name and name.count(".") < 2)
        raise LayoutError(
            f"block {layer} of {type(model).__name__} is a {type(block).__name__} without {', '.join(missing)}; "
            f"it has: {names}"
        )
    if gated == "up":
        packed = hasattr(modules.get("mlp"), "gate_last")
        if packed:
            raise LayoutError(
                f"block {layer} of {type(model).__name__} keeps gate and up projection in one matrix (mlp.fc1); the up "
                "projection alone can be had only where it is a layer of its own, take gated='both'"
            )
        if len(chosen["FC1"]) > 1:
            chosen["FC1"] = (layout.up,)
    for component, paths in chosen.items():
        members = {f"{root}.{path}": modules[path] for path in paths}
        yield Part(component, layer, " + ".join(members), _one_module(members))


def _one_module(members: dict[str, nn.Module]) -> nn.Module:
    if len(members) == 1:
        return next(iter(members.values()))
    from vitplast.layouts.stacked import Stacked

    return Stacked(members)


def groups(model: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters in each group, every parameter in exactly one; empty groups are left out.

    Raises
    ------
    LayoutError
        If a parameter matches no rule, or two; the message lists all such names.
    """
    layout = layout_of(model)
    found: dict[str, list[str]] = {group: [] for group in layout.groups}
    unknown = []
    for name, _ in model.named_parameters():
        matches = [group for group, rule in layout.groups.items() if re.fullmatch(rule, name)]
        if len(matches) == 1:
            found[matches[0]].append(name)
        else:
            unknown.append(name)
    if unknown:
        short = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in unknown})
        raise LayoutError(
            f"{type(model).__name__} is not laid out as {layout.words}: "
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
    everywhere = dict.fromkeys(group for layout in LAYOUTS.values() for group in layout.groups)
    known = (*CONFIGURATIONS, *(g for g in everywhere if g not in CONFIGURATIONS))
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
