"""Predictions of linear layers (Theorem 4): exact identities, quadrature against draws, orders of hidden units."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitplast.bounds import spectral_norm
from vitplast.errors import HypothesisError, InputError, ShapeError
from vitplast.predictions.linear import (
    isotropic,
    isotropic_floor,
    isotropic_gaussian,
    jensen_floor,
    participation,
    permuted_padded,
    second_moment,
    second_moment_prediction,
)

SEEDS = st.integers(0, 2**31)
SCALES = st.sampled_from([-1e8, -1.0, 1e-8, 1e-3, 1.0, 1e3, 1e8])
KINDS = st.sampled_from(["gaussian", "rank one", "orthogonal", "zero"])
EXAMPLES = settings(max_examples=40, deadline=None)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def weight_of(kind, out, width, g):
    if kind == "zero":
        return torch.zeros(out, width, dtype=torch.float64)
    if kind == "rank one":
        return torch.outer(gaussian(g, out), gaussian(g, width))
    if kind == "orthogonal":
        size = max(out, width)
        return torch.linalg.qr(gaussian(g, size, size))[0][:out, :width]
    return gaussian(g, out, width)


def rates(weight, x, y, bias=0.0):
    change = ((x @ weight.T + bias) - (y @ weight.T + bias)).flatten(1).norm(dim=1)
    return change / (x - y).flatten(1).norm(dim=1)


def drawn_mean(weight, tokens, draws, g):
    """Mean rate over independent isotropic Gaussian differences, and its standard error."""
    found = []
    for _ in range(10):
        d = gaussian(g, draws // 10, tokens, weight.shape[1])
        found.append((d @ weight.T).flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1))
    rho = torch.cat(found)
    return float(rho.mean()), float(rho.std() / math.sqrt(len(rho)))


class TestSecondMoment:
    @EXAMPLES
    @given(
        SEEDS, st.integers(1, 5), st.integers(1, 6), st.integers(1, 8), st.integers(1, 8), SCALES, SCALES, KINDS,
        st.booleans(),
    )  # fmt: skip
    def test_root_mean_square_rate_is_exact(self, seed, pairs, tokens, width, out, scale, spread, kind, biased):
        g = generator(seed)
        x, y = (spread * gaussian(g, pairs, tokens, width) for _ in range(2))
        weight = scale * weight_of(kind, out, width, g)
        bias = abs(scale * spread) * gaussian(g, out) if biased else 0.0
        rho = rates(weight, x, y, bias)
        moment = second_moment(x, y)
        predicted = second_moment_prediction(weight, moment)
        rms = float(rho.square().mean().sqrt())
        # the bias cancels only up to the round-off of the measurement
        assert predicted == pytest.approx(rms, rel=1e-9, abs=1e-12 * abs(scale))
        # the sandwich of Theorem 4
        assert jensen_floor(rho) <= float(rho.mean()) * (1 + 1e-9)
        assert float(rho.mean()) <= predicted * (1 + 1e-9) + 1e-12 * abs(scale)
        assert predicted <= spectral_norm(weight) * (1 + 1e-9)

    @EXAMPLES
    @given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), SCALES)
    def test_psd_of_trace_one_and_free_of_scale(self, seed, pairs, tokens, width, spread):
        g = generator(seed)
        x, y = (gaussian(g, pairs, tokens, width) for _ in range(2))
        moment = second_moment(x, y)
        assert float(moment.trace()) == pytest.approx(1.0, abs=1e-12)
        assert torch.equal(moment, moment.T)
        assert float(torch.linalg.eigvalsh(moment)[0]) >= -1e-12
        assert torch.allclose(second_moment(spread * x, spread * y), moment, rtol=0, atol=1e-12)

    def test_anisotropic_differences(self):
        """The isotropic guess is wrong there, the law is not, and the mean is within the limits of the theorem."""
        g = generator(3)
        stretch = torch.logspace(0, -1.5, 24, dtype=torch.float64)
        x, y = (gaussian(g, 4000, 6, 24) * stretch for _ in range(2))
        weight = gaussian(g, 48, 24) * torch.linspace(2, 0.2, 24, dtype=torch.float64)
        rho = rates(weight, x, y)
        predicted = second_moment_prediction(weight, second_moment(x, y))
        assert predicted == pytest.approx(float(rho.square().mean().sqrt()), rel=1e-12)
        assert 0.99 * predicted < float(rho.mean()) < predicted
        assert jensen_floor(rho) == pytest.approx(float(rho.mean()), rel=5e-3)
        assert abs(isotropic(weight) / predicted - 1) > 0.2

    def test_worst_direction_reaches_the_bound(self):
        g = generator(4)
        weight = gaussian(g, 5, 7)
        top = torch.linalg.svd(weight).Vh[0]
        x = gaussian(g, 3, 4, 7)
        y = x + gaussian(g, 3, 4, 1) * top
        assert second_moment_prediction(weight, second_moment(x, y)) == pytest.approx(spectral_norm(weight), rel=1e-12)

    def test_tokens_in_common_add_nothing(self):
        g = generator(5)
        x, y = gaussian(g, 2, 3, 4), gaussian(g, 2, 3, 4)
        same = gaussian(g, 2, 2, 4)
        longer = second_moment(torch.cat([same, x], dim=1), torch.cat([same, y], dim=1))
        assert torch.allclose(longer, second_moment(x, y), rtol=0, atol=1e-15)

    def test_each_pair_counts_the_same(self):
        """Not the second moment of all differences: a pair that is far apart has no more weight than a close one."""
        x = torch.tensor([[[1e3, 0.0]], [[0.0, 1e-3]]])
        assert torch.allclose(second_moment(x, torch.zeros_like(x)), torch.eye(2, dtype=torch.float64) / 2)

    def test_close_pairs_in_float32_do_not_cancel(self):
        x = (1000 + torch.arange(12.0).reshape(1, 3, 4)).float()
        y = x.clone()
        y[0, 1, 2] += 0.25
        expected = torch.zeros(4, 4, dtype=torch.float64)
        expected[2, 2] = 1.0
        assert torch.equal(second_moment(x, y), expected)

    @pytest.mark.parametrize(
        ("x", "y"),
        [
            (torch.ones(2, 3, 4), torch.ones(2, 3, 5)),
            (torch.ones(3, 4), torch.ones(3, 4)),
            (torch.ones(0, 3, 4), torch.ones(0, 3, 4)),
            (torch.ones(2, 0, 4), torch.ones(2, 0, 4)),
        ],
    )
    def test_refuses_other_shapes(self, x, y):
        with pytest.raises(ShapeError, match=r"\(B, n, d\)"):
            second_moment(x, y)

    def test_refuses_pairs_without_a_rate(self):
        x = torch.randn(3, 2, 2, generator=generator(0))
        y = torch.randn(3, 2, 2, generator=generator(1))
        y[1] = x[1]
        with pytest.raises(HypothesisError, match="pair 1 coincides"):
            second_moment(x, y)
        y[1] = torch.nan
        with pytest.raises(HypothesisError, match="pair 1 has values that are not finite"):
            second_moment(x, y)


class TestPrediction:
    @pytest.mark.parametrize("shape", [(4,), (0, 3), (2, 3, 4)])
    def test_refuses_other_weights(self, shape):
        weight = torch.ones(shape)
        moment = torch.eye(3) / 3
        for predict in (
            lambda: second_moment_prediction(weight, moment),
            lambda: isotropic(weight),
            lambda: isotropic_gaussian(weight, 2),
            lambda: permuted_padded(weight, moment),
            lambda: participation(weight),
            lambda: isotropic_floor(weight),
        ):
            with pytest.raises(ShapeError, match="two dimensions"):
                predict()

    def test_refuses_other_moments(self):
        weight = torch.ones(2, 3)
        with pytest.raises(ShapeError, match=r"\(3, 3\), got \(2, 2\)"):
            second_moment_prediction(weight, torch.eye(2) / 2)
        with pytest.raises(HypothesisError, match="trace 3"):
            second_moment_prediction(weight, torch.eye(3))
        with pytest.raises(HypothesisError, match="nan"):
            second_moment_prediction(weight, torch.full((3, 3), torch.nan))

    def test_refuses_weights_that_are_not_finite(self):
        with pytest.raises(HypothesisError, match="not finite"):
            isotropic(torch.tensor([[torch.inf]]))

    def test_isotropic_is_the_law_at_the_identity(self):
        weight = gaussian(generator(6), 5, 8)
        moment = torch.eye(8, dtype=torch.float64) / 8
        assert second_moment_prediction(weight, moment) == pytest.approx(isotropic(weight), rel=1e-14)

    @pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 3)])
    def test_zero_weight_predicts_zero(self, shape):
        weight, width = torch.zeros(shape), shape[1]
        moment = torch.eye(width) / width
        assert second_moment_prediction(weight, moment) == 0.0
        assert isotropic(weight) == 0.0
        assert isotropic_gaussian(weight, 7) == 0.0
        assert isotropic_floor(weight, 7) == 0.0
        assert permuted_padded(weight, moment) == 0.0


class TestGaussian:
    @pytest.mark.parametrize(
        ("kind", "out", "width", "tokens"),
        [
            ("gaussian", 48, 24, 6),
            ("gaussian", 24, 48, 16),
            ("gaussian", 12, 40, 1),
            ("gaussian", 1, 1, 3),
            ("rank one", 20, 12, 1),
            ("rank one", 12, 20, 5),
            ("orthogonal", 10, 10, 4),
            ("orthogonal", 4, 10, 2),
        ],
    )
    def test_against_draws(self, kind, out, width, tokens):
        g = generator(11)
        weight = weight_of(kind, out, width, g)
        exact = isotropic_gaussian(weight, tokens)
        mean, error = drawn_mean(weight, tokens, 20_000, g)
        assert abs(exact - mean) <= 4 * error + 1e-9 * exact
        assert isotropic_floor(weight, tokens) <= exact * (1 + 1e-9)
        assert exact <= isotropic(weight) * (1 + 1e-9)

    def test_ill_conditioned_weight_of_one_token(self):
        """The mean is then far below the root mean square: few singular values carry the weight."""
        g = generator(12)
        weight = weight_of("orthogonal", 16, 16, g) * torch.logspace(0, -4, 16, dtype=torch.float64)
        exact = isotropic_gaussian(weight, 1)
        mean, error = drawn_mean(weight, 1, 100_000, g)
        assert abs(exact - mean) <= 4 * error
        assert participation(weight) < 3
        assert exact < 0.95 * isotropic(weight)

    @EXAMPLES
    @given(SEEDS, st.integers(1, 12), st.integers(1, 300), SCALES)
    def test_orthogonal_weights_keep_every_length(self, seed, width, tokens, scale):
        weight = scale * weight_of("orthogonal", width, width, generator(seed))
        assert isotropic_gaussian(weight, tokens) == pytest.approx(abs(scale), rel=1e-9)
        assert isotropic(weight) == pytest.approx(abs(scale), rel=1e-12)

    @pytest.mark.parametrize("width", [1, 2, 7, 200])
    @pytest.mark.parametrize("tokens", [1, 2, 50])
    def test_rank_one_in_closed_form(self, width, tokens):
        """`E||g_n|| / E||g_nd||` times the singular value."""
        g = generator(13)
        weight = weight_of("rank one", 3, width, g)
        mean_norm = [math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2)) for k in (tokens, tokens * width)]
        expected = spectral_norm(weight) * mean_norm[0] / mean_norm[1]
        assert isotropic_gaussian(weight, tokens) == pytest.approx(expected, rel=1e-9)

    def test_the_vertex_of_proposition_2(self):
        """Rank one, one token, many features: the ratio falls to sqrt(2/pi), and no lower."""
        weight = torch.zeros(1, 5000)
        weight[0, 0] = 1.0
        ratio = isotropic_gaussian(weight, 1) / isotropic(weight)
        assert ratio == pytest.approx(math.sqrt(2 / math.pi), rel=1e-4)
        assert ratio >= math.sqrt(2 / math.pi)
        assert isotropic_floor(weight, 1) == pytest.approx(isotropic(weight) * math.sqrt(2 / math.pi))

    def test_many_tokens_are_isotropic(self):
        weight = gaussian(generator(14), 64, 32)
        ratios = [isotropic_gaussian(weight, n) / isotropic(weight) for n in (1, 4, 16, 64, 197)]
        assert ratios == sorted(ratios)
        assert 1 - 1 / (197 * participation(weight)) <= ratios[-1] <= 1
        assert 1 - ratios[-1] < 5e-4

    @EXAMPLES
    @given(SEEDS, st.integers(1, 9), st.integers(1, 9), st.integers(1, 64), KINDS, SCALES)
    def test_between_floor_and_root_mean_square(self, seed, out, width, tokens, kind, scale):
        base = weight_of(kind, out, width, generator(seed))
        exact = isotropic_gaussian(scale * base, tokens)
        assert exact == pytest.approx(abs(scale) * isotropic_gaussian(base, tokens), rel=1e-9)
        assert isotropic_floor(scale * base, tokens) <= exact * (1 + 1e-9)
        assert exact <= isotropic(scale * base) * (1 + 1e-9) <= spectral_norm(scale * base) * (1 + 2e-9)

    @pytest.mark.parametrize("tokens", [0, -3, 2.5, True, math.nan])
    def test_refuses_other_token_counts(self, tokens):
        with pytest.raises(InputError, match=r"tokens must be a whole number"):
            isotropic_gaussian(torch.eye(2), tokens)
        with pytest.raises(InputError, match=r"tokens must be a whole number"):
            isotropic_floor(torch.eye(2), tokens)


class TestPadded:
    @pytest.mark.parametrize(("hidden", "width"), [(1, 1), (4, 1), (5, 3), (6, 6)])
    def test_against_all_orders(self, hidden, width):
        g = generator(20 + hidden)
        weight = gaussian(g, 3, hidden) + 1.0
        moment = second_moment(gaussian(g, 7, 2, width) + 0.5, gaussian(g, 7, 2, width))
        squares = [
            second_moment_prediction(weight[:, list(order)[:width]], moment) ** 2
            for order in itertools.permutations(range(hidden))
        ]
        assert permuted_padded(weight, moment) == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-12)

    def test_orders_move_the_measurement_but_not_the_network(self):
        """Rows of W1 and columns of W2 permuted together: same outputs, another padded measurement, same average."""
        g = generator(30)
        first = gaussian(g, 32, 8)
        # hidden units of very different size, as trained layers have
        second = gaussian(g, 8, 32) * torch.logspace(1, -1, 32, dtype=torch.float64)
        x, y = gaussian(g, 64, 4, 8), gaussian(g, 64, 4, 8)
        moment = second_moment(x, y)
        average, squares = permuted_padded(second, moment), []
        for _ in range(400):
            order = torch.randperm(32, generator=g)
            moved = second[:, order]
            assert torch.allclose((x @ first[order].T).relu() @ moved.T, (x @ first.T).relu() @ second.T)
            assert permuted_padded(moved, moment) == pytest.approx(average, rel=1e-12)
            squares.append(float(rates(moved[:, :8], x, y).square().mean()))
        squares = torch.tensor(squares, dtype=torch.float64)
        assert abs(float(squares.mean()) - average**2) <= 4 * float(squares.std()) / 20
        assert float((squares.max() / squares.min()).sqrt()) > 2

    def test_all_features_fed_in_any_order(self):
        """At full width with `C = I/d` the order can't matter."""
        weight = gaussian(generator(31), 4, 6)
        assert permuted_padded(weight, torch.eye(6) / 6) == pytest.approx(isotropic(weight), rel=1e-7)

    def test_refuses_what_cannot_be_padded(self):
        with pytest.raises(ShapeError, match=r"4 features cannot be padded to the 3 inputs"):
            permuted_padded(torch.ones(2, 3), torch.eye(4) / 4)
        with pytest.raises(ShapeError, match="second moment"):
            permuted_padded(torch.ones(2, 3), torch.ones(2, 3))
        with pytest.raises(ShapeError, match="second moment"):
            permuted_padded(torch.ones(2, 3), torch.tensor(1.0))
        with pytest.raises(HypothesisError, match="trace"):
            permuted_padded(torch.ones(2, 3), torch.eye(2))


