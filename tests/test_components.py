"""Parts and groups on every vision transformer of timm; selections; names; counts done by hand."""

from __future__ import annotations

import collections

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitplast import components
from vitplast.errors import InputError, LayoutError, UnknownNameError

# Types of a block, its attention and its MLP -> whether it has the five parts and nothing that no group knows.
# A new block type in timm makes the test fail until it is decided here.
LAYOUTS = {
    ("Block", "Attention", "Mlp"): True,
    ("Block", "Attention", "GluMlp"): True,
    ("ResPostBlock", "Attention", "Mlp"): True,
    ("Block", "Attention", "SwiGLU"): False,
    ("Block", "DiffAttention", "Mlp"): False,
    ("ParallelThingsBlock", "", ""): False,
    ("ParallelScalingBlock", "", ""): False,
    ("DiffParallelScalingBlock", "", ""): False,
}
WIDTH, HIDDEN, BLOCKS, CLASSES = 768, 3072, 12, 10
# Trainable scalars of ViT-Base, patch 16, 224 pixels, 10 classes, by the seven configurations and the head alone.
BASE_COUNTS = {
    "all": 85_806_346, "emb": 751_882, "LN1": 27_658, "MHA": 28_357_642, "LN2": 27_658, "FC1": 28_357_642,
    "FC2": 28_329_994, "head": 1_536 + 7_690,
}  # fmt: skip


def on_meta(name, **kwargs):
    with torch.device("meta"):
        return timm.create_model(name, **kwargs)


def type_name(owner, attribute):
    return type(getattr(owner, attribute)).__name__ if hasattr(owner, attribute) else ""


@pytest.fixture
def base():
    return on_meta("vit_base_patch16_224", num_classes=CLASSES)


def count(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_every_vision_transformer_of_timm_is_covered_or_refused_by_its_block_type():
    seen = collections.Counter()
    for name in timm.list_models(module="vision_transformer"):
        model = on_meta(name, depth=1)
        block = model.blocks[0]
        layout = (type(block).__name__, type_name(block, "attn"), type_name(block, "mlp"))
        seen[layout] += 1
        assert layout in LAYOUTS, f"{name}: {layout} is new"
        if LAYOUTS[layout]:
            groups = components.groups(model)
            found = [n for names in groups.values() for n in names]
            assert sorted(found) == sorted(n for n, _ in model.named_parameters()), name
            assert set(components.COMPONENTS) <= set(groups), name
            assert tuple(p.component for p in components.parts(model)) == components.COMPONENTS, name
        else:
            with pytest.raises(LayoutError, match=r"blocks\.\*\."):
                components.groups(model)
    assert set(seen) == set(LAYOUTS)
    assert seen["Block", "Attention", "Mlp"] >= 138


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit_base_patch16_xp_224", ["ParallelScalingBlock", "LN1 (norm1)", "FC2 (mlp.fc2)", "in_proj"]),
        ("aimv2_large_patch14_224", ["Block", "FC1 (mlp.fc1)", "mlp.fc1_g"]),
        ("vit_small_patch16_18x2_224", ["ParallelThingsBlock", "MHA (attn)", "attns"]),
    ],
)
def test_parts_names_what_a_block_lacks_and_has(name, words):
    with pytest.raises(LayoutError) as error:
        components.parts(on_meta(name, depth=1))
    for word in words:
        assert word in str(error.value)


def test_a_model_without_blocks_is_refused():
    model = on_meta("resnet18")
    with pytest.raises(LayoutError, match=r"ResNet has no 'blocks'.*conv1"):
        components.parts(model)
    with pytest.raises(LayoutError, match=r"belong to no group.*layer4"):
        components.groups(model)


def test_a_parameter_that_no_rule_knows_is_an_error(tiny_vit):
    tiny_vit.blocks[1].attn.temperature = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(LayoutError, match=r"1 parameters belong to no group: blocks\.\*\.attn\.temperature"):
        components.groups(tiny_vit)
    with pytest.raises(LayoutError, match="temperature"):
        components.select(tiny_vit, "MHA")


