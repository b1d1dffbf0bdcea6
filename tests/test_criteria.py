"""Criteria against autograd by hand, made-up matrices, and what must not change them."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitplast.bounds import token_statistics
from vitplast.components import COMPONENTS, parts
from vitplast.criteria.accumulate import gradient_sums
from vitplast.criteria.bounded import bound_scores
from vitplast.criteria.branch import branch_plasticity
from vitplast.criteria.catalogue import CRITERIA, OF_LABELS
from vitplast.criteria.constant import constant, parameter_count
from vitplast.criteria.fisher import fisher
from vitplast.criteria.head import fit_head
from vitplast.criteria.jacobian import frobenius, jacobian_frobenius, jacobian_spectral
from vitplast.criteria.norms import elasticity, gradient_norm, gradient_rms
from vitplast.criteria.plasticity import plasticity_score
from vitplast.criteria.relative import relative_rate
from vitplast.criteria.residual import residual_energy, residual_norm
from vitplast.criteria.sample import divide
from vitplast.criteria.scores import scored
from vitplast.criteria.sensitivity import spt, spt_count
from vitplast.criteria.spectrum import noise_median, signal_to_noise, spectrum
from vitplast.criteria.surgical import auto_rgn, auto_snr
from vitplast.criteria.survey import criteria_survey
from vitplast.errors import HypothesisError, InputError, LayoutError, ModeError, ShapeError, UnknownNameError
from vitplast.gradients import gradient_norms
from vitplast.rescale import KINDS, rescale
from vitplast.task_head import head_features

N, CLASSES = 6, 3


def tiny(**more) -> nn.Module:
    """Two blocks, 16 wide, 5 tokens, every parameter random."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    model = VisionTransformer(**sizes | {"init_values": 0.5} | more).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    for part in parts(model):
        if part.component in ("LN1", "LN2"):
            nn.init.uniform_(part.module.weight, 0.5, 2.0)
    return model


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(1)
    return (
        torch.randn(N, 3, 32, 32, generator=g),
        torch.tensor([0, 1, 2, 0, 1, 1]),
        torch.randn(N, 3, 32, 32, generator=g),
    )


@pytest.fixture(scope="module")
def sums(model, data):
    return gradient_sums(model, *data[:2], dtype=torch.float64, batch_size=4)


@pytest.fixture(scope="module")
def by_hand(model, data):
    """Layer, component, parameter name to the gradients of all images, one backward pass each, in float64."""
    twin = copy.deepcopy(model).double()
    found: dict = {}
    for image, label in zip(*data[:2], strict=True):
        twin.zero_grad()
        F.cross_entropy(twin(image[None].double()), label[None]).backward()
        for part in parts(twin):
            for name, p in part.module.named_parameters():
                found.setdefault((part.layer, part.component), {}).setdefault(name, []).append(p.grad.clone())
    return {place: {n: torch.stack(g) for n, g in table.items()} for place, table in found.items()}


def flat(table, component, layer=None):
    """Gradients (N, parameters) of a component of one block, or of all."""
    layers = [layer] if layer is not None else [0, 1]
    return torch.cat([g.flatten(1) for k in layers for g in table[k, component].values()], dim=1)


def test_every_gradient_is_that_of_autograd(sums, by_hand):
    assert len(sums.parts) == 10
    for s in sums.parts:
        for name, g in by_hand[s.part.layer, s.part.component].items():
            torch.testing.assert_close(s.mean[name], g.mean(0))
            torch.testing.assert_close(s.square[name], g.square().mean(0))
            batches = g[:4].mean(0).square() + g[4:].mean(0).square()
            torch.testing.assert_close(s.batches[name], batches)


