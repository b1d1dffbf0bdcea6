"""The cache of pixels: the same pixels with and without it, nothing decoded twice, damage and changes found."""

from __future__ import annotations

import multiprocessing
import os
import time

import numpy as np
import pytest
import torch
from PIL import Image

from vitplast import images
from vitplast.errors import InputError, IntegrityError
from vitplast.images import icons, pixel_cache, sets


@pytest.fixture
def theme(tmp_path, monkeypatch):
    """The icon set from stand-in files, with a cache folder of its own and the cache on."""
    rng = np.random.default_rng(0)
    for name, pattern in icons.ICON_THEMES.items():
        for category in icons.ICON_CLASSES:
            folder = tmp_path / "icons" / pattern.format(icons.OTHER_NAMES.get((name, category), category))
            folder.mkdir(parents=True)
            for k in range(5):
                Image.fromarray(rng.integers(0, 256, (48, 48, 3)).astype(np.uint8)).save(folder / f"{category}{k}.png")
    monkeypatch.setenv("VITPLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(pixel_cache.VARIABLE, "50")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """Names of the pictures that were decoded."""
    seen, own = [], sets.square_array
    monkeypatch.setattr(sets, "square_array", lambda read, where, size: seen.append(where) or own(read, where, size))
    return seen


def pixels(root, name="icons", size=20, split="source"):
    return images.open_images(name, size=size, root=root).splits[split].all()[0]


@pytest.mark.parametrize("name", ["icons", "icons:snow:3", "icons:gaussian_noise:5"])
def test_pixels_are_the_same_and_nothing_is_decoded_twice(theme, decoded, monkeypatch, name):
    first = pixels(theme, name)
    assert len(decoded) == len(first) == 90
    assert torch.equal(pixels(theme, name), first)
    assert torch.equal(images.open_images(name, size=20, root=theme, seed=7).source.images([3, 3]), first[[3, 3]])
    assert len(decoded) == 90
    monkeypatch.setenv(pixel_cache.VARIABLE, "0")
    assert torch.equal(pixels(theme, name), first)
    assert len(decoded) == 180


def test_sizes_and_corruptions_have_files_of_their_own(theme, decoded):
    shapes = {
        pixels(theme, name, size).shape
        for name in ("icons", "icons:contrast:2", "icons:contrast:3")
        for size in (16, 24)
    }
    assert len(shapes) == 2
    assert len(decoded) == 6 * 90
    assert len(list((theme / "cache" / "pixels").iterdir())) == 6


def test_a_changed_picture_is_read_again_and_a_missing_one_is_named(theme, decoded):
    before = pixels(theme)
    path = theme / "icons" / icons.ICON_THEMES["mate"].format("apps") / "apps1.png"
    Image.new("RGB", (48, 48), (10, 20, 30)).save(path)
    decoded.clear()
    after = pixels(theme)
    assert decoded == [str(path)]
    changed = (before != after).flatten(1).any(dim=1)
    assert changed.sum() == 1
    assert after[changed][0, :, 0, 0].tolist() == [10, 20, 30]
    opened = images.open_images("icons", size=20, root=theme).source
    path.unlink()
    with pytest.raises(IntegrityError, match=r"apps1\.png"):
        opened.all()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "zeros"])
def test_a_damaged_file_costs_time_and_no_pixel(theme, decoded, damage):
    first = pixels(theme)
    (path,) = (theme / "cache" / "pixels").iterdir()
    data = bytearray(path.read_bytes())
    length = pixel_cache.DIGEST + 3 * 20 * 20
    filled = [k for k in range(len(data) // length) if any(data[k * length : k * length + pixel_cache.DIGEST])]
    data[filled[4] * length + 100] ^= 1
    path.write_bytes(
        {"cut": data[: filled[-1] * length + 7], "flip": data, "empty": b"", "zeros": bytes(len(data))}[damage]
    )
    decoded.clear()
    assert torch.equal(pixels(theme), first)
    assert len(decoded) == {"cut": 2, "flip": 1, "empty": 90, "zeros": 90}[damage]
    decoded.clear()
    assert torch.equal(pixels(theme), first)
    assert not decoded


def write_many(root, queue):
    queue.put(int(pixels(root, "icons:speckle_noise:4").sum()))


def test_several_processes_and_a_kill_leave_right_pixels(theme, monkeypatch):
    monkeypatch.setattr(pixel_cache, "CHUNK", 4)
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    workers = [fork.Process(target=write_many, args=(theme, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    time.sleep(0.05)
    os.kill(workers[0].pid, 9)
    sums = {queue.get(timeout=60) for _ in workers[1:]}
    for worker in workers:
        worker.join()
    monkeypatch.setenv(pixel_cache.VARIABLE, "0")
    assert sums == {int(pixels(theme, "icons:speckle_noise:4").sum())}


def test_the_limit_is_kept_and_the_oldest_file_makes_room(theme, decoded, monkeypatch):
    monkeypatch.setattr(pixel_cache, "most_bytes", lambda: 700_000)
    pixels(theme, size=40)
    folder = theme / "cache" / "pixels"
    (old,) = folder.iterdir()
    os.utime(old, (1, 1))
    pixels(theme, size=44)
    assert not old.exists()
    assert sum(file.stat().st_blocks * 512 for file in folder.iterdir()) <= 800_000
    monkeypatch.setattr(pixel_cache, "most_bytes", lambda: 1000)
    assert pixels(theme, size=48).shape == (90, 3, 48, 48)


def test_a_folder_that_cannot_be_written_does_no_harm(theme, monkeypatch):
    first = pixels(theme)
    (theme / "file").write_text("")
    monkeypatch.setenv("VITPLAST_CACHE", str(theme / "file"))
    assert torch.equal(pixels(theme), first)


def test_folders_of_ones_own_are_not_copied(theme):
    own = theme / "icons" / "oxygen" / "base" / "48x48"
    assert len(images.open_images(f"folder:{own}", size=20).source.all()[0]) == 24
    assert not (theme / "cache").exists()


@pytest.mark.parametrize("text", ["yes", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_named(theme, monkeypatch, text):
    monkeypatch.setenv(pixel_cache.VARIABLE, text)
    with pytest.raises(InputError, match=f"whole number of megabytes.*{text}"):
        pixels(theme)


def test_records_are_listed_once_until_a_folder_changes(theme, monkeypatch):
    listed, own = [], icons.without_copies
    monkeypatch.setattr(icons, "without_copies", lambda *args: listed.append(1) or own(*args))
    a, b = (images.open_images("icons", size=20, root=theme, seed=seed) for seed in (0, 1))
    assert len(listed) == 1
    assert a.source.ids == b.source.ids
    folder = theme / "icons" / icons.ICON_THEMES["mate"].format("apps")
    Image.new("RGB", (48, 48)).save(folder / "new.png")
    assert len(images.open_images("icons", size=20, root=theme).source) == len(a.source) + 1
