"""Which image sets are tasks of the finetuning experiment: a rule fixed before any finetuning run.

Only the frozen model on validation images decides, so neither a finetuning result nor a test image has a say. Run as
`python -m vitplast.analysis.screening --write data/tasks.csv` it screens `CANDIDATES`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from vitplast.errors import InputError
from vitplast.images import describe, key_name, open_images
from vitplast.images.names import parse
from vitplast.probe import linear_probe

if TYPE_CHECKING:
    from vitplast.models import LoadedModel

#: The rule: confidence of the interval, bounds of its upper end and of the accuracy, images for training at least.
CONFIDENCE, HIGHEST_END, HIGHEST_ACCURACY, FEWEST_IMAGES = 0.95, 0.99, 0.97, 300
#: Images of the probe, and the seed that divides training from validation images.
TRAIN_IMAGES, VALIDATION_IMAGES, SEED = 640, 400, 0
#: What the pictures of a set are. Only what a person or a camera made counts; a set that is not named here does not.
MADE_OF = {
    "digits": "scans", "mnist5k": "scans", "fashion_mnist": "photos", "elpv": "photos", "emoji": "drawings",
    "stamps": "photos and drawings", "clipart": "drawings", "icons": "drawings", "glyphs": "glyphs",
    "photocrops": "photos", "cifar10": "photos", "cifar100": "photos", "flowers102": "photos", "pets": "photos",
}  # fmt: skip
#: What the table of sets says where no licence is stated.
NO_LICENCE = "none stated"
CANDIDATES = ("digits", "mnist5k", "fashion_mnist", "elpv", "emoji", "stamps", "clipart", "icons", "glyphs",
              "photocrops", "photocrops:contrast:5", "photocrops:gaussian_noise:5", "photocrops:motion_blur:5",
              "photocrops:snow:5", "photocrops:speckle_noise:5")  # fmt: skip
NEEDED = ("dataset", "images", "licence", "made_of", "chance", "correct", "validation_images")
COLUMNS = ("dataset", "cluster", "classes", "images", "licence", "origin", "made_of", "chance", "validation_images",
           "probe_accuracy", "low", "high", "kept", "reason")  # fmt: skip


def screen(rows: pd.DataFrame | Iterable[dict]) -> pd.DataFrame:
    """`low > chance`, `high < 0.99` and `accuracy <= 0.97`, licence and pictures allow it, `images >= 300`.

    `low` and `high` are the ends of Wilson's 95 % interval of the accuracy `correct / validation_images`. A task is
    kept if all hold; else `reason` names everything that fails. The rule is this project's own.

    Parameters
    ----------
    rows : DataFrame or dicts
        One row a set: dataset, images (for training), licence, made_of ("" if simulated or unknown), chance (share of
        the most frequent class), correct and validation_images (numbers of images); further columns are kept.

    Returns
    -------
    pandas.DataFrame
        The rows with probe_accuracy, low, high (shares), kept (bool) and reason (text).

    Raises
    ------
    InputError
        If a column is missing, there are no rows, a set is there twice, or numbers are not possible.
    """
    table = pd.DataFrame(rows).reset_index(drop=True)
    lacking = [name for name in NEEDED if name not in table]
    if lacking:
        raise InputError(f"rows lack {', '.join(lacking)}; they have: {', '.join(map(str, table)) or 'nothing'}")
    twice = table["dataset"][table["dataset"].duplicated()].tolist()
    if twice:
        raise InputError(f"sets are there twice: {', '.join(twice)}")
    wrong = ~(table["correct"].between(0, table["validation_images"]) & table["chance"].between(0, 1))
    wrong |= table["validation_images"] < 1
    if wrong.any():
        raise InputError(f"impossible numbers (correct, validation_images, chance) for {list(table['dataset'][wrong])}")
    intervals = [
        stats.binomtest(int(k), int(n)).proportion_ci(CONFIDENCE, method="wilson")
        for k, n in zip(table["correct"], table["validation_images"], strict=True)
    ]
    table["probe_accuracy"] = table["correct"] / table["validation_images"]
    table["low"], table["high"] = [i.low for i in intervals], [i.high for i in intervals]
    reasons = [_reasons(row) for row in table.to_dict("records")]
    table["kept"] = [not found for found in reasons]
    table["reason"] = ["; ".join(found) or "all conditions hold" for found in reasons]
    return table


def _reasons(row: dict) -> list[str]:
    """What is against a task, in words."""
    found = []
    if not row["low"] > row["chance"]:
        found.append(f"not above chance: lower end {row['low']:.3f}, most frequent class {row['chance']:.3f}")
    if row["high"] >= HIGHEST_END or row["probe_accuracy"] > HIGHEST_ACCURACY:
        found.append(f"saturated: accuracy {row['probe_accuracy']:.3f}, upper end {row['high']:.3f}")
    if not row["licence"] or row["licence"] == NO_LICENCE:
        found.append("no licence is stated")
    if not row["made_of"]:
        found.append("simulated, or not known to be made by a person or a camera")
    if row["images"] < FEWEST_IMAGES:
        found.append(f"{row['images']} training images, at least {FEWEST_IMAGES} are needed")
    return found


def probe_rows(
    sets: Iterable[str], model: LoadedModel, *, size: int = 56, seed: int = SEED, download: bool = False
) -> pd.DataFrame:
    """`correct = accuracy * n` of the linear probe of the frozen model, trained on train, scored on validation images.

    At most 640 training and 400 validation images, the first of each split in its fixed shuffled order; no test image
    is opened. `chance` is the share of the most frequent class among those validation images.

    Returns
    -------
    pandas.DataFrame
        What `screen` needs, with cluster (the set without its corruption), classes and origin.

    Raises
    ------
    VitplastError
        What `open_images` and `linear_probe` raise, among others for a set that is not on this machine.
    """
    rows = []
    for name in sets:
        about, found = describe(name), open_images(name, size=size, seed=seed, download=download)
        train, held = (
            split.subset(range(min(n, len(split))))
            for split, n in ((found.train, TRAIN_IMAGES), (found.validation, VALIDATION_IMAGES))
        )
        accuracy = float(linear_probe(model, train, held).test_accuracy)
        base = parse(name).entry.name
        rows.append(
            {
                "dataset": key_name(name),
                "cluster": base,
                "classes": len(found.classes),
                "images": len(found.train),
                "licence": about["licence"],
                "origin": about["origin"],
                "made_of": MADE_OF.get(base, ""),
                "chance": float(np.bincount(held.labels).max() / len(held)),
                "correct": round(accuracy * len(held)),
                "validation_images": len(held),
            }
        )
    return pd.DataFrame(rows)


def write_tasks(table: pd.DataFrame, path: Path, model: str) -> None:
    """The screened table as CSV, with first lines that say how it is made; numbers have four places."""
    head = (
        f"# Candidates for the finetuning experiment and which of them are its tasks: the rule of "
        f"vitplast.analysis.screening, fixed before any finetuning run.\n"
        f"# Linear probe of the frozen {model}, seed {SEED}: at most {TRAIN_IMAGES} training images, accuracy on at "
        f"most {VALIDATION_IMAGES} validation images (never test). low, high: Wilson interval of {CONFIDENCE:.0%}.\n"
        f"# Kept: low > chance; high < {HIGHEST_END} and accuracy <= {HIGHEST_ACCURACY}; a licence that allows "
        f"research and pictures by a person or a camera; at least {FEWEST_IMAGES} training images.\n"
        f"# images: those of the training split. chance: share of the most frequent class of those validation images.\n"
    )
    path.write_text(head + table[list(COLUMNS)].to_csv(index=False, float_format="%.4f"), encoding="utf-8")


def main() -> None:
    from vitplast.models import load_model

    parser = argparse.ArgumentParser(prog="vitplast.analysis.screening", description=__doc__)
    parser.add_argument("--write", type=Path, help="file for the table, as data/tasks.csv")
    parser.add_argument("--model", default="vit_small_patch14_dinov2.packaged")
    parser.add_argument("--size", type=int, default=56, help="pixels")
    parser.add_argument("--download", action="store_true", help="allow downloads")
    options = parser.parse_args()
    model = load_model(options.model, img_size=options.size)
    table = screen(probe_rows(CANDIDATES, model, size=options.size, download=options.download))
    print(table[["dataset", "chance", "probe_accuracy", "low", "high", "kept", "reason"]].to_string())
    if options.write:
        write_tasks(table, options.write, f"{options.model}, {options.size} px")


if __name__ == "__main__":
    main()