def test_norms_and_fisher_and_surgical_by_hand(model, sums, by_hand):
    found = {f.__name__: f(sums) for f in (gradient_norm, gradient_rms, fisher, auto_rgn, auto_snr, spt)}
    for component in COMPONENTS:
        weights = [p for part in parts(model) if part.component == component for p in part.module.parameters()]
        size = sum(float(w.detach().double().square().sum()) for w in weights) ** 0.5
        for layer in (None, 0, 1):
            g = flat(by_hand, component, layer)
            mean, variance = g.mean(0), g.var(0)
            there = g.square().mean(0) > 1e-10 * g.square().mean()  # key biases have gradient 0
            expected = {
                "gradient_norm": mean.norm(),
                "gradient_rms": mean.square().mean().sqrt(),
                "fisher": g.square().sum(1).mean(),
                "auto_snr": (mean.square()[there] / variance[there]).mean(),
                "spt": g[:4].mean(0).square().sum() + g[4:].mean(0).square().sum(),
            }
            expected |= {"auto_rgn": mean.norm() / size} if layer is None else {}
            for name, value in expected.items():
                one = found[name].sel(component=component)
                got = one.total if layer is None else one.score.sel(layer=layer)
                assert float(got) == pytest.approx(float(value), rel=1e-6), (name, component, layer)
    assert found["fisher"].attrs["forward_passes"] == found["fisher"].attrs["backward_passes"] == N


def test_the_most_sensitive_parameters_are_counted(sums, by_hand):
    share = 0.1
    s = {
        k: torch.cat([(g[:4].mean(0).square() + g[4:].mean(0).square()).flatten() for g in t.values()])
        for k, t in by_hand.items()
    }
    count = round(share * sum(len(v) for v in s.values()))
    border = torch.cat(list(s.values())).sort(descending=True).values[count - 1]
    found = spt_count(sums, share=share)
    assert float(found.total.sum()) == pytest.approx(1)
    for (layer, component), v in s.items():
        assert float(found.score.sel(layer=layer, component=component)) == int((v >= border).sum()) / count
    with pytest.raises(InputError, match="share"):
        spt_count(sums, share=0.0)


def test_elasticity_is_that_of_the_gradients_module(model, data, sums):
    other = gradient_norms(model, *data[:2])
    np.testing.assert_allclose(elasticity(sums).score, other.elasticity.mean("image"), rtol=1e-6)
    total = np.sqrt(np.square(other.elasticity).sum("layer")).mean("image")
    np.testing.assert_allclose(elasticity(sums).total, total, rtol=1e-6)


def test_the_residual_norm_is_the_gain_of_least_squares(data, sums, by_hand, model):
    """`R^2 / 2` is the minimum over changes D of `<G, D> + E||D x||^2 / 2`, negated."""
    seen, model = {}, copy.deepcopy(model).double()
    handles = [
        p.module.register_forward_pre_hook(lambda m, a, n=p.component: seen.__setitem__(n, a[0].detach().double()))
        for p in parts(model)
        if p.layer == 1
    ]
    with torch.no_grad():
        model(data[0].double())
    for h in handles:
        h.remove()
    x = seen["FC1"].flatten(0, 1)
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    g = by_hand[1, "FC1"]
    gradient = torch.cat([g["weight"].mean(0), g["bias"].mean(0)[:, None]], 1)
    # what LN2 gives out lies in a plane, so the covariance has no inverse
    step = -gradient @ torch.linalg.pinv(x.T @ x / len(x), rtol=1e-10)
    gain = -(gradient * step).sum() - (x @ step.T).square().sum(1).mean() / 2
    found = residual_norm(sums, ridge=1e-9).score.sel(layer=1, component="FC1")
    assert float(found) ** 2 / 2 == pytest.approx(float(gain), rel=1e-5)
    n = F.layer_norm(seen["LN2"], (16,), eps=model.blocks[1].norm2.eps).flatten(0, 1)
    g = by_hand[1, "LN2"]
    total = 0.0
    for k in range(16):
        design = torch.stack([n[:, k], torch.ones(len(n))], 1)
        own = torch.stack([g["weight"].mean(0)[k], g["bias"].mean(0)[k]])
        total += float(own @ torch.linalg.inv(design.T @ design / len(n)) @ own)
    found = residual_norm(sums, ridge=1e-9).score.sel(layer=1, component="LN2")
    assert float(found) == pytest.approx(total**0.5, rel=1e-5)
    energy = float(x.square().sum(1).mean())
    found = residual_energy(sums).score.sel(layer=1, component="FC1")
    assert float(found) == pytest.approx(float(gradient.norm()) / energy**0.5, rel=1e-6)