@pytest.mark.parametrize("name", ["blocks.0.norm1.weight_scale", "blocks.0.attn.qkv.bias_k", "head.weight2"])
def test_a_rule_must_match_the_whole_name(tiny_vit, name):
    owner, _, own = name.rpartition(".")
    tiny_vit.get_submodule(owner).register_parameter(own, torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(LayoutError, match=own):
        components.groups(tiny_vit)


@pytest.mark.parametrize(("configuration", "expected"), BASE_COUNTS.items())
def test_trainable_scalars_of_vit_base(base, configuration, expected):
    components.select(base, configuration)
    assert count(base) == expected


def test_scalars_of_each_group_by_hand(base):
    sizes = dict.fromkeys(components.groups(base), 0)
    parameters = dict(base.named_parameters())
    for group, names in components.groups(base).items():
        sizes[group] = sum(parameters[n].numel() for n in names)
    assert sizes == {
        "emb": WIDTH + 197 * WIDTH + 3 * 16 * 16 * WIDTH + WIDTH,
        "LN1": BLOCKS * 2 * WIDTH,
        "MHA": BLOCKS * (3 * WIDTH * WIDTH + 3 * WIDTH + WIDTH * WIDTH + WIDTH),
        "LN2": BLOCKS * 2 * WIDTH,
        "FC1": BLOCKS * (WIDTH * HIDDEN + HIDDEN),
        "FC2": BLOCKS * (HIDDEN * WIDTH + WIDTH),
        "norm": 2 * WIDTH,
        "head": CLASSES * WIDTH + CLASSES,
    }


def test_345_classes_move_the_head_only():
    model = on_meta("vit_base_patch16_224", num_classes=345)
    for configuration, expected in BASE_COUNTS.items():
        components.select(model, configuration)
        assert count(model) == expected + 335 * (WIDTH + 1)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("MHA+FC1", {"MHA", "FC1"}),
        ("LN1+LN2", {"LN1", "LN2"}),
        ("emb+FC2+LN1", {"emb", "FC2", "LN1"}),
        ("norm", {"norm"}),
    ],
)
@pytest.mark.parametrize("train_head", [True, False])
@pytest.mark.parametrize("train_norm", [True, False])
def test_selection_of_combinations(tiny_vit, text, groups, train_head, train_norm):
    trained = components.select(tiny_vit, text, train_head=train_head, train_norm=train_norm)
    expected = groups | ({"head"} if train_head else set()) | ({"norm"} if train_norm else set())
    assert set(trained) == expected
    names = {n for n, p in tiny_vit.named_parameters() if p.requires_grad}
    assert names == {n for g in expected for n in components.groups(tiny_vit)[g]}


def test_all_without_head_and_norm(tiny_vit):
    trained = components.select(tiny_vit, "all", train_head=False, train_norm=False)
    assert {"head", "norm"}.isdisjoint(trained)
    assert {n for n, p in tiny_vit.named_parameters() if not p.requires_grad} == {
        "norm.weight", "norm.bias", "head.weight", "head.bias"
    }  # fmt: skip


def test_head_alone_and_head_with_the_norm(tiny_vit):
    assert set(components.select(tiny_vit, "head", train_norm=False)) == {"head"}
    assert set(components.select(tiny_vit, "head")) == {"head", "norm"}
    assert set(components.select(tiny_vit, "head", train_head=False, train_norm=False)) == {"head"}


def test_selecting_again_freezes_what_was_trained_before(tiny_vit):
    components.select(tiny_vit, "FC1")
    components.select(tiny_vit, "LN2", train_head=False, train_norm=False)
    assert {n.split(".", 2)[2] for n, p in tiny_vit.named_parameters() if p.requires_grad} == {
        "norm2.weight", "norm2.bias"
    }  # fmt: skip


