"""Every statement at once on a tiny model; and the table of statements points to what there is."""

from __future__ import annotations

import importlib
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

from vitplast import bench_bounds
from vitplast.bounds import bounds, token_statistics
from vitplast.components import COMPONENTS
from vitplast.errors import InputError, LayoutError, ModeError, ShapeError
from vitplast.local import math_attention
from vitplast.measure import measure
from vitplast.measure.sides import Side
from vitplast.pairs import pair_indices
from vitplast.predictions import isotropic, second_moment, second_moment_prediction
from vitplast.statements import BOUNDS, LAWS, MAPS, STATEMENTS
from vitplast.theory import survey
from vitplast.theory.rates import mapped_rates
from vitplast.theory.survey import halves
from vitplast.theory.walk import walk

ROOT = Path(__file__).parent.parent
SLACK = 1 + 1e-6


def images(count, seed=0):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def vit(seed=0, **values):
    """A tiny model with trained-looking norms and biases, in float64."""
    torch.manual_seed(seed)
    model = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=0, init_values=0.5,
        norm_layer=partial(nn.LayerNorm, eps=1e-5), **values,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


@pytest.fixture(scope="module")
def model():
    return vit()


@pytest.fixture(scope="module")
def found(model):
    return survey(
        model, images(12).double(), images(12, 1).double(), precision="float32", local_pairs=2, local_points=3
    )


def test_every_label_is_there(found):
    assert found.statement.values.tolist() == list(BOUNDS)
    assert found.law.values.tolist() == list(LAWS)
    assert found.component.values.tolist() == list(MAPS)
    assert json.loads(found.attrs["no_bound"]) == {}
    for statement in BOUNDS:
        assert bool(found.bound.sel(statement=statement).notnull().any()), statement
    for law in LAWS:
        assert bool(found.prediction.sel(law=law).notnull().any()), law


def test_no_bound_is_exceeded(found):
    proved = found.tightness.drop_sel(statement="quoted")
    assert float(proved.max()) <= SLACK
    assert float(proved.min()) > 0


def test_bounds_are_ordered_as_proved(found):
    b = found.bound
    mha = b.sel(component="MHA")
    for sharper, wider in (
        ("T12_stacked", "T12_sum"),
        ("T12_sum", "T12_separate"),
        ("T12_separate", "paper_bias"),
        ("quoted", "paper_bias"),
    ):
        assert bool((mha.sel(statement=sharper) <= mha.sel(statement=wider) * SLACK).all()), (sharper, wider)
    norms = b.sel(component=["LN1", "LN2"])
    for sharper, wider in (("T6", "T6_paper"), ("T6", "T6_global"), ("T6_pair", "T6")):
        assert bool((norms.sel(statement=sharper) <= norms.sel(statement=wider) * SLACK).all()), (sharper, wider)
    one = b.sel(convention="in_situ", component=["FC1(LN2)", "MLP(LN2)"])
    folded = one.sel(statement="T14").fillna(one.sel(statement="P15"))
    assert bool((folded <= one.sel(statement="composed") * SLACK).all())
    assert bool(
        (b.sel(statement="P15_centred") <= b.sel(statement="P15") * SLACK)
        .sel(component=["MLP", "MLP(LN2)"])
        .sel(convention="in_situ")
        .all()
    )


def test_measured_values_are_those_of_measure(model, found):
    rates = measure(model, images(12).double(), images(12, 1).double())["rate"]
    five = found.sel(component=list(COMPONENTS))
    np.testing.assert_allclose(five.measured_mean, rates.mean("pair").transpose(*five.measured_mean.dims), rtol=1e-12)
    np.testing.assert_allclose(five.measured_max, rates.max("pair").transpose(*five.measured_max.dims), rtol=1e-12)
    odd = rates.isel(pair=slice(1, None, 2)).mean("pair")
    np.testing.assert_allclose(five.measured_test, odd.transpose(*five.measured_test.dims), rtol=1e-12)
    assert found.measured_mean.sel(convention="common", component=list(MAPS[5:])).isnull().all()


