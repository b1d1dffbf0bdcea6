"""Local rates: full Jacobians, Theorem 2 along segments, Prop. 2 for close pairs, attention kept the same."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitplast import local
from vitplast.errors import HypothesisError, InputError, ModeError, ShapeError
from vitplast.local import (
    directional_rate,
    local_lipschitz,
    math_attention,
    push_forward,
    segment_gains,
    segment_lipschitz,
)

SEEDS = st.integers(0, 2**31)


def attention(width=16, n_heads=2, seed=0, **options):
    torch.manual_seed(seed)
    layer = timm.layers.Attention(width, num_heads=n_heads, qkv_bias=True, **options).double().eval()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    return layer


def layer_of(kind):
    return _layer_of(kind).eval().requires_grad_(False)


def _layer_of(kind):
    torch.manual_seed(1)
    if kind == "linear":
        return nn.Linear(16, 12).double()
    if kind == "LayerNorm":
        norm = nn.LayerNorm(16).double()
        nn.init.normal_(norm.weight)
        return norm
    if kind == "MLP":
        return timm.layers.Mlp(16, 24).double()
    return attention()


def jacobian(f, x):
    """The whole Jacobian at one sample (1, n, d), and its singular values."""
    full = torch.autograd.functional.jacobian(f, x).reshape(-1, x.numel())
    return full, torch.linalg.svdvals(full)


def rates(f, x, y):
    return (f(x) - f(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)


@pytest.mark.parametrize("tokens", [1, 5, 16])
@pytest.mark.parametrize("kind", ["linear", "LayerNorm", "attention", "MLP"])
def test_power_iteration_finds_the_norm_of_the_full_jacobian(kind, tokens):
    f = layer_of(kind)
    g = torch.Generator().manual_seed(tokens)
    x, y = torch.randn(2, 2, tokens, 16, dtype=torch.float64, generator=g)
    with math_attention(f):
        found = local_lipschitz(f, x, start=y - x, tolerance=1e-9, max_iterations=3000)
        pushed = push_forward(f, x, found.direction)
        quick = local_lipschitz(f, x, start=y - x)
        for i in range(2):
            top = jacobian(f, x[i : i + 1])[1][0]
            assert found.norm[i] == pytest.approx(float(top), rel=1e-6)
            assert quick.norm[i] <= top * (1 + 1e-12)
            assert quick.norm[i] >= 0.97 * top
    assert bool(found.converged.all())
    assert found.direction.flatten(1).norm(dim=1).tolist() == pytest.approx([1, 1])
    assert pushed.flatten(1).norm(dim=1).tolist() == pytest.approx(found.norm.tolist())


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, scale=st.sampled_from([1e-8, 1.0, 1e8]), rank=st.integers(0, 4))
def test_linear_maps_of_any_scale_and_rank(seed, scale, rank):
    g = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(6, rank, dtype=torch.float64, generator=g) @ torch.randn(rank, 5, generator=g).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=g)
    found = local_lipschitz(lambda z: z @ weight.T, x, tolerance=1e-10, max_iterations=2000)
    top = float(torch.linalg.matrix_norm(weight, 2))
    assert found.norm.tolist() == pytest.approx([top, top], rel=1e-5)
    assert bool((found.norm <= top * (1 + 1e-12)).all())


def test_constant_map_has_norm_zero_and_converges():
    found = local_lipschitz(lambda x: 0 * x, torch.ones(2, 3, 4))
    assert found.norm.tolist() == [0.0, 0.0]
    assert bool(found.converged.all())
    assert found.iterations == 3


def test_a_start_in_the_kernel_does_not_hide_the_norm():
    norm = nn.LayerNorm(8).double().eval()
    x = torch.randn(1, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blind = torch.ones_like(x)
    assert float(push_forward(norm, x, blind).abs().max()) < 1e-12
    assert local_lipschitz(norm, x, start=blind).norm.item() == pytest.approx(float(jacobian(norm, x)[1][0]), rel=1e-3)


def test_unfinished_samples_are_marked():
    weight = torch.diag(torch.tensor([1.0, 0.999, 0.5], dtype=torch.float64))
    found = local_lipschitz(lambda x: x @ weight, torch.zeros(1, 2, 3), max_iterations=2)
    assert found.converged.tolist() == [False]
    assert found.iterations == 2
    assert found.norm.item() < 1


def test_samples_are_independent_of_their_batch(monkeypatch):
    f = layer_of("MLP")
    x = torch.randn(5, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    together = local_lipschitz(f, x, tolerance=1e-10, max_iterations=3000).norm
    monkeypatch.setattr(local, "_CHUNK", 1)
    apart = local_lipschitz(f, x, tolerance=1e-10, max_iterations=3000).norm
    assert together.tolist() == pytest.approx(apart.tolist(), rel=1e-6)


def test_float32_weights_are_evaluated_in_float64():
    f = layer_of("MLP").float()
    x = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(4))
    found = local_lipschitz(f, x)
    assert found.norm.dtype == torch.float64
    assert f.fc1.weight.dtype == torch.float32
    assert found.norm.tolist() == local_lipschitz(f.double(), x).norm.tolist()


def test_large_inputs_iterate_in_float32_and_end_in_float64(monkeypatch):
    f = layer_of("attention")
    x, y = torch.randn(2, 2, 4, 16, generator=torch.Generator().manual_seed(5))
    with math_attention(f):
        wide = local_lipschitz(f, x, start=y - x)
        monkeypatch.setattr(local, "FLOAT64_LIMIT", 10)
        narrow = local_lipschitz(f, x, start=y - x)
        pushed = push_forward(f, x.double(), narrow.direction)
    assert narrow.direction.dtype == torch.float64
    assert narrow.norm.tolist() == pytest.approx(wide.norm.tolist(), rel=1e-3)
    assert pushed.flatten(1).norm(dim=1).tolist() == pytest.approx(narrow.norm.tolist(), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, kind=st.sampled_from(["LayerNorm", "attention", "MLP"]), scale=st.sampled_from([0.05, 0.5, 2.0]))
def test_theorem_2_rate_below_mean_gain_below_largest_norm(seed, kind, scale):
    f = layer_of(kind)
    x, y = scale * torch.randn(2, 2, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with math_attention(f), torch.no_grad():
        gains = segment_gains(f, x, y, points=401)
        # Simpson's rule
        weights = torch.ones(401, dtype=torch.float64)
        weights[1:-1:2], weights[2:-1:2] = 4, 2
        mean = gains @ weights / weights.sum()
        assert bool((rates(f, x, y) <= mean * (1 + 1e-3)).all())
        assert bool((mean <= gains.amax(dim=1)).all())
        norms = segment_lipschitz(f, x, y, points=5)
        assert bool((gains[:, ::100] <= norms * (1 + 1e-9)).all())


def test_rate_of_linear_maps_equals_the_gain_along_the_segment():
    f = layer_of("linear")
    x, y = torch.randn(2, 3, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    gains = segment_gains(f, x, y, points=3)
    assert gains.flatten().tolist() == pytest.approx(rates(f, x, y).repeat_interleave(3).tolist(), rel=1e-12)


def test_far_pairs_and_local_gains_are_different_things():
    def steep(t):
        return torch.sigmoid(50 * t)

    x, y = -torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    assert rates(steep, x, y).item() == pytest.approx(0.5)
    assert directional_rate(steep, x, draws=2).item() < 1e-18
    assert segment_gains(steep, x, y, points=2001).mean().item() == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("kind", ["LayerNorm", "attention", "MLP"])
def test_proposition_2_close_pairs_measure_the_average_gain(kind):
    f = layer_of(kind)
    x = torch.randn(1, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    with math_attention(f):
        values = jacobian(f, x)[1]
        u = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
        u /= u.norm()
        gain = push_forward(f, x, u).norm()
        errors = [float((rates(f, x, x + h * u) - gain).abs()) for h in (1e-2, 1e-3, 1e-4)]
        mean = directional_rate(f, x, draws=400).item()
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 0.2 * errors[1]
    level = float(values.norm()) / math.sqrt(x.numel())
    participation = float((values**2).sum() ** 2 / (values**4).sum())
    error = 5 * level / math.sqrt(400 * participation)
    assert level * max(1 - 1 / participation, math.sqrt(2 / math.pi)) - error <= mean <= level + error
    assert mean < float(values[0])


def test_lowest_case_of_proposition_2():
    weight = torch.zeros(1, 64, dtype=torch.float64)
    weight[0, 0] = 1.0
    mean = directional_rate(lambda x: x @ weight.T, torch.zeros(1, 1, 64), draws=4000).item()
    assert mean * math.sqrt(64) == pytest.approx(math.sqrt(2 / math.pi), rel=0.05)


class TestMathAttention:
    def test_switches_off_inside_and_restores(self):
        model = timm.create_model("test_vit", pretrained=False).eval()
        before = [b.attn.fused_attn for b in model.blocks]
        assert all(before)
        with math_attention(model):
            assert not any(b.attn.fused_attn for b in model.blocks)
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.math_sdp_enabled()
        assert [b.attn.fused_attn for b in model.blocks] == before
        assert torch.backends.cuda.flash_sdp_enabled()

    def test_restores_after_an_error(self):
        model = timm.create_model("test_vit", pretrained=False).eval()
        with pytest.raises(RuntimeError, match="inside"), math_attention(model):
            raise RuntimeError("inside")
        assert all(b.attn.fused_attn for b in model.blocks)
        assert torch.backends.cuda.flash_sdp_enabled()

    def test_leaves_unfused_modules_alone(self):
        layer = attention()
        layer.fused_attn = False
        with math_attention(layer):
            pass
        assert layer.fused_attn is False

    @pytest.mark.parametrize("scale", [None, 0.9])
    @pytest.mark.parametrize("fused", [True, False])
    def test_the_function_stays_the_same(self, scale, fused):
        layer = attention()
        layer.fused_attn = fused
        if scale is not None:
            layer.scale = scale
        x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        outside = layer(x)
        with math_attention(layer):
            assert torch.allclose(layer(x), outside, rtol=1e-12, atol=1e-12)
            found = local_lipschitz(layer, x[:1], tolerance=1e-10, max_iterations=2000)
            top = jacobian(layer, x[:1])[1][0]
        assert found.norm.item() == pytest.approx(float(top), rel=1e-6)

    def test_the_two_paths_of_timm_differ_when_the_scale_is_not_the_usual_one(self):
        layer = attention()
        layer.scale = 0.9
        x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        fused = layer(x)
        layer.fused_attn = False
        assert not torch.allclose(layer(x), fused, rtol=1e-3)


class TestRefusals:
    x = torch.zeros(2, 3, 4)

    def test_training_mode(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
        for f in (model, model.forward):
            with pytest.raises(ModeError, match="training mode"):
                local_lipschitz(f, self.x)
        local_lipschitz(model.eval(), self.x)
        model[1].train()
        with pytest.raises(ModeError, match="1 is in training mode"):
            segment_lipschitz(model, self.x, self.x + 1)

    @pytest.mark.parametrize("shape", [(3, 4), (0, 3, 4), (2, 3, 4, 5), (2, 0, 4)])
    def test_shapes(self, shape):
        for call in (local_lipschitz, directional_rate):
            with pytest.raises(ShapeError, match="inputs have shape"):
                call(torch.sin, torch.zeros(shape))

    def test_partners_of_other_shapes(self):
        with pytest.raises(ShapeError, match="start must have the shape of x"):
            local_lipschitz(torch.sin, self.x, start=self.x[:1])
        with pytest.raises(ShapeError, match="y must have the shape of x"):
            segment_lipschitz(torch.sin, self.x, self.x[:, :1])

    def test_output_for_another_number_of_samples(self):
        with pytest.raises(ShapeError, match="one output for each"):
            local_lipschitz(lambda x: x.sum(dim=0, keepdim=True), self.x)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_values_that_are_not_finite(self, bad):
        spoilt = self.x.clone()
        spoilt[1, 2, 3] = bad
        for call in (
            lambda: local_lipschitz(torch.sin, spoilt),
            lambda: segment_gains(torch.sin, self.x, spoilt),
            lambda: directional_rate(torch.sin, spoilt),
            lambda: directional_rate(lambda x: x * bad, self.x),
            lambda: local_lipschitz(torch.sqrt, self.x),
        ):
            with pytest.raises(HypothesisError, match="not finite"):
                call()

    def test_coinciding_pairs_and_zero_starts(self):
        with pytest.raises(HypothesisError, match="difference of the pair of sample 1 is zero"):
            segment_lipschitz(torch.sin, self.x, self.x + torch.tensor([1.0, 0.0])[:, None, None])
        with pytest.raises(HypothesisError, match="start of sample 0 is zero"):
            local_lipschitz(torch.sin, self.x, start=self.x)

    def test_options(self):
        for options in ({"tolerance": -1.0}, {"tolerance": math.nan}, {"max_iterations": 0}):
            with pytest.raises(InputError, match="tolerance"):
                local_lipschitz(torch.sin, self.x, **options)
        with pytest.raises(InputError, match="draws"):
            directional_rate(torch.sin, self.x, draws=0)
        with pytest.raises(InputError, match="two points"):
            segment_gains(torch.sin, self.x, self.x + 1, points=1)

    def test_fused_attention_without_the_context(self):
        with pytest.raises(InputError, match="math_attention"):
            local_lipschitz(attention(), torch.randn(1, 4, 16))
