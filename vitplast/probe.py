"""Linear probe of the frozen model: logistic regression on last hidden states, the baseline of the relative gain."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import parts
from vitplast.errors import HypothesisError, InputError, UnknownNameError
from vitplast.results import schema_of
from vitplast.training.batches import Images, Split, labelled

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

    from vitplast.models import LoadedModel

FEATURES = ("mean", "cls", "both")
T = TypeVar("T")


def linear_probe(
    model: nn.Module | LoadedModel,
    train_split: Split | None,
    test_split: Split | None,
    *,
    features: str = "mean",
    batch_size: int = 64,
    prepare: Callable[[Tensor], Tensor] | None = None,
    max_iter: int = 5000,
) -> xr.Dataset:
    """Accuracy of StandardScaler and LogisticRegression (C = 1, lbfgs) on the features of all images, in order.

    Unlike the authors' code, which probes on random crops and drops the last batch, training images are prepared as
    test images and all are used. Splits and `prepare` as in `vitplast.finetune.finetune`; a `LoadedModel` brings its
    own `prepare`. See `hidden_features` for `features`.

    Returns
    -------
    xarray.Dataset
        Kind "probe" of `vitplast.results.schema`. A solver that did not converge is told by the attribute `solver`.

    Raises
    ------
    InputError
        If a split is missing, empty or wrong (pixels that are not finite: `PixelError`), or all training labels are
        equal.
    """
    start = time.perf_counter()
    xs, ys = features_and_labels(
        model,
        (train_split, test_split),
        lambda model, inputs: hidden_features(model, inputs, features=features, batch_size=batch_size),
        prepare=prepare,
    )
    classifier, solver = logistic(xs[0], ys[0], max_iter)
    correct = [int((classifier.predict(x) == y).sum()) for x, y in zip(xs, ys, strict=True)]
    unseen = sorted(set(ys[1].tolist()) - set(ys[0].tolist()))
    return _dataset(
        {
            "test_accuracy": correct[1] / len(ys[1]),
            "train_accuracy": correct[0] / len(ys[0]),
            "n_train": len(ys[0]),
            "n_test": len(ys[1]),
            "seconds": time.perf_counter() - start,
        },
        {
            "features": features,
            "solver": solver,
            "classifier": f"StandardScaler, LogisticRegression(C=1, lbfgs, max_iter={max_iter})",
            "classes_missing_in_train": " ".join(map(str, unseen)) or "none",
        },
    )


def features_and_labels(
    model: nn.Module | LoadedModel,
    splits: tuple[Split | None, Split | None],
    take: Callable[[nn.Module, Images], T],
    *,
    prepare: Callable[[Tensor], Tensor] | None,
) -> tuple[list[T], list[np.ndarray]]:
    """What `take(model, images)` gives for the training and the test images, and their labels; both are checked.

    Raises
    ------
    InputError
        If a split is missing, empty or wrong, or all training labels are equal.
    """
    if not isinstance(model, nn.Module):
        model, prepare = model.model, prepare or model.prepare
    xs, ys = [], []
    for split, name in zip(splits, ("train", "test"), strict=True):
        images, labels = labelled(split, name, classes=None, model=model, can_prepare=prepare is not None)
        if name == "train" and len(labels.unique()) < 2:
            raise InputError(f"all {len(labels)} train labels are {int(labels[0])}: there is nothing to learn")
        first = next(model.parameters())
        xs.append(take(model, Images(images, prepare, first.device, first.dtype)))
        ys.append(labels.numpy(force=True))
    return xs, ys


def hidden_features(model: nn.Module, inputs: Images, *, features: str = "mean", batch_size: int = 64) -> np.ndarray:
    """f / ||f|| with f the mean over all tokens (`mean`), or the class token (`cls`), of the last block's output.

    Before the final norm, class token and registers included in the mean; `both` sets one beside the other. float64
    (N, E), or (N, 2E).

    Raises
    ------
    UnknownNameError
        If `features` is none of `FEATURES`.
    InputError
        If the model has no class token and one is asked for.
    HypothesisError
        If a feature vector is zero or not finite.
    """
    if features not in FEATURES:
        raise UnknownNameError("features", features, FEATURES)
    if features != "mean" and getattr(model, "cls_token", None) is None:
        raise InputError(f"features={features!r} need a class token, which {type(model).__name__} lacks; use 'mean'")
    parts(model)
    outputs: list[Tensor] = []
    hook = model.blocks[-1].register_forward_hook(lambda module, args, output: outputs.append(output))
    found, was_training = [], model.training
    try:
        model.eval()
        with torch.inference_mode():
            for indices in torch.arange(len(inputs)).split(batch_size):
                outputs.clear()
                model.forward_features(inputs.at(indices))
                tokens = outputs[-1].double()
                pooled = {"mean": tokens.mean(dim=1), "cls": tokens[:, 0]}
                unit = {k: v / v.norm(dim=1, keepdim=True) for k, v in pooled.items()}
                found.append(torch.cat(list(unit.values()), 1) if features == "both" else unit[features])
    finally:
        hook.remove()
        model.train(was_training)
    result = torch.cat(found).numpy(force=True)
    if not np.isfinite(result).all():
        raise HypothesisError(f"{int((~np.isfinite(result)).any(axis=1).sum())} feature vectors are zero or not finite")
    return result


def logistic(x: np.ndarray, y: np.ndarray, max_iter: int, c: float = 1.0) -> tuple[Pipeline, str]:
    """StandardScaler and LogisticRegression(C = `c`, lbfgs), fitted to features x (N, E) and labels y (N,).

    Beside it, in words, whether the solver converged; its warnings are kept there and not printed.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=c, solver="lbfgs", max_iter=max_iter))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier.fit(x, y)
    iterations = int(np.max(classifier[-1].n_iter_))
    if not caught:
        return classifier, f"converged after {iterations} iterations"
    words = "; ".join(dict.fromkeys(" ".join(str(w.message).split()) for w in caught))
    return classifier, f"{iterations} iterations; {words}"


def _dataset(scalars: dict[str, float | int], attrs: dict[str, str]) -> xr.Dataset:
    table = schema_of("probe").variables
    typed = {k: np.int64(v) if type(v) is int else np.float64(v) for k, v in scalars.items()}
    ds = xr.Dataset({k: ((), v) for k, v in typed.items()}, attrs=attrs)
    for name in ds.data_vars:
        ds[name].attrs = {"units": table[name].units, "long_name": table[name].meaning}
    return ds