def test_what_is_put_together_is_measured_as_one_map(model, found):
    """Against a forward pass written out."""
    block = model.blocks[0]

    def rate(f, x, y):
        return float(((f(x) - f(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).mean())

    with torch.no_grad():
        x, y = (model.norm_pre(model._pos_embed(model.patch_embed(z.double()))) for z in (images(12), images(12, 1)))
        middle = [z + block.ls1(block.attn(block.norm1(z))) for z in (x, y)]
        expected = {
            "MHA(LN1)": rate(lambda z: block.attn(block.norm1(z)), x, y),
            "FC1(LN2)": rate(lambda z: block.mlp.fc1(block.norm2(z)), *middle),
            "MLP": rate(block.mlp, *(block.norm2(z) for z in middle)),
            "MLP(LN2)": rate(lambda z: block.mlp(block.norm2(z)), *middle),
            "block": rate(block, x, y),
        }
    one = found.measured_mean.sel(convention="in_situ", layer=0)
    for name, value in expected.items():
        assert float(one.sel(component=name)) == pytest.approx(value, rel=1e-9), name
    assert np.isnan(found.measured_mean.sel(convention="in_situ", layer=1, component="block"))


def test_predictions_of_linear_layers(model, found):
    x, y = (model.norm_pre(model._pos_embed(model.patch_embed(images(12, s).double()[::2]))) for s in (0, 1))
    moment = second_moment(x, y)
    for layer, block in enumerate(model.blocks):
        here = found.prediction.sel(layer=layer)
        common = here.sel(convention="common", law="T4_second_moment")
        fc1, fc2 = block.mlp.fc1.weight, block.mlp.fc2.weight
        assert float(common.sel(component="FC1")) == pytest.approx(second_moment_prediction(fc1, moment), rel=1e-9)
        assert float(common.sel(component="FC2")) == pytest.approx(
            second_moment_prediction(fc2[:, :24], moment), rel=1e-9
        )
        isotropic_fc2 = here.sel(law="T4_isotropic", component="FC2")
        assert float(isotropic_fc2.sel(convention="in_situ")) == pytest.approx(isotropic(fc2))
        assert float(isotropic_fc2.sel(convention="common")) == pytest.approx(isotropic(fc2[:, :24]))


def test_the_law_is_exact_on_the_pairs_behind_it(model):
    x = images(6).double().repeat_interleave(2, 0)
    y = images(6, 1).double().repeat_interleave(2, 0)
    ds = survey(model, x, y, local_pairs=0, source_index=np.arange(12), target_index=np.arange(12))
    linear = ds.sel(component=["FC1", "FC2"])
    np.testing.assert_allclose(linear.prediction.sel(law="T4_second_moment"), linear.measured_rms, rtol=1e-9)


def test_local_norms_lie_between_the_rate_and_the_bounds(found):
    mha = found.sel(component="MHA")
    assert bool((mha.local_norm <= mha.local_bound * SLACK).all())
    assert bool((mha.local_norm <= mha.bound.sel(statement="T12_stacked") * SLACK).all())
    assert bool(
        (found.local_mean <= found.local_norm * SLACK).sel(convention="in_situ", component=["MHA", "MHA(LN1)"]).all()
    )
    block = found.sel(convention="in_situ", component="block")
    assert bool((block.local_norm <= block.bound.sel(statement="P15") * SLACK).all())


def test_nothing_depends_on_the_batches(model, found):
    other = survey(model, images(12).double(), images(12, 1).double(), local_pairs=2, local_points=3, batch_size=5)
    for name in found.data_vars:
        np.testing.assert_allclose(other[name], found[name], rtol=1e-6, err_msg=str(name))


def test_one_convention_alone(model, found):
    alone = survey(model, images(12).double(), images(12, 1).double(), conventions=["common"], local_pairs=0)
    both = found.sel(convention=["common"])
    for name in ("bound", "prediction", "measured_mean", "entropy"):
        np.testing.assert_allclose(alone[name], both[name], rtol=1e-12, err_msg=name)
    assert alone.local_norm.isnull().all()


def test_progress_reaches_its_end_and_the_model_is_left_as_it_was(model):
    seen = []
    before = {n: p.clone() for n, p in model.named_parameters()}
    survey(
        model,
        images(4).double(),
        images(4, 1).double(),
        local_pairs=1,
        local_points=2,
        progress=lambda *a: seen.append(a),
    )
    assert seen[-1][0] == seen[-1][1]
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())
    with math_attention(model):
        assert not model.blocks[0].attn.fused_attn
    assert model.blocks[0].attn.fused_attn


def test_what_has_no_bound_is_named_and_the_rest_is_there():
    ds = survey(vit(qk_norm=True), images(4).double(), images(4, 1).double(), local_pairs=1, local_points=2)
    reasons = json.loads(ds.attrs["no_bound"])
    assert "QK-norm" in next(iter(reasons["MHA"]))
    assert next(iter(reasons["MHA"].values())) == [0, 1]
    assert ds.bound.sel(component=["MHA", "MHA(LN1)", "block"]).isnull().all()
    assert ds.entropy.isnull().all()
    assert float(ds.tightness.max()) <= SLACK
    assert ds.bound.sel(component="FC1", statement="T3").notnull().all()


def test_the_plain_table_of_bounds_says_the_same(model, found):
    statistics = token_statistics(model, [images(12).double(), images(12, 1).double()])
    ds = bounds(model, statistics)["bound"].transpose("variant", "convention", "layer", "component")
    for component, valid, new in (("MHA", "paper_bias", "T12_stacked"), ("LN1", "T6_paper", "T6"), ("FC2", "T3", "T3")):
        for variant, statement in (("valid", valid), ("new", new)):
            np.testing.assert_allclose(
                ds.sel(variant=variant, component=component),
                found.bound.sel(statement=statement, component=component),
                rtol=1e-12,
            )


def test_refusals(model):
    x = images(4).double()
    with pytest.raises(ModeError):
        survey(vit().train(), x, x.flip(0))
    with pytest.raises(InputError, match=r"0\.\.255"):
        survey(model, 100 * x, x)
    with pytest.raises(ShapeError):
        survey(model, x[:, :, :16], x)
    with pytest.raises(LayoutError):
        survey(nn.Linear(3, 3), x, x)


def test_mapped_rates_of_common_input_alone(model):
    rates = mapped_rates(measure(model, images(3).double(), images(3, 1).double(), conventions=["common"]), (0, 1))
    assert rates.sel(component=list(MAPS[5:])).isnull().all()
    assert rates.sel(component=list(COMPONENTS)).notnull().all()


def test_the_benchmark_computes_every_bound(model):
    x, y = images(2).double(), images(2, 1).double()
    tokens = token_statistics(model, [x, y])
    count = len(json.loads(survey(model, x, y, local_pairs=0).attrs["no_bound"]))
    eps = {(layer, k): 1e-5 for layer in (0, 1) for k in ("LN1", "LN2")}
    index = np.arange(2)
    seen = walk(
        model, Side("x", x, model), Side("y", y, model), index, index, {}, eps, {}, index % 2 == 0, keep=0, batch_size=4
    )
    assert count == 0
    assert bench_bounds.every_bound(model, tokens, seen) == int(
        survey(model, x, y, local_pairs=0).bound.notnull().sum()
    )


def test_a_block_of_another_order_has_no_bound_as_a_whole():
    torch.manual_seed(0)
    post = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=0,
        block_fn=timm.models.vision_transformer.ResPostBlock,
    ).double().eval()  # fmt: skip
    ds = survey(post, images(4).double(), images(4, 1).double(), local_pairs=1, local_points=2)
    assert ds.bound.sel(component=list(MAPS[5:])).isnull().all()
    assert ds.measured_mean.sel(component=list(MAPS[5:])).isnull().all()
    assert "ResPostBlock" in next(iter(json.loads(ds.attrs["no_bound"])["block"]))
    assert float(ds.tightness.drop_sel(statement="quoted").max()) <= SLACK


