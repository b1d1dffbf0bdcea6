"""Rescalings that keep the function (Prop. 18): plasticity and gradient move in opposite directions."""

from __future__ import annotations

import copy
from importlib import import_module

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import nn

from vitplast.components import parts
from vitplast.errors import HypothesisError, InputError, LayoutError, ModeError, ShapeError, UnknownNameError
from vitplast.gradients import gradient_rule, largest_ratio
from vitplast.rescale import BRANCHES, KINDS, gradients_survey, moved_parts, orbit, rescale, verify_same_function

FACTORS = (0.25, 1.0, 4.0)
# the package's own name `orbit` is the function
orbit_module = import_module("vitplast.rescale.orbit")


def vit(**options) -> VisionTransformer:
    """Two blocks for 16-pixel images, all block parameters drawn anew so that no bias or scale is 0 or 1."""
    torch.manual_seed(0)
    values = {
        "img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5,
        "qkv_bias": True, "init_values": 0.5,
    }  # fmt: skip
    model = VisionTransformer(**{**values, **options}).eval()
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.normal_(0, 0.4)
    return model


def images(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


LABELS = torch.tensor([3, 1])


@pytest.fixture(scope="module")
def orbits() -> dict[str, xr.Dataset]:
    return {kind: orbit(vit(), images(seed=1), images(seed=2), LABELS, FACTORS, kind) for kind in KINDS}


@given(
    st.sampled_from(list(KINDS)), st.floats(1e-3, 1e3), st.sampled_from([1, -1]), st.sampled_from([None, [0], [1]]),
    st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_function_stays(kind, size, sign, layers, biased, scaled):
    model = vit(qkv_bias=biased, proj_bias=biased, init_values=0.5 if scaled else None).double()
    other = rescale(model, kind, sign * size, layers=layers)
    assert verify_same_function(model, other, images()) <= 1e-10
    changed = [
        n for (n, p), q in zip(model.named_parameters(), other.parameters(), strict=True) if not torch.equal(p, q)
    ]
    touched = {n.split(".")[1] for n in changed}
    if abs(size - 1) > 1e-9 or sign < 0:
        assert touched == {str(layer) for layer in layers or [0, 1]}
    assert not any(".ls" in n for n in changed)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("LN2/FC1", {"norm2.weight", "norm2.bias", "mlp.fc1.weight"}),
        ("LN1/qkv", {"norm1.weight", "norm1.bias", "attn.qkv.weight"}),
        ("V/O", {"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight"}),
        ("Q/K", {"attn.qkv.weight", "attn.qkv.bias"}),
    ],
)
def test_what_changes(kind, names):
    model = vit()
    other = rescale(model, kind, 4.0, layers=[1])
    for (name, before), after in zip(model.named_parameters(), other.parameters(), strict=True):
        short = name.removeprefix("blocks.1.")
        assert torch.equal(before, after) == (short not in names), name
    block, there = model.blocks[1], other.blocks[1]
    if kind == "LN2/FC1":
        torch.testing.assert_close(there.norm2.bias, 4 * block.norm2.bias, rtol=0, atol=0)
        torch.testing.assert_close(there.mlp.fc1.weight, block.mlp.fc1.weight / 4, rtol=0, atol=0)
    if kind == "Q/K":
        ratio = (there.attn.qkv.weight / block.attn.qkv.weight).reshape(3, 16, 16)
        for rows, factor in zip(ratio, (4, 0.25, 1), strict=True):
            torch.testing.assert_close(rows, torch.full_like(rows, factor), rtol=0, atol=0)


def test_model_itself_stays():
    model = vit()
    before = copy.deepcopy(model.state_dict())
    rescale(model, "V/O", 3.0)
    orbit(model, images(seed=1), images(seed=2), LABELS, (2.0,), "V/O")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32
    assert all(b.attn.fused_attn for b in model.blocks)


def test_twice_is_the_product_and_back():
    model = vit()
    there = rescale(rescale(model, "LN1/qkv", 8.0), "LN1/qkv", 0.125)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), there.parameters(), strict=True))


