"""Readers of timm modules: what was read rebuilds the forward pass up to a constant, and what has no bound says why."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models import beit, cait, eva, metaformer, pvt_v2, swin_transformer, swin_transformer_v2, xcit
from timm.models.vision_transformer_relpos import RelPosAttention
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from vitplast.bounds.attention_ball import attention_bound
from vitplast.bounds.attention_three import (
    QKNorm,
    attention_cosine_bound,
    attention_qk_norm_bound,
    attention_rope_bound,
)
from vitplast.bounds.patch_embedding import patch_stem_bound
from vitplast.bounds.reading import (
    read_attention,
    read_layerscale,
    read_linear,
    read_mlp,
    read_norm,
    read_patch_embedding,
    statement,
)
from vitplast.bounds.reading_attention import NO_STATEMENT
from vitplast.bounds.reading_layers import class_of
from vitplast.bounds.three_argument import query_key_floors
from vitplast.errors import NoBoundError

E, H, N = 12, 3, 9  # width, heads, tokens: a window of 3 x 3
SEEDS = st.integers(0, 2**31)


def randomised(module, seed=0, scale=0.5):
    """The module in float64 and evaluation mode, every parameter random, running statistics too."""
    g = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=torch.float64))
        for inner in module.modules():
            if isinstance(inner, nn.modules.batchnorm._BatchNorm) and inner.running_var is not None:
                inner.running_mean.copy_(torch.randn(inner.running_mean.shape, generator=g))
                inner.running_var.copy_(torch.rand(inner.running_var.shape, generator=g) + 0.2)
    return module


def inputs(shape=(2, N, E), seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalised(norm, t):
    if norm.kind == "affine":
        return norm.weight * t + norm.bias
    t = t - t.mean(-1, keepdim=True) if norm.kind == "layernorm" else t
    return norm.weight * t / (t.square().mean(-1, keepdim=True) + norm.eps).sqrt() + norm.bias


def rotated(t, angles, half):
    """Turns the plane of two features of each token by an angle, all but the first token."""
    d = t.shape[-1] // 2
    planes = torch.arange(2 * d).reshape(2, d).T if half else torch.arange(2 * d).reshape(d, 2)
    out = t.clone()
    a, b = t[..., 1:, planes[:, 0]], t[..., 1:, planes[:, 1]]
    out[..., 1:, planes[:, 0]] = a * angles.cos() - b * angles.sin()
    out[..., 1:, planes[:, 1]] = b * angles.cos() + a * angles.sin()
    return out


def rebuilt(read, x, angles=None, half=False, mask=None):
    """The forward pass of attention from what was read alone; value and output biases are left out."""
    q, k, v = (torch.einsum("bne,hde->bhnd", x, rows) for rows in read.heads[:3])
    n_heads, width = read.heads.query.shape[:2]
    q = q if read.query_bias is None else q + read.query_bias.reshape(n_heads, 1, width)
    k = k if read.key_bias is None else k + read.key_bias.reshape(n_heads, 1, width)
    if read.query_norm is not None:
        q, k = normalised(read.query_norm, q), normalised(read.key_norm, k)
    if read.temperature is not None:
        q = read.temperature[:, None, None] * q / q.norm(dim=-1, keepdim=True)
        k = k / k.norm(dim=-1, keepdim=True)
    if angles is not None:
        q, k = rotated(q, angles, half), rotated(k, angles, half)
    scores = read.scale * q @ k.transpose(-1, -2)
    scores = scores if read.position_bias is None else scores + read.position_bias
    scores = scores if mask is None else scores + mask
    return torch.einsum("bhnd,hfd->bnf", scores.softmax(-1) @ v, read.heads.output)


def assert_same_up_to_a_constant(left, right):
    gap = (left - right).flatten(0, -2)
    torch.testing.assert_close(gap, gap[:1].expand(gap.shape), rtol=0, atol=1e-10)


LN, RMS = timm.layers.LayerNorm, timm.layers.RmsNorm
ATTENTION = {
    "plain": lambda: timm.layers.Attention(E, H, qkv_bias=True),
    "plain, no bias": lambda: timm.layers.Attention(E, H),
    "plain, wide heads": lambda: timm.layers.Attention(E, H, attn_head_dim=6, qkv_bias=True),
    "qk norm, layer": lambda: timm.layers.Attention(E, H, qkv_bias=True, qk_norm=True, norm_layer=LN),
    "qk norm, rms": lambda: timm.layers.Attention(E, H, qkv_bias=True, qk_norm=True, norm_layer=RMS),
    "qk norm, torch's rms": lambda: timm.layers.Attention(E, H, qk_norm=True, norm_layer=nn.RMSNorm),
    "beit": lambda: beit.Attention(E, H, qkv_bias=True, window_size=(2, 4)),
    "beit, separate": lambda: beit.Attention(E, H, qkv_bias=True, qkv_bias_separate=True, window_size=(2, 4)),
    "beit, no table": lambda: beit.Attention(E, H, qkv_bias=True),
    "eva": lambda: eva.EvaAttention(E, H, scale_norm=False),
    "eva, three weights": lambda: eva.EvaAttention(E, H, qkv_fused=False, scale_norm=False),
    "eva, qk norm": lambda: eva.EvaAttention(E, H, qk_norm=True, norm_layer=LN, scale_norm=False),
    "rope": lambda: timm.layers.AttentionRope(E, H),
    "rope, halves": lambda: timm.layers.AttentionRope(E, H, rotate_half=True),
    "rope, grouped": lambda: timm.layers.AttentionRope(16, 4, num_kv_heads=2, qkv_fused=False),
    "swin": lambda: swin_transformer.WindowAttention(E, H, window_size=3),
    "swin-v2": lambda: swin_transformer_v2.WindowAttention(E, (3, 3), H),
    "relative": lambda: RelPosAttention(
        E, H, qkv_bias=True, rel_pos_cls=lambda **k: timm.layers.RelPosBias((2, 4), prefix_tokens=1, **k)
    ),
    "relative, mlp": lambda: RelPosAttention(
        E, H, qk_norm=True, rel_pos_cls=lambda **k: timm.layers.RelPosMlp((3, 3), **k)
    ),
}
KINDS = {"qk": "qk_norm", "swin-v2": "cosine", "relative, mlp": "qk_norm", "eva, qk norm": "qk_norm"}
BIASED = ("beit", "swin", "relative")


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_rebuilt_from_what_was_read(name):
    module = randomised(ATTENTION[name](), scale=0.7)
    width = module.proj.weight.shape[0]
    x = inputs((2, N, width))
    rotary = name.startswith(("eva", "rope"))
    for fused in {True, False} if hasattr(module, "fused_attn") else {None}:
        if fused is not None:
            module.fused_attn, module.scale = fused, module.scale * 1.5
        read = read_attention(module)
        kind = next((k for start, k in KINDS.items() if name.startswith(start)), "rope" if rotary else "plain")
        assert (read.kind, read.rotated, read.fixed_bias) == (kind, rotary, name.startswith(BIASED))
        assert read.tokens == (N if read.position_bias is not None else None)
        with torch.no_grad():
            assert_same_up_to_a_constant(module(x), rebuilt(read, x))
            if rotary:
                half = module.rotate_half
                angles = inputs((N - 1, width // module.num_heads // 2), seed=2)
                wide = angles.repeat(1, 2) if half else angles.repeat_interleave(2, dim=-1)
                embedding = torch.cat([wide.sin(), wide.cos()], dim=-1)
                assert_same_up_to_a_constant(module(x, rope=embedding), rebuilt(read, x, angles, half))
                assert read_attention(module, rotary=False).kind == ("qk_norm" if "norm" in name else "plain")
            if name.startswith(("plain", "qk", "eva", "rope")):
                mask = torch.full((N, N), -math.inf, dtype=torch.float64).triu(1)
                causal = read_attention(module, causal=True)
                assert causal.fixed_bias
                assert_same_up_to_a_constant(module(x, is_causal=True), rebuilt(causal, x, mask=mask))
        if read.kind == "plain":
            assert read.form.shift.shape == (module.num_heads, width)
        else:
            with pytest.raises(NoBoundError, match=r"which this bound does not cover"):
                _ = read.form


def test_the_factor_of_cosines_is_at_most_a_hundred():
    module = randomised(ATTENTION["swin-v2"]())
    with torch.no_grad():
        module.logit_scale.copy_(torch.tensor([1.0, 4.0, 9.0])[:, None, None])
    read = read_attention(module)
    torch.testing.assert_close(read.temperature, torch.tensor([math.e, math.e**4, 100.0]).double())
    with torch.no_grad():
        assert_same_up_to_a_constant(module(inputs()), rebuilt(read, inputs()))


def bound_of(read, x, radius):
    if read.kind == "plain":
        return attention_bound(read.form, tokens=N, radius=radius, fixed_bias=read.fixed_bias)
    kinds = dict(tokens=N, radius=radius)
    biases = dict(query_bias=read.query_bias, key_bias=read.key_bias)
    if read.kind == "rope":
        return attention_rope_bound(read.heads, read.scale, **kinds, **biases)
    kind = "cosine" if read.kind == "cosine" else read.query_norm.kind
    floors = query_key_floors(read.heads, x, kind, **biases)
    if read.kind == "cosine":
        return attention_cosine_bound(read.heads, read.temperature, **kinds, query_floor=floors[0], key_floor=floors[1])
    norms = [
        QKNorm(n.weight, floor, n.eps, n.bias, n.kind)
        for n, floor in zip((read.query_norm, read.key_norm), floors, strict=True)
    ]
    return attention_qk_norm_bound(read.heads, read.scale, *norms, rotated=read.rotated, **kinds)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from(sorted(ATTENTION)), st.sampled_from([1e-3, 1.0, 30.0]), st.sampled_from([0.1, 1.0]))
def test_rates_of_read_attention_never_exceed_the_bound(seed, name, reach, scale):
    module = randomised(ATTENTION[name](), seed % 1000, scale)
    x = reach * inputs((2, N, module.proj.weight.shape[0]), seed)
    with torch.no_grad():
        bound = bound_of(read_attention(module), x, float(x.norm(dim=-1).max()))
        rate = float((module(x[:1]) - module(x[1:])).norm() / (x[0] - x[1]).norm())
    assert 0 < rate <= bound * (1 + 1e-6)


# ---- norms, linear layers, LayerScale -------------------------------------------------------------------------------

NORMS = {
    "layer": (nn.LayerNorm(E), "layernorm"),
    "layer, no parameters": (nn.LayerNorm(E, elementwise_affine=False), "layernorm"),
    "layer, no shift": (nn.LayerNorm(E, bias=False, eps=0.1), "layernorm"),
    "timm's layer": (timm.layers.LayerNorm(E), "layernorm"),
    "timm's in float32": (timm.layers.LayerNormFp32(E), "layernorm"),
    "rms": (nn.RMSNorm(E), "rmsnorm"),
    "rms with eps": (nn.RMSNorm(E, eps=0.3), "rmsnorm"),
    "timm's rms": (timm.layers.RmsNorm(E), "rmsnorm"),
    "timm's rms, no scale": (timm.layers.RmsNorm(E, affine=False), "rmsnorm"),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_rebuilt(name):
    module, kind = NORMS[name]
    module = randomised(module)
    read, x = read_norm(module), inputs()
    assert read.kind == kind
    tight = {"rtol": 1e-5, "atol": 1e-5} if "float32" in name else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(normalised(read, x), module(x), **tight)


@pytest.mark.parametrize("module", [LN2d(E) for LN2d in (timm.layers.LayerNorm2d, timm.layers.RmsNorm2d)])
def test_norms_over_channels_act_on_the_features_of_a_pixel(module):
    module = randomised(module)
    x = inputs((2, E, 3, 4))
    rebuilt_ = normalised(read_norm(module), x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(rebuilt_, module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_an_affine_map_in_evaluation_mode_and_nothing_else_in_training(affine):
    module = randomised(nn.BatchNorm1d(E, affine=affine))
    x = inputs((5, E))
    torch.testing.assert_close(normalised(read_norm(module), x), module(x), rtol=1e-12, atol=1e-12)
    module.train()
    first, second = module(x)[0], module(x[:3])[0]
    assert (first - second).norm() > 0.1  # the other images of the batch decide
    with pytest.raises(NoBoundError, match="in training mode: it divides by statistics of the batch"):
        read_norm(module)
    with pytest.raises(NoBoundError, match="without stored statistics"):
        read_norm(nn.BatchNorm1d(E, track_running_stats=False).eval())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.GroupNorm(3, E), "GroupNorm: it normalises over several tokens"),
        (timm.layers.GroupNorm1(E), "GroupNorm1: it normalises over several tokens"),
        (nn.LayerNorm((N, E)), r"over \(9, 12\)"),
        (timm.layers.SimpleNorm(E), "SimpleNorm; only layer norm"),
        (nn.SyncBatchNorm(E), "SyncBatchNorm; only"),
        (nn.Linear(E, E), "Linear; only"),
    ],
)
def test_other_norms_have_no_bound(module, words):
    with pytest.raises(NoBoundError, match=words):
        read_norm(module)


def test_linear_layers_parametrised_ones_and_convolutions_of_a_pixel():
    x = inputs((4, E))
    for module in (nn.Linear(E, 5), nn.Linear(E, 5, bias=False), parametrizations.weight_norm(nn.Linear(E, 5))):
        weight, bias = read_linear(randomised(module))
        torch.testing.assert_close(F.linear(x, weight, bias), module(x), rtol=1e-12, atol=1e-12)
    conv = randomised(nn.Conv2d(E, 5, 1))
    torch.testing.assert_close(F.linear(x, *read_linear(conv)), conv(x[..., None, None])[..., 0, 0])
    assert read_linear(nn.Linear(E, 5).half()).weight.dtype == torch.float64
    for other in (nn.Conv2d(E, E, 3), nn.Conv2d(E, E, 1, stride=2), nn.Conv2d(E, E, 1, groups=3), nn.Identity()):
        with pytest.raises(NoBoundError, match="not a linear layer"):
            read_linear(other)


def test_what_may_compute_something_else_is_refused():
    class Adapter(nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.sum()

    with pytest.raises(NoBoundError, match="is a Adapter, not a linear layer"):
        read_linear(Adapter(2, 2))
    hooked = nn.Linear(2, 2)
    handle = hooked.register_forward_hook(lambda m, a, out: 2 * out)
    with pytest.raises(NoBoundError, match="carries a hook on its Linear"):
        read_linear(hooked)
    handle.remove()
    hooked.forward = lambda x: 3 * x
    with pytest.raises(NoBoundError, match="forward method of its Linear replaced"):
        read_linear(hooked)
    attention = timm.layers.Attention(E, H)
    attention.qkv = Adapter(E, 3 * E)
    with pytest.raises(NoBoundError, match="has a Adapter as qkv, not a linear layer"):
        read_attention(attention)
    attention = timm.layers.Attention(E, H)
    attention.proj.register_forward_pre_hook(lambda m, a: None)
    with pytest.raises(NoBoundError, match="hook on its Linear"):
        read_attention(attention)
    with pytest.raises(NoBoundError, match=r"drops values at random \(p=0.1\) in training mode"):
        read_attention(timm.layers.Attention(E, H, attn_drop=0.1).train())
    with pytest.raises(NoBoundError, match="is a Other"):
        read_attention(type("Other", (timm.layers.Attention,), {})(E, H))
    assert read_attention(timm.layers.Attention(E, H, attn_drop=0.1).eval()).kind == "plain"


def test_a_parametrised_norm_is_read_as_the_class_it_was():
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    module = nn.LayerNorm(E)
    parametrize.register_parametrization(module, "weight", Double())
    assert class_of(module) == "torch.nn.modules.normalization.LayerNorm"
    assert read_norm(module).weight.tolist() == [2.0] * E


def test_layerscale():
    scale = timm.layers.LayerScale(E, init_values=0.25)
    assert read_layerscale(scale).tolist() == [0.25] * E
    assert read_layerscale(nn.Parameter(torch.ones(2))).dtype == torch.float64
    assert read_layerscale(None) is None
    assert read_layerscale(nn.Identity()) is None
    with pytest.raises(NoBoundError, match="is a Linear, not a LayerScale"):
        read_layerscale(nn.Linear(2, 2))


# ---- MLPs -----------------------------------------------------------------------------------------------------------

MLPS = {
    "mlp": lambda: timm.layers.Mlp(E, 20),
    "mlp, no bias": lambda: timm.layers.Mlp(E, 20, bias=False, act_layer=nn.SiLU),
    "gated, second half": lambda: timm.layers.GluMlp(E, 20),
    "gated, first half": lambda: timm.layers.SwiGLUPacked(E, 20, bias=False),
    "gated, apart": lambda: timm.layers.SwiGLU(E, 20),
}


@pytest.mark.parametrize("name", MLPS)
def test_mlps_are_rebuilt(name):
    module = randomised(MLPS[name]())
    read, x = read_mlp(module), inputs()
    hidden = F.linear(x, *read.first)
    gate = read.activation(hidden if read.gate is None else F.linear(x, *read.gate))
    hidden = gate if read.gate is None else gate * hidden
    assert read.kind == name[: len(read.kind)]
    torch.testing.assert_close(F.linear(hidden, *read.second), module(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (timm.layers.Mlp(E, 8, norm_layer=nn.LayerNorm), "normalises its hidden features by a LayerNorm"),
        (timm.layers.SwiGLU(E, 8, norm_layer=nn.LayerNorm), "normalises its hidden features"),
        (timm.layers.Mlp(E, 8, act_layer=nn.Mish), "activation 'Mish' is not known"),
        (timm.layers.GlobalResponseNormMlp(E, 8), "GlobalResponseNormMlp: global response norm"),
        (timm.layers.GatedMlp(E, 8), "GatedMlp: its gate mixes tokens"),
        (nn.Linear(E, E), "Linear: no bound is known"),
    ],
)
def test_other_mlps_have_no_bound(module, words):
    with pytest.raises(NoBoundError, match=words):
        read_mlp(module)


def test_the_slope_of_an_unknown_activation_may_be_given():
    module = timm.layers.Mlp(E, 8, act_layer=nn.Mish)
    assert read_mlp(module, given=1.1).constant == 1.1
    with pytest.raises(NoBoundError, match="Mish"):  # a gate needs more than its slope
        read_mlp(timm.layers.SwiGLU(E, 8, act_layer=nn.Mish), given=1.1)


# ---- patch embeddings -----------------------------------------------------------------------------------------------

PATCHES = {
    "disjoint": (timm.layers.PatchEmbed(16, 4, embed_dim=E), 1),
    "dynamic padding": (timm.layers.PatchEmbed(None, 5, embed_dim=E, dynamic_img_pad=True), 1),
    "overlapping, norm": (pvt_v2.OverlapPatchEmbed(7, 4, embed_dim=E), 1),
    "stem": (xcit.ConvPatchEmbed(16, 8, embed_dim=16), 3),
    "convolution": (nn.Conv2d(3, E, 3, stride=2, padding="valid"), 1),
    "sequence": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, E, 2, 2)), 2),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patch_embeddings_are_rebuilt_and_bounded(name):
    module, count = PATCHES[name]
    module = randomised(module)
    x = inputs((2, 3, 16, 16))
    read = read_patch_embedding(module)
    assert len(read.stages) == count
    seen = F.pad(x, (0, 4, 0, 4)) if name == "dynamic padding" else x
    for (weight, stride, act), bias, padding in zip(read.stages, read.biases, read.paddings, strict=True):
        seen = F.conv2d(seen, weight, bias, stride, padding)
        seen = seen if act is None else {"GELU": F.gelu, "ReLU": F.relu}[act](seen)
    with torch.no_grad():
        rate = float((seen[0] - seen[1]).norm() / (x[0] - x[1]).norm())
        tokens = seen.permute(0, 2, 3, 1)
        tokens = tokens if read.norm is None else normalised(read.norm, tokens)
        out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    out = out.permute(0, 2, 3, 1) if out.ndim == 4 and "norm" not in name else out
    torch.testing.assert_close(tokens.flatten(1), out.flatten(1), rtol=1e-10, atol=1e-10)
    assert 0 < rate <= patch_stem_bound(read.stages)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Conv2d(3, 6, 3, groups=3), "groups=3"),
        (nn.Conv2d(3, 6, 3, dilation=2), r"dilation=\(2, 2\)"),
        (nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), "padding 'reflect'"),
        (nn.Sequential(), "no convolution"),
        (nn.Sequential(nn.GELU(), nn.Conv2d(3, 6, 3)), "starts with a GELU"),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.Mish()), "Mish"),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.GELU(), nn.BatchNorm2d(6).eval()), "after an activation"),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), "in training mode"),
        (timm.layers.Mlp(3, 6), "is a Mlp: no bound"),
    ],
)
def test_other_stems_have_no_bound(module, words):
    with pytest.raises(NoBoundError, match=words):
        read_patch_embedding(module)


# ---- what has no statement ------------------------------------------------------------------------------------------

WITHOUT = {
    "talking heads": lambda: cait.TalkingHeadAttn(E, H),
    "class attention": lambda: cait.ClassAttn(E, H),
    "XCA": lambda: xcit.XCA(E, H),
    "attention pooling": lambda: timm.layers.AttentionPoolLatent(E, num_heads=H),
    "differential attention": lambda: timm.layers.DiffAttention(E, H),
    "by a convolution": lambda: metaformer.SepConv(E),
    "gates its output": lambda: timm.layers.Attention(E, H, gated=True),
    "attention output": lambda: timm.layers.Attention(E, H, scale_norm=True, norm_layer=LN),
    "is a MultiheadAttention": lambda: nn.MultiheadAttention(E, H),
}


@pytest.mark.parametrize("words", WITHOUT)
def test_every_refusal_gives_its_reason(words):
    module = WITHOUT[words]().eval()
    with pytest.raises(NoBoundError, match=words):
        read_attention(module)
    with pytest.raises(NoBoundError, match=words):
        statement(module)


def test_a_norm_of_queries_alone_or_a_batch_norm_there_is_refused():
    module = timm.layers.Attention(8, 2, qk_norm=True, norm_layer=LN).eval()
    module.k_norm = nn.Identity()
    with pytest.raises(NoBoundError, match="queries or keys alone"):
        read_attention(module)
    module.q_norm = module.k_norm = nn.BatchNorm1d(4).eval()
    with pytest.raises(NoBoundError, match="batch norm on queries"):
        read_attention(module)


def test_the_classes_that_are_named_exist():
    import importlib

    for name in NO_STATEMENT:
        home, cls = name.rsplit(".", 1)
        assert issubclass(getattr(importlib.import_module(home), cls), nn.Module), name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: timm.layers.Attention(E, H), "Theorems 10 to 12"),
        (lambda: beit.Attention(E, H), "Theorem 10, first member"),
        (lambda: eva.EvaAttention(E, H, scale_norm=False), "Theorem 13, on a ball"),
        (lambda: swin_transformer_v2.WindowAttention(E, (3, 3), H), "Theorem 13, .*floors"),
        (lambda: nn.Linear(2, 2), "Theorem 3"),
        (lambda: timm.layers.RmsNorm(4), "Theorem 6"),
        (lambda: nn.BatchNorm1d(4).eval(), "Theorem 3"),
        (lambda: timm.layers.Mlp(4, 8), "Proposition 15, for all"),
        (lambda: timm.layers.SwiGLU(4, 8), "Proposition 15, on a ball"),
        (lambda: timm.layers.LayerScale(4), "Proposition 15"),
        (lambda: timm.layers.PatchEmbed(16, 4), "Proposition 16, for all"),
        (lambda: pvt_v2.OverlapPatchEmbed(), "Proposition 16, .*then Theorem 6"),
        (lambda: xcit.ConvPatchEmbed().eval(), "Proposition 16, a product"),
    ],
)
def test_statement_names_what_covers_a_module(make, words):
    import re

    assert re.match(words, statement(make()))


# ---- subclasses that compute something else --------------------------------------------------------------------------


class Doubled(nn.Identity):
    def forward(self, x):
        return 2 * x


class Skipping(nn.Sequential):
    def forward(self, x):
        return x


class Noise(nn.Dropout):
    def forward(self, x):
        return x + x.sum()


@pytest.mark.parametrize(
    "part", [Doubled, Noise, lambda: nn.ReLU(), lambda: nn.Linear(E, E), lambda: nn.AlphaDropout(0.1)]
)
@pytest.mark.parametrize("slot", ["attn_drop", "proj_drop", "drop1", "drop2"])
def test_only_dropout_stands_where_dropout_is_expected(slot, part):
    module = (timm.layers.Attention(E, H) if slot.startswith(("attn", "proj")) else timm.layers.Mlp(E)).eval()
    read = read_attention if slot.startswith(("attn", "proj")) else read_mlp
    read(module)
    for fine in (nn.Identity(), nn.Dropout(0.5).eval(), nn.Dropout(0.0), timm.layers.DropPath(0.5).eval()):
        setattr(module, slot, fine)
        read(module)
    setattr(module, slot, part().eval())
    with pytest.raises(NoBoundError, match=f"as {slot}"):
        read(module)
    setattr(module, slot, timm.layers.DropPath(0.5).train())
    with pytest.raises(NoBoundError, match="training mode"):
        read(module)


def test_a_subclass_of_identity_is_not_a_missing_norm():
    attention = timm.layers.Attention(E, H).eval()
    mlp, embed = timm.layers.Mlp(E).eval(), timm.layers.PatchEmbed(56, 14, embed_dim=8).eval()
    for read, module, slot in (
        (read_attention, attention, "norm"),
        (read_mlp, mlp, "norm"),
        (read_patch_embedding, embed, "norm"),
    ):
        setattr(module, slot, Doubled())
        with pytest.raises(NoBoundError):
            read(module)
        setattr(module, slot, nn.Identity())
        read(module)
    attention.q_norm = attention.k_norm = Doubled()
    with pytest.raises(NoBoundError, match="is a Doubled"):
        read_attention(attention)
    with pytest.raises(NoBoundError, match="is a Doubled"):
        read_layerscale(Doubled())


def test_a_subclass_of_sequential_is_not_a_stem():
    conv = nn.Conv2d(3, 8, 4, 4)
    for stem in (
        Skipping(conv),
        nn.Sequential(conv, Skipping(nn.ReLU())),
        nn.Sequential(conv, Doubled()),
        nn.Sequential(Doubled(), conv),
    ):
        with pytest.raises(NoBoundError, match="a subclass that may compute anything"):
            read_patch_embedding(stem.eval())
    embed = timm.layers.PatchEmbed(56, 14, embed_dim=8).eval()
    embed.proj = Skipping(embed.proj)
    with pytest.raises(NoBoundError, match="has a Skipping"):
        read_patch_embedding(embed)


def test_a_layer_that_may_rotate_is_not_said_to():
    """Whether EVA's layer gets positions is up to the model that calls it."""
    module = eva.EvaAttention(E, num_heads=H, scale_norm=False).eval()
    with pytest.raises(NoBoundError, match=r"^may rotate queries and keys by position"):
        _ = read_attention(module).form
    assert read_attention(module, rotary=False).form.query.shape == (H, E // H, E)
