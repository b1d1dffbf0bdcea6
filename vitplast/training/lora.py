"""LoRA by the library peft: low-rank factors beside the linear layers of a component, put in and taken out again."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

import torch
from torch import Tensor, nn

from vitplast.components import GROUP_RULES
from vitplast.errors import InputError, MissingDependencyError
from vitplast.training.batches import generator
from vitplast.training.recipe import Recipe
from vitplast.training.rules import LINEAR

#: What peft puts into the name of a parameter that it wraps.
WRAPPED = ".base_layer"


def require_peft() -> None:
    """A MissingDependencyError with the command that installs peft, if it is not there. Imports nothing."""
    if importlib.util.find_spec("peft") is None:
        raise MissingDependencyError(
            "the package peft, which LoRA needs, is not installed: pip install 'vitplast[lora]' (or pip install peft)"
        )


@contextmanager
def adapted(model: nn.Module, trained: Mapping[str, list[str]], recipe: Recipe) -> Iterator[dict[str, list[str]]]:
    """A context in which `inject` has wrapped the component's layers, if `lora_rank` > 0; `remove` follows in any case.

    Yields the names of what trains by group; without LoRA those given. Errors as `inject`.
    """
    own = set(vars(model))
    try:
        yield inject(model, trained, recipe) if recipe.lora_rank else dict(trained)
    finally:
        remove(model)
        for name in set(vars(model)) - own:  # peft leaves its configuration there
            delattr(model, name)


def inject(model: nn.Module, trained: Mapping[str, list[str]], recipe: Recipe) -> dict[str, list[str]]:
    """`W x + b + (alpha / r) B A x` in place of `W x + b` in every linear layer of the component (Hu et al. 2022).

    No dropout, no bias beside the factors. B starts at zero, A uniform in +-1/sqrt(width of its input), drawn from the
    recipe's seed alone: at the start the model's function is what it was. The model is changed in place; `remove` gives
    it back. `requires_grad` is set on the factors and on all of `trained` but the component.

    Parameters
    ----------
    model
        The model, with `trained` what `components.select` chose of it.
    recipe
        Its `lora_rank` r > 0, `lora_alpha` alpha and `seed`.

    Returns
    -------
    Names of what trains now by group: the factors in place of the component's own parameters.

    Raises
    ------
    MissingDependencyError
        If peft is not installed.
    InputError
        If r is larger than a side of one of the layers, or a layer of the component is no plain `nn.Linear`.
    """
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    layers = {
        name.removesuffix(".weight"): group
        for group in trained
        if group in LINEAR
        for name in trained[group]
        if name.endswith(".weight")
    }
    for name in layers:
        layer = model.get_submodule(name)
        if type(layer) is not nn.Linear:
            raise InputError(f"LoRA needs plain linear layers, {name} is a {type(layer).__name__}")
        if recipe.lora_rank > min(layer.weight.shape):
            shape = " x ".join(map(str, layer.weight.shape))
            raise InputError(f"lora_rank={recipe.lora_rank} is more than {name} ({shape}) can have")
    config = LoraConfig(
        r=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="|".join(map(re.escape, layers)),
    )
    with torch.random.fork_rng(devices=[]):  # peft draws A from the global generator
        torch.default_generator.manual_seed(generator(recipe.seed, "lora").initial_seed())
        inject_adapter_in_model(config, model)
    model.eval()
    found: dict[str, list[str]] = {group: [] if group in LINEAR else list(names) for group, names in trained.items()}
    for name, _ in model.named_parameters():
        if ".lora_" in name:
            found[_group(name.partition(".lora_")[0] + ".weight")].append(name)
    chosen = {name for names in found.values() for name in names}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return found


def remove(model: nn.Module) -> None:
    """Puts the layers that `inject` wrapped back into their places; without factors nothing happens."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "base_layer"):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.base_layer)


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """A copy with `W + (alpha / r) B A` as plain weights; the model itself where it has no factors."""
    if not any(hasattr(module, "base_layer") for module in model.modules()):
        return model
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if hasattr(module, "base_layer"):
            module.base_layer.weight += module.get_delta_weight("default")
    remove(twin)
    return twin


def described(recipe: Recipe) -> str:
    """What was trained in place of weights, in words, with the version of peft; `none` without LoRA."""
    if not recipe.lora_rank:
        return "none"
    return f"LoRA of peft {metadata.version('peft')}, rank {recipe.lora_rank}, alpha {recipe.lora_alpha:g}"


def base_names(model: nn.Module, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`start` under the names that its tensors have in a wrapped model; the factors as they are now."""
    named = {name: name.replace(WRAPPED, "") for name, _ in (*model.named_parameters(), *model.named_buffers())}
    now = dict(model.named_parameters())
    return {new: start[old] if old in start else now[new].detach().clone() for new, old in named.items()}


def _group(name: str) -> str:
    return next(group for group in LINEAR if re.fullmatch(GROUP_RULES[group], name))
