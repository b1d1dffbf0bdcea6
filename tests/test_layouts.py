"""Families of models beside the plain one: parts, groups, embedding, rates against a plain loop, bounds on pairs."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitplast import components, models
from vitplast.bounds import bounds, heads, read_attention, token_statistics
from vitplast.bounds.attention_ball import attention_bound
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, LayoutError, NoBoundError, UnknownNameError
from vitplast.finetune import Origin, Recipe, finetune
from vitplast.layouts import LAYOUTS, layout_of
from vitplast.measure import rates_of_change
from vitplast.measure.common_input import embedding
from vitplast.training.stages import Stages

transformers = pytest.importorskip("transformers")

CONVENTIONS = ("common", "in_situ")
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 3}
#: As timm's DINOv3 models are made, tiny.
DINOV3 = {
    **SMALL, "qkv_bias": False, "init_values": 0.1, "num_reg_tokens": 4, "use_rot_pos_emb": True,
    "use_abs_pos_emb": False, "rope_type": "dinov3", "rope_rotate_half": True, "rope_temperature": 100,
    "use_fc_norm": False, "dynamic_img_size": True,
}  # fmt: skip
EVAS = {
    "dinov3": DINOV3,
    "dinov3 gated, with biases": {
        **DINOV3, "swiglu_mlp": True, "swiglu_align_to": 8, "mlp_ratio": 3, "qkv_bias": True
    },
    "eva02": {**SMALL, "use_rot_pos_emb": True, "ref_feat_shape": (4, 4), "swiglu_mlp": True, "mlp_ratio": 4},
    "eva02 scaled": {
        **SMALL, "use_rot_pos_emb": True, "swiglu_mlp": True, "scale_mlp": True, "scale_attn_inner": True,
        "qkv_fused": False,
    },
    "mixed": {**SMALL, "use_rot_pos_emb": True, "rope_type": "mixed", "attn_type": "rope", "init_values": 0.1},
    "grouped": {
        **DINOV3, "attn_type": "rope", "qkv_fused": False, "num_kv_heads": 2, "qk_norm": True,
        "norm_layer": timm.layers.RmsNorm, "swiglu_mlp": True,
    },
    "eva": {**SMALL, "global_pool": "avg"},
    "post norm": {**SMALL, "use_post_norm": True},
}  # fmt: skip


def disturbed(model, scale=0.3):
    """Weights away from their initial values, in float64 and evaluation mode."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def make_eva(name):
    torch.manual_seed(1)
    return disturbed(Eva(**EVAS[name]))


def make_gpt2(**kwargs):
    torch.manual_seed(2)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa", **kwargs)
    return disturbed(transformers.GPT2LMHeadModel(config))


def make(name):
    return make_gpt2() if name == "gpt2" else make_eva(name)