def test_precision_is_kept_and_rounding_is_seen():
    model = vit()
    other = rescale(model, "LN2/FC1", 1 / 3)
    assert other.blocks[0].norm2.weight.dtype == torch.float32
    assert 1e-10 < verify_same_function(model, other, images(), tolerance=1e-5) < 1e-5
    with pytest.raises(HypothesisError, match="the two models differ"):
        verify_same_function(model, other, images())


def test_a_different_function_is_told():
    model = vit()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.blocks[0].norm2.weight.mul_(2)
    with pytest.raises(HypothesisError, match="differ"):
        verify_same_function(model, other, images(), tolerance=1e-3)
    assert verify_same_function(model, copy.deepcopy(model), images()) == 0


def test_verification_refuses():
    model = vit()
    with pytest.raises(ShapeError, match="images"):
        verify_same_function(model, model, images()[0])
    with pytest.raises(ShapeError, match="the outputs have shapes"):
        verify_same_function(model, vit(num_classes=4), images())
    with pytest.raises(ModeError):
        verify_same_function(model, vit().train(), images())
    with pytest.raises(HypothesisError, match="not finite"):
        verify_same_function(model, model, images() * torch.nan)


@pytest.mark.parametrize("c", [0, 0.0, float("nan"), float("inf"), "2", None])
def test_factors_that_are_refused(c):
    with pytest.raises(InputError, match="factor c"):
        rescale(vit(), "LN2/FC1", c)


def test_weights_that_leave_their_precision():
    with pytest.raises(HypothesisError, match=r"leaves the range of torch\.float32"):
        rescale(vit(), "LN2/FC1", 1e39)
    with pytest.raises(HypothesisError, match="leaves the range"):
        rescale(vit(), "V/O", 1e-44)


def test_kinds_and_layers_that_are_refused():
    with pytest.raises(UnknownNameError, match="LN2/FC1"):
        rescale(vit(), "LN2/FC2", 2.0)
    with pytest.raises(UnknownNameError):
        moved_parts("everything")
    for layers in ([2], [-1], [0, 0], [0.0]):
        with pytest.raises(InputError, match="from 0 to 1"):
            rescale(vit(), "V/O", 2.0, layers=layers)


def changed(change):
    model = vit()
    change(model.blocks[0])
    return model


def parametrized(block):
    nn.utils.parametrizations.weight_norm(block.mlp.fc1)


def bare(name):
    return lambda block: setattr(block, name, nn.LayerNorm(16, elementwise_affine=False).eval())


@pytest.mark.parametrize(
    ("kind", "make", "words"),
    [
        ("Q/K", lambda: vit(qk_norm=True), "QK-norm"),
        ("V/O", lambda: vit(scale_attn_norm=True), "between the heads and the output"),
        ("LN1/qkv", lambda: changed(bare("norm1")), "needs a weight of its own"),
        ("LN2/FC1", lambda: changed(bare("norm2")), "needs a weight of its own"),
        ("LN2/FC1", lambda: changed(parametrized), "ParametrizedLinear"),
        ("LN1/qkv", lambda: changed(lambda b: setattr(b, "norm1", nn.Identity())), "norm1 is a Identity"),
        ("LN2/FC1", lambda: vit(block_fn=ResPostBlock), "not timm's pre-norm Block"),
        ("LN2/FC1", lambda: shared("mlp.fc1"), "shares a parameter"),
        ("LN1/qkv", lambda: shared("attn.qkv"), "shares a parameter"),
        ("Q/K", lambda: shared("attn.qkv"), "shares a parameter"),
        ("V/O", lambda: twice(), "shares a parameter"),
        ("LN1/qkv", lambda: changed(lambda b: setattr(b.attn, "gate", nn.Linear(16, 16).eval())), "gate"),
        ("V/O", lambda: changed(lambda b: setattr(b, "attn", Other(b.attn))), "attention is a Other"),
    ],
)
def test_layouts_that_are_refused(kind, make, words):
    with pytest.raises(LayoutError, match=words):
        rescale(make(), kind, 2.0)


