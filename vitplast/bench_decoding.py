"""Speed of reading and cropping training pictures on one core, against a GPU: `python -m vitplast.bench_decoding`.

What `augment="original"` does for an image before the model sees it, for arrays as in CIFAR and for JPEG files of two
sizes, in images a second of one core. Beside it what one GPU consumes when ViT-Base trains at 224 pixels: peak rate
times the share of it that is assumed to be in use (`vitplast.cost.devices`) over the operations of a training image,
for all parameters and for LN1 alone, whose backward pass is shorter. The quotient is the number of cores, and so of
`workers`, that keep up. Processor time is measured, so other work on the machine counts little. Pictures are made up,
with the spectrum of photographs (amplitude 1/f), and lie in memory: a disk that is slower than that is not measured.
With `--write` the numbers go to a CSV file that the book shows.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from vitplast.cost.devices import gpu_named
from vitplast.cost.shapes import Shape
from vitplast.cost.throughput import training_images_per_second
from vitplast.images.decode import to_rgb
from vitplast.results.provenance import machine
from vitplast.training.crops import boxes, crop_together, uniforms
from vitplast.training.pictures import Crops

SIZE, BATCH, QUALITY = 224, 64, 90
MODEL = "vit_base_patch16_224"
COLUMNS = ("pictures", "kilobytes", "work", "images_per_second", "slowest", "fastest", "gpu", "utilisation",
           "gpu_images_per_second_all", "cores_all", "gpu_images_per_second_ln1", "cores_ln1", "machine",
           "repeats")  # fmt: skip
#: Height and width of the pictures, and whether they are files.
KINDS = {"array 32 x 32": (32, 32, False), "JPEG 256 x 256": (256, 256, True), "JPEG 500 x 375": (375, 500, True)}

Work = Callable[[], object]


def made_up(height: int, width: int, seed: int) -> np.ndarray:
    """Colour noise with amplitude 1/f, as in photographs: uint8 (height, width, 3)."""
    g = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.fft2(g.standard_normal((4, height, width))) / frequency
    planes = np.fft.ifft2(noise).real
    planes /= planes.std(axis=(1, 2), keepdims=True)
    # Channels of photographs are alike: a common plane, and a quarter of one's own.
    mixed = np.moveaxis(planes[:1] + 0.25 * planes[1:], 0, -1)
    return (128 + 50 * mixed).clip(0, 255).astype(np.uint8)


def as_jpeg(picture: np.ndarray) -> bytes:
    """The picture as a JPEG file of quality 90."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


class Stored:
    """A split of made-up pictures; files are decoded anew each time, as `vitplast.images` decodes them."""

    def __init__(self, height: int, width: int, files: bool, number: int = BATCH) -> None:
        made = [made_up(height, width, seed) for seed in range(number)]
        self.stored = [as_jpeg(picture) for picture in made] if files else made
        self.labels, self.files = np.zeros(number, dtype=np.int64), files

    def __len__(self) -> int:
        return len(self.stored)

    def picture(self, index: int) -> np.ndarray:
        from PIL import Image

        if not self.files:
            return self.stored[index]
        return np.asarray(to_rgb(Image.open(io.BytesIO(self.stored[index]))))

    @property
    def kilobytes(self) -> float:
        sizes = [len(one) if self.files else one.nbytes for one in self.stored]
        return round(sum(sizes) / len(sizes) / 1000, 1)


def works(split: Stored) -> dict[str, Work]:
    """What can be done with one batch, by name."""
    keys = [(0, place, place) for place in range(len(split))]
    crops = Crops(split, SIZE, 0)
    found: dict[str, Work] = {"read, crop, resize, flip": lambda: crops.__getitems__(keys)}
    if split.files:
        found["decode alone"] = lambda: [split.picture(i) for i in range(len(split))]
        return found
    images = torch.from_numpy(np.stack(split.stored)).permute(0, 3, 1, 2).contiguous()
    shape = [np.full(len(images), side) for side in images.shape[-2:]]
    found["draw crops alone (pictures and crops on the GPU)"] = lambda: boxes(uniforms(0, 0, len(images)), *shape)
    found["whole batch at once, on a CPU"] = lambda: crop_together(
        images, boxes(uniforms(0, 0, len(images)), *shape), SIZE
    )
    return found


def measured(
    kind: str, *, repeats: int = 7, gpu: str = "H100", utilisation: float | None = None
) -> list[dict[str, object]]:
    """Rows of the table for one kind of picture: the median of `repeats` batches, on one thread."""
    split = Stored(*KINDS[kind])
    shape, device = Shape.named(MODEL, SIZE, 10), gpu_named(gpu)
    rates = [training_images_per_second(shape, c, device, utilisation=utilisation) for c in ("all", "LN1")]
    share = device.rate("bfloat16", utilisation) / device.rate("bfloat16", 1.0)
    rows = []
    for name, work in works(split).items():
        work()
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            work()
            seconds.append((time.process_time() - start) / len(split))
        speed = 1 / statistics.median(seconds)
        cores = [(round(rate), round(rate / speed, 2)) for rate in rates]
        values = (kind, split.kilobytes, name, round(speed), round(1 / max(seconds)), round(1 / min(seconds)), gpu,
                  round(share, 3), *cores[0], *cores[1], machine(), repeats)  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitplast.bench_decoding", description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="H100", help="GPU to compare with (vitplast.cost.devices)")
    parser.add_argument("--utilisation", type=float, help="share of its peak in use (default: as in the cost plan)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", default="", help="CSV file for the numbers")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for kind in KINDS:
        for row in measured(kind, repeats=args.repeats, gpu=args.gpu, utilisation=args.utilisation):
            print("{pictures} ({kilobytes} kB), {work}: {images_per_second} images/s a core ({slowest} to {fastest}); "
                  "{gpu} takes {gpu_images_per_second_all}: {cores_all} cores (LN1 alone: {cores_ln1})".format(**row),
                  flush=True)  # fmt: skip
            rows.append(row)
    if args.write:
        with open(args.write, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