def inputs(name, count=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    if name == "gpt2":
        return torch.randint(50, (count, 9), generator=g)
    return torch.randn(count, 3, 32, 32, generator=g).double()


class Tokens:
    """Token ids as a side of pairs, all of one length."""

    def __init__(self, ids):
        self.rows, self.lengths = ids, np.full(len(ids), ids.shape[1])
        self.largest = int(ids.max())
        self.ids = self.groups = [str(i) for i in range(len(ids))]

    def __len__(self):
        return len(self.rows)

    def tokens(self, index, length):
        return self.rows[torch.as_tensor(np.asarray(index)), :length]

    def batches(self, index, batch_size):
        yield from self.rows[torch.as_tensor(np.unique(index))].split(batch_size)


def side(name, ids):
    return Tokens(ids) if name == "gpt2" else ids


ALL = [*EVAS, "gpt2"]
#: Parameters of each group of the tiny models, counted by hand. E 32, 2 blocks, 16 patches of 3 x 8 x 8.
EMB = 32 * 192 + 32
NORMS, MHA, HEAD = 2 * 64, 2 * 4 * 32 * 32, 32 * 3 + 3
COUNTS = {
    "dinov3": {
        "emb": EMB + 32 + 4 * 32, "LN1": NORMS, "MHA": MHA + 2 * 32, "LN2": NORMS, "FC1": 2 * (32 * 128 + 128),
        "FC2": 2 * (128 * 32 + 32), "LayerScale": 2 * 2 * 32, "norm": 64, "head": HEAD,
    },
    "dinov3 gated, with biases": {
        "emb": EMB + 32 + 4 * 32, "LN1": NORMS, "MHA": MHA + 2 * 3 * 32, "LN2": NORMS, "FC1": 2 * 2 * (32 * 96 + 96),
        "FC2": 2 * (96 * 32 + 32), "LayerScale": 2 * 2 * 32, "norm": 64, "head": HEAD,
    },
    "eva02 scaled": {
        "emb": EMB + 32 + 17 * 32, "LN1": NORMS, "MHA": MHA + 2 * 3 * 32, "LN2": NORMS,
        "FC1": 2 * 2 * (32 * 128 + 128), "FC2": 2 * (128 * 32 + 32), "inner-norm": 2 * (2 * 128 + 2 * 32), "norm": 64,
        "head": HEAD,
    },
    "grouped": {
        "emb": EMB + 32 + 4 * 32, "LN1": 64, "MHA": 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 32), "LN2": 64,
        "FC1": 2 * (32 * 256 + 256), "FC2": 2 * (128 * 32 + 32), "LayerScale": 2 * 2 * 32, "QK-norm": 2 * 2 * 8,
        "norm": 32, "head": HEAD,
    },
    "gpt2": {
        "emb": 50 * 16 + 16 * 16, "LN1": 2 * 32, "MHA": 2 * (16 * 48 + 48 + 16 * 16 + 16), "LN2": 2 * 32,
        "FC1": 2 * (16 * 64 + 64), "FC2": 2 * (64 * 16 + 16), "norm": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_groups_hold_what_was_counted_by_hand(name):
    model = make(name)
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    found = {group: sum(sizes[n] for n in names) for group, names in components.groups(model).items()}
    assert found == COUNTS[name]


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_is_in_one_group_and_every_block_has_five_parts(name):
    model = make(name)
    by_group = components.groups(model)
    listed = [n for names in by_group.values() for n in names]
    assert sorted(listed) == sorted(n for n, _ in model.named_parameters())
    found = components.parts(model)
    assert [(p.layer, p.component) for p in found] == [(layer, c) for layer in (0, 1) for c in COMPONENTS]
    for part in found:
        for path, module in part.members.items():
            assert model.get_submodule(path) is module
            inside = {f"{path}.{n}" for n, _ in module.named_parameters()}
            own = {n for n in inside if n in by_group[part.component]}
            assert own, path
            assert {n.rsplit(".", 2)[1] for n in inside - own} <= {"q_norm", "k_norm", "norm"}


def test_parts_of_a_gated_mlp():
    model = make_eva("dinov3 gated, with biases")
    both = components.parts(model)[3]
    assert both.name == "blocks.0.mlp.fc1_g + blocks.0.mlp.fc1_x"
    assert list(both.members.values()) == [model.blocks[0].mlp.fc1_g, model.blocks[0].mlp.fc1_x]
    x = torch.randn(2, 32).double()
    mlp = model.blocks[0].mlp
    assert torch.equal(both.module(x), torch.cat([mlp.fc1_g(x), mlp.fc1_x(x)], dim=1))
    up = components.parts(model, gated="up")[3]
    assert (up.name, up.module) == ("blocks.0.mlp.fc1_x", mlp.fc1_x)
    assert components.parts(make_eva("dinov3"), gated="up")[3].name == "blocks.0.mlp.fc1"
    with pytest.raises(LayoutError, match="in one matrix"):
        components.parts(make_eva("eva02"), gated="up")
    with pytest.raises(UnknownNameError, match="'both'"):
        components.parts(model, gated="bth")


def test_select_trains_the_group_alone():
    model = make_eva("mixed")
    assert set(components.groups(model)) >= {"RoPE", "LayerScale"}
    trained = components.select(model, "RoPE", train_head=False, train_norm=False)
    assert trained == {"RoPE": ["rope.freqs"]}
    gpt2 = make_gpt2()
    assert set(components.select(gpt2, "FC1")) == {"FC1", "norm"}
    names = {n for n, p in gpt2.named_parameters() if p.requires_grad}
    assert names == {
        *(f"transformer.h.{i}.mlp.c_fc.{k}" for i in (0, 1) for k in ("weight", "bias")),
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
    }
    with pytest.raises(LayoutError, match="no QK-norm; its groups are emb, LN1"):
        components.select(gpt2, "QK-norm")


def test_a_parameter_or_part_that_no_rule_knows_is_refused():
    model = make_eva("dinov3")
    model.blocks[1].attn.temperature = nn.Parameter(torch.ones(1))
    with pytest.raises(LayoutError, match=r"Eva class: 1 parameters belong to no group: blocks\.\*\.attn\.temperature"):
        components.groups(model)
    gpt2 = make_gpt2(add_cross_attention=True)
    with pytest.raises(LayoutError, match=r"GPT-2 of the package transformers: .*crossattention"):
        components.groups(gpt2)
    del model.blocks[1].mlp.fc1
    with pytest.raises(LayoutError, match=r"without FC1 \(mlp\.fc1 or mlp\.fc1_g \+ mlp\.fc1_x\)"):
        components.parts(model)


@pytest.mark.parametrize("name", ALL)
def test_what_enters_the_first_block_and_each_attention_is_what_the_layout_says(name):
    """Embedding, rotation and mask, against the model's own forward pass."""
    model, z = make(name), inputs(name)
    seen = []
    family = layout_of(model)
    assert family.name == ("gpt2" if name == "gpt2" else "eva")
    attentions = [p for p in components.parts(model) if p.component == "MHA"]
    handles = [family.first_block(model).register_forward_pre_hook(lambda m, a: seen.append(a[0]))]
    for part in attentions:
        handles.append(
            part.module.register_forward_hook(
                lambda m, a, kw, out: seen.append((a[0], out[0] if isinstance(out, tuple) else out)), with_kwargs=True
            )
        )
    with torch.no_grad():
        model(z)
        for handle in handles:
            handle.remove()
        embedded = family.embed(model, z)
        assert torch.equal(embedded.tokens, seen[0])
        assert torch.equal(embedding(model, z), seen[0])
        for part, (x, out) in zip(attentions, seen[1:], strict=True):
            alone = family.attend(part.module, x, embedded.beside(part.layer))
            torch.testing.assert_close(alone, out, rtol=1e-12, atol=1e-12)


def test_attention_of_gpt2_is_causal_however_it_is_computed():
    for implementation in ("eager", "sdpa"):
        model = make_gpt2()
        model.set_attn_implementation(implementation)
        attention = model.transformer.h[1].attn
        x = torch.randn(1, 6, 16).double()
        changed = x.clone()
        changed[:, 4:] += 1
        with torch.no_grad():
            a, b = (LAYOUTS["gpt2"].attend(attention, z, {}) for z in (x, changed))
        torch.testing.assert_close(a[:, :4], b[:, :4], rtol=0, atol=1e-14)
        assert (a[:, 4:] - b[:, 4:]).abs().min() > 0


def plain_loop(model, x, y, convention, gated="both", mha_input="embedding"):
    """Distances (layer, component, pair) in and out, with every activation of the plain forward pass kept."""
    kept = []
    family, text = layout_of(model), isinstance(model, transformers.GPT2LMHeadModel)
    blocks = model.transformer.h if text else model.blocks
    names = ("ln_1", "attn", "ln_2", "mlp.c_fc", "mlp.c_proj") if text else ("norm1", "attn", "norm2", "", "mlp.fc2")
    for z in (x, y):
        got = {}

        def keep(key, got=got):
            return lambda m, a, out: got.__setitem__(key, (a[0], out[0] if isinstance(out, tuple) else out))

        handles = []
        for layer, block in enumerate(blocks):
            for name in names:
                module = block
                for step in filter(None, name.split(".")):
                    module = getattr(module, step)
                if name:
                    handles.append(module.register_forward_hook(keep((layer, name))))
            if not text:
                first = ["fc1"] if hasattr(block.mlp, "fc1") else ["fc1_g", "fc1_x"]
                first = first[-1:] if gated == "up" else first
                for one in first:
                    handles.append(getattr(block.mlp, one).register_forward_hook(keep((layer, one))))
        with torch.no_grad():
            if convention == "in_situ":
                model(z)
            else:
                embedded = family.embed(model, z)
                e = embedded.tokens
                for layer, block in enumerate(blocks):
                    attention_in = getattr(block, names[0])(e) if mha_input == "normed" else e
                    family.attend(block.attn, attention_in, embedded.beside(layer))
                    for name in (names[0], names[2]):
                        getattr(block, name)(e)
                    last = block.mlp.c_proj if text else block.mlp.fc2
                    width = last.weight.shape[0] if text else last.in_features
                    last(F.pad(e, (0, width - e.shape[-1])))
                    for one in ("c_fc",) if text else first:
                        getattr(block.mlp, one)(e)
        for handle in handles:
            handle.remove()
        rows = []
        for layer in range(len(blocks)):
            row = []
            for name in names:
                members = [k for k in got if k[0] == layer and (k[1] == name if name else k[1].startswith("fc1"))]
                row.append((got[members[0]][0], torch.cat([got[k][1] for k in members], dim=-1)))
            rows.append(row)
        kept.append((rows, None if convention == "in_situ" else e))
    d = np.empty((2, len(blocks), 5, len(x)))
    (a, ex), (b, ey) = kept
    for layer in range(len(blocks)):
        for c in range(5):
            for end in (0, 1):
                left, right = a[layer][c][end], b[layer][c][end]
                if convention == "common" and end == 0:
                    left, right = ex, ey
                d[end, layer, c] = (left - right).flatten(1).norm(dim=1)
    return d


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ALL)
def test_rates_against_a_plain_loop(name, convention):
    model, x, y = make(name), inputs(name), inputs(name, seed=1)
    found = rates_of_change(model, side(name, x), side(name, y), convention=convention, batch_size=4)
    d_in, d_out = plain_loop(model, x, y, convention)
    np.testing.assert_allclose(found.distance_in, d_in, rtol=1e-9)
    np.testing.assert_allclose(found.distance_out, d_out, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dinov3 gated, with biases", {"gated": "up"}),
        ("dinov3 gated, with biases", {"mha_input": "normed"}),
        ("gpt2", {"mha_input": "normed"}),
    ],
)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_authors_variants_against_a_plain_loop(name, options, convention):
    model, x, y = make(name), inputs(name), inputs(name, seed=1)
    sides = side(name, x), side(name, y)
    found = rates_of_change(model, *sides, convention=convention, **options).distance_out
    np.testing.assert_allclose(found, plain_loop(model, x, y, convention, **options)[1], rtol=1e-9)
    usual = rates_of_change(model, *sides, convention=convention).distance_out
    column = "FC1" if "gated" in options else "MHA"
    same = [c for c in COMPONENTS if c != column or (convention == "in_situ" and "mha_input" in options)]
    np.testing.assert_allclose(found.sel(component=same), usual.sel(component=same), rtol=1e-9)
    if column not in same:
        assert abs(found / usual - 1).sel(component=column).max() > 1e-3


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["dinov3 gated, with biases", "gpt2"])
def test_half_precision_is_near_and_not_equal(name, convention):
    model, x, y = make(name).float(), inputs(name), inputs(name, seed=1)
    x, y = (z if name == "gpt2" else z.float() for z in (x, y))
    sides = side(name, x), side(name, y)
    exact = rates_of_change(model, *sides, convention=convention).rate
    off = abs(rates_of_change(model, *sides, convention=convention, precision="bfloat16").rate / exact - 1)
    assert 1e-6 < off.max() < 0.1


