"""How the families of models are laid out: where a block keeps its parts, which group a parameter is in, what feeds it.

A family is one `Layout`, which is data with a few small functions: `plain` (timm's vision transformers), `eva` (timm's
Eva class: DINOv3, EVA-02, RoPE-ViT) and `gpt2` (transformers). The package asks `layout_of(model)` and never for a
class, so a new family is a new file here and an entry in `LAYOUTS`. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitplast.layouts.eva import EVA
from vitplast.layouts.gpt2 import GPT2
from vitplast.layouts.layout import COMPONENTS, Embedded, Layout
from vitplast.layouts.plain import PLAIN

if TYPE_CHECKING:
    from torch import nn

__all__ = ["COMPONENTS", "LAYOUTS", "Embedded", "Layout", "layout_of"]

#: Every family by its name.
LAYOUTS = {layout.name: layout for layout in (PLAIN, EVA, GPT2)}


def layout_of(model: nn.Module) -> Layout:
    """The layout whose class the model is an instance of; `plain` for every other model.

    A model that is not plain either is refused where its parts or its parameters are looked for.

    Examples
    --------
    >>> from torch import nn
    >>> layout_of(nn.Linear(2, 2)).name
    'plain'
    """
    found = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(model).__mro__}
    return next((layout for layout in LAYOUTS.values() if found & set(layout.classes)), PLAIN)
