"""The data check: of every set what is found, missing, laid out wrongly or broken, all of it before any training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitplast.errors import LayoutError, MissingDependencyError, VitplastError
from vitplast.images import check_name, describe, open_images
from vitplast.images.cifar import bad_md5
from vitplast.images.folders import data_folder
from vitplast.images.marker import facts_of
from vitplast.images.names import parse
from vitplast.images.presence import LAYOUTS
from vitplast.images.problems import BadFilesError, MadeUpError
from vitplast.images.published import FACTS
from vitplast.images.registry import REGISTRY
from vitplast.images.sets import ImageSet

#: The eleven downstream sets of the paper and its source.
PAPER_SETS = (
    "cifar10", "cifar100",
    *(f"cifar10_c:{c}:5" for c in ("contrast", "gaussian_noise", "motion_blur", "snow", "speckle_noise")),
    "domainnet_clipart", "domainnet_sketch", "flowers102", "pets", "imagenet_val",
)  # fmt: skip
GOOD = "in order"


@dataclass
class Report:
    """What the check found of one set.

    `state`: in order, missing, wrong layout, bad files, other counts, made up (and not allowed) or failed. `problems`:
    one line each. `notes`: what is worth knowing and no fault. `splits`: a row a split with its images, those expected
    (None where that is not certain), classes, fewest and most images of a class, classes without images. `counts`:
    split to class to images.
    """

    name: str
    state: str = GOOD
    made_up: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    splits: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """A row a split for a table; one row for a set that could not be opened."""
        about = {"set": self.name, "state": self.state + (" (made up)" if self.made_up else "")}
        empty = {"split": "-", "images": 0, "expected": None, "classes": 0, "fewest": 0, "most": 0, "empty": ""}
        rows = [about | empty | row for row in self.splits or [empty]]
        return [row | {"expected": "-" if row["expected"] is None else row["expected"]} for row in rows]

    def values(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def spelled_out(names: Iterable[str]) -> list[str]:
    """Full names without repeats; a set that exists only corrupted stands for all its corruptions at severity 5.

    Raises
    ------
    InputError
        If a name is not allowed, before anything is opened.
    """
    found: list[str] = []
    for name in names:
        entry = REGISTRY.get(name)
        found += [check_name(f"{name}:{c}") for c in entry.corruptions] if entry and entry.corruptions else []
        found += [] if entry and entry.corruptions else [check_name(name)]
    return list(dict.fromkeys(found))


def check_all(
    names: Iterable[str],
    *,
    size: int = 56,
    root: str | Path | None = None,
    download: bool = False,
    read: bool = True,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Report]:
    """A report for every set; a set that is not in order does not stop the check.

    `read`: decode every picture, `jobs` at a time, else only what opening a set looks at. `root`, `download` as in
    `open_images`.
    """
    return [check_set(name, size=size, root=root, download=download, read=read, jobs=jobs, progress=progress)
            for name in spelled_out(names)]  # fmt: skip


def check_set(
    name: str,
    *,
    size: int = 56,
    root: str | Path | None = None,
    download: bool = False,
    read: bool = True,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """What is found of one set."""
    report = Report(parse(name).public)
    try:
        found = open_images(name, size=size, root=root, download=download)
    except VitplastError as error:
        report.state = _state(error)
        report.problems = list(error.bad) if isinstance(error, BadFilesError) else [str(error)]
        return report
    report.made_up = found.made_up
    if read:
        checked = found.check(progress, jobs)
        report.problems, report.splits, report.counts = checked["bad"], checked["splits"], checked["counts"]
        report.problems = _wrong_arrays(name, root) + report.problems
    else:
        report.splits, report.counts = found.summary()
    if report.problems:
        report.state = "bad files"
    _compare(report, name, found)
    return report


def _state(error: VitplastError) -> str:
    if isinstance(error, MadeUpError):
        return "made up"
    if isinstance(error, MissingDependencyError):
        return "missing"
    if isinstance(error, LayoutError):
        return "wrong layout"
    return "bad files" if error.exit_code == 1 and type(error) is not VitplastError else "failed"


def _wrong_arrays(name: str, root: str | Path | None) -> list[str]:
    """Published arrays that are other ones, by their MD5: reading them finds only a wrong shape."""
    parsed = parse(name)
    if not parsed.entry.corruptions:
        return []
    data = Path(root) if root is not None else data_folder()
    known, base = facts_of(parsed.entry.name, data).md5, data / LAYOUTS[parsed.entry.name].path
    return bad_md5({base / file: known[file] for file in ("labels.npy", f"{parsed.corruption}.npy") if file in known})


def _compare(report: Report, name: str, found: ImageSet) -> None:
    """Images and classes beside those that are known of the set."""
    told, entry = describe(name), parse(name).entry
    certain = {} if report.made_up else dict(entry.certain)
    for row in report.splits:
        row["expected"] = certain.get(row["split"])
        if row["expected"] not in (None, row["images"]):
            report.problems.append(f"{row['split']} has {row['images']} images, expected {row['expected']}")
        if row["empty"]:
            empty = row["empty"].split(", ")
            report.notes.append(f"{row['split']}: no images of {len(empty)} classes: {', '.join(empty[:5])}")
    if told["classes"] and not report.made_up and len(found.classes) != told["classes"]:
        report.problems.append(f"{len(found.classes)} classes, expected {told['classes']}")
    if report.problems and report.state == GOOD:
        report.state = "other counts"
    if entry.name in LAYOUTS and not report.made_up:
        known = FACTS[entry.name].images.get("all")
        images = sum(row["images"] for row in report.splits if row["split"] != "source")
        if known not in (None, images):
            report.notes.append(f"{images} images; the cleaned version has {known}: another copy, so other splits")