@pytest.mark.parametrize("name", ["dinov3 gated, with biases", "mixed"])
def test_crossed_design_is_all_pairs_done_singly(name):
    model, x, y = make(name), inputs(name), inputs(name, count=2, seed=1)
    i, j = np.repeat(np.arange(3), 2), np.tile(np.arange(2), 3)
    for convention in CONVENTIONS:
        found = rates_of_change(model, x, y, convention=convention, design="crossed", batch_size=4)
        singly = rates_of_change(model, x, y, convention=convention, source_index=i, target_index=j)
        np.testing.assert_allclose(found.rate, singly.rate, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_measuring_changes_nothing(name):
    model, x, y = make(name), inputs(name), inputs(name, seed=1)

    def output():
        with torch.no_grad():
            out = model(x)
        return out.logits if name == "gpt2" else out

    before, state = output(), copy.deepcopy(model.state_dict())
    for convention in CONVENTIONS:
        rates_of_change(model, side(name, x), side(name, y), convention=convention)
    token_statistics(model, [(side(name, x), [0, 1, 2])] if name == "gpt2" else [x, y])
    assert torch.equal(output(), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


def statistics_of(name, model, x, y):
    sides = [(Tokens(z), np.arange(len(z))) for z in (x, y)] if name == "gpt2" else [x, y]
    return token_statistics(model, sides)


@pytest.mark.parametrize("name", ALL)
def test_bounds_hold_on_random_and_close_pairs_or_give_a_reason(name):
    model = make(name)
    x, y = inputs(name, count=6), inputs(name, count=6, seed=1)
    close = x.clone()
    if name == "gpt2":
        close[:, -1] = (close[:, -1] + 1) % 50
    else:
        close += 1e-3 * inputs(name, count=6, seed=2)
    for other in (y, close):
        found = bounds(model, statistics_of(name, model, x, other))
        reasons = json.loads(found.attrs["no_bound"])
        for convention in CONVENTIONS:
            rate = rates_of_change(model, side(name, x), side(name, other), convention=convention).rate.max("pair")
            for variant in ("valid", "new"):
                bound = found.bound.sel(convention=convention, variant=variant)
                for component in COMPONENTS:
                    values = bound.sel(component=component).values
                    if np.isnan(values).any():
                        assert reasons[component], component
                        continue
                    assert (rate.sel(component=component) <= values * (1 + 1e-9)).all(), (
                        convention,
                        variant,
                        component,
                    )


def test_which_bounds_there_are():
    """Theorem 13 for RoPE, the first branch of Theorem 10 for the causal mask, Theorem 3 for stacked projections."""
    has_new, has_valid = {}, {}
    for name in ALL:
        model = make(name)
        found = bounds(model, statistics_of(name, model, inputs(name), inputs(name, seed=1))).bound
        kept = found.notnull().all("layer").all("convention")
        for variant, table in (("new", has_new), ("valid", has_valid)):
            table[name] = {c for c in COMPONENTS if bool(kept.sel(variant=variant, component=c))}
    without = {"eva02 scaled", "grouped"}  # a norm after attention; QK-norm, whose floors are not measured
    for name in ALL:
        norms = {"LN1", "LN2"} if name != "grouped" else set()  # RMS norms
        assert has_new[name] == norms | {"FC1", "FC2"} | (set() if name in without else {"MHA"}), name
        assert has_valid[name] == norms | {"FC1", "FC2"} | ({"MHA"} if name in ("eva", "post norm") else set()), name


def test_the_bound_of_gpt2_is_the_first_branch_on_the_transposed_weights():
    model, x, y = make_gpt2(), inputs("gpt2"), inputs("gpt2", seed=1)
    stats = statistics_of("gpt2", model, x, y)
    found = bounds(model, stats).bound.sel(convention="in_situ", variant="new", layer=1, component="MHA").item()
    attention = model.transformer.h[1].attn
    read = read_attention(attention)
    assert read.fixed_bias
    slices = heads(attention.c_attn.weight.T, attention.c_proj.weight.T, 2)
    torch.testing.assert_close(read.heads.query, slices.query)
    torch.testing.assert_close(read.query_bias, attention.c_attn.bias[:16])
    radius = stats.radius_max.sel(convention="in_situ", layer=1, component="MHA").item()
    expected = attention_bound(read.form, tokens=9, radius=radius, fixed_bias=True)
    assert found == pytest.approx(expected, rel=1e-12)
    small = {"tokens": 9, "radius": 1e-3}  # without a mask the second branch would be smaller there
    assert attention_bound(read.form, **small, fixed_bias=True) > 2 * attention_bound(read.form, **small)
    cross = make_gpt2(add_cross_attention=True).transformer.h[0].crossattention
    with pytest.raises(NoBoundError, match="cross attention"):
        read_attention(cross)


def test_bound_of_stacked_projections_is_the_norm_of_the_stack():
    model = make_eva("dinov3 gated, with biases")
    found = bounds(model, statistics_of("", model, inputs(""), inputs("", seed=1))).bound
    mlp = model.blocks[1].mlp
    stack = torch.cat([mlp.fc1_g.weight, mlp.fc1_x.weight]).detach()
    value = found.sel(convention="common", variant="new", layer=1, component="FC1").item()
    assert value == pytest.approx(torch.linalg.svdvals(stack)[0].item(), rel=1e-12)


# --- names and loading


def on_meta(name):
    with torch.device("meta"):
        try:
            return timm.create_model(name, depth=1)
        except AssertionError:  # states the heads of every block
            return timm.create_model(name, depth=1, num_kv_heads=1)


@pytest.mark.slow
def test_every_eva_of_timm_is_covered():
    for name in timm.list_models(module="eva"):
        model = on_meta(name)
        found = [n for names in components.groups(model).values() for n in names]
        assert sorted(found) == sorted(n for n, _ in model.named_parameters()), name
        assert tuple(p.component for p in components.parts(model))[:5] == COMPONENTS, name


PAPER_MODELS = [
    "vit_small_patch16_dinov3.lvd1689m", "vit_huge_plus_patch16_dinov3.lvd1689m", "vit_7b_patch16_dinov3.lvd1689m",
    "vit_base_patch16_224.mae", "vit_large_patch16_224.mae", "vit_huge_patch14_224.mae",
    "vit_base_patch16_224.orig_in21k", "vit_large_patch16_224.orig_in21k", "vit_huge_patch14_224.orig_in21k",
]  # fmt: skip


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_the_models_of_the_paper_are_there_and_as_expected(name):
    models.check_name(name, "hub")
    net = models.outline(models.split(name)[0], depth=1)
    names = {n for n, _ in net.blocks[0].named_modules()}
    gated = name.startswith(("vit_huge_plus", "vit_7b"))
    assert ("mlp.fc1_g" in names) == gated
    assert layout_of(net).name == models.family(name) == ("eva" if "dinov3" in name else "plain")
    if "dinov3" in name:
        assert set(components.groups(net)) >= {"emb", *COMPONENTS, "LayerScale", "norm"}
        assert net.reg_token.shape[1] == 4
        hidden, width = net.blocks[0].mlp.fc2.in_features, net.embed_dim
        assert hidden == {"vit_s": 4 * width, "vit_h": 4 * width, "vit_7": 2 * width}[name[:5]]


def test_a_masked_autoencoder_is_a_plain_model_that_masks_nothing():
    model = VisionTransformer(**SMALL, class_token=True).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(embedding(model, x), embedding(model, x))
    assert embedding(model, x).shape == (2, 17, 32)
    published = models.outline("vit_base_patch16_224")
    assert {type(m).__name__ for m in published.modules()} & {"PatchDropout", "PatchDropoutWithIndices"} == set()


def test_a_rotary_model_loads_with_random_weights_and_is_measured():
    loaded = models.load_model("eva02_tiny_patch14_224", weights="random", img_size=28)
    assert (loaded.n_tokens, loaded.img_size) == (5, 28)
    images = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)
    prepared = loaded.prepare(images)
    rates = rates_of_change(loaded.model, prepared[:1], prepared[1:], convention="common").rate
    assert rates.shape == (12, 5, 1)
    assert np.isfinite(rates).all()
    with pytest.raises(InputError, match="reads text, not images"):
        models.load_model("gpt2", weights="random")


def test_outline_of_a_text_model_has_the_published_counts():
    net = models.outline("gpt2")
    sizes = {n: p.numel() for n, p in net.named_parameters()}
    found = {group: sum(sizes[n] for n in names) for group, names in components.groups(net).items()}
    assert found == {
        "emb": (50257 + 1024) * 768, "LN1": 12 * 2 * 768, "MHA": 12 * (4 * 768 * 768 + 4 * 768), "LN2": 12 * 2 * 768,
        "FC1": 12 * (768 * 3072 + 3072), "FC2": 12 * (3072 * 768 + 768), "norm": 2 * 768,
    }  # fmt: skip
    assert sum(found.values()) == 124_439_808
    assert len(net.h) == 12


def test_catalogue_lists_other_families():
    found = models.catalogue("vit_*_patch16_dinov3.lvd*")
    assert {"vit_small_patch16_dinov3.lvd1689m", "vit_7b_patch16_dinov3.lvd1689m"} <= set(found)


def test_a_tiny_dinov3_is_finetuned():
    torch.manual_seed(0)
    model = Eva(**DINOV3).eval()
    assert not Stages(model).splits
    g = torch.Generator().manual_seed(0)
    images, labels = torch.randn(12, 3, 32, 32, generator=g), torch.arange(12) % 3
    recipe = Recipe(components="LN1", lr=0.1, steps=4, warmup=1, batch_size=4, evaluations=1)
    found = finetune(Origin(model), *[(images, labels)] * 3, recipe)
    start = Eva(**DINOV3)
    assert int(found.component_parameters) == 2 * 64
    assert np.isfinite(found.train_loss).all()
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {
        *(f"blocks.{i}.norm1.{k}" for i in (0, 1) for k in ("weight", "bias")),
        "norm.weight", "norm.bias", "head.weight", "head.bias",
    }  # fmt: skip
    assert set(dict(start.named_parameters())) == set(dict(model.named_parameters()))
