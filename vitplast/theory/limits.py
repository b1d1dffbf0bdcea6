"""Every upper bound of one block: what holds for its components, and for what they make together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.bounds.attention import attention_paper_bias, attention_quoted
from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.blocks import composition, layernorm_mlp_bound, mlp_bound, residual_bound
from vitplast.bounds.canonical import Canonical, head_norms, recentre
from vitplast.bounds.folded import layernorm_attention, layernorm_linear
from vitplast.bounds.layernorm import layernorm_bound, layernorm_constant
from vitplast.bounds.linear import padded_norm, spectral_norm
from vitplast.bounds.reading import (
    ReadAttention,
    ReadMlp,
    ReadNorm,
    read_attention,
    read_layerscale,
    read_linear,
    read_mlp,
    read_norm,
)
from vitplast.errors import NoBoundError
from vitplast.once import once
from vitplast.theory.walk import Walk

#: Statement, convention, component, and how to compute the bound.
Entry = tuple[str, str, str, Callable[[], float]]


@dataclass(frozen=True)
class Block:
    """The weights of one block as the statements take them, read when they are asked for.

    Reading raises NoBoundError, with the reason, where the module is none that a statement covers.
    """

    module: nn.Module
    width: int
    tokens: int

    def check_prenorm(self) -> None:
        """Whether the block adds `f(norm(x))` to x; of no other is it known what its parts make together."""
        from timm.models.vision_transformer import Block as Prenorm

        own = "forward" in vars(self.module) or self.module._forward_hooks or self.module._forward_pre_hooks
        if type(self.module).forward is not Prenorm.forward or own:
            raise NoBoundError(f"is in a {type(self.module).__name__}; only timm's pre-norm Block is known as a whole")

    def attention(self) -> ReadAttention:
        """The attention, of the kind that Theorem 10 covers."""
        read = read_attention(self.module.attn)
        _ = read.form  # refuses the other kinds
        return read

    def norm(self, component: str) -> ReadNorm:
        """LN1 or LN2, if it is a layer norm."""
        read = read_norm(self.module.norm1 if component == "LN1" else self.module.norm2)
        if read.kind != "layernorm":
            raise NoBoundError(f"is a {read.kind}, not a layer norm")
        return read

    def linear(self, component: str) -> Tensor:
        return read_linear(self.module.mlp.fc1 if component == "FC1" else self.module.mlp.fc2).weight

    def mlp(self) -> ReadMlp:
        """The MLP, if it is two linear layers with an activation between."""
        read = read_mlp(self.module.mlp)
        if read.kind != "mlp":
            raise NoBoundError("is a gated MLP, which has a bound on a ball only (Proposition 15)")
        return read

    def layerscale(self, branch: int) -> Tensor | None:
        """Scales of a residual branch, 1 or 2; None where there are none."""
        return read_layerscale(getattr(self.module, f"ls{branch}", None))


def limits(block: Block, layer: int, statistics: xr.Dataset, walk: Walk) -> Iterator[Entry]:
    """What bounds the block at `layer`, for inputs with these statistics and pairs; nothing is computed yet.

    `statistics` from `token_statistics`, `walk` from the pass over the pairs.
    """
    local = statistics.sel(layer=layer)
    conventions = local["convention"].values.tolist()

    def number(name: str, convention: str, component: str) -> float:
        return float(local[name].sel(convention=convention, component=component))

    whole = {c: once(lambda c=c: spectral_norm(block.linear(c))) for c in ("FC1", "FC2")}
    yield from _linear(block, whole, conventions)
    for component in ("LN1", "LN2"):
        for convention in conventions:
            yield from _norm(
                block, component, convention, number, walk.mean("two_point", (convention, layer, component))
            )
    form = once(lambda: block.attention().form)
    for convention in conventions:
        radii = number("radius_max", convention, "MHA"), walk.reach[convention, layer if convention == "in_situ" else 0]
        centre = torch.from_numpy(local["centre"].sel(convention=convention).values)
        yield from _attention(block, form, convention, *radii, centre)
    if "in_situ" in conventions:
        yield from _together(block, form, whole, number)


def _linear(block: Block, whole: dict[str, Callable[[], float]], conventions: list[str]) -> Iterator[Entry]:
    for component in ("FC1", "FC2"):

        def fed(c: str = component) -> float:
            weight = block.linear(c)
            if weight.shape[1] == block.width:
                return whole[c]()
            if c == "FC1" or weight.shape[1] < block.width:
                raise NoBoundError(f"takes {weight.shape[1]} features, so it cannot be fed the {block.width} embedded")
            return padded_norm(weight, block.width)

        for convention in conventions:
            yield "T3", convention, component, fed if convention == "common" else whole[component]


def _norm(
    block: Block, component: str, convention: str, number: Callable[..., float], two_point: float
) -> Iterator[Entry]:
    sigma = number("sigma_min", convention, component)

    def exact(floor: float) -> float:
        norm = block.norm(component)
        if floor == 0 and norm.eps == 0:
            raise NoBoundError("has eps = 0: without a floor of the deviation nothing bounds it")
        return layernorm_constant(norm.weight, floor, norm.eps)

    def paper() -> float:
        norm = block.norm(component)
        return layernorm_bound(norm.weight, sigma, norm.eps)

    yield "T6_paper", convention, component, paper
    yield "T6", convention, component, lambda: exact(sigma)
    yield "T6_global", convention, component, lambda: exact(0.0)
    # The constant for tokens of deviation 1 and eps 0 is the norm of the scales behind the centring.
    yield "T6_pair", convention, component, lambda: two_point * layernorm_constant(block.norm(component).weight, 1.0)


def _attention(
    block: Block, form: Callable[[], Canonical], convention: str, radius: float, centred: float, centre: Tensor
) -> Iterator[Entry]:
    n = block.tokens

    def new(combine: str) -> float:
        fixed = block.attention().fixed_bias
        return attention_bound(form(), tokens=n, radius=radius, combine=combine, fixed_bias=fixed)

    def recentred() -> float:
        fixed = block.attention().fixed_bias
        return attention_bound(recentre(form(), centre), tokens=n, radius=centred, fixed_bias=fixed)

    yield "quoted", convention, "MHA", lambda: attention_quoted(head_norms(form()), tokens=n, radius=radius)
    yield "paper_bias", convention, "MHA", lambda: attention_paper_bias(head_norms(form()), tokens=n, radius=radius)
    for combine in ("separate", "sum", "stacked"):
        yield f"T12_{combine}", convention, "MHA", lambda c=combine: new(c)
    yield "T10_recentred", convention, "MHA", recentred


def _together(
    block: Block, form: Callable[[], Canonical], whole: dict[str, Callable[[], float]], number: Callable[..., float]
) -> Iterator[Entry]:
    sigma = {k: number("sigma_min", "in_situ", k) for k in ("LN1", "LN2")}
    norm = {k: once(lambda k=k: layernorm_constant(block.norm(k).weight, sigma[k], block.norm(k).eps)) for k in sigma}
    mlp = once(block.mlp)

    def attention() -> float:
        radius = number("radius_max", "in_situ", "MHA")
        return attention_bound(form(), tokens=block.tokens, radius=radius, fixed_bias=block.attention().fixed_bias)

    def folded_attention(scales: Tensor | None = None) -> float:
        ln, what = block.norm("LN1"), form()
        if scales is not None:
            what = what._replace(output=scales[:, None] * what.output)
        fixed = block.attention().fixed_bias
        return layernorm_attention(
            what, ln.weight, ln.bias, sigma["LN1"], ln.eps, tokens=block.tokens, fixed_bias=fixed
        )

    def folded_linear() -> float:
        ln = block.norm("LN2")
        return layernorm_linear(block.linear("FC1"), ln.weight, sigma["LN2"], ln.eps)

    def through(first: Callable[[], float], scales: Tensor | None = None) -> float:
        """The MLP (Prop. 15) whose first layer, with what is folded into it, has this constant."""
        last = whole["FC2"]() if scales is None else spectral_norm(scales[:, None] * mlp().second.weight)
        return composition(first(), mlp().constant, last)

    def centred(folded: bool) -> float:
        matrices = mlp().first.weight, mlp().second.weight, mlp().activation
        if not folded:
            return mlp_bound(*matrices, centred=True)
        ln = block.norm("LN2")
        return layernorm_mlp_bound(*matrices, ln.weight, sigma["LN2"], ln.eps, centred=True)

    def halves() -> float:
        branches = folded_attention(block.layerscale(1)), through(first, block.layerscale(2))
        return composition(*(residual_bound(branch) for branch in branches))

    def whole_block(compute: Callable[[], float]) -> Callable[[], float]:
        def checked() -> float:
            block.check_prenorm()
            return compute()

        return checked

    first, kept_attention = once(folded_linear), once(attention)
    together = {
        ("T14", "MHA(LN1)"): folded_attention,
        ("T14", "FC1(LN2)"): first,
        ("P15", "MLP"): lambda: through(whole["FC1"]),
        ("P15", "MLP(LN2)"): lambda: through(first),
        ("P15", "block"): halves,
        ("P15_centred", "MLP"): lambda: centred(folded=False),
        ("P15_centred", "MLP(LN2)"): lambda: centred(folded=True),
        ("composed", "MHA(LN1)"): lambda: composition(norm["LN1"](), kept_attention()),
        ("composed", "FC1(LN2)"): lambda: composition(norm["LN2"](), whole["FC1"]()),
        ("composed", "MLP(LN2)"): lambda: composition(norm["LN2"](), through(whole["FC1"])),
    }
    for (statement, component), compute in together.items():
        yield statement, "in_situ", component, whole_block(compute)
