"""Made-up sets of single photos: DomainNet with its lists, Flowers102, Pets, ImageNet's validation folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitplast.images.download import file_hash
from vitplast.images.made_up_pictures import Amount, Painter
from vitplast.images.published import Facts


def domainnet(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """A domain and its lists: the first `pool` pictures of a class for training, the others for test."""
    domain, n = base.name, amount.of(name)
    paint = Painter(f"domainnet {domain}", n, amount.seed)
    names = ["aircraft_carrier", "airplane", *(f"made_up_{k:03d}" for k in range(2, n))]
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for label, class_name in enumerate(names):
        for k in range(amount.pool + amount.test):
            file = f"{class_name}/{domain}_{label + 1:03d}_{k + 1:06d}.jpg"
            paint.save(base / file, label, amount.side)
            lines["train" if k < amount.pool else "test"].append(f"{domain}/{file} {label}")
    for part, listed in lines.items():
        (base.parent / f"{domain}_{part}.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    pool, test = len(lines["train"]), len(lines["test"])
    return {
        f"domainnet_{domain}": Facts(n, {"all": pool + test}, exact=False, made_up=True),
        f"domainnet_{domain}_official": Facts(n, {"pool": pool, "test": test}, made_up=True),
    }


def flowers(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """Pictures in a random order of classes, and the two `.mat` files that say which is which."""
    from scipy.io import savemat

    n = amount.of(name)
    paint = Painter(name, n, amount.seed)
    sizes = {"trnid": n * amount.pool, "valid": n * amount.test, "tstid": n * amount.test}
    order = paint.rng.permutation(sum(sizes.values())) + 1
    labels, parts, start = np.zeros(len(order), dtype=np.uint8), {}, 0
    for key, size in sizes.items():
        parts[key] = order[start : start + size]
        labels[parts[key] - 1] = np.tile(np.arange(1, n + 1), size // n)
        start += size
    for k, label in enumerate(labels):
        paint.save(base / "jpg" / f"image_{k + 1:05d}.jpg", int(label) - 1, amount.side)
    savemat(base / "imagelabels.mat", {"labels": labels[None]})
    savemat(base / "setid.mat", {key: ids[None].astype(np.uint16) for key, ids in parts.items()})
    md5 = {file: file_hash(base / file, "md5") for file in ("imagelabels.mat", "setid.mat")}
    images = dict(zip(("train", "validation", "test"), sizes.values(), strict=True))
    return {name: Facts(n, images, md5, made_up=True)}


def pets(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """Pictures named by breed, and the two lists."""
    n = amount.of(name)
    paint = Painter(name, n, amount.seed)
    (base / "annotations").mkdir(parents=True, exist_ok=True)
    images = {}
    for part, file, start, size in (
        ("pool", "trainval", 1, amount.pool), ("test", "test", amount.pool + 1, amount.test)
    ):  # fmt: skip
        pictures = [(f"Made_Up_{label:02d}_{k}", label) for label in range(n) for k in range(start, start + size)]
        for stem, label in pictures:
            paint.save(base / "images" / f"{stem}.jpg", label, amount.side)
        text = "".join(f"{stem} {label + 1} 1 1\n" for stem, label in pictures)
        (base / "annotations" / f"{file}.txt").write_text(text, encoding="utf-8")
        images[part] = len(pictures)
    return {name: Facts(n, images, made_up=True)}


def imagenet(name: str, base: Path, amount: Amount) -> dict[str, Facts]:
    """`amount.test` pictures in each folder of a WordNet id."""
    from timm.data import ImageNetInfo

    n = amount.of(name)
    paint, number = Painter(name, n, amount.seed), 0
    for label, wordnet_id in enumerate(ImageNetInfo().label_names()[:n]):
        for _ in range(amount.test):
            number += 1
            paint.save(base / wordnet_id / f"ILSVRC2012_val_{number:08d}.JPEG", label, amount.side)
    return {name: Facts(n, {"source": number}, made_up=True)}
