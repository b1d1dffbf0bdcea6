"""Broken, misplaced and hostile files of image sets: found before training, all at once, and nothing in them is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitplast import images, models
from vitplast.cli import main
from vitplast.errors import InputError, IntegrityError, LayoutError, VitplastError
from vitplast.images import made_up, marker
from vitplast.images.checking import check_set
from vitplast.images.download import file_hash
from vitplast.runs.sets import check_sets

SETS = ("cifar10", "cifar100", "cifar10_c", "flowers102", "pets", "imagenet_val", "domainnet_clipart")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    made_up.write(folder, SETS, classes=2, pool=3, test=5, side=24, corruptions=["snow"])
    return folder


@pytest.fixture
def data(whole, tmp_path, monkeypatch):
    """A copy of the sets to be broken."""
    folder = tmp_path / "data"
    shutil.copytree(whole, folder)
    monkeypatch.setenv("VITPLAST_DATA", str(folder))
    monkeypatch.setenv(marker.VARIABLE, "1")
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# ---- 8: twelve faults of data on the disk, each in two places where it can be


def truncated_archive(data):
    folder = data / "cifar10"
    shutil.rmtree(folder / "cifar-10-batches-py")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(data / "cifar100", "cifar-10-batches-py")
    cut(folder / "cifar-10-python.tar.gz")


def missing_batches(data):
    for name in ("data_batch_2", "batches.meta"):
        (data / "cifar10" / "cifar-10-batches-py" / name).unlink()


def other_bytes(data):
    for name in ("train", "test"):
        flip(data / "cifar100" / "cifar-100-python" / name)


def empty_pictures(data):
    for k in (2, 5):
        (data / "flowers102" / "flowers-102" / "jpg" / f"image_{k:05d}.jpg").write_bytes(b"")


def cut_pictures(data):
    for k in (1, 4):
        cut(data / "pet" / "oxford-iiit-pet" / "images" / f"Made_Up_00_{k}.jpg")


def missing_pictures(data):
    for k in (2, 3):
        (data / "pet" / "oxford-iiit-pet" / "images" / f"Made_Up_01_{k}.jpg").unlink()


def other_length(data):
    np.save(data / "cifar10_c" / "labels.npy", np.load(data / "cifar10_c" / "labels.npy")[:-1])
    cut(data / "cifar10_c" / "snow.npy")


def other_shape(data):
    np.save(data / "cifar10_c" / "snow.npy", np.load(data / "cifar10_c" / "snow.npy").astype(np.float32) / 255)


def one_level_deeper(data):
    folder = data / "domainnet" / "clipart"
    folder.rename(data / "moved")
    folder.mkdir()
    (data / "moved").rename(folder / "clipart")


def one_level_higher(data):
    for path in list((data / "cifar100" / "cifar-100-python").iterdir()):
        path.rename(data / "cifar100" / path.name)
    (data / "cifar100" / "cifar-100-python").rmdir()


def unsorted_pictures(data):
    folder = data / "imagenet" / "val"
    for path in list(folder.rglob("*.JPEG")):
        path.rename(folder / path.name)
    for path in folder.glob("n*"):
        path.rmdir()


def wrong_lines(data):
    path = data / "domainnet" / "clipart_test.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["../clipart/airplane/a.jpg 1", lines[0].rpartition(" ")[0], *lines[2:]]))


FAULTS = [
    (truncated_archive, "cifar10", "bad files", ["cifar-10-python.tar.gz is cut off or another file"]),
    (missing_batches, "cifar10", "bad files", ["data_batch_2 is missing", "batches.meta is missing"]),
    (other_bytes, "cifar100", "bad files", ["train has another MD5", "test has another MD5"]),
    (empty_pictures, "flowers102", "bad files", ["2.jpg cannot be read as an image: the file is empty", "05.jpg"]),
    (cut_pictures, "pets", "bad files", ["Made_Up_00_1.jpg", "Made_Up_00_4.jpg"]),
    (missing_pictures, "pets", "bad files", ["Made_Up_01_2.jpg", "Made_Up_01_3.jpg"]),
    (other_length, "cifar10_c:snow:5", "bad files", ["labels.npy holds uint8 (49,)", "snow.npy cannot be read"]),
    (other_shape, "cifar10_c:snow:5", "bad files", ["holds float32 (50, 32, 32, 3), expected uint8"]),
    (one_level_deeper, "domainnet_clipart", "wrong layout", [os.path.join("clipart", "clipart")]),
    (one_level_higher, "cifar100", "wrong layout", ["expected"]),
    (unsorted_pictures, "imagenet_val", "wrong layout", ["has 10 pictures in it: expected"]),
    (wrong_lines, "domainnet_clipart_official", "bad files", ["line 1: '../clipart", "line 2: 'clipart/"]),
]  # fmt: skip


def test_there_are_twelve_faults_of_data():
    assert len(FAULTS) == 12


@pytest.mark.parametrize(("fault", "name", "state", "words"), FAULTS, ids=[f[0].__name__ for f in FAULTS])
def test_faults_of_data_are_found_and_named(data, capsys, fault, name, state, words):
    assert check_set(name, size=16).state == "in order"
    fault(data)
    report = check_set(name, size=16)
    assert report.state == state
    assert check_set(name, size=16, jobs=3) == report
    for word in words:
        assert any(word in line for line in report.problems), (word, report.problems)
    with pytest.raises(SystemExit) as end:
        main(["check-data", "digits", name, "imagenet_val", "--json", "--size", "16"])
    out, err = capsys.readouterr()
    assert end.value.code == 1
    states = [one["state"] for one in json.loads(out)]
    assert states == ["in order", state, "in order" if name != "imagenet_val" else state][: len(states)]
    assert all(word in err for word in words)
    assert "image sets are not in order" in err


@pytest.mark.parametrize("fault", [f for f in FAULTS if f[0] not in (empty_pictures, cut_pictures, missing_pictures)],
                         ids=lambda f: f[0].__name__)  # fmt: skip
def test_what_opening_finds_stops_runs_before_they_start(data, fault):
    fault[0](data)
    with pytest.raises(VitplastError) as caught:
        check_sets([{"dataset": fault[1], "download": False}])
    assert all(word in str(caught.value) for word in fault[3])


@pytest.mark.parametrize("move", ["too high", "too low"])
def test_a_data_folder_that_is_named_a_level_off_is_recognised(data, monkeypatch, move):
    monkeypatch.setenv("VITPLAST_DATA", str(data.parent if move == "too high" else data / "pet"))
    for name in ("cifar10", "imagenet_val", "pets"):
        with pytest.raises(LayoutError, match="laid out wrongly: found") as caught:
            images.open_images(name, size=16)
        assert str(data) in str(caught.value)


def test_a_set_under_its_archive_s_name_is_recognised_and_not_fetched_again(data, monkeypatch):
    (data / "cifar10_c").rename(data / "CIFAR-10-C")
    monkeypatch.setenv("VITPLAST_OFFLINE", "1")
    for download in (False, True):
        with pytest.raises(LayoutError, match=r"found .*CIFAR-10-C"):
            images.open_images("cifar10_c:snow:5", size=16, download=download)


def test_published_arrays_of_other_content_are_found_by_their_hash(data):
    flip(data / "cifar10_c" / "snow.npy")
    assert len(images.open_images("cifar10_c:snow:5", size=16).test) == 2  # its shape is right
    report = check_set("cifar10_c:snow:5", size=16)
    assert report.state == "bad files"
    assert "snow.npy has another MD5" in report.problems[0]


def test_labels_that_differ_between_severities_are_refused(data):
    labels = np.load(data / "cifar10_c" / "labels.npy")
    labels[-1] = 1 - labels[-1]
    np.save(data / "cifar10_c" / "labels.npy", labels)
    with pytest.raises(IntegrityError, match="same 10 labels 5 times"):
        images.open_images("cifar10_c:snow:1", size=16)


def test_classes_with_other_numbers_of_pictures_are_all_named(data):
    next((data / "imagenet" / "val" / "n01440764").iterdir()).unlink()
    for path in list((data / "imagenet" / "val" / "n01443537").iterdir())[:2]:
        path.unlink()
    report = check_set("imagenet_val", size=16)
    assert report.state == "bad files"
    assert [line.partition(" has ")[2] for line in report.problems] == [
        "4 pictures, expected 5",
        "3 pictures, expected 5",
    ]


def test_both_lists_of_pets_are_named_if_both_are_wrong(data):
    folder = data / "pet" / "oxford-iiit-pet" / "annotations"
    (folder / "trainval.txt").write_text("Made_Up_00_1 one 1 1\n")
    (folder / "test.txt").unlink()
    assert [line.partition(" is not a list")[0] for line in check_set("pets", size=16).problems] == [
        str(folder / "trainval.txt"), str(folder / "test.txt")]  # fmt: skip


# ---- 15: eight hostile files


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def pickled(path, place):
    path.write_bytes(pickle.dumps(Hostile(place)))


def with_its_hash(data, name, file, folder, place):
    """A pickle that the marker vouches for: whoever can change the set can change the marker too."""
    pickled(folder / file, place)
    listed = json.loads((data / marker.FILE).read_text())
    listed[name]["md5"][file] = file_hash(folder / file, "md5")
    (data / marker.FILE).write_text(json.dumps(listed))


def objects(path, place):
    np.save(path, np.array([Hostile(place)] * 50, dtype=object), allow_pickle=True)


def hostile_batch(data, place):
    pickled(data / "cifar10" / "cifar-10-batches-py" / "data_batch_3", place)
    return lambda: images.open_images("cifar10", size=16)


def hostile_batch_with_its_hash(data, place):
    with_its_hash(data, "cifar10", "test_batch", data / "cifar10" / "cifar-10-batches-py", place)
    return lambda: images.open_images("cifar10", size=16)


def hostile_meta_with_its_hash(data, place):
    with_its_hash(data, "cifar100", "meta", data / "cifar100" / "cifar-100-python", place)
    return lambda: images.open_images("cifar100", size=16)


def hostile_array(data, place):
    objects(data / "cifar10_c" / "snow.npy", place)
    return lambda: images.open_images("cifar10_c:snow:5", size=16)


def hostile_labels(data, place):
    objects(data / "cifar10_c" / "labels.npy", place)
    return lambda: images.open_images("cifar10_c:snow:5", size=16)


def hostile_archive_of_arrays(data, place):
    stream = io.BytesIO()
    np.savez(stream, snow=np.array([Hostile(place)], dtype=object))
    (data / "cifar10_c" / "snow.npy").write_bytes(stream.getvalue())
    return lambda: images.open_images("cifar10_c:snow:5", size=16)


def hostile_pth(data, place):
    torch.save({"head.weight": Hostile(place)}, data / "weights.pth")
    return lambda: models.load_model(
        "vit_tiny_patch16_224", weights=str(data / "weights.pth"), img_size=32, num_classes=2
    )


def hostile_ckpt(data, place):
    torch.save({"state_dict": Hostile(place)}, data / "weights.ckpt")
    return lambda: models.load_model(
        "vit_tiny_patch16_224", weights=str(data / "weights.ckpt"), img_size=32, num_classes=2
    )


HOSTILE = [hostile_batch, hostile_batch_with_its_hash, hostile_meta_with_its_hash, hostile_array, hostile_labels,
           hostile_archive_of_arrays, hostile_pth, hostile_ckpt]  # fmt: skip
REASONS = ["another MD5", "Path.touch|asks for", "asks for", "snow.npy cannot be read", "labels.npy cannot be read",
           "archive of arrays", "nothing in it was run", "weights.ckpt"]  # fmt: skip


def test_there_are_eight_hostile_files():
    assert len(HOSTILE) == len(REASONS) == 8


@pytest.mark.parametrize(
    ("make", "reason"), list(zip(HOSTILE, REASONS, strict=True)), ids=[h.__name__ for h in HOSTILE]
)
def test_hostile_files_are_refused_and_not_run(data, tmp_path, make, reason):
    place = tmp_path / "executed"
    load = make(data, place)
    with pytest.raises((IntegrityError, InputError), match=reason):
        load()
    assert not place.exists()


def test_the_hostile_pickle_would_run_elsewhere(tmp_path):
    pickled(tmp_path / "batch", tmp_path / "executed")
    pickle.loads((tmp_path / "batch").read_bytes())
    assert (tmp_path / "executed").exists()


def vouch(data: Path, content: bytes) -> None:
    """Another test batch, and its hash in the marker."""
    path = data / "cifar10" / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(content)
    listed = json.loads((data / marker.FILE).read_text())
    listed["cifar10"]["md5"]["test_batch"] = file_hash(path, "md5")
    (data / marker.FILE).write_text(json.dumps(listed))


def test_pickles_of_all_protocols_and_of_python_2_are_read(data):
    content = pickle.loads((data / "cifar10" / "cifar-10-batches-py" / "test_batch").read_bytes())
    expected = images.open_images("cifar10", size=32).test.all()[0]
    for protocol in range(6):
        vouch(data, pickle.dumps(content, protocol=protocol))
        assert torch.equal(images.open_images("cifar10", size=32).test.all()[0], expected)

    class Python2(pickle._Pickler):
        """Text of bytes and the old name of numpy's module, as in the published files."""

        dispatch = pickle._Pickler.dispatch | {
            bytes: lambda self, value: self.write(b"T" + struct.pack("<i", len(value)) + value),
            str: lambda self, value: self.write(b"T" + struct.pack("<i", len(value)) + value.encode()),
        }

    stream = io.BytesIO()
    Python2(stream, protocol=2).dump(content)
    vouch(data, stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert b"_codecs" not in stream.getvalue()
    assert torch.equal(images.open_images("cifar10", size=32).test.all()[0], expected)
