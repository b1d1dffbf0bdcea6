"""Forward-mode derivatives: `J_f(X) u` for modules and functions, and attention in a form that has them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitplast.errors import InputError, ShapeError

Function = Callable[[Tensor], Tensor]


@contextmanager
def math_attention(model: nn.Module) -> Iterator[None]:
    """Inside, attention runs as plain matrix products, which have derivatives of every kind; restored afterwards.

    The function of the model stays the same. timm's fused path scales the scores by `head_dim**-0.5` and ignores the
    attribute `scale`, which its other path uses: a module is switched to that path only if the two agree, and keeps
    `scaled_dot_product_attention`, without its fused kernels, if they do not.

    Examples
    --------
    >>> import timm
    >>> model = timm.create_model("test_vit", pretrained=False)
    >>> with math_attention(model):
    ...     model.blocks[0].attn.fused_attn
    False
    >>> model.blocks[0].attn.fused_attn
    True
    """
    switched = [m for m in model.modules() if getattr(m, "fused_attn", False) is True and _scales_agree(m)]
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for module in switched:
            stack.callback(setattr, module, "fused_attn", True)
            module.fused_attn = False
        yield


def push_forward(f: Function, x: Tensor, u: Tensor) -> Tensor:
    """`J_f(X) u`, by forward mode; the shape is that of `f(X)`.

    Raises
    ------
    InputError
        If `f` uses a fused kernel that has no forward derivative; `math_attention` helps.
    ShapeError
        If `f` does not give one output for each sample.

    Examples
    --------
    >>> push_forward(lambda x: x**2, torch.tensor([3.0]), torch.tensor([1.0])).tolist()
    [6.0]
    """
    with warnings.catch_warnings():
        # torch warns about its own scripted derivatives, the first time that forward mode is used
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=FutureWarning)
        try:
            pushed = jvp(f, (x,), (u,))[1]
        except NotImplementedError as error:
            raise InputError(
                f"f has a kernel without forward derivative; try math_attention(model). {error}"
            ) from error
    if pushed.shape[:1] != x.shape[:1]:
        raise ShapeError(f"f maps samples {tuple(x.shape)} to {tuple(pushed.shape)}, not one output for each")
    return pushed.detach()


def in_precision(f: Function, dtype: torch.dtype) -> Function:
    """A module with its weights in another precision, itself untouched; other functions as they are."""
    if not isinstance(f, nn.Module):
        return f
    tensors = {**dict(f.named_parameters()), **dict(f.named_buffers())}
    cast = {name: t.detach().to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    return lambda x: functional_call(f, cast, (x,))


def _scales_agree(module: nn.Module) -> bool:
    scale, width = getattr(module, "scale", None), getattr(module, "head_dim", None)
    return isinstance(scale, float) and isinstance(width, int) and math.isclose(scale, width**-0.5, rel_tol=1e-12)
