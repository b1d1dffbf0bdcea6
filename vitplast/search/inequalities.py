"""Cases that are inequalities rather than rates (Lemma 9, Prop. 17): left side over right side, made large."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitplast.bounds.attention_ball import score_gain
from vitplast.search.attention import random_attention
from vitplast.search.problems import Case, Problem, Version
from vitplast.search.sets import Everything, normal

#: Values of kappa at which Lemma 9 (iii) is attacked.
KAPPAS = (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
POINTS, TOKENS, WIDTH, HIDDEN = 6, 8, 16, 32


def spread_of_values() -> Problem:
    """Lemma 9 (i): `||J_p t|| sqrt(2) / max |t_j| <= 1` for probabilities p and numbers t in [-1, 1]."""

    def score(z: Tensor) -> Tensor:
        p, t = z[:, 0].softmax(dim=-1), torch.tanh(z[:, 1])
        return math.sqrt(2) * (p * (t - (p * t).sum(dim=-1, keepdim=True))).norm(dim=-1)

    return Problem(Everything(2, POINTS, 2.0), {"r / sqrt(2)": 1.0}, score=score)


def score_gain_reached(kappa: float) -> Problem:
    """Lemma 9 (iii): `((1-s^2) ||p||^2 + ||s p + w J_p t||^2) / G(r w) <= 1`, here with r = 1 and w = kappa."""
    gain = float(score_gain(torch.tensor(kappa, dtype=torch.float64)))

    def score(z: Tensor) -> Tensor:
        p, t, s = z[:, 0].softmax(dim=-1), torch.tanh(z[:, 1]), torch.tanh(z[:, 2, :1])
        moved = s * p + kappa * p * (t - (p * t).sum(dim=-1, keepdim=True))
        left = (1 - s[:, 0] ** 2) * p.square().sum(dim=-1) + moved.square().sum(dim=-1)
        return left / gain

    return Problem(Everything(3, POINTS, 2.0), {"G": 1.0}, score=score)


def gradients(part: str) -> Problem:
    """Prop. 17: gradient of one parameter over its bound, inputs and gradients at the output both free.

    The point holds the input in its first columns, and the gradient at the output of the MLP, the layer norm or the
    attention in the others. For FC1 that gradient goes back through FC2 and GELU, as in a network.
    """
    generator = torch.Generator().manual_seed(401)
    w1 = normal(HIDDEN, WIDTH, generator=generator) / math.sqrt(WIDTH)
    w2 = normal(WIDTH, HIDDEN, generator=generator) / math.sqrt(HIDDEN)
    layer = random_attention(WIDTH, 2, generator, biases=True)

    def score(z: Tensor) -> Tensor:
        x, delta = z[..., :WIDTH], z[..., WIDTH:]
        if part in ("FC1", "FC2"):
            before = F.linear(x, w1)
            back = (delta @ w2) * _gelu_slope(before) if part == "FC1" else delta
            return linear_ratio(x if part == "FC1" else F.gelu(before), back)
        if part in ("gamma", "beta"):
            return norm_ratios(F.layer_norm(x, (WIDTH,)), delta)[part]
        return attention_ratios(layer, x, delta)[part]

    return Problem(Everything(TOKENS, 2 * WIDTH), {"Prop. 17": 1.0}, score=score)


def linear_ratio(x: Tensor, delta: Tensor) -> Tensor:
    """`||Delta^T X|| / (||Delta|| ||X||_2)`, shape (B,)."""
    return _size(delta.mT @ x) / (_size(delta) * _top(x))


def norm_ratios(normalised: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """Gradients of scales and shifts over `||Delta|| max_k ||N_k||` and `sqrt(n) ||Delta||`, shape (B,) each."""
    largest = normalised.norm(dim=1).amax(dim=1)
    return {
        "gamma": (delta * normalised).sum(dim=1).norm(dim=1) / (_size(delta) * largest),
        "beta": delta.sum(dim=1).norm(dim=1) / (math.sqrt(delta.shape[1]) * _size(delta)),
    }


def attention_ratios(layer, x: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """Gradients of V, Q and K over their bounds, the largest of the heads, shape (B,) each."""
    query, key, value = layer.parts(x)
    output = layer.slices.output
    scale, x = layer.score_scale, x[:, None]
    maps = (scale * query @ key.mT).softmax(dim=-1)
    through = delta[:, None] @ output
    weights = through @ value.mT
    scores = maps * (weights - (maps * weights).sum(dim=-1, keepdim=True))
    size, out = _size(delta)[:, None], torch.linalg.matrix_norm(output, 2)
    spread = 0.5 * out * size * _top(value - value.mean(dim=-2, keepdim=True))
    ratios = {
        "V": _size((maps.mT @ through).mT @ x) / (out * size * _top(maps @ x)),
        "Q": _size((scores @ key).mT @ x) / (spread * _top(key - key.mean(dim=-2, keepdim=True)) * _top(x)),
        "K": _size((scores.mT @ query).mT @ x) / (spread * _top(query) * _top(x)),
    }
    return {name: ratio.amax(dim=1) for name, ratio in ratios.items()}


def cases() -> tuple[Case, ...]:
    """All of them, in the order of the statements."""
    gain = (Version("G", reference=1.0, exact=True),)
    found = [
        Case("A0-i", "A0", "Lemma 9", "(i)", (Version("r / sqrt(2)", reference=1.0, exact=True),), spread_of_values)
    ]
    found += [
        Case(f"A0-iii-{k:g}", "A0", "Lemma 9", f"(iii), kappa = {k:g}", gain, lambda k=k: score_gain_reached(k))
        for k in KAPPAS
    ]
    earlier = {"FC1": 0.83, "FC2": 0.95, "gamma": 0.37, "beta": 0.77, "V": 0.48, "Q": 0.03, "K": 0.06}
    found += [
        Case(
            f"G1-{part}",
            "G1",
            "Prop. 17",
            f"gradient of {part}, n = 8, d = 16",
            (Version("Prop. 17", reference=value),),
            lambda part=part: gradients(part),
        )
        for part, value in earlier.items()
    ]
    return tuple(found)


def _gelu_slope(t: Tensor) -> Tensor:
    normal_density = torch.exp(-0.5 * t.square()) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(t / math.sqrt(2))) + t * normal_density


def _size(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix)


def _top(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)
