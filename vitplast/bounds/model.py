"""The bounds of every component of a model: reads the weights out and calls the functions of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import torch
import xarray as xr
from torch import nn

from vitplast.bounds.attention import (
    HeadNorms,
    attention_paper_bias,
    attention_quoted,
    column_heads,
    column_norms,
)
from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.attention_three import attention_rope_bound
from vitplast.bounds.canonical import Canonical
from vitplast.bounds.canonical import head_norms as form_norms
from vitplast.bounds.layernorm import layernorm_bound, layernorm_coded, layernorm_constant
from vitplast.bounds.linear import padded_norm, spectral_norm
from vitplast.bounds.reading import ReadAttention, ReadNorm, read_attention, read_linear, read_norm
from vitplast.components import COMPONENTS, Part, parts
from vitplast.errors import NoBoundError, ShapeError
from vitplast.layouts import layout_of
from vitplast.once import once

#: As the authors' script computes it; the same with heads cut where the forward pass cuts them; the paper's forms
#: where they hold; the sharper ones of Theorems 6 and 12.
VARIANTS = ("as_coded", "heads_fixed", "valid", "new")

#: One number of the table: convention, variant, and how to compute it.
Entry = tuple[str, str, Callable[[], float]]


def bounds(model: nn.Module, statistics: xr.Dataset, *, coded_radius: float | None = None) -> xr.Dataset:
    """`bound` with `rate <= bound` ("valid", "new") for every component of every block, next to the authors' numbers.

    ======== ======================== ================================================ ======================
    part     as_coded, heads_fixed    valid                                            new
    ======== ======================== ================================================ ======================
    LN1, LN2 largest scale, signed    largest modulus / sqrt(sigma_min^2 + eps)        exact (Theorem 6)
    FC1      spectral norm            the same (Theorem 3)                             the same
    FC2      spectral norm            common: of the first E columns; in situ: of all  the same
    MHA      quoted, mean radius      `paper_bias` at the largest radius               stacked (Theorem 12)
    ======== ======================== ================================================ ======================

    FC1 of a gated MLP is the stack of its two projections, whose bound is the norm of the stacked weights. The new
    bound of attention with rotary positions is that of Theorem 13, with a causal mask that of the first branch of
    Theorem 10; the other forms of attention are not proved there.

    The authors' numbers belong to the common convention (their radius is that of the embedding); in situ they are
    NaN. What has no bound is NaN too, with the reason in attribute `no_bound`: JSON, component to reason to layers.

    Parameters
    ----------
    model
        A model of one of the families of `vitplast.layouts`.
    statistics
        From `token_statistics`, over both sides of the pairs for which the bounds shall hold.
    coded_radius
        Radius of as_coded and heads_fixed, such as the 19.4 that the authors quote; None: the measured mean radius.

    Returns
    -------
    Dataset of bound (convention, variant, layer, component) and of the statistics that entered (convention, layer,
    component; NaN where a component's bound uses none).

    Raises
    ------
    LayoutError
        If the blocks are not laid out as a plain vision transformer's.
    ShapeError
        If the statistics are those of another number of layers.
    HypothesisError
        If a radius or deviation is missing, not finite or negative.
    """
    layout, reading = parts(model), layout_of(model).reading(model)
    layers = sorted({p.layer for p in layout})
    if layers != statistics["layer"].values.tolist():
        raise ShapeError(f"the model has {len(layers)} blocks, the statistics {statistics.sizes['layer']}")
    conventions = statistics["convention"].values.tolist()
    shape = (len(conventions), len(VARIANTS), len(layers), len(COMPONENTS))
    values, no_bound = np.full(shape, np.nan), {}
    for part in layout:
        at = (layers.index(part.layer), COMPONENTS.index(part.component))
        for convention, variant, compute in _entries(part, statistics, coded_radius, reading):
            try:
                values[conventions.index(convention), VARIANTS.index(variant), *at] = compute()
            except NoBoundError as error:
                reasons = no_bound.setdefault(part.component, {}).setdefault(str(error), [])
                if part.layer not in reasons:
                    reasons.append(part.layer)
    dims = ("convention", "layer", "component")
    used = {"radius_rms": ("MHA",), "radius_max": ("MHA",), "sigma_min": ("LN1", "LN2")}
    ds = xr.Dataset(
        {
            "bound": (
                ("convention", "variant", "layer", "component"),
                values,
                {"units": "1", "long_name": "upper bound on the rate of change"},
            ),
            **{
                name: statistics[name].where(statistics["component"].isin(which)).transpose(*dims)
                for name, which in used.items()
            },
        },
        coords={
            "convention": conventions,
            "variant": list(VARIANTS),
            "layer": np.array(layers, dtype=np.int64),
            "component": list(COMPONENTS),
        },
        attrs={k: statistics.attrs[k] for k in ("tokens", "width", "images")},
    )
    if "common" in conventions:
        measured = statistics["radius_rms"].sel(convention="common", component="MHA")[0].item()
        ds.attrs["coded_radius"] = float(measured if coded_radius is None else coded_radius)
    ds.attrs["no_bound"] = json.dumps(no_bound, sort_keys=True)
    return ds


def head_norms(model: nn.Module) -> xr.Dataset:
    """`O = ||O_h||_2`, `V = ||V_h||_2`, `QK = s ||K_h^T Q_h||_2`, `qbias = s ||K_h^T b_h||`, per layer and head.

    `coded_O`, `coded_V`, `coded_QK` are the same of the authors' column slices.

    Raises
    ------
    NoBoundError
        If a block's attention is not timm's plain one; the message says why.
    """
    attention, reading = [p.module for p in parts(model) if p.component == "MHA"], layout_of(model).reading(model)
    rows = [form_norms(_form(read_attention(a, **reading))) for a in attention]
    columns = [_column_norms(a, reading) for a in attention]
    where = {"O": "output weight", "V": "value weight", "QK": "score matrix", "qbias": "query bias seen by keys"}
    variables = {}
    for i, (name, words) in enumerate(where.items()):
        cut = {name: (rows, f"norm of the {words}")}
        if name != "qbias":
            cut[f"coded_{name}"] = (columns, f"norm of the {words}, authors' column slices")
        for key, (norms, long_name) in cut.items():
            table = torch.stack([n[i] for n in norms]).cpu().numpy()
            variables[key] = (("layer", "head"), table, {"units": "1", "long_name": long_name})
    depth, n_heads = variables["O"][1].shape
    return xr.Dataset(variables, coords={"layer": np.arange(depth), "head": np.arange(n_heads)})


def _entries(
    part: Part, statistics: xr.Dataset, coded_radius: float | None, reading: dict[str, bool]
) -> Iterator[Entry]:
    """What to compute for one part; the large decompositions run once, whatever number of entries needs them."""
    make = {"LN1": _layernorm, "LN2": _layernorm, "MHA": _attention, "FC1": _linear, "FC2": _linear}[part.component]
    local = statistics.sel(layer=part.layer, component=part.component)
    known = local["convention"].values.tolist()
    for convention, variant, compute in make(part, local, coded_radius, reading):
        if convention in known:
            yield convention, variant, compute


def _linear(part: Part, local: xr.Dataset, coded_radius: float | None, reading: dict[str, bool]) -> Iterator[Entry]:
    width = int(local.attrs["width"])
    stacked = once(lambda: torch.cat([read_linear(module).weight for module in part.members.values()]))
    whole = once(lambda: spectral_norm(stacked()))

    def common() -> float:
        weight = stacked()
        if part.component == "FC1" and weight.shape[1] == width:
            return whole()
        if part.component == "FC1" or weight.shape[1] < width:
            raise NoBoundError(f"takes {weight.shape[1]} features, so it cannot be fed the embedding of width {width}")
        return padded_norm(weight, width)

    fed = once(common)
    yield "common", "as_coded", whole
    yield "common", "heads_fixed", whole
    for variant in ("valid", "new"):
        yield "common", variant, fed
        yield "in_situ", variant, whole


def _layernorm(part: Part, local: xr.Dataset, coded_radius: float | None, reading: dict[str, bool]) -> Iterator[Entry]:
    def norm() -> ReadNorm:
        read = read_norm(part.module)
        if read.kind != "layernorm":
            raise NoBoundError(f"is a {type(part.module).__name__}; this bound is one of layer normalisation")
        return read

    def floored(of: Callable[..., float], convention: str) -> Callable[[], float]:
        return lambda: of(norm().weight, float(local["sigma_min"].sel(convention=convention)), norm().eps)

    for variant in ("as_coded", "heads_fixed"):
        yield "common", variant, lambda: layernorm_coded(norm().weight)
    for convention in ("common", "in_situ"):
        yield convention, "valid", floored(layernorm_bound, convention)
        yield convention, "new", floored(layernorm_constant, convention)


def _attention(part: Part, local: xr.Dataset, coded_radius: float | None, reading: dict[str, bool]) -> Iterator[Entry]:
    tokens = int(local.attrs["tokens"])
    read = once(lambda: read_attention(part.module, **reading))
    form = once(lambda: _form(read()))
    rows, columns = once(lambda: form_norms(form())), once(lambda: _column_norms(part.module, reading))

    def coded(norms: Callable[[], HeadNorms]) -> Callable[[], float]:
        def compute() -> float:
            radius = coded_radius if coded_radius is not None else float(local["radius_rms"].sel(convention="common"))
            return attention_quoted(norms(), tokens=tokens, radius=radius)

        return compute

    def radius(convention: str) -> float:
        return float(local["radius_max"].sel(convention=convention))

    yield "common", "as_coded", coded(columns)
    yield "common", "heads_fixed", coded(rows)
    for c in ("common", "in_situ"):
        yield c, "valid", lambda c=c: attention_paper_bias(rows(), tokens=tokens, radius=radius(c))
        yield c, "new", lambda c=c: _sharpest(read(), tokens, radius(c))


def _sharpest(read: ReadAttention, tokens: int, radius: float) -> float:
    """Theorem 12 on Theorem 10 (its first branch under a mask), or Theorem 13 where queries and keys are rotated."""
    if read.kind == "rope":
        biases = {"query_bias": read.query_bias, "key_bias": read.key_bias}
        return attention_rope_bound(read.heads, read.scale, tokens=tokens, radius=radius, **biases)
    return attention_bound(read.form, tokens=tokens, radius=radius, fixed_bias=read.fixed_bias)


def _form(read: ReadAttention) -> Canonical:
    if read.fixed_bias:
        raise NoBoundError("adds a position bias or a mask to the scores, for which the paper's form is not proved")
    return read.form


def _column_norms(attention: nn.Module, reading: dict[str, bool]) -> HeadNorms:
    _form(read_attention(attention, **reading))
    try:
        return column_norms(column_heads(attention.qkv.weight, attention.proj.weight, attention.num_heads))
    except (ShapeError, AttributeError) as error:
        raise NoBoundError(f"cannot be cut into columns as the authors' code does: {error}") from error