def test_batches_and_precision_change_rounding_only(model, data, sums):
    other = gradient_sums(model, *data[:2], batch_size=N)
    for score in (gradient_norm, auto_rgn, auto_snr, fisher, elasticity, residual_norm, residual_energy):
        np.testing.assert_allclose(score(other).total, score(sums).total, rtol=1e-3)


def test_memory_does_not_grow_with_the_images(model, data):
    def numbers(images):
        found = gradient_sums(model, data[0][:images], data[1][:images])
        tables = [t for s in found.parts for t in (s.mean, s.square, s.batches, s.inputs, s.moments)]
        return sum(v.numel() for t in tables for v in t.values())

    assert numbers(2) == numbers(6)


def test_the_model_is_left_alone(model, data):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradient_sums(model, *data[:2])
    branch_plasticity(model, data[2], data[0])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda m: m.train(), ModeError, "training mode"),
        (lambda m: nn.init.zeros_(m.head.weight), HypothesisError, "zero hides"),
        (lambda m: setattr(m, "head", nn.Identity().eval()), InputError, "head"),
        (lambda m: setattr(m.blocks[0], "norm1", nn.GroupNorm(1, 5).eval()), LayoutError, "GroupNorm"),
    ],
)
def test_what_has_no_gradient_is_refused(data, spoil, error, words):
    other = tiny()
    spoil(other)
    with pytest.raises(error, match=words):
        gradient_sums(other, *data[:2])


# Spectrum


def noise(n, m, seed=0):
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "m"), [(300, 300), (120, 400), (400, 120)])
def test_pure_noise_has_no_signal_and_a_spike_has(n, m):
    scale = 0.02
    assert signal_to_noise(scale * noise(n, m), "median") * scale * (n**0.5 + m**0.5) < 0.01
    spike = scale * noise(n, m)
    u, v = F.normalize(noise(n, 1, 1), dim=0), F.normalize(noise(1, m, 2), dim=1)
    size = 3 * scale * (n**0.5 + m**0.5)
    values = torch.linalg.svdvals(spike + size * u @ v)
    found = signal_to_noise(spike + size * u @ v, "median")
    assert found == pytest.approx(float(1 / values[1:].sum()), rel=0.02)


def test_the_published_edge_sees_signal_in_noise():
    assert signal_to_noise(noise(300, 300)) * 600**0.5 > 0.2


def test_the_median_of_the_law_is_that_of_noise():
    assert noise_median(1.0) == pytest.approx(0.6528, abs=1e-4)  # omega(1) = 2.858 of Gavish and Donoho
    values = torch.linalg.svdvals(noise(300, 900)).square() / 900
    assert noise_median(1 / 3) == pytest.approx(float(values.median()), rel=0.02)


def test_spectrum_by_hand_and_nothing_for_norms(model):
    values = torch.linalg.svdvals(model.blocks[1].mlp.fc1.weight.detach().double()).numpy()
    low, high = np.quantile(values, (0.25, 0.75))
    edge = (high - low) / 1.349 * (1 + (16 / 64) ** 0.5)
    expected = values[values > edge].sum() / (values[values <= edge].sum() or values[-1]) / values[0]
    found = spectrum(model)
    assert float(found.score.sel(layer=1, component="FC1")) == pytest.approx(expected)
    assert bool(found.total.sel(component=["LN1", "LN2"]).isnull().all())
    assert set(json.loads(found.attrs["no_score"])) == {"LN1", "LN2"}
    with pytest.raises(UnknownNameError, match="median"):
        spectrum(model, "medain")
    with pytest.raises(ShapeError):
        signal_to_noise(torch.zeros(3))


# Rates, Jacobians, bounds