def test_a_model_without_head_trains_without_it():
    model = on_meta("test_vit", num_classes=0)
    assert set(components.select(model, "LN1")) == {"LN1", "norm"}
    with pytest.raises(LayoutError, match="no head; its groups are emb, LN1"):
        components.select(model, "head")


def test_norm1_does_not_match_norm10_nor_block_1_block_10():
    model = on_meta("test_vit", depth=12)
    model.blocks[0].norm10 = torch.nn.LayerNorm(4, device="meta")
    with pytest.raises(LayoutError, match=r"2 parameters belong to no group: blocks\.\*\.norm10"):
        components.groups(model)
    del model.blocks[0].norm10
    groups = components.groups(model)
    assert groups["LN1"] == [f"blocks.{i}.norm1.{kind}" for i in range(12) for kind in ("weight", "bias")]
    for part in components.parts(model):
        assert part.name == f"blocks.{part.layer}.{components.PATHS[part.component]}"
        assert model.get_submodule(part.name) is part.module


@pytest.mark.parametrize(
    ("name", "group", "members"),
    [
        ("vit_small_patch14_dinov2", "LayerScale", {"blocks.0.ls1.gamma", "blocks.0.ls2.gamma"}),
        ("vit_small_patch14_reg4_dinov2", "emb", {"reg_token", "cls_token", "pos_embed", "patch_embed.proj.weight"}),
        ("vit_base_patch16_clip_224", "pre-norm", {"norm_pre.weight", "norm_pre.bias"}),
        ("vit_base_patch16_siglip_224", "pool", {"attn_pool.latent", "attn_pool.mlp.fc1.weight"}),
        ("test_vit2", "norm", {"fc_norm.weight", "fc_norm.bias"}),
    ],
)
def test_groups_besides_the_components(name, group, members):
    model = on_meta(name, depth=1, num_classes=3)
    groups = components.groups(model)
    assert members <= set(groups[group])
    assert group in components.select(model, "all")
    trained = components.select(model, "MHA", train_head=False, train_norm=False)
    assert set(trained) == {"MHA"}
    assert not any(p.requires_grad for n, p in model.named_parameters() if n in groups[group])


def test_query_and_key_norms_are_their_own_group():
    model = on_meta("test_vit", depth=1, qk_norm=True)
    assert set(components.groups(model)["QK-norm"]) == {
        f"blocks.0.attn.{x}_norm.{kind}" for x in "qk" for kind in ("weight", "bias")
    }
    assert set(components.select(model, "QK-norm", train_head=False, train_norm=False)) == {"QK-norm"}


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("MHA2", "MHA"), ("mha", "MHA"), ("FC3", "FC1"), ("LN", "LN1"), ("heads", "head"), ("FC1+Fc2", "FC2"),
        ("embed", "emb"),
    ],
)  # fmt: skip
def test_unknown_components_are_named_with_the_nearest(tiny_vit, text, suggestion):
    for call in (components.parse_components, lambda t: components.select(tiny_vit, t)):
        with pytest.raises(UnknownNameError, match="unknown component") as error:
            call(text)
        assert repr(suggestion) in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "+", " + ", "all+MHA", "head+LN1", "MHA+all"])
def test_selections_that_mean_nothing_are_refused(text):
    with pytest.raises(InputError):
        components.parse_components(text)


@pytest.mark.parametrize("name", ["LayerScale", "QK-norm", "pool"])
def test_a_group_that_the_model_lacks_is_named(tiny_vit, name):
    with pytest.raises(LayoutError, match=f"no {name}; its groups are emb, LN1, MHA"):
        components.select(tiny_vit, name)


@given(st.lists(st.sampled_from(components.COMPONENTS), min_size=1))
def test_parsing_ignores_order_and_repetition(names):
    parsed = components.parse_components("+".join(names))
    assert parsed == tuple(c for c in components.COMPONENTS if c in names)
    assert components.parse_components(parsed) == parsed == components.parse_components(" + ".join(reversed(names)))
