"""What one unit of work costs on a GPU: operations, seconds, memory with the micro-batch that fits, disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vitplast.cost import disk, measuring
from vitplast.cost.devices import Gpu
from vitplast.cost.flops import forward_flops, training_flops
from vitplast.cost.memory import GIB, images_that_fit, run_bytes, transient_bytes
from vitplast.cost.shapes import Shape
from vitplast.errors import InputError

if TYPE_CHECKING:
    from vitplast.runs.unit import Unit

#: Seconds that a unit takes before and after its work: kernel, imports, CUDA, loading weights, writing. An assumption.
START_SECONDS = 20.0
#: FLOP/s of the processor in float64, for logistic regressions. An assumption.
CPU_RATE = 5e10
#: Images at a time outside training.
EVALUATION_BATCH = 64
#: Tokens of a text for models that read text.
TEXT_TOKENS = 128


@dataclass(frozen=True)
class UnitCost:
    """Cost of one unit; `flops` by precision on the GPU, `cpu_flops` on the processor; `images` through the model.

    `micro_batch` and `parts` are of training (0 elsewhere): images in memory at a time, and such parts of a step.
    `fits` is False, with `why`, where not even one image does; then `memory_bytes` is what one image needs.
    """

    results: int
    images: int
    flops: Mapping[str, int]
    cpu_flops: int
    memory_bytes: int
    disk_bytes: int
    micro_batch: int = 0
    parts: int = 0
    fits: bool = True
    why: str = ""
    host_bytes: int = 0
    sets: tuple[str, ...] = field(default=(), compare=False)

    def gpu_seconds(self, gpu: Gpu, utilisation: Mapping[str, float] | None = None) -> float:
        """`START_SECONDS` and operations over the rate in use, one precision after the other."""
        given = utilisation or {}
        return START_SECONDS + sum(n / gpu.rate(name, given.get(name)) for name, n in self.flops.items())

    @property
    def cpu_seconds(self) -> float:
        """Operations of the processor over `CPU_RATE`; the GPU waits."""
        return self.cpu_flops / CPU_RATE


def unit_cost(unit: Unit, gpu: Gpu) -> UnitCost:
    """The cost of a unit of any kind of notebook, from its parameters alone: no weights, no images.

    Raises
    ------
    InputError
        If the model is not known.
    """
    runs = list(unit.runs.values())
    first = runs[0]
    if unit.kind == "search":
        size = len(runs) * disk.RESULT_BYTES * disk.COPIES + disk.NOTEBOOK_BYTES
        return UnitCost(len(runs), 0, {}, 0, 0, size)
    data = first.get("dataset") or first.get("target") or ""
    shape = shape_of(first, classes_of(data) if "components" in first or unit.kind == "landscape" else 0)
    found = {
        "finetune": _finetune, "plasticity": _pairs, "theory": _pairs, "bounds": _bounds, "depth": _features,
        "probe": _features, "landscape": _landscape,
    }.get(unit.kind, _other)(unit, runs, shape, gpu)  # fmt: skip
    sizes = sum(disk.result_bytes(unit.kind, run, shape) for run in runs)
    sets = tuple(dict.fromkeys(run[n] for run in runs for n in ("source", "target", "dataset") if run.get(n)))
    return replace(found, disk_bytes=sizes * disk.COPIES + disk.NOTEBOOK_BYTES, sets=sets)


def shape_of(run: Mapping[str, Any], classes: int = 0) -> Shape:
    """The shape of the model that a run names; of a text model at `TEXT_TOKENS`."""
    from vitplast.models.text_names import is_text_model

    if is_text_model(run["model"]):
        return _text_shape(run["model"])
    return _cached_shape(run["model"], run.get("img_size", 0), classes)


@lru_cache(maxsize=256)
def _cached_shape(name: str, size: int, classes: int) -> Shape:
    return Shape.named(name, size, classes)


@lru_cache(maxsize=16)
def _text_shape(name: str) -> Shape:
    from vitplast.models.text_names import GPT2_SIZES

    if name not in GPT2_SIZES:
        raise InputError(f"the shape of {name!r} is not known here; known text models: {', '.join(GPT2_SIZES)}")
    _, width, depth, heads = GPT2_SIZES[name]
    return Shape(width, depth, heads, 4 * width, TEXT_TOKENS, classes=0, patch_inputs=0, prefix=0)


@lru_cache(maxsize=512)
def _described(name: str) -> dict[str, Any]:
    from vitplast import images

    try:
        return images.describe(name)
    except InputError:  # a set of texts
        return {"classes": 0, "splits": {}}


def classes_of(name: str) -> int:
    return int(_described(name)["classes"])


def split_sizes(run: Mapping[str, Any]) -> tuple[int, int, int]:
    """Training, validation and test images of a run: those of the set (about 2,000 if unknown), within its limits."""
    known = _described(run["dataset"])["splits"]
    limits = [run.get(f"{split}_images", 0) for split in ("train", "validation", "test")]
    sizes = [known.get(split, 2000) for split in ("train", "validation", "test")]
    train, validation, test = (min(n, most) if most else n for n, most in zip(sizes, limits, strict=True))
    if run.get("per_class", 0):
        train = min(train, run["per_class"] * classes_of(run["dataset"]))
    return train, validation, test


def precision_of(run: Mapping[str, Any], gpu: Gpu) -> str:
    """The run's precision; `auto` is bfloat16 where the GPU has it, else float32."""
    chosen = run.get("precision", "float32")
    return ("bfloat16" if gpu.has_bfloat16 else "float32") if chosen == "auto" else chosen