def test_rates_of_a_branch_and_relative_rates_by_hand(model, data):
    target, _, source = data
    seen = {}

    def keep(name):
        return lambda m, a, out: seen.__setitem__(name, (a[0].double(), out.double()))

    block = model.blocks[1]
    handles = [
        m.register_forward_hook(keep(n))
        for n, m in (("norm1", block.norm1), ("ls1", block.ls1), ("fc2", block.mlp.fc2))
    ]
    with torch.no_grad():
        model.forward_features(torch.cat([source, target]))
    for h in handles:
        h.remove()

    def norm(z):
        return z.flatten(1).norm(dim=1)

    def change(z):
        return norm(z[:N] - z[N:])

    rate = (change(seen["ls1"][1]) / change(seen["norm1"][0])).mean()
    found = branch_plasticity(model, source, target, batch_size=4)
    assert float(found.score.sel(layer=1, component="MHA")) == pytest.approx(float(rate), rel=1e-5)
    assert float(found.score.sel(layer=1, component="LN1")) == float(found.score.sel(layer=1, component="MHA"))
    assert float(found.score.sel(layer=1, component="LN2")) == float(found.score.sel(layer=1, component="FC2"))
    x, y = seen["fc2"]
    sizes = [(norm(z[:N]).square() + norm(z[N:]).square()).sqrt() for z in (x, y)]
    rate = (change(y) / change(x) * sizes[0] / sizes[1]).mean()
    found = relative_rate(model, source, target, batch_size=4)
    assert float(found.score.sel(layer=1, component="FC2")) == pytest.approx(float(rate), rel=1e-5)
    assert found.attrs["forward_passes"] == 2 * N
    with pytest.raises(HypothesisError):
        relative_rate(model, target, target)
    with pytest.raises(ShapeError):
        branch_plasticity(model, source[:2], target)


def test_jacobian_norms_of_linear_layers_are_those_of_their_weights(model, data):
    images = data[0][:2]
    found, spectral = jacobian_frobenius(model, images, draws=16), jacobian_spectral(model, images)
    for layer, block in enumerate(model.blocks):
        for component, weight in (("FC1", block.mlp.fc1.weight), ("FC2", block.mlp.fc2.weight)):
            exact = float(weight.detach().norm()) / weight.shape[1] ** 0.5
            assert float(found.score.sel(layer=layer, component=component)) == pytest.approx(exact, rel=0.1)
            exact = float(torch.linalg.matrix_norm(weight.detach(), 2))
            assert float(spectral.score.sel(layer=layer, component=component)) == pytest.approx(exact, rel=0.03)
    assert found.attrs["forward_passes"] == 2 * (1 + 2 * 16)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(lambda z: z.softmax(-1), x[:1])
    assert float(frobenius(lambda z: z.softmax(-1), x[:1], draws=500)) == pytest.approx(float(whole.norm()), rel=0.1)


def test_bounds_are_not_below_the_rates(model, data):
    target, _, source = data
    found = bound_scores(model, token_statistics(model, [source, target]))
    for convention in ("common", "in_situ"):
        rates = plasticity_score(model, source, target, convention=convention)
        for variant in ("valid", "new"):
            assert bool((found[f"bound_{variant}_{convention}"].score >= rates.score).all())


# All at once


def survey(model, data, **more):
    return criteria_survey(model, data[2][:4], *data[:2], jacobian_images=1, **more)


@pytest.fixture(scope="module")
def whole(model, data):
    return survey(model, data, head_images=10)


def test_the_survey_has_every_criterion_its_source_and_its_cost(whole):
    assert whole.criterion.values.tolist() == list(CRITERIA)
    assert all(len(v) > 10 for v in whole.reference.values)
    missing = whole.total.isnull()
    assert set(whole.criterion.values[missing.any("component")]) == {"spectrum", "spectrum_edge"}
    labelled = whole.sel(criterion=list(OF_LABELS))
    assert (labelled.forward_passes == N + 10).all()
    assert (labelled.backward_passes == N).all()
    free = whole.sel(criterion=["spectrum", "parameter_count", "constant_MHA"])
    assert float(free.forward_passes.sum()) == 0
    assert whole.total.sel(criterion="constant_FC2").values.tolist() == [0, 0, 0, 0, 1]
    assert whole.total.sel(criterion="plasticity_common").values == pytest.approx(
        whole.score.sel(criterion="plasticity_common").mean("layer").values
    )


