"""Upper bounds on parameter gradients: input of a component times gradient of the loss at its output (Prop. 17).

No bound holds the norm of the parameter that it bounds, nor the plasticity of the component itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitplast.errors import ShapeError


def spectral_norm(x: Tensor) -> Tensor:
    """`||X||_2`, the largest singular value, of (..., n, d) matrices; shape (...), float64.

    From the eigenvalues of the smaller Gram matrix, which keep all digits of the *largest* one.

    Raises
    ------
    ShapeError
        If `x` is no matrix or empty.

    Examples
    --------
    >>> float(spectral_norm(torch.tensor([[3.0, 0.0], [0.0, 2.0]])))
    3.0
    """
    if x.ndim < 2 or not x.numel():
        raise ShapeError(f"a matrix is needed, got shape {tuple(x.shape)}")
    x = x.detach().double()
    size = x.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    x = x / size
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    top = torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()
    return top * size[..., 0, 0]


def linear_bounds(x: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """`||grad_W|| <= ||Delta|| ||X||_2` and `||grad_b|| <= sqrt(n) ||Delta||` for `f(X) = X W^T + b` (Prop. 17 (a)).

    The first is an equality for one token, where `grad_W = delta x^T`.

    Parameters
    ----------
    x
        Input, shape (n, d).
    delta
        Gradient of the loss with respect to the output, shape (n, e).

    Returns
    -------
    dict of float64 scalars `weight` and `bias`.

    Raises
    ------
    ShapeError
        If the numbers of tokens differ.

    Examples
    --------
    >>> found = linear_bounds(torch.eye(4), torch.ones(4, 1))
    >>> float(found["weight"]), float(found["bias"])
    (2.0, 4.0)
    """
    size = _size(x, delta)
    return {"weight": size * spectral_norm(x), "bias": len(x) ** 0.5 * size}


def norm_bounds(normalised: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """`||grad_gamma|| <= ||Delta|| max_k ||N_k||` and `||grad_beta|| <= sqrt(n) ||Delta||` (Prop. 17 (b)).

    For `LN(x) = gamma * N + beta`, where the columns `N_k` of the normalised input hold one feature of all tokens.

    Parameters
    ----------
    normalised
        N, shape (n, d).
    delta
        Gradient of the loss with respect to the output, shape (n, d).

    Raises
    ------
    ShapeError
        If the shapes differ.

    Examples
    --------
    >>> found = norm_bounds(torch.tensor([[3.0, 0.0], [4.0, 1.0]]), torch.eye(2))
    >>> round(float(found["weight"]) ** 2, 9)
    50.0
    """
    if normalised.shape != delta.shape:
        raise ShapeError(f"input {tuple(normalised.shape)} and gradient {tuple(delta.shape)} must have one shape")
    size = _size(normalised, delta)
    largest = torch.linalg.vector_norm(normalised.detach().double(), dim=0).max()
    return {"weight": size * largest, "bias": len(delta) ** 0.5 * size}


def attention_bounds(
    x: Tensor, delta: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, scale: float
) -> dict[str, Tensor]:
    """Gradients of Q, K, V, O and their biases in self-attention, head by head (Prop. 17 (c)).

    With queries q, keys k, values v, `P = softmax(s q k^T)`, `z = P v`, a bar for "minus the mean over the tokens"
    and `D = ||O||_2 ||Delta|| ||v_bar||_2 / 2`, which bounds the gradient of the scores::

        ||grad_O|| <= ||Delta|| ||z||_2              ||grad_V|| <= ||O||_2 ||Delta|| ||P X||_2
        ||grad_Q|| <= s D ||k_bar||_2 ||X||_2        ||grad_K|| <= s D ||q||_2 ||X||_2

    The bias of Q, V or O has `sqrt(n)` in the place of its last factor; the gradient of the key bias is 0.
    Hypotheses: no map between q, k and the scores (QK-norm, rotations) or between z and O.

    Parameters
    ----------
    x
        Input, shape (n, E).
    delta
        Gradient of the loss with respect to the output, shape (n, F).
    query, key, value
        q, k, v with their biases, shape (H, n, d).
    output
        O, shape (H, F, d).
    scale
        s, the factor of the scores.

    Returns
    -------
    dict of float64 tensors (H,) for Q, b_Q, K, V, b_V, O; a scalar for b_O; and `b_K_scale` (H,), the size that the
    terms of the key bias' gradient have before they cancel.

    Raises
    ------
    ShapeError
        If shapes do not fit.

    Examples
    --------
    >>> one = torch.ones(1, 1, 1)
    >>> found = attention_bounds(one[0], one[0], one, one, one, one, scale=1.0)
    >>> float(found["O"]), float(found["Q"])  # with one token the scores play no part
    (1.0, 0.0)
    """
    if not query.shape == key.shape == value.shape or output.shape[::2] != query.shape[::2]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value, output))
        raise ShapeError(f"q, k, v must be (H, n, d) and the output weight (H, F, d), got {shapes}")
    if query.shape[1] != len(x):
        raise ShapeError(f"queries of {query.shape[1]} tokens for an input of {len(x)}")
    x, query, key, value, output = (t.detach().double() for t in (x, query, key, value, output))
    size, root = _size(x, delta), len(x) ** 0.5
    maps = torch.softmax(scale * query @ key.mT, dim=-1)
    out, x_norm = spectral_norm(output), spectral_norm(x)
    scores = 0.5 * out * size * spectral_norm(value - value.mean(1, keepdim=True))
    keys = abs(scale) * scores * spectral_norm(key - key.mean(1, keepdim=True))
    queries = abs(scale) * scores * spectral_norm(query)
    return {
        "Q": keys * x_norm,
        "b_Q": keys * root,
        "K": queries * x_norm,
        "b_K_scale": queries * root,
        "V": out * size * spectral_norm(maps @ x),
        "b_V": out * size * root,
        "O": size * spectral_norm(maps @ value),
        "b_O": size * root,
    }


def _size(x: Tensor, delta: Tensor) -> Tensor:
    """`||Delta||`, once input and gradient are seen to be matrices with a row a token."""
    if x.ndim != 2 or delta.ndim != 2 or len(x) != len(delta) or not len(x):
        raise ShapeError(f"input (n, d) and gradient (n, e) are needed, got {tuple(x.shape)} and {tuple(delta.shape)}")
    return torch.linalg.vector_norm(delta.detach().double())
