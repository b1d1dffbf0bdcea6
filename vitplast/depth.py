"""Linear probing over depth: logistic regression on the tokens after each of eight points of every block (paper)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from vitplast.components import parts
from vitplast.errors import HypothesisError, InputError, LayoutError, UnknownNameError
from vitplast.parameters.experiments import VIEWS
from vitplast.probe import features_and_labels, logistic
from vitplast.results import schema_of
from vitplast.results.tables.depth import ENDS, POINTS
from vitplast.training.batches import Images, Split, labelled
from vitplast.training.pictures import OwnSize
from vitplast.training.views import PaperView

if TYPE_CHECKING:
    from vitplast.models import LoadedModel

__all__ = ["ENDS", "POINTS", "depth_features", "depth_probe"]

FEATURES = ("mean", "cls")
#: Layer and point; the ends have the layers -1 and one beyond the last.
Place = tuple[int, str]


def depth_probe(
    model: nn.Module | LoadedModel,
    train_split: Split | OwnSize | None,
    test_split: Split | None,
    *,
    features: str = "mean",
    c: float = 1.0,
    max_iter: int = 5000,
    batch_size: int = 64,
    view: str = "plain",
    view_batch: int = 512,
    seed: int = 0,
    prepare: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Accuracy of StandardScaler and LogisticRegression(C = `c`, lbfgs) on `depth_features` at every point.

    scikit-learn's own tolerance (1e-4) and, as the authors, 5,000 iterations at most. All images go through the model
    once, prepared as test images and in order. Splits and `prepare` as in `vitplast.finetune.finetune`; a `LoadedModel`
    brings its own `prepare`. The last `ffn_res` is what the paper reports, and the features of
    `vitplast.probe.linear_probe`.

    With `view="paper"` the training images are those of the authors' probe (errata, B3): random crops and flips, drawn
    from `seed`, of the pictures at their own size, without the last incomplete batch of `view_batch` images
    (`training.views.PaperView`).

    Returns
    -------
    xarray.Dataset
        Kind "depth" of `vitplast.results.schema`: (layer, point), and the two ends beside it as `end_...`.

    Raises
    ------
    InputError
        If a split is missing, empty or wrong, all training labels are equal, or a view of batches finds no whole one.
    HypothesisError, LayoutError, UnknownNameError
        See `depth_features`; also if the view is none of plain and paper.
    """
    start = time.perf_counter()
    if view not in VIEWS:
        raise UnknownNameError("view", view, VIEWS)

    def take(model: nn.Module, inputs: Images | PaperView) -> dict[Place, np.ndarray]:
        return depth_features(model, inputs, features=features, batch_size=batch_size)

    if view == "plain":
        xs, ys = features_and_labels(model, (train_split, test_split), take, prepare=prepare)
    else:
        xs, ys = _as_published(model, train_split, test_split, take, prepare, view_batch, seed)
    found: dict[Place, dict[str, float | int]] = {}
    for done, place in enumerate(list(xs[0]), 1):
        found[place] = _scores(*(x.pop(place).astype(np.float64) for x in xs), *ys, c=c, max_iter=max_iter)
        if progress is not None:
            progress(done, len(found) + len(xs[0]))
    layers = max(layer for layer, _ in found)
    unseen = sorted(set(ys[1].tolist()) - set(ys[0].tolist()))
    values = {
        name: np.array([[found[layer, point][name] for point in POINTS] for layer in range(layers)])
        for name in found[-1, ENDS[0]]
    }
    values |= {
        f"end_{name}": np.array([found[place][name] for place in ((-1, ENDS[0]), (layers, ENDS[1]))])
        for name in found[-1, ENDS[0]]
    }
    values |= {"n_train": np.int64(len(ys[0])), "n_test": np.int64(len(ys[1]))}
    values["seconds"] = np.float64(time.perf_counter() - start)
    table = schema_of("depth").variables
    return xr.Dataset(
        {n: (table[n].dims, v, {"units": table[n].units, "long_name": table[n].meaning}) for n, v in values.items()},
        coords={"layer": np.arange(layers), "point": list(POINTS), "end": list(ENDS)},
        attrs={
            "features": features,
            "classifier": f"StandardScaler, LogisticRegression(C={c:g}, lbfgs, max_iter={max_iter})",
            "classes_missing_in_train": " ".join(map(str, unseen)) or "none",
            "view": view if view == "plain" else f"paper: random crops, whole batches of {view_batch}",
        },
    )


def _as_published(
    model: nn.Module | LoadedModel,
    train_split: OwnSize | None,
    test_split: Split | None,
    take: Callable[[nn.Module, Images | PaperView], dict[Place, np.ndarray]],
    prepare: Callable[[Tensor], Tensor] | None,
    batch: int,
    seed: int,
) -> tuple[list[dict[Place, np.ndarray]], list[np.ndarray]]:
    """Features and labels as `features_and_labels` gives them, of training images in the view paper."""
    if not isinstance(model, nn.Module):
        model, prepare = model.model, prepare or model.prepare
    images, labels = labelled(test_split, "test", classes=None, model=model, can_prepare=prepare is not None)
    first = next(model.parameters())
    where = {"device": first.device, "dtype": first.dtype}
    train = PaperView(train_split, size=images.shape[-1], batch=batch, seed=seed, prepare=prepare, **where)
    if len(train.labels.unique()) < 2:
        raise InputError(f"all {len(train)} train labels are {int(train.labels[0])}: there is nothing to learn")
    xs = [take(model, train), take(model, Images(images, prepare, **where))]
    return xs, [train.labels.numpy(), labels.numpy(force=True)]