class TestFloors:
    @EXAMPLES
    @given(st.lists(st.floats(0, 1e8), min_size=1, max_size=20))
    def test_jensen_floor_is_below_the_mean(self, values):
        rho = torch.tensor(values, dtype=torch.float64)
        floor = jensen_floor(rho)
        assert 0.0 <= floor <= float(rho.mean()) * (1 + 1e-9) + 1e-300

    def test_jensen_floor_by_hand(self):
        """Rates 1 and sqrt(3): mean square 2, variance 1, so sqrt(2) (1 - 1/8)."""
        rho = torch.tensor([1.0, math.sqrt(3)], dtype=torch.float64)
        assert jensen_floor(rho) == pytest.approx(math.sqrt(2) * 7 / 8, rel=1e-12)
        assert jensen_floor(torch.zeros(3)) == 0.0

    def test_jensen_floor_refuses(self):
        for rho in (torch.ones(2, 2), torch.ones(0)):
            with pytest.raises(ShapeError, match="one dimension"):
                jensen_floor(rho)
        for value in (-1.0, math.nan, math.inf):
            with pytest.raises(HypothesisError, match="not negative"):
                jensen_floor(torch.tensor([1.0, value]))

    @EXAMPLES
    @given(SEEDS, st.integers(1, 8), st.integers(1, 8), SCALES)
    def test_participation_between_one_and_the_rank(self, seed, out, width, scale):
        g = generator(seed)
        for kind, exact in (("gaussian", None), ("rank one", 1.0), ("orthogonal", None)):
            weight = scale * weight_of(kind, out, width, g)
            found = participation(weight)
            assert 1 - 1e-9 <= found <= min(out, width) + 1e-9
            values = torch.linalg.svdvals(weight / scale)
            assert found == pytest.approx(float(values.square().sum() ** 2 / values.pow(4).sum()), rel=1e-9)
            assert exact is None or found == pytest.approx(exact, rel=1e-9)

    def test_participation_of_nothing(self):
        with pytest.raises(HypothesisError, match="zeros"):
            participation(torch.zeros(2, 3))

    def test_directions_of_a_jacobian(self):
        """Proposition 2: the mean over directions of `||J u||` lies between the floor and `||J|| / sqrt(N)`."""
        g = generator(41)
        for kind in ("gaussian", "rank one", "orthogonal"):
            jacobian = weight_of(kind, 9, 12, g)
            u = torch.nn.functional.normalize(gaussian(g, 20_000, 12), dim=1)
            gains = (u @ jacobian.T).norm(dim=1)
            error = 4 * float(gains.std()) / math.sqrt(20_000)
            assert isotropic_floor(jacobian) <= float(gains.mean()) + error
            assert float(gains.mean()) <= isotropic(jacobian) + error
            assert float(gains.mean()) == pytest.approx(isotropic_gaussian(jacobian, 1), abs=error + 1e-9)