def test_the_order_of_hidden_units_plays_no_part(model, data, whole):
    other = copy.deepcopy(model)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        mlp = other.blocks[1].mlp
        for p in (mlp.fc1.weight, mlp.fc1.bias):
            p.copy_(p[order])
        mlp.fc2.weight.copy_(mlp.fc2.weight[:, order])
    found = survey(other, data, head_images=10)
    padded = ["plasticity_common", "bound_valid_common", "bound_new_common"]  # FC2 on zero-padded embeddings
    random = ["jacobian_frobenius", "jacobian_spectral"]  # directions are drawn by hidden unit
    same = [c for c in CRITERIA if c not in padded + random]
    np.testing.assert_allclose(found.total.sel(criterion=same), whole.total.sel(criterion=same), rtol=2e-3)
    change = abs(found.total / whole.total - 1).sel(component="FC2")
    assert (change.sel(criterion=padded) > 1e-2).all()


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_a_rescaling_can_not_change(model, data, whole, kind):
    """Prop. 18: the network stays, so do branch plasticity, relative rates, elasticity and signal-to-noise."""
    found = survey(rescale(model, kind, 4.0), data, head_images=10)
    same = ["plasticity_branch", "relative_rate", "elasticity", "auto_snr", "parameter_count"]
    np.testing.assert_allclose(found.total.sel(criterion=same), whole.total.sel(criterion=same), rtol=5e-3)
    moved = ["gradient_norm", "auto_rgn", "fisher"]
    change = abs(np.log(found.total.sel(criterion=moved) / whole.total.sel(criterion=moved)))
    assert (change.max("component") > 0.05).all()


# Head, sample, small ones


def test_heads(model, data):
    g = torch.Generator().manual_seed(5)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 16, generator=g, dtype=torch.float64) + 4 * F.one_hot(labels, 16)
    for how in ("probe", "steps"):
        other = tiny()
        fit_head(other, features, labels, how)
        assert float((other.head(features.float()).argmax(1) == labels).double().mean()) > 0.9
        gradient_sums(other, *data[:2])
    other = tiny()
    fit_head(other, features, labels, "random")
    assert torch.equal(other.head.weight, model.head.weight)
    two = tiny()
    fit_head(two, features[labels < 2], labels[labels < 2], "probe")
    assert float((two.head(features[labels < 2].float())[:, :2].argmax(1) == labels[labels < 2]).double().mean()) > 0.9
    assert head_features(model, iter([data[0]])).shape == (N, 16)
    with pytest.raises(InputError, match="nothing to learn"):
        fit_head(other, features, torch.zeros(60))
    with pytest.raises(UnknownNameError, match="probe"):
        fit_head(other, features, labels, "prob")


def test_head_and_gradients_see_different_images():
    sample, others = divide(1000, 128, 256, seed=3)
    assert (len(sample), len(others)) == (128, 256)
    assert not set(sample) & set(others)
    sample, others = divide(21, 128, 256, seed=3)
    assert (len(sample), len(others)) == (10, 11)
    with pytest.raises(InputError, match="too few"):
        divide(3, 2, 2, seed=0)


def test_scores_need_a_reason_to_be_missing(model):
    values = np.ones((2, 5))
    values[:, 0] = np.nan
    assert np.isnan(scored(values, "sum", reasons={"LN1": "none"}).total[0])
    for bad, reasons in ((values, {}), (np.ones((2, 5)), {"LN1": "none"}), (np.full((2, 5), np.inf), {})):
        with pytest.raises(HypothesisError):
            scored(bad, "mean", reasons=reasons)
    with pytest.raises(ShapeError):
        scored(np.ones((2, 4)), "mean")
    count = parameter_count(model)
    assert count.total.values.tolist() == [64, 2 * (3 * 16 * 17 + 16 * 17), 64, 2 * 64 * 17, 2 * 16 * 65]
    with pytest.raises(UnknownNameError, match="MHA"):
        constant(model, "MAH")