class Other(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.qkv, self.proj = attention.qkv, attention.proj


def shared(path):
    model = vit()
    model.blocks[1].get_submodule(path).weight = model.blocks[0].get_submodule(path).weight
    return model


def twice():
    model = vit()
    model.blocks[1] = model.blocks[0]
    return model


@pytest.mark.parametrize(("kind", "options"), [("LN1/qkv", {"qk_norm": True}), ("LN2/FC1", {"scale_mlp_norm": True})])
def test_inner_norms_that_do_no_harm(kind, options):
    """QK-norm sees the same queries, and the norm inside the MLP the same hidden units."""
    model = vit(**options).double()
    assert verify_same_function(model, rescale(model, kind, 3.0), images()) <= 1e-10


def test_qk_norm_with_q_k_would_not_be_exact():
    """Why it is refused: a norm takes c out of the queries, but 1 / c out of the keys only up to eps."""
    model = vit(qk_norm=True).double()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for block in other.blocks:
            block.attn.qkv.weight[:16] *= 100
            block.attn.qkv.bias[:16] *= 100
            block.attn.qkv.weight[16:32] /= 100
            block.attn.qkv.bias[16:32] /= 100
    with pytest.raises(HypothesisError, match="differ"):
        verify_same_function(model, other, images())


def test_rms_norm_and_gated_mlp():
    model = vit(norm_layer=timm.layers.RmsNorm).double()
    assert verify_same_function(model, rescale(model, "LN2/FC1", 5.0), images()) <= 1e-10
    model = vit(mlp_layer=timm.layers.GluMlp).double()
    assert verify_same_function(model, rescale(model, "LN2/FC1", 5.0), images()) <= 1e-10


@pytest.mark.parametrize("kind", list(KINDS))
def test_orbit_is_one_function(orbits, kind):
    ds = orbits[kind]
    assert (ds.logit_difference <= 1e-10).all()
    assert largest_ratio(ds) <= 1 + 1e-6
    # what does not depend on the parametrisation
    for name in ("branch_plasticity", "elasticity"):
        assert (ds[name].std("factor") <= 1e-9 * ds[name].mean("factor")).all(), name
    assert ds.plasticity.dims == ("factor", "convention", "layer", "component")
    assert list(ds.branch.values) == list(BRANCHES)


@pytest.mark.parametrize(("kind", "norm", "linear"), [("LN2/FC1", "LN2", "FC1"), ("LN1/qkv", "LN1", "MHA")])
def test_plasticity_and_gradient_move_in_opposite_directions(orbits, kind, norm, linear):
    ds, c = orbits[kind], orbits[kind].factor
    plasticity = ds.plasticity.sel(component=norm)
    np.testing.assert_allclose(plasticity, (plasticity.sel(factor=1.0) * c).transpose(*plasticity.dims), rtol=1e-10)
    gradient = ds.part_gradient_norm.sel(part="weight", component=norm)
    np.testing.assert_allclose(gradient, (gradient.sel(factor=1.0) / c).transpose(*gradient.dims), rtol=1e-9)
    # the linear layer behind the norm: exactly where its input is what reaches it
    inside = ds.sel(convention="in_situ", component=linear)
    np.testing.assert_allclose(
        inside.plasticity, (inside.plasticity.sel(factor=1.0) / c).transpose("factor", "layer"), rtol=1e-9
    )
    moved = ds["product"].sel(convention="in_situ", component=[norm, linear])
    assert (moved.std("factor") <= 1e-9 * moved.mean("factor")).all()
    np.testing.assert_allclose(ds.slope.sel(convention="in_situ", component=[norm, linear]), -1, atol=1e-9)
    others = [k for k in ds.component.values if k not in (norm, linear)]
    assert ds["product"].sel(component=others).isnull().all()
    assert ds.slope.sel(component=others).isnull().all()
    unmoved = ds.gradient_norm.sel(component=others)
    assert (unmoved.std("factor") <= 1e-9 * unmoved.mean("factor")).all()


def test_common_inputs(orbits):
    """FC1 is linear: constant products there too. Attention is not: its product on fixed inputs is not constant."""
    product = orbits["LN2/FC1"]["product"].sel(convention="common", component="FC1")
    assert (product.std("factor") <= 1e-9 * product.mean("factor")).all()
    np.testing.assert_allclose(orbits["LN2/FC1"].slope.sel(convention="common", component="FC1"), -1, atol=1e-9)
    attention = orbits["LN1/qkv"]["product"].sel(convention="common", component="MHA")
    assert (attention.std("factor") > 1e-3 * attention.mean("factor")).all()


@pytest.mark.parametrize(("kind", "times", "divided"), [("V/O", "V", "O"), ("Q/K", "Q", "K")])
def test_gradients_move_at_constant_plasticity(orbits, kind, times, divided):
    ds = orbits[kind].sel(component="MHA")
    assert (ds.plasticity.std("factor") <= 1e-9 * ds.plasticity.mean("factor")).all()
    assert ds.slope.isnull().all()
    up, down = (ds.part_gradient_norm.sel(part=p) for p in (divided, times))
    np.testing.assert_allclose(up, (up.sel(factor=1.0) * ds.factor).transpose(*up.dims), rtol=1e-9)
    np.testing.assert_allclose(down, (down.sel(factor=1.0) / ds.factor).transpose(*down.dims), rtol=1e-9)


def test_order_of_plasticity_flips(orbits):
    """No theorem "more plastic, larger gradient": along one orbit each of two norms is the more plastic one."""
    ds = orbits["LN2/FC1"].sel(convention="common").mean("layer")
    gap = ds.plasticity.sel(component="LN2") - ds.plasticity.sel(component="LN1")
    assert gap.sel(factor=4.0) > 0 > gap.sel(factor=0.25)
    gradient = ds.part_gradient_norm.mean("image").sel(component="LN2", part="weight")
    assert (gradient.diff("factor") < 0).all()
    assert (ds.plasticity.sel(component="LN2").diff("factor") > 0).all()


def test_branches_by_hand(orbits):
    model = vit().double()
    x, y = (model._pos_embed(model.patch_embed(images(seed=s).double())) for s in (1, 2))
    block = model.blocks[1]
    after = [block.attn(block.norm1(z)) for z in (x, y)]
    rate = (after[0] - after[1]).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    found = orbits["Q/K"].branch_plasticity.sel(convention="common", layer=1, branch="MHA(LN1)", factor=1.0)
    assert float(found) == pytest.approx(float(rate.detach().mean()), rel=1e-10)
    for b in model.blocks[:1]:
        x, y = b(x), b(y)
    after = [block.mlp.fc1(block.norm2(z + block.ls1(block.attn(block.norm1(z))))) for z in (x, y)]
    middle = [z + block.ls1(block.attn(block.norm1(z))) for z in (x, y)]
    rate = (after[0] - after[1]).flatten(1).norm(dim=1) / (middle[0] - middle[1]).flatten(1).norm(dim=1)
    found = orbits["Q/K"].branch_plasticity.sel(convention="in_situ", layer=1, branch="FC1(LN2)", factor=1.0)
    assert float(found) == pytest.approx(float(rate.detach().mean()), rel=1e-10)


def test_survey(orbits):
    steps = []
    names = {"source_id": ["a", "b", "c"], "target_group": ["x", "x", "y"]}
    ds = gradients_survey(
        vit(), images(seed=1), images(seed=2), LABELS, pair_coords=names, progress=lambda *s: steps.append(s)
    )
    assert ds.kind.values.tolist() == list(KINDS)
    for kind, one in orbits.items():
        for name in one.data_vars:
            there = ds[name].sel(kind=kind) if "kind" in ds[name].dims else ds[name]
            np.testing.assert_allclose(there.transpose(*one[name].dims), one[name], rtol=1e-12)
    assert steps == [(i + 1, 18) for i in range(18)]  # two images, nine points: c = 1 is one point for all kinds
    assert ds.source_id.values.tolist() == ["a", "b", "c"]
    assert ds.target_id.values.tolist() == ["0", "1", "2"]
    assert ds.target_group.values.tolist() == ["x", "x", "y"]
    assert all(v.dtype == np.float64 and v.attrs["long_name"] for v in ds.data_vars.values())
    assert gradient_rule({"run": ds})[0] == "PASS"
    xr.testing.assert_allclose(ds.plasticity, ds.rate.mean("pair"))


def test_survey_of_some_kinds_without_one():
    ds = gradients_survey(vit(), images(seed=1), images(seed=2), LABELS[:1], factors=(2.0, 0.5), kinds=["Q/K"])
    assert ds.factor.values.tolist() == [2.0, 0.5]
    assert ds.sizes["image"] == 1
    with pytest.raises(UnknownNameError):
        gradients_survey(vit(), images(), images(), LABELS, kinds=["Q/V"])
    with pytest.raises(InputError, match="at least one"):
        gradients_survey(vit(), images(), images(), LABELS, kinds=[])
    with pytest.raises(UnknownNameError, match="source_id"):
        gradients_survey(vit(), images(), images(), LABELS, pair_coords={"source": ["a"] * 3})
    with pytest.raises(ShapeError, match="2 entries for 3 pairs"):
        gradients_survey(vit(), images(), images(), LABELS, pair_coords={"source_id": ["a"] * 2})


@pytest.mark.parametrize(
    "factors", [(), (0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (float("inf"),), (1.0, 1e-300), (1.0, 2e6), (float("nan"),)]
)
def test_orbit_refuses_factors(factors):
    with pytest.raises(InputError, match="factors"):
        orbit(vit(), images(seed=1), images(seed=2), LABELS, factors)
    with pytest.raises(InputError, match="factors"):
        gradients_survey(vit(), images(seed=1), images(seed=2), LABELS, factors=factors)


def normed():
    """A model that `gradient_norms` takes, but whose blocks have a norm (without parameters) at queries and keys."""
    model = vit()
    for block in model.blocks:
        block.attn.q_norm = nn.LayerNorm(8, elementwise_affine=False).eval()
    return model


def test_kinds_are_checked_before_any_pass():
    steps = []
    for make in (lambda: vit(qk_norm=True), normed):
        with pytest.raises(LayoutError, match="Q/K does not keep the function of block 0"):
            gradients_survey(make(), images(seed=1), images(seed=2), LABELS, progress=lambda *s: steps.append(s))
        with pytest.raises(LayoutError, match="Q/K does not keep"):
            orbit(make(), images(seed=1), images(seed=2), LABELS, kind="Q/K", progress=lambda *s: steps.append(s))
    assert not steps


def test_logits_of_the_model_itself_are_computed_once(monkeypatch):
    calls = []
    plain = orbit_module._logits
    monkeypatch.setattr(orbit_module, "_logits", lambda model, x: calls.append(model) or plain(model, x))
    gradients_survey(vit(), images(seed=1), images(seed=2), LABELS[:1], factors=(2.0, 0.5), kinds=["Q/K", "V/O"])
    assert len(calls) == 5  # four points and the model itself
    assert len({id(m) for m in calls}) == 5


def test_orbit_refuses_images_labels_and_kinds():
    with pytest.raises(ShapeError, match="3 source images for 2"):
        orbit(vit(), images(3), images(2), LABELS)
    with pytest.raises(ShapeError, match="between 1 and 3"):
        orbit(vit(), images(3), images(3, 1), torch.zeros(4, dtype=torch.long))
    with pytest.raises(UnknownNameError):
        orbit(vit(), images(3), images(3, 1), LABELS, kind="FC1/FC2")
    with pytest.raises(InputError, match="no linear head"):
        orbit(vit(num_classes=0), images(3), images(3, 1), LABELS)


def test_orbit_counts_its_images():
    steps = []
    orbit(vit(), images(seed=1), images(seed=2), LABELS, (1.0, 2.0), progress=lambda *s: steps.append(s), loss=squared)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def squared(logits, label):
    return F.mse_loss(logits, F.one_hot(label, logits.shape[-1]).to(logits))


def test_other_rescalings_are_no_symmetry():
    """The check has teeth: moving c past the activation (FC1 to FC2) changes the function under GELU."""
    model = vit().double()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for part in parts(other):
            if part.component in ("FC1", "FC2"):
                part.module.weight.mul_(2.0 if part.component == "FC1" else 0.5)
    with pytest.raises(HypothesisError, match="differ"):
        verify_same_function(model, other, images())