def test_tokens_that_never_differ_do_not_count_in_local_norms():
    model = vit()
    with torch.no_grad():
        model.cls_token.mul_(1e-3)
        model.pos_embed[:, 0] = 0
    ds = survey(model, images(4).double(), images(4, 1).double(), local_pairs=2, local_points=2)
    one = ds.sel(convention="in_situ", component="MHA(LN1)")
    assert bool((one.local_norm <= one.bound.sel(statement="T14") * SLACK).all())


def test_a_pair_that_coincides_is_left_out_everywhere(model):
    x, y = images(101).double(), images(101, 1).double()
    y[5] = x[5]
    ds = survey(model, x, y, local_pairs=0)
    rates = measure(model, x, y)["rate"]
    assert ds.attrs["pairs"] == 100
    odd = rates.sel(pair=rates.pair % 2 == 1).mean("pair")
    five = ds.sel(component=list(COMPONENTS)).measured_test
    np.testing.assert_allclose(five, odd.transpose(*five.dims), rtol=1e-12)


def test_a_norm_without_eps_has_no_global_constant():
    model = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=0.0),
    ).eval()  # fmt: skip
    ds = survey(model, images(4), images(4, 1), local_pairs=0)
    assert ds.bound.sel(statement="T6_global").isnull().all()
    assert ds.bound.sel(statement="T6", component="LN1").notnull().all()


