"""Speed of a training step, configuration by configuration, against a plain one: `python -m vitplast.bench_finetune`.

Both sides train the same parameters on the same batch, with clipping and SGD; the plain side is timm's forward pass,
PyTorch's loss, backward pass, clipping and optimizer, and nothing else. Ours adds the checks and the gradient norm of
each group, and leaves out what need not be computed. For the head ours works on encoded images that are there already,
as in every run after the first on the same images. Each repetition times one side after the other in one process (see
`vitplast.bench.compare`); the median ratio counts. With `--write` the numbers go to a CSV file that the book shows.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from vitplast.bench import paired
from vitplast.components import CONFIGURATIONS, select
from vitplast.models import load_model
from vitplast.results.provenance import machine
from vitplast.training.precision import resolve_precision
from vitplast.training.recipe import Recipe
from vitplast.training.stages import Stages
from vitplast.training.step import Stepper

MODELS = ("vit_small_patch14_dinov2.packaged", "vit_micro_patch14_56.fashion_mnist")
COLUMNS = ("model", "machine", "threads", "precision", "batch", "configuration", "plain_images_per_second",
           "images_per_second", "time_ratio", "smallest", "largest", "repeats")  # fmt: skip
#: A rate that moves random weights by next to nothing, so that thousands of steps stay finite.
RATE = 1e-4

Step = Callable[[], object]


def plain_step(model: nn.Module, names: set[str], x: Tensor, y: Tensor) -> Step:
    """A training step as anybody would write it: what is not in `names` has no gradient."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(x), y)
        loss.backward()
        clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def own_step(model: nn.Module, configuration: str, x: Tensor, y: Tensor, precision: str) -> Step:
    """The step of `vitplast.finetune`; with nothing but head and norm to train, on encoded images."""
    trained = select(model, configuration)
    recipe, stages, forward = Recipe(components=configuration, lr=RATE, precision=precision), Stages(model), None
    if configuration == "head" and stages.splits:
        with torch.no_grad():
            x, forward = stages.encode(x), stages.classify
    stepper = Stepper(forward or stages, model, trained, recipe, precision=precision)
    return lambda: stepper.step(x, y, RATE).loss


def measured(name: str, configuration: str, *, batch: int = 16, repeats: int = 9, steps: int = 1) -> dict[str, object]:
    """One row of the table; `steps` training steps on each side in each of `repeats` repetitions."""
    torch.manual_seed(0)
    sides = [load_model(name, weights="random", img_size=56, num_classes=10).model for _ in range(2)]
    x, y = torch.randn(batch, 3, 56, 56), torch.arange(batch) % 10
    precision = resolve_precision("auto", "cpu", width=sides[0].embed_dim)
    names = {n for group in select(sides[0], configuration).values() for n in group}
    plain, own = plain_step(sides[0], names, x, y), own_step(sides[1], configuration, x, y, precision)
    times = paired(_several(own, steps), _several(plain, steps), repeats)
    ratios = [a / b for a, b in times]
    rates = [steps * batch / statistics.median(column) for column in zip(*times, strict=True)]
    values = (name, machine(), torch.get_num_threads(), precision, batch, configuration, round(rates[1], 1),
              round(rates[0], 1), round(statistics.median(ratios), 3), round(min(ratios), 3), round(max(ratios), 3),
              repeats)  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _several(step: Step, count: int) -> Step:
    def run() -> None:
        for _ in range(count):
            step()

    run()  # once, so that nothing is timed that happens only once
    return run


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitplast.bench_finetune", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="models, with random weights")
    parser.add_argument("--configurations", nargs="+", default=list(CONFIGURATIONS), choices=CONFIGURATIONS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", default="", help="CSV file for the numbers")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rows = []
    for name in args.models:
        steps = 1 if "small" in name else 8
        for configuration in args.configurations:
            row = measured(name, configuration, batch=args.batch, repeats=args.repeats, steps=steps)
            print("{model} {configuration}: {images_per_second} images/s, plain {plain_images_per_second}, time ratio "
                  "{time_ratio} ({smallest} to {largest})".format(**row), flush=True)  # fmt: skip
            rows.append(row)
    if args.write:
        with open(args.write, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
