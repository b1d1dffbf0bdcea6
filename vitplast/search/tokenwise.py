"""Cases of linear layers, normalisation and patch embeddings (Theorems 3 and 6, Lemma 5, Prop. 16)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitplast.bounds.layernorm import layernorm_bound, layernorm_coded, layernorm_constant
from vitplast.bounds.linear import spectral_norm
from vitplast.bounds.patch_embedding import patch_embedding_bound
from vitplast.bounds.rmsnorm import rmsnorm_constant
from vitplast.search.maps import layernorm, patches, rmsnorm
from vitplast.search.problems import VIOLATED, Case, Problem, Version
from vitplast.search.sets import Everything, Spread, normal

EXACT = "exact constant"
WIDTH, TOKENS = 16, 3


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(rows: int, columns: int, condition: float | None) -> Problem:
    """`X W^T + b` on all sequences; singular values normal, or falling by `condition` from first to last."""
    generator = _generator(101)
    weight = normal(rows, columns, generator=generator)
    if condition is not None:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        weight = left @ torch.diag(5.0 * condition ** -torch.linspace(0, 1, len(values)).double()) @ right
    bias = normal(rows, generator=generator)
    return Problem(Everything(TOKENS, columns), {EXACT: spectral_norm(weight)}, lambda x: x @ weight.T + bias)


def gammas(signed: bool) -> Tensor:
    """Positive scales; `signed` makes the smallest of them -3 times the largest."""
    gamma = normal(WIDTH, generator=_generator(102)).abs() + 0.1
    if signed:
        gamma[gamma.argmin()] = -3 * gamma.max()
    return gamma


def layer_norm(signed: bool, sigma: float, eps: float) -> Problem:
    """LayerNorm on tokens of std >= sigma, with what the paper states and what the authors' code computes."""
    gamma = gammas(signed)
    bounds = {
        EXACT: layernorm_constant(gamma, sigma, eps),
        "largest scale": layernorm_bound(gamma, sigma, eps),
        "as coded": layernorm_coded(gamma),
    }
    scale = max(sigma, math.sqrt(eps))
    return Problem(Spread(TOKENS, WIDTH, sigma, scale), bounds, layernorm(gamma, eps))


def rms_norm() -> Problem:
    """RMSNorm on tokens of root mean square >= 0.5."""
    gamma = gammas(signed=True)
    where = Spread(TOKENS, WIDTH, 0.5, 0.5, centred=False)
    return Problem(where, {EXACT: rmsnorm_constant(gamma, 0.5, 1e-6)}, rmsnorm(gamma, 1e-6))


def jacobian_only(sigma: float = 1.0, eps: float = 0.01) -> Problem:
    """LayerNorm of width 2: `sup ||J||` over the set, which is not convex, taken for the Lipschitz constant."""
    claimed = eps / (sigma**2 + eps) ** 1.5
    return Problem(Spread(1, 2, sigma), {"largest Jacobian": claimed}, layernorm(torch.ones(2).double(), eps))


def two_points() -> Problem:
    """Lemma 5 as a score: `||g(z) - g(w)|| sqrt(s_z s_w) / ||z - w|| <= 1` for z, w and c in one point."""

    def score(points: Tensor) -> Tensor:
        lift = points[:, 2, :1]
        z, w = points[:, 0], points[:, 1]
        sizes = [torch.sqrt(v.square().sum(dim=1, keepdim=True) + lift**2) for v in (z, w)]
        moved = (z / sizes[0] - w / sizes[1]).norm(dim=1)
        return moved * torch.sqrt(sizes[0] * sizes[1])[:, 0] / (z - w).norm(dim=1)

    return Problem(Everything(3, 8), {EXACT: 1.0}, score=score)


def patch_embedding(kernel: int, stride: int) -> Problem:
    """Square patches of an image of 12 pixels with 3 channels, 24 features."""
    weight = normal(24, 3, kernel, kernel, generator=_generator(103)) / (6 * kernel)
    bounds = {"one patch alone": spectral_norm(weight.flatten(1))}
    bounds[EXACT if stride == kernel else "overlap counted"] = patch_embedding_bound(weight, stride)
    return Problem(Everything(3, 12 * 12), bounds, patches(weight, stride))


def cases() -> tuple[Case, ...]:
    """All of them, in the order of the statements."""
    norms = (
        ("positive", "positive scales, deviation from 0.5, d = 16", 0.972, (False, 0.5, 1e-6)),
        ("signed", "scales of both signs, deviation from 0.5, d = 16", 0.969, (True, 0.5, 1e-6)),
        ("epsilon", "scales of both signs, deviation from 0.2, epsilon 0.3, d = 16", 0.969, (True, 0.2, 0.3)),
        ("global", "scales of both signs, all tokens, epsilon 0.01, d = 16", 0.969, (True, 0.0, 0.01)),
    )
    coded = {"positive": ("N3", 1.94), "signed": ("N2", 5.81)}
    found = [
        Case("L1-tall", "L1", "Theorem 3", "linear 48 x 24, with bias", (_exact(),), lambda: linear(48, 24, None)),
        Case("L1-ill", "L1", "Theorem 3", "linear 24 x 48, condition 1000", (_exact(),), lambda: linear(24, 48, 1e3)),
    ]
    for name, setting, loose, arguments in norms:
        versions = [_exact(), Version("largest scale", reference=loose)]
        if name in coded:
            row, factor = coded[name]
            versions.append(Version("as coded", VIOLATED, factor, id=row))
        found.append(
            Case(f"N1-{name}", "N1", "Theorem 6", setting, tuple(versions), lambda a=arguments: layer_norm(*a))
        )
    local = Version("largest Jacobian", VIOLATED, 101.0)
    overlap = (Version("overlap counted", reference=0.742), Version("one patch alone", VIOLATED, 1.48))
    return (
        *found,
        Case("N5", "N5", "Theorem 6", "deviation from 1, epsilon 0.01, d = 2", (local,), jacobian_only),
        Case("N6", "N6", "Lemma 5", "two points and a lift, d = 8", (_exact(),), two_points),
        Case("N7", "N7", "Theorem 6", "RMSNorm, scales of both signs, d = 16", (_exact(),), rms_norm),
        Case("E1-patches", "E1", "Prop. 16", "patches of 4, stride 4", (_exact(),), lambda: patch_embedding(4, 4)),
        Case("E1-overlap", "E1", "Prop. 16", "patches of 4, stride 2", overlap, lambda: patch_embedding(4, 2)),
    )


def _exact() -> Version:
    return Version(EXACT, reference=1.0, exact=True)
