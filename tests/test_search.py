"""The search: sets and their projections, the climb on maps with known constants, and the cases in a short run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitplast import results
from vitplast.bounds.attention_ball import attention_bound, mixing_bound, sharp_example
from vitplast.bounds.canonical import score_norms, shift_norms
from vitplast.bounds.layernorm import pair_bound
from vitplast.bounds.linear import spectral_norm
from vitplast.errors import HypothesisError, InputError, ShapeError, UnknownNameError
from vitplast.gradients.inequalities import attention_bounds, linear_bounds, norm_bounds
from vitplast.local import local_lipschitz
from vitplast.runs import project_root
from vitplast.search import (
    CHEAP,
    VIOLATED,
    ascend,
    cases,
    cases_named,
    climb,
    inequalities,
    layers,
    maps,
    pairs_of,
    search_case,
    search_table,
    sets,
    table_of,
    tokenwise,
)
from vitplast.search import attention as attention_cases
from vitplast.search.stored import as_table

SLACK = 1 + 1e-6
SEEDS = st.integers(0, 2**31)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def smoke():
    return search_table(cases_named(CHEAP), starts=2, steps=40, draws=200)


class TestShortRun:
    def test_exact_constants_are_found(self, smoke):
        exact = smoke.sel(case=smoke.exact.astype(bool))
        assert {"L1", "N1", "N7", "E1", "A0"} <= set(exact.id.values)
        rates = exact.sel(case=[i != "A0" for i in exact.id.values])
        assert float(rates.tight.min()) >= 0.99
        assert float(exact.tight.min()) >= 0.95

    def test_bounds_that_hold_are_never_exceeded(self, smoke):
        holds = smoke.tight.sel(case=smoke.expected == "holds")
        assert holds.size >= 20
        assert float(holds.max()) <= SLACK

    def test_versions_known_to_fail_are_violated(self, smoke):
        fails = smoke.sel(case=smoke.expected == VIOLATED)
        assert {"N2", "N3", "N5", "A3", "A4", "E1"} <= set(fails.id.values)
        assert float(fails.tight.min()) > 1.1
        assert bool(fails.bound.isnull().all())
        np.testing.assert_allclose(fails.tight, fails.adversarial / fails.claimed)

    def test_the_known_factors_come_out(self, smoke):
        factor = {case: float(smoke.tight.sel(case=case)) for case in smoke.case.values}
        assert factor["N5: largest Jacobian"] == pytest.approx(101, rel=1e-3)
        assert factor["N1-signed: as coded"] == pytest.approx(5.81, abs=0.02)
        assert factor["A2-n32: new"] == pytest.approx(math.sqrt(15) / 5, rel=1e-2)

    def test_attack_beats_chance(self, smoke):
        assert bool((smoke.adversarial >= smoke.random).all())
        attention = smoke.sel(case=[i.startswith("A") and i != "A0" for i in smoke.id.values])
        assert float((attention.adversarial / attention.random).min()) > 1.5

    def test_table(self, smoke):
        assert smoke.attrs == {"starts": 2, "steps": 40, "seed": 0, "draws": 200}
        assert set(smoke.coords) == {"case", "id", "statement", "setting", "formula"}
        assert len(set(smoke.case.values)) == smoke.sizes["case"]
        holds = smoke.expected == "holds"
        assert bool((smoke.bound.notnull() == holds).all())
        assert bool((smoke.claimed.notnull() == ~holds).all())
        assert smoke.bound.attrs["long_name"]

    def test_the_same_seed_gives_the_same_result(self, smoke):
        again = search_table(cases_named(["N7", "A4"]), starts=2, steps=40, draws=200)
        same = smoke.sel(case=again.case)
        for name in ("random", "adversarial", "tight"):
            np.testing.assert_array_equal(again[name], same[name])
        other = search_table(cases_named(["A4"]), starts=2, steps=3, draws=200, seed=1)
        assert float(other.random[0]) != float(same.random.sel(case=other.case[0]))


class TestResume:
    def test_case_by_case(self):
        chosen = cases_named(["N7", "L1-ill"])
        calls = []
        found = [search_case(c, starts=2, steps=6, draws=20, progress=lambda *a: calls.append(a)) for c in chosen]
        assert calls[5] == (6, 6)
        assert len(calls) == 12
        table = table_of(chosen, reversed(found), starts=2)
        assert [c.split(":")[0] for c in table.case.values] == ["N7", "L1-ill"]
        ticks = []
        whole = search_table(chosen, starts=2, steps=6, draws=20, progress=lambda *a: ticks.append(a))
        np.testing.assert_array_equal(whole.adversarial, table.adversarial)
        assert ticks == [(1, 2), (2, 2)]

    def test_missing_results_and_unknown_names(self):
        with pytest.raises(UnknownNameError, match="N7"):
            table_of(cases_named(["N7"]), [])
        with pytest.raises(UnknownNameError, match="L1-tall"):
            cases_named(["L1-tal"])

    @pytest.mark.parametrize("budget", [{"starts": 1}, {"draws": 1}, {"steps": -1}])
    def test_budgets(self, budget):
        with pytest.raises(InputError, match="need starts"):
            search_case(cases_named(["N7"])[0], **budget)

    def test_points_report_progress(self):
        calls = []
        search_case(cases_named(["N6"])[0], starts=2, steps=3, draws=20, progress=lambda *a: calls.append(a))
        assert calls == [(3, 3)]


class TestCases:
    def test_names_and_groups(self):
        found = cases()
        names = [c.name for c in found]
        assert len(set(names)) == len(names)
        ids = {v.id or c.id for c in found for v in c.versions}
        assert ids == {
            "L1", "N1", "N2", "N3", "N5", "N6", "N7", "A0", "A1", "A2", "A3", "A4", "A5", "A6", "A8", "A9", "A11",
            "M2", "M3", "M4", "E1", "G1",
        }  # fmt: skip

    @pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
    def test_built_the_same_each_time_with_starts_in_the_set(self, case):
        one, two = case.build(), case.build()
        assert one.bounds == two.bounds
        assert {v.formula for v in case.versions} <= set(one.bounds)
        assert all(math.isfinite(v) and v > 0 for v in one.bounds.values())
        members = one.where.draw(2, generator())
        assert members.shape == (2, one.where.tokens, one.where.width)
        assert (one.f is None) != (one.score is None)
        if one.f is not None:
            assert torch.equal(one.f(members), two.f(members))
        if one.starts is not None:
            start = one.starts.flatten(0, 1)
            if hasattr(one.where, "contains"):
                assert bool(one.where.contains(start).any())
            else:
                assert bool(((one.where.project(start) - start).abs() <= 1e-9).all())

    def test_random_members_do_not_exceed_what_holds(self):
        for case in cases_named(["A1-n8-d16-H4", "A6", "A8", "A9-qk-norm", "A9-rope", "A11", "M3", "M4"]):
            problem = case.build()
            x, y = problem.where.draw(50, generator(1)), problem.where.draw(50, generator(2))
            found = pairs_of(problem.f, x, y, contains=getattr(problem.where, "contains", None))
            assert float(found.rate.max()) > 0
            assert float(found.rate.max()) <= min(problem.bounds[v.formula] for v in case.versions) * SLACK

    def test_mean_radius_is_no_hypothesis(self):
        problem = attention_cases.averaged_radius()
        rate = float(pairs_of(problem.f, *problem.starts).rate)
        assert rate > 1.2 * problem.bounds["RMS radius"]
        longest = float(problem.starts.norm(dim=-1).max())
        assert rate <= attention_bound(problem.f.form, tokens=197, radius=longest)


class TestAscent:
    @settings(max_examples=20, deadline=None)
    @given(seed=SEEDS, scale=st.sampled_from([1e-6, 1.0, 1e6]), tokens=st.integers(1, 4))
    def test_linear_maps(self, seed, scale, tokens):
        g = generator(seed)
        weight = scale * sets.normal(5, 7, generator=g)
        x, y = sets.normal(2, 4, tokens, 7, generator=g)
        found = ascend(lambda z: z @ weight.T, x, y, lambda z: z, steps=60, seed=seed)
        best = float(found.rate.max()) / spectral_norm(weight)
        assert 0.98 <= best <= SLACK

    @pytest.mark.parametrize("centre", [None, (5.0, 0.0, 0.0)])
    def test_the_result_is_attained_inside_the_set(self, centre):
        where = sets.Ball(3, 3, 1.0, centre)
        x, y = where.draw(6, generator(3)), where.draw(6, generator(4))
        before = pairs_of(lambda z: z**3, x, y)
        found = ascend(lambda z: z**3, x, y, where.project, steps=200)
        after = pairs_of(lambda z: z**3, found.x, found.y)
        assert after.rate.tolist() == found.rate.tolist()
        middle = torch.tensor(centre or (0.0, 0.0, 0.0), dtype=torch.float64)
        assert float(torch.cat([found.x, found.y]).sub(middle).norm(dim=-1).max()) <= 1 + 1e-12
        reach = 1.0 + (0.0 if centre is None else 5.0)
        assert float(found.rate.max()) == pytest.approx(3 * reach**2, rel=1e-2)
        assert bool((found.rate > before.rate).all())

    def test_never_worse_than_the_start(self):
        x, y = sets.normal(2, 8, 2, 3, generator=generator(5))
        start = pairs_of(torch.sin, x, y)
        rates = [ascend(torch.sin, x, y, lambda z: z, steps=k).rate for k in (0, 3, 30)]
        assert torch.equal(rates[0], start.rate)
        assert bool((rates[1] >= rates[0]).all())
        assert bool((rates[2] >= rates[1]).all())

    def test_close_ends_keep_their_gap_at_the_surface(self):
        """Large gain across the surface of the ball only: both ends projected alone would lose it."""

        def f(x):
            return x.square().sum(dim=-1, keepdim=True)

        where = sets.Ball(1, 4, 1.0)
        x = where.draw(3, generator(6))
        found = ascend(f, x, 0.999 * x, where.project, steps=80)
        assert float(found.rate.max()) == pytest.approx(2.0, rel=1e-3)

    def test_pairs_that_coincide_are_not_counted(self):
        x = torch.ones(2, 1, 2, dtype=torch.float64)
        y = x.clone()
        y[1] += 1e-9
        assert pairs_of(torch.sin, x, y).rate.tolist() == [-1.0, -1.0]
        with pytest.raises(HypothesisError, match="no pair to start from"):
            ascend(torch.sin, x, y, lambda z: z, steps=1)
        with pytest.raises(ShapeError, match="one shape"):
            ascend(torch.sin, x, y[:1], lambda z: z, steps=1)

    def test_climb_stays_in_the_set(self):
        where = sets.Ball(1, 2, 2.0)
        found = climb(lambda z: z[:, 0, 0], where.draw(3, generator(7)), where.project, steps=60)
        assert found.score.tolist() == pytest.approx([2, 2, 2], rel=1e-3)
        assert float(found.z.norm(dim=-1).max()) <= 2 + 1e-12


ALL_SETS = [
    sets.Everything(3, 4),
    sets.Ball(3, 4, 0.7),
    sets.Ball(3, 4, (0.5, 1.0, 2.0)),
    sets.Ball(3, 4, 0.7, (1.0, 2.0, 3.0, 4.0)),
    sets.RmsBall(3, 4, 0.7),
    sets.Spread(3, 4, 0.5),
    sets.Spread(3, 4, 0.0),
    sets.Spread(3, 4, 0.5, centred=False),
]


class TestSets:
    @pytest.mark.parametrize("where", ALL_SETS, ids=repr)
    @settings(max_examples=15, deadline=None)
    @given(seed=SEEDS, scale=st.sampled_from([0.0, 1e-8, 1.0, 1e8]))
    def test_projection_arrives_and_leaves_members_alone(self, where, seed, scale):
        g = generator(seed)
        drawn = where.draw(4, g)
        assert float((where.project(drawn) - drawn).abs().max()) <= 1e-12 * float(drawn.abs().max())
        moved = where.project(scale * sets.normal(4, 3, 4, generator=g))
        assert bool(moved.isfinite().all())
        assert float((where.project(moved) - moved).abs().max()) <= 1e-12 * max(1.0, float(moved.abs().max()))

    def test_hypotheses_are_met(self):
        far = 10 * sets.normal(5, 3, 4, generator=generator(8))
        flat = torch.ones(5, 3, 4, dtype=torch.float64)
        ball = ALL_SETS[3]
        assert (
            float((ball.project(far) - torch.tensor(ball.centre, dtype=torch.float64)).norm(dim=-1).max())
            <= 0.7 + 1e-12
        )
        assert float(ALL_SETS[4].project(far).flatten(1).norm(dim=1).max()) <= 0.7 * math.sqrt(3) + 1e-12
        for x in (flat, 1e-3 * far):
            assert float(ALL_SETS[5].project(x).std(dim=-1, correction=0).min()) >= 0.5
            assert float(ALL_SETS[7].project(x * 1e-3).square().mean(dim=-1).sqrt().min()) >= 0.5 - 1e-15

    def test_floors_of_queries_and_keys(self):
        where = layers.qk_norm().where
        x = where.draw(5, generator(9))
        assert bool(where.contains(x).all())
        assert not bool(where.contains(0.01 * x).any())
        assert bool(where.contains(where.project(0.5 * x)).all())
        with pytest.raises(HypothesisError, match="random members"):
            sets.NormedBall(2, 4, 1.0, torch.eye(4).double()[None], (3.0,)).draw(2, generator())


class TestMaps:
    def test_attention_is_that_of_torch(self):
        layer = attention_cases.random_attention(8, 2, generator(10), biases=True)
        reference = nn.MultiheadAttention(8, 2, batch_first=True).double()
        with torch.no_grad():
            reference.in_proj_weight.copy_(layer.qkv)
            reference.in_proj_bias.copy_(layer.qkv_bias)
            reference.out_proj.weight.copy_(layer.out)
            reference.out_proj.bias.copy_(layer.out_bias)
            x = sets.normal(3, 5, 8, generator=generator(11))
            torch.testing.assert_close(layer(x), reference(x, x, x, need_weights=False)[0])

    @pytest.mark.parametrize("tokens", [3, 8, 32])
    def test_merged_tokens_have_the_rate_of_the_whole_sequence(self, tokens):
        example = sharp_example(tokens, strength=1e3, step=0.1)
        problem = attention_cases.sharp(tokens)
        short = float(pairs_of(problem.f, *problem.starts).rate)
        score = example.form.key[0].T @ example.form.query[0]

        def mixing(x):
            return (x @ score.T @ x.mT).softmax(dim=-1) @ x

        whole = float(pairs_of(mixing, example.x[None], example.y[None]).rate)
        assert short == pytest.approx(whole, rel=1e-6)
        bound = mixing_bound(score_norms(example.form), shift_norms(example.form), tokens=tokens, radius=1.0)
        assert problem.bounds["new"] == pytest.approx(float(bound))

    def test_rotations_depend_on_the_distance_of_positions_alone(self):
        turn = maps.rotations(6, 4)
        q, k = (sets.normal(4, generator=generator(12)).expand(1, 1, 6, 4) for _ in range(2))
        rq, rk = turn(q, k)
        scores = (rq @ rk.mT)[0, 0]
        assert float(scores[1, 0]) == pytest.approx(float(scores[4, 3]))
        assert abs(float(scores[1, 0]) - float(scores[2, 0])) > 1e-3
        assert rq.norm(dim=-1).flatten().tolist() == pytest.approx(q.norm(dim=-1).flatten().tolist())

    def test_layernorm_without_convexity(self):
        """The claim of N5 is what local rates give: no member has a larger Jacobian, yet pairs move far more."""
        problem = tokenwise.jacobian_only()
        members = problem.where.draw(200, generator(13))
        claimed = problem.bounds["largest Jacobian"]
        assert float(local_lipschitz(problem.f, members).norm.max()) <= claimed * SLACK
        x = problem.where.project(torch.zeros(1, 1, 2).double())
        assert float(pairs_of(problem.f, x, -x).rate) == pytest.approx(101 * claimed, rel=1e-9)

    def test_two_point_score_is_the_pair_bound(self):
        score = tokenwise.two_points().score
        z, w = sets.normal(2, 1, 8, generator=generator(14))
        z, w = z - z.mean(), w - w.mean()
        eps = 0.3
        lift = math.sqrt(8 * eps)
        found = float(score(torch.stack([z, w, torch.full_like(z, lift)], dim=1)))
        norm = maps.layernorm(torch.ones(8).double(), eps)
        rate = float(pairs_of(norm, z[:, None], w[:, None]).rate)
        assert found == pytest.approx(rate / float(pair_bound(torch.ones(8), z[:, None], w[:, None], eps)))


class TestGradientRatios:
    x, delta = (sets.normal(2, 5, 16, generator=generator(s)) for s in (15, 16))

    def test_linear(self):
        gradient = self.delta[0].T @ self.x[0]
        bound = linear_bounds(self.x[0], self.delta[0])["weight"]
        assert float(inequalities.linear_ratio(self.x, self.delta)[0]) == pytest.approx(float(gradient.norm() / bound))

    def test_norm(self):
        normed = torch.nn.functional.layer_norm(self.x, (16,))
        gamma = torch.ones(16, dtype=torch.float64, requires_grad=True)
        beta = torch.zeros(16, dtype=torch.float64, requires_grad=True)
        ((gamma * normed[0] + beta) * self.delta[0]).sum().backward()
        bounds = norm_bounds(normed[0], self.delta[0])
        ratios = inequalities.norm_ratios(normed, self.delta)
        assert float(ratios["gamma"][0]) == pytest.approx(float(gamma.grad.norm() / bounds["weight"]))
        assert float(ratios["beta"][0]) == pytest.approx(float(beta.grad.norm() / bounds["bias"]))

    def test_attention(self):
        layer = attention_cases.random_attention(16, 2, generator(17), biases=True)
        layer.qkv.requires_grad_(True)
        (layer(self.x[:1]) * self.delta[:1]).sum().backward()
        parts = [p.detach()[0] for p in layer.parts(self.x[:1])]
        bounds = attention_bounds(self.x[0], self.delta[0], *parts, layer.slices.output, layer.score_scale)
        ratios = inequalities.attention_ratios(layer, self.x, self.delta)
        for name, gradient in zip("QKV", layer.qkv.grad.reshape(3, 2, 8, 16), strict=True):
            expected = (gradient.flatten(1).norm(dim=1) / bounds[name]).max()
            assert float(ratios[name][0].detach()) == pytest.approx(float(expected))

    def test_slope_of_gelu(self):
        t = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.gelu(t).sum().backward()
        torch.testing.assert_close(inequalities._gelu_slope(t.detach()), t.grad)


class TestStoredTable:
    def test_rows_follow_the_order_of_the_cases(self):
        """Gathered runs lie in the order of their names, where kappa = 100 comes before kappa = 2."""
        table = as_table(results.read(project_root() / "data" / "search" / "search.nc"))
        found = list(dict.fromkeys(str(row).split(": ")[0] for row in table.case.values))
        names = [case.name for case in cases()]
        assert found == [name for name in names if name in found]
        assert found.index("A0-iii-2") < found.index("A0-iii-100")
        assert len(table.case) == len(set(table.case.values)) >= len(found)
        assert all(table.attrs[name] >= 2 for name in ("starts", "steps"))
