"""Made-up CIFAR pickles and CIFAR-C arrays."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from vitplast.images.cifar import CIFAR10_CLASSES, SEVERITY_LEVELS
from vitplast.images.download import file_hash
from vitplast.images.made_up_pictures import Amount, Painter
from vitplast.images.published import Facts


def _cifar_test(name: str, amount: Amount) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training pixels and labels, test pixels and labels; the same whenever they are asked for."""
    paint = Painter(name, amount.of(name), amount.seed)
    train, test = (paint.rng.permutation(np.repeat(np.arange(amount.of(name)), n)) for n in (amount.pool, amount.test))
    return paint.batch(train), train, paint.batch(test), test


def cifar(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """`data_batch_1` and so on, `test_batch`, `batches.meta`; `train`, `test`, `meta`: pickles of protocol 2."""
    base.mkdir(parents=True, exist_ok=True)
    x, y, tx, ty = _cifar_test(name, amount)
    n = amount.of(name)
    if name == "cifar10":
        parts = {f"data_batch_{k + 1}": rows for k, rows in enumerate(np.array_split(np.arange(len(y)), 5))}
        labels, meta = "labels", ("batches.meta", {"label_names": list(CIFAR10_CLASSES[:n])})
    else:
        parts, labels = {"train": np.arange(len(y))}, "fine_labels"
        meta = ("meta", {"fine_label_names": [f"class_{k:02d}" for k in range(n)], "coarse_label_names": ["made_up"]})
    last = "test_batch" if name == "cifar10" else "test"
    files = {file: (x[rows], y[rows]) for file, rows in parts.items()} | {last: (tx, ty)}
    for file, (pixels, numbers) in files.items():
        flat = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)
        content = {"batch_label": "made up", "data": flat, labels: numbers.tolist(),
                   "filenames": [f"made_up_{k:05d}.png" for k in range(len(numbers))]}  # fmt: skip
        _pickle(base / file, content | ({} if labels == "labels" else {"coarse_labels": [0] * len(numbers)}))
    _pickle(base / meta[0], meta[1])
    md5 = {file: file_hash(base / file, "md5") for file in (*files, meta[0])}
    return {name: Facts(n, {"pool": len(y), "test": len(ty)}, md5, made_up=True)}


def _pickle(path: Path, content: dict) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar_c(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """Test images of the clean set under noise that grows with the severity: not the corruptions, only their files."""
    base.mkdir(parents=True, exist_ok=True)
    _, _, x, y = _cifar_test(name.removesuffix("_c"), amount)
    np.save(base / "labels.npy", np.tile(y, SEVERITY_LEVELS).astype(np.uint8))
    for k, corruption in enumerate(amount.corruptions):
        rng = np.random.default_rng([amount.seed, k])
        noisy = [x + rng.normal(0, 12 * severity, x.shape) for severity in range(1, SEVERITY_LEVELS + 1)]
        np.save(base / f"{corruption}.npy", np.clip(np.concatenate(noisy), 0, 255).astype(np.uint8))
    md5 = {f"{file}.npy": file_hash(base / f"{file}.npy", "md5") for file in ("labels", *amount.corruptions)}
    return {name: Facts(amount.of(name), {"severity": len(y)}, md5, made_up=True)}