@pytest.mark.parametrize("design", ["crossed", "cycled"])
def test_predictions_are_tested_on_other_images(model, design):
    ds = survey(model, images(4), images(4, 1), pairs=4, design=design, local_pairs=0)
    assert ds.measured_test.sel(component="FC1").notnull().all()
    source, target = pair_indices(4, 4, 4, design)
    used, unseen = halves(source, target, np.arange(len(source)), design)
    assert not set(source[used]) & set(source[unseen])
    assert not set(target[used]) & set(target[unseen])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"source_index": np.arange(2)}, "both"),
        ({"local_pairs": -1}, "local_pairs"),
        ({"local_pairs": 1.5}, "1.5"),
        ({"local_points": 1}, "local_points"),
        ({"conventions": ["common", "common"]}, "twice"),
    ],
)
def test_arguments_are_checked_before_any_pass(model, values, named):
    with pytest.raises(InputError, match=named):
        survey(model, images(4), images(4, 1), **values)


# ---- the table of statements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.id)
def test_a_statement_has_its_functions_tests_page_and_label(statement):
    for name in statement.functions:
        module, _, function = name.rpartition(".")
        found = getattr(importlib.import_module(module), function)
        assert found.__doc__, name
    for name in statement.tests:
        assert (ROOT / "tests" / name).is_file(), name
    page = (ROOT / "book" / "theory" / f"{statement.page}.md").read_text(encoding="utf-8")
    assert re.search(rf"^:label: {re.escape(statement.label)}$", page, re.MULTILINE), statement.label
    assert statement.functions
    assert statement.tests


def test_statements_are_named_once_and_their_labels_are_those_of_results():
    assert len({s.id for s in STATEMENTS}) == len(STATEMENTS)
    assert {b for s in STATEMENTS for b in s.bounds} <= set(BOUNDS)
    assert {law for s in STATEMENTS for law in s.laws} == set(LAWS)


def test_cases_of_the_search_are_those_that_there_are():
    from vitplast.search import cases

    known = {case.id for case in cases()}
    named = {c for s in STATEMENTS for c in s.cases}
    assert named <= known


def test_the_name_of_a_statement_is_in_the_docstring_of_one_of_its_functions():
    for statement in STATEMENTS:
        if statement.name.startswith(("Theorem", "Lemma", "Proposition")):
            short = statement.name.replace("Proposition", "Prop.")
            texts = []
            for name in statement.functions:
                module, _, function = name.rpartition(".")
                texts.append(getattr(importlib.import_module(module), function).__doc__)
            whole = " ".join(" ".join(texts).split())
            number = short.split()[-1]
            kind = short.split()[0].rstrip(".")
            assert re.search(rf"(?:{kind}\w*\.?|Theorems?|Props?\.|Propositions?|Lemma)[^.]*?\b{number}\b", whole), (
                statement.id
            )
