"""Cost of the bounds of a model: `python -m vitplast.bench_bounds`.

Seconds for the table of the five components (`vitplast.bounds.bounds`) and for every bound of the theory
(`vitplast.theory.limits`), measured on a model with random weights; the peak of memory beyond the loaded model in MiB,
in a process of its own, beside the size of one E x E matrix a head. With `--write` the numbers go to a CSV file that
the book shows.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import xarray as xr
from torch import nn

from vitplast.bench import make, status
from vitplast.bounds import bounds, token_statistics
from vitplast.measure.sides import Side
from vitplast.results.provenance import machine
from vitplast.theory.limits import Block, limits
from vitplast.theory.walk import Walk, walk


def every_bound(model: nn.Module, tokens: xr.Dataset, seen: Walk) -> int:
    """Computes every bound of every block; gives their number."""
    width, count = int(tokens.attrs["width"]), int(tokens.attrs["tokens"])
    return sum(
        entry[-1]() >= 0
        for layer, module in enumerate(model.blocks)
        for entry in limits(Block(module, width, count), layer, tokens, seen)
    )


def inputs(name: str) -> tuple[nn.Module, xr.Dataset, Walk]:
    """A model with random weights, and what the bounds need to know of two pairs of noise."""
    model, x, y = make(name, 2)
    tokens = token_statistics(model, [x, y])
    blocks = {
        layer: Block(b, int(tokens.attrs["width"]), int(tokens.attrs["tokens"])) for layer, b in enumerate(model.blocks)
    }
    eps = {(layer, k): b.norm(k).eps for layer, b in blocks.items() for k in ("LN1", "LN2")}
    sides = (Side("source", x, model), Side("target", y, model))
    index = torch.arange(2).numpy()
    seen = walk(model, *sides, index, index, {}, eps, {}, index % 2 == 0, keep=0, batch_size=4)
    return model, tokens, seen


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitplast.bench_bounds", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224", help="timm model, random weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", default="", help="CSV file for the numbers")
    parser.add_argument("--growth", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model, tokens, seen = inputs(args.model)
    if args.growth:
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        every_bound(model, tokens, seen)
        print((status("VmHWM") - before) / 1024)
        return
    work = {"five components": lambda: bounds(model, tokens), "every bound": lambda: every_bound(model, tokens, seen)}
    rows = []
    for what, step in work.items():
        times = []
        for _ in range(args.repeats):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        rows.append((what, statistics.median(times), "s"))
    command = [sys.executable, "-m", "vitplast.bench_bounds", "--growth", "--model", args.model]
    growth = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows.append(("peak of memory, every bound", growth, "MiB"))
    per_head = model.embed_dim**2 * model.blocks[0].attn.num_heads * 8 / 2**20
    rows.append(("one E x E matrix for every head of a block", per_head, "MiB"))
    for what, value, unit in rows:
        print(f"{what}: {value:.1f} {unit}", flush=True)
    if args.write:
        with open(args.write, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("model", "machine", "threads", "what", "value", "unit"))
            table.writerows((args.model, machine(), args.threads, w, round(v, 2), u) for w, v, u in rows)


if __name__ == "__main__":
    main()