def _finetune(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    run = runs[0]
    precision, components = precision_of(run, gpu), run["components"]
    train, validation, test = split_sizes(run)
    outer = {"train_head": run["train_head"], "train_norm": run["train_norm"]}
    seen, looked = run["steps"] * run["batch_size"], disk.validations(run) * validation + test
    encoded = run["augment"] == "none" and set(components.split("+")) <= {"norm", "head"}
    if encoded:
        images = min(train, seen) + validation + test
        flops = images * forward_flops(shape) * len({r["seed"] for r in runs})
    else:
        images = len(runs) * (seen + looked)
        own = training_flops(shape, components, lora_rank=run["lora_rank"], **outer)
        flops = len(runs) * (seen * own + looked * forward_flops(shape, run["lora_rank"], components))
    if run["plasticity_pairs"]:
        flops += 2 * len(runs) * run["plasticity_pairs"] * measuring.pair_flops(shape, ("common", "in_situ"))
    most = math.ceil(run["batch_size"] / run["accumulation"])
    what = {
        "components": components, "precision": precision, "lora_rank": run["lora_rank"], "optimizer": run["optimizer"],
        **outer,
    }  # fmt: skip
    micro, fits, why = 1, True, ""
    try:
        micro = min(most, images_that_fit(shape, budget_bytes=gpu.budget_bytes, **what))
    except InputError as error:
        fits, why = False, str(error)
    parts = math.ceil(run["batch_size"] / micro)
    memory = run_bytes(shape, images=math.ceil(run["batch_size"] / parts), **what)
    return UnitCost(
        len(runs), images, {precision: flops}, 0, memory, 0, math.ceil(run["batch_size"] / parts), parts, fits, why,
        _host_bytes(run, train, validation, test),
    )  # fmt: skip


def _pairs(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    run = runs[0]
    each = run["pairs"] * measuring.pair_flops(shape, run["conventions"])
    once = measuring.gram_flops(shape) if "common" in run["conventions"] else 0
    images, precision = 2 * run["pairs"] * len(runs), precision_of(run, gpu)
    return _forward_only(runs, images, len(runs) * each + once, shape, gpu, precision, run["batch_size"])


def _bounds(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    images = 2 * runs[0]["pairs"] * len(runs)
    flops = images * forward_flops(shape)
    found = _forward_only(runs, images, flops, shape, gpu, "float32", runs[0]["batch_size"])
    return replace(found, cpu_flops=measuring.bounds_flops(shape) * len(runs))


def _features(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    run = runs[0]
    train, _, test = split_sizes(run)
    images, classes = (train + test) * len(runs), max(2, classes_of(run["dataset"]))
    depth = unit.kind == "depth"
    one = (
        measuring.depth_logistic_flops(shape, train, classes)
        if depth
        else measuring.logistic_flops(train, shape.width, classes)
    )
    found = _forward_only(
        runs, images, images * forward_flops(shape), shape, gpu, "float32", run.get("batch_size", EVALUATION_BATCH)
    )
    kept = 4 * (train + test) * shape.depth * (6 * shape.width + 2 * shape.hidden) if depth else 0
    return replace(found, cpu_flops=one * len(runs), host_bytes=found.host_bytes + 2 * kept)


def _landscape(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    run = runs[0]
    shown = {"corrected": run["images"], "as_published": 4}
    seen = len(run["components"]) * run["grid"] ** 2 * sum(shown[v] for v in run["variants"])
    steps = (
        2 * run["steps"] * sum(shown[v] * training_flops(shape, c) for v in run["variants"] for c in run["components"])
    )
    flops = (seen + run["head_images"]) * forward_flops(shape) + steps
    images = (seen + run["head_images"]) * len(runs)
    found = _forward_only(runs, images, flops * len(runs), shape, gpu, "float32", run["images"])
    memory = run_bytes(shape, components="all", images=run["images"])
    return replace(found, memory_bytes=memory)


def _other(unit: Unit, runs: list[dict[str, Any]], shape: Shape, gpu: Gpu) -> UnitCost:
    """Kinds that the paper has not: `Unit.work` counts their images, training three times."""
    images = int(unit.work)
    return _forward_only(runs, images, images * forward_flops(shape), shape, gpu, "float32", EVALUATION_BATCH)


def _forward_only(
    runs: list[dict[str, Any]], images: int, flops: int, shape: Shape, gpu: Gpu, precision: str, batch: int
) -> UnitCost:
    """A unit that trains nothing: weights, Gram matrices of the linear layers, one block's activations."""
    grams = 4 * 2 * shape.depth * shape.width**2 if "conventions" in runs[0] else 0
    memory = 4 * shape.all_parameters + grams + transient_bytes(shape, images=batch, precision=precision)
    fits = memory <= gpu.budget_bytes
    why = "" if fits else f"{memory / GIB:.1f} GiB are needed in batches of {batch}"
    return UnitCost(len(runs), images, {precision: flops}, 0, memory, 0, fits=fits, why=why, host_bytes=3 * GIB)


def _host_bytes(run: Mapping[str, Any], train: int, validation: int, test: int) -> int:
    """Memory of the machine: Python with PyTorch, and the pictures in bytes, those of training at their own size."""
    pixels = 3 * (run["img_size"] or 224) ** 2
    kept = validation + test + (0 if run["augment"] == "original" else train)
    return 3 * GIB + pixels * kept
