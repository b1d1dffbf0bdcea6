"""Which image is in which split: a rule by hash, the same on every machine.

Sets without a test split of their own give 20 % of each class to test, whatever the seed. The rest, or the official
training split where there is no official validation split, is the pool: 80 % of each class train, 20 % validation,
and this division depends on the seed. Within a split the images are in a fixed shuffled order, so that the first n are
a random sample. `source` is train and validation together, independent of the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

SPLITS = ("source", "train", "validation", "test")
TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2


def rank(*parts: str) -> int:
    """Sixty-four bits that depend on the parts alone."""
    return int.from_bytes(hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest(), "big")


def shuffled(rows: Sequence[int], ids: Sequence[str], base: str) -> np.ndarray:
    """The rows in the order of the hash of their ids."""
    return np.array(sorted((int(r) for r in rows), key=lambda r: (rank("order", base, ids[r]), r)), dtype=np.int64)


def authors_split(n: int) -> dict[str, np.ndarray]:
    """Rows of pool and test of `n` images by the rule of the paper's code, for sets without an official division.

    A permutation by numpy's old generator with seed 42: its first floor(0.8 n) rows are the pool, the rest the test,
    each in ascending order. It depends on n alone, so images of the same numbers are alike divided in every set of n.
    """
    order = np.random.RandomState(42).permutation(n)  # the old generator is the rule
    cut = int(0.8 * n)
    return {"pool": np.sort(order[:cut]), "test": np.sort(order[cut:])}


def divide(
    ids: Sequence[str],
    labels: np.ndarray | None,
    units: Sequence[str],
    given: dict[str, np.ndarray],
    *,
    base: str,
    seed: int,
) -> dict[str, np.ndarray]:
    """Rows of each split, in shuffled order. `given`: official rows of `source`, `pool`, `train`, `validation`, `test`.

    Images of one unit stay together. With nothing given, test and pool are made by the rule of this module.
    """
    if set(given) == {"source"}:
        return {"source": shuffled(given["source"], ids, base)}
    parts = dict(given)
    if not parts:
        test = share(np.arange(len(ids)), labels, units, TEST_SHARE, base, "test")
        parts = {"test": np.flatnonzero(test), "pool": np.flatnonzero(~test)}
    if "pool" in parts:
        pool = np.asarray(parts.pop("pool"))
        held = share(pool, labels, units, VALIDATION_SHARE, base, "validation", str(seed))
        parts |= {"validation": pool[held], "train": pool[~held]}
    parts["source"] = np.concatenate([parts[k] for k in ("train", "validation") if k in parts])
    return {name: shuffled(parts[name], ids, base) for name in SPLITS if name in parts}


def share(rows: np.ndarray, labels: np.ndarray | None, units: Sequence[str], fraction: float, *key: str) -> np.ndarray:
    """True for about `fraction` of the rows of each class, whole units in the order of their hash with `key`.

    A unit is taken while it fits, so no class gives more than `fraction` of its images (rounded). A unit counts for
    the class of its first image.
    """
    members: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        members.setdefault(units[row], []).append(position)
    by_class: dict[int, list[str]] = {}
    for unit, positions in members.items():
        by_class.setdefault(-1 if labels is None else int(labels[rows[positions[0]]]), []).append(unit)
    taken = np.zeros(len(rows), dtype=bool)
    for names in by_class.values():
        room = round(fraction * sum(len(members[unit]) for unit in names))
        for unit in sorted(names, key=lambda unit: (rank(*key, unit), unit)):
            if len(members[unit]) <= room:
                room -= len(members[unit])
                taken[members[unit]] = True
    return taken
