"""Cost of a plasticity measurement against plain forward passes: `python -m vitplast.bench`.

Times are ratios: each repetition times the two sides one after the other, in one process, and the median over
repetitions is printed as `name: value`, with the smallest and largest ratio. Memory is the growth of the peak beyond
the loaded model, in MiB, each in a process of its own.

- plasticity_common_vs_two_forwards: all rates of a batch of pairs, common input, over a forward pass on each side.
- plasticity_in_situ_vs_two_forwards: the same in situ.
- plasticity_setup_vs_two_forwards: what is computed once per model for common input (`CommonInput`).
- shared_source_vs_separate: several targets with one source in one call, over one call per target (common input).
- plasticity_memory_growth_vs_forward: peak of the measurement (set-up and one batch) over that of one forward pass on
  as many images as there are pairs in the batch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vitplast.measure import CommonInput, rates_of_change

Step = Callable[[], object]


def make(name: str, batch: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """A timm model with random weights in evaluation mode, and two batches of noise of its image size."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0).eval()
    shape = (batch, *(model.default_cfg["input_size"]))
    return model, torch.randn(shape), torch.randn(shape)


def steps(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, targets: int) -> dict[str, Step]:
    """What is timed, by name."""
    setup = CommonInput(model)
    others = {str(k): y + k / 8 for k in range(targets)}
    batch = len(x)

    def forwards() -> None:
        with torch.no_grad():
            model(x)
            model(y)

    def rates(convention: str, target: object, size: int = batch) -> object:
        shared = setup if convention == "common" else None
        return rates_of_change(model, x, target, convention=convention, batch_size=size, setup=shared)

    return {
        "two_forwards": forwards,
        "plasticity_common": lambda: rates("common", y),
        "plasticity_in_situ": lambda: rates("in_situ", y),
        "plasticity_setup": lambda: CommonInput(model),
        "shared_source": lambda: rates("common", others),
        "separate": lambda: [rates("common", other) for other in others.values()],
    }


def compare(numerator: Step, denominator: Step, repeats: int) -> list[float]:
    """Ratios of the time of two steps run in turn, see `paired`."""
    return [a / b for a, b in paired(numerator, denominator, repeats)]


def paired(first: Step, second: Step, repeats: int) -> list[tuple[float, float]]:
    """Seconds of two steps run in turn, the second one before the first.

    With one thread it is processor time, which other work on the machine disturbs less.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found = []
    for _ in range(repeats):
        start = clock()
        second()
        between = clock()
        first()
        found.append((clock() - between, between - start))
    return found


def peak_growth(what: str, name: str, batch: int) -> float:
    """MiB by which the peak of this process grows beyond the loaded model, while `what` runs once."""
    model, x, y = make(name, batch)
    before = status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = status("VmHWM")
    if what == "forward":
        with torch.no_grad():
            model(x)
    else:
        rates_of_change(model, x, y, convention=what, batch_size=batch)
    return (status("VmHWM") - before) / 1024


def status(field: str) -> int:
    """A field of /proc/self/status in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise SystemExit(f"no {field} in /proc/self/status: memory is measured on Linux only")


def _growth_of_child(what: str, args: argparse.Namespace) -> float:
    command = [
        sys.executable,
        "-m",
        "vitplast.bench",
        "--growth-of",
        what,
        "--model",
        args.model,
        "--batch",
        str(args.batch),
        "--threads",
        str(args.threads),
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitplast.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_base_patch16_224", help="timm model, random weights")
    parser.add_argument("--batch", type=int, default=8, help="pairs in a batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each comparison")
    parser.add_argument("--targets", type=int, default=4, help="targets that share a source")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to see that everything runs")
    parser.add_argument("--growth-of", choices=("forward", "common", "in_situ"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.smoke:
        args.model, args.batch, args.repeats, args.targets = "vit_tiny_patch16_224", 2, 3, 2
    torch.set_num_threads(args.threads)
    if args.growth_of:
        print(peak_growth(args.growth_of, args.model, args.batch))
        return
    work = steps(*make(args.model, args.batch), args.targets)
    for step in work.values():
        step()
    for numerator, denominator, label in (
        ("plasticity_common", "two_forwards", "plasticity_common_vs_two_forwards"),
        ("plasticity_in_situ", "two_forwards", "plasticity_in_situ_vs_two_forwards"),
        ("plasticity_setup", "two_forwards", "plasticity_setup_vs_two_forwards"),
        ("shared_source", "separate", "shared_source_vs_separate"),
    ):
        ratios = compare(work[numerator], work[denominator], args.repeats)
        print(f"{label}: {statistics.median(ratios):.3f}", flush=True)
        print(f"  smallest {min(ratios):.3f}, largest {max(ratios):.3f}, {len(ratios)} pairs", flush=True)
    growth = {what: _growth_of_child(what, args) for what in ("forward", "common", "in_situ")}
    print(f"plasticity_memory_growth_vs_forward: {growth['common'] / growth['forward']:.3f}")
    print(f"plasticity_in_situ_memory_growth_vs_forward: {growth['in_situ'] / growth['forward']:.3f}")
    print("  " + ", ".join(f"{what} {mib:.0f} MiB" for what, mib in growth.items()))


if __name__ == "__main__":
    main()