def depth_features(
    model: nn.Module, inputs: Images | PaperView, *, features: str = "mean", batch_size: int = 64
) -> dict[Place, np.ndarray]:
    """f / ||f|| with f the mean over all tokens (`mean`), or the class token (`cls`), at every point of every block.

    In one pass; of each batch the means alone are kept, so memory grows with images times width. `attn` and `ffn_fc2`
    are outputs of the components themselves, before a LayerScale; `attn_res` and `ffn_res` are what has been added up.

    Returns
    -------
    dict
        (layer, point) of `POINTS` to float32 (N, width), in the order of the forward pass; (-1, "embedding") is the
        input of the first block, (depth, "final_norm") the output of the final norm.

    Raises
    ------
    UnknownNameError
        If `features` is none of mean and cls.
    InputError
        If the model has no class token and one is asked for.
    LayoutError
        If the blocks are not timm's plain ones, whose norms come first.
    HypothesisError
        If a feature vector is zero or not finite.
    """
    if features not in FEATURES:
        raise UnknownNameError("features", features, FEATURES)
    if features == "cls" and getattr(model, "cls_token", None) is None:
        raise InputError(f"features='cls' needs a class token, which {type(model).__name__} lacks; use 'mean'")
    kept: dict[Place, list[Tensor]] = defaultdict(list)

    def keep(place: Place, tokens: Tensor) -> None:
        pooled = tokens[:, 0].double() if features == "cls" else tokens.mean(dim=1, dtype=torch.float64)
        kept[place].append((pooled / pooled.norm(dim=1, keepdim=True)).float().cpu())

    was_training = model.training
    try:
        with _watched(model, keep), torch.inference_mode():
            model.eval()
            for rows in torch.arange(len(inputs)).split(batch_size):
                model.forward_features(inputs.at(rows))
    finally:
        model.train(was_training)
    batches = -(-len(inputs) // batch_size)
    odd = [f"{point} of block {layer}" for (layer, point), found in kept.items() if len(found) != batches]
    if odd:
        raise LayoutError(f"not reached once in each forward pass: {', '.join(odd[:3])}")
    result = {place: torch.cat(kept.pop(place)).numpy() for place in list(kept)}
    for (layer, point), values in result.items():
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad:
            raise HypothesisError(f"{bad} feature vectors are zero or not finite at {point} of block {layer}")
    return result


@contextmanager
def _watched(model: nn.Module, keep: Callable[[Place, Tensor], None]) -> Iterator[None]:
    """Calls `keep` with the tokens at each place of a forward pass; its hooks are always removed."""
    from timm.models.vision_transformer import Block

    parts(model)
    odd = [i for i, b in enumerate(model.blocks) if type(b).forward is not Block.forward or not hasattr(b.mlp, "act")]
    if odd:
        block = model.blocks[odd[0]]
        raise LayoutError(
            f"block {odd[0]} is a {type(block).__name__} with a {type(block.mlp).__name__}; "
            "the points of a block are known for timm's Block alone, with norms first and an MLP with activation"
        )

    def output(place: Place) -> Callable[..., None]:
        return lambda module, args, out: keep(place, out)

    def entry(place: Place) -> Callable[..., None]:
        return lambda module, args: keep(place, args[0])

    handles = []
    try:
        handles.append(model.blocks[0].register_forward_pre_hook(entry((-1, ENDS[0]))))
        for layer, block in enumerate(model.blocks):
            modules = {
                "attn_norm": block.norm1, "attn": block.attn, "ffn_norm": block.norm2, "ffn_fc1": block.mlp.fc1,
                "ffn_activation": block.mlp.act, "ffn_fc2": block.mlp.fc2, "ffn_res": block,
            }  # fmt: skip
            handles.append(block.norm2.register_forward_pre_hook(entry((layer, "attn_res"))))
            handles += [m.register_forward_hook(output((layer, point))) for point, m in modules.items()]
        handles.append(model.norm.register_forward_hook(output((len(model.blocks), ENDS[1]))))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _scores(
    train: np.ndarray, test: np.ndarray, train_labels: np.ndarray, test_labels: np.ndarray, *, c: float, max_iter: int
) -> dict[str, float | int]:
    """Accuracies of one classifier, and how its solver ended."""
    classifier, words = logistic(train, train_labels, max_iter, c)
    right = float((classifier.predict(test) == test_labels).mean())
    return {
        "test_accuracy": right,
        "train_accuracy": float((classifier.predict(train) == train_labels).mean()),
        "standard_error": float(np.sqrt(right * (1 - right) / len(test_labels))),
        "n_iter": int(np.max(classifier[-1].n_iter_)),
        "converged": int(words.startswith("converged")),
    }
