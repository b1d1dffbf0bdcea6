"""Sets below the data folder: made-up sets of the true formats through the true loaders, names, splits, keys."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from vitplast import images, parameters
from vitplast.analysis.clusters import clusters
from vitplast.errors import InputError, UnknownNameError
from vitplast.images import made_up, marker, published, splits
from vitplast.images.checking import PAPER_SETS, check_all, spelled_out
from vitplast.images.presence import LAYOUTS
from vitplast.images.problems import MadeUpError
from vitplast.images.registry import REGISTRY
from vitplast.images.sources import PIECES
from vitplast.results import provenance

WRITTEN = ("cifar10", "cifar100", "cifar10_c", "cifar100_c", "flowers102", "pets", "imagenet_val", "domainnet_clipart",
           "domainnet_sketch", "domainnet_clipart_official")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with three classes of every format."""
    data = tmp_path_factory.mktemp("data")
    made_up.write(data, WRITTEN, classes=3, pool=5, test=10, side=40)
    return data


@pytest.fixture
def data(folder, monkeypatch):
    monkeypatch.setenv("VITPLAST_DATA", str(folder))
    monkeypatch.setenv(marker.VARIABLE, "1")
    return folder


def sizes(found):
    return {name: len(split) for name, split in found.splits.items()}


# ---- what is published


def test_hashes_are_those_of_torchvision():
    from torchvision import datasets

    for kind, name in ((datasets.CIFAR10, "cifar10"), (datasets.CIFAR100, "cifar100")):
        files = dict([*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])])
        assert published.FACTS[name].md5 == files
        (piece,) = PIECES[name]
        assert (piece.url, piece.md5, piece.inside) == (kind.url, kind.tgz_md5, kind.base_folder)
    flowers = datasets.Flowers102
    fetched = {piece.url: piece.md5 for piece in PIECES["flowers102"]}
    assert fetched == {flowers._download_url_prefix + file: md5 for file, md5 in flowers._file_dict.values()}
    assert {piece.url: piece.md5 for piece in PIECES["pets"]} == dict(datasets.OxfordIIITPet._RESOURCES)


def test_numbers_are_those_of_the_paper():
    rows = {"cifar10": (10, 50_000, 10_000), "cifar100": (100, 50_000, 10_000), "flowers102": (102, 2040, 6149),
            "pets": (37, 3680, 3669), "cifar10_c": (10, 8000, 2000)}  # fmt: skip
    for name, (classes, pool, test) in rows.items():
        entry = REGISTRY[name]
        assert (entry.classes, entry.certain["source"], entry.certain["test"]) == (classes, pool, test)
    assert images.sizes("cifar10_c:snow:5") == {"source": 8000, "test": 2000}
    assert images.sizes("domainnet_sketch") == {}
    assert images.sizes("domainnet_sketch_official") == {"source": 48212, "test": 20916}
    assert sum(sum(n) for n in published.DOMAINNET.values()) == 586_575
    assert len(published.CORRUPTIONS_C) == 19
    assert set(published.FACTS) == set(LAYOUTS) == set(made_up.SETS)
    assert set(LAYOUTS) - set(PIECES) == {"imagenet_val"}


# ---- names


def test_corrupted_sets_are_named_with_their_corruption():
    assert images.check_name("cifar10_c:motion_blur") == "cifar10_c:motion_blur:5"
    assert images.check_splits("cifar100_c:glass_blur:2", "train", "validation", "test") == "cifar100_c:glass_blur:2"
    with pytest.raises(InputError, match="needs a corruption, as in cifar10_c:brightness"):
        images.check_name("cifar10_c")
    with pytest.raises(UnknownNameError, match="motion_blur"):
        images.check_name("cifar10_c:motionblur:5")
    with pytest.raises(UnknownNameError):
        images.check_name("cifar10:glass_blur")  # of the clean set only those that are made here
    with pytest.raises(InputError, match=r"1\.\.5"):
        images.check_name("cifar10_c:fog:6")
    with pytest.raises(InputError, match=r"imagenet_val.*no test"):
        images.check_splits("imagenet_val", "test")
    assert images.describe("cifar10_c")["corruptions"] == published.CORRUPTIONS_C
    assert len(spelled_out(["cifar10_c", "pets", "cifar10_c:fog:5"])) == 20


def test_sets_that_show_the_same_images_are_one_cluster():
    names = ["cifar10", "cifar10_c:snow:5", "cifar10_c:contrast:1", "domainnet_clipart", "domainnet_clipart_official"]
    assert clusters(names) == ["cifar10", "domainnet_clipart"]


# ---- loaders


def test_cifar_is_what_torchvision_reads(data, monkeypatch):
    from torchvision.datasets import CIFAR10

    hashes = marker.read(data)["cifar10"].md5
    monkeypatch.setattr(CIFAR10, "train_list", [[f, m] for f, m in hashes.items() if f.startswith("data")])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", hashes["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": hashes["batches.meta"]})
    theirs = CIFAR10(str(data / "cifar10"), train=False)
    found = images.open_images("cifar10", size=32)
    assert found.classes == tuple(theirs.classes)
    assert sizes(found) == {"source": 15, "train": 12, "validation": 3, "test": 30}
    order = found.test.file_order()
    assert np.array_equal(np.stack([found.test.picture(k) for k in order]), theirs.data)
    assert found.test.labels[order].tolist() == theirs.targets
    assert found.test.pictures_size == (32, 32)
    assert torch.equal(found.test[int(order[3])][0], torch.from_numpy(theirs.data[3].transpose(2, 0, 1).copy()))


def test_cifar100_has_its_fine_labels(data):
    found = images.open_images("cifar100", size=32)
    raw = pickle.loads((data / "cifar100" / "cifar-100-python" / "test").read_bytes())
    assert found.test.labels[found.test.file_order()].tolist() == raw["fine_labels"]
    assert set(raw["fine_labels"]) == {0, 1, 2}


@pytest.mark.parametrize("severity", [1, 5])
def test_corrupted_arrays_are_cut_by_severity_and_divided_by_the_authors_rule(data, severity):
    array = np.load(data / "cifar10_c" / "snow.npy")
    labels = np.load(data / "cifar10_c" / "labels.npy")
    n = len(labels) // 5
    found = images.open_images(f"cifar10_c:snow:{severity}", size=32)
    rng = np.random.RandomState(42)
    expected = np.sort(rng.permutation(n)[int(0.8 * n) :])
    order = found.test.file_order()
    assert [int(found.test.ids[k]) for k in order] == expected.tolist()
    rows = expected + (severity - 1) * n
    assert np.array_equal(np.stack([found.test.picture(k) for k in order]), array[rows])
    assert found.test.labels[order].tolist() == labels[rows].tolist()
    assert np.array_equal(found.test.all()[0].numpy()[order], array[rows].transpose(0, 3, 1, 2))
    assert sizes(found)["source"] + sizes(found)["test"] == n


def test_corruptions_share_ids_and_splits_but_not_pixels(data, monkeypatch, tmp_path):
    monkeypatch.setenv("VITPLAST_PIXEL_CACHE", "64")
    monkeypatch.setenv("VITPLAST_CACHE", str(tmp_path))
    pixels = {}
    for _ in range(2):  # the second time from the disk
        for name in ("snow:5", "snow:4", "contrast:5"):
            found = images.open_images(f"cifar10_c:{name}", size=24)
            first = pixels.setdefault(name, found.train.all()[0])
            assert torch.equal(found.train.all()[0], first)
            assert found.train.groups == images.open_images("cifar10_c:snow:5", size=24).train.groups
    assert not torch.equal(pixels["snow:5"], pixels["snow:4"])
    assert not torch.equal(pixels["snow:5"], pixels["contrast:5"])
    assert len(list(tmp_path.rglob("*.pixels"))) == 3


def test_the_authors_division_of_ten_thousand():
    parts = splits.authors_split(10_000)
    assert [len(parts["pool"]), len(parts["test"])] == [8000, 2000]
    assert sorted([*parts["pool"], *parts["test"]]) == list(range(10_000))
    np.random.seed(42)  # noqa: NPY002, as the rule says it
    assert np.array_equal(parts["pool"], np.sort(np.random.permutation(10_000)[:8000]))  # noqa: NPY002


def test_domain_folders_are_read_in_the_order_of_image_folder(data):
    from torchvision.datasets import ImageFolder

    theirs = ImageFolder(str(data / "domainnet" / "clipart"))
    found = images.open_images("domainnet_clipart", size=32)
    assert found.classes == tuple(theirs.classes)
    n = len(theirs)
    expected = np.sort(np.random.RandomState(42).permutation(n)[int(0.8 * n) :])
    order = found.test.file_order()
    assert [str(data / "domainnet" / "clipart" / found.test.ids[k]) for k in order] == [
        theirs.imgs[r][0] for r in expected
    ]
    assert found.test.labels[order].tolist() == [theirs.targets[r] for r in expected]
    with Image.open(theirs.imgs[expected[0]][0]) as picture:
        assert np.array_equal(found.test.picture(order[0]), np.asarray(picture.convert("RGB")))
    assert found.test.pictures_size is None
    assert len({found.test.picture(k).shape for k in range(5)}) > 1


def test_official_lists_are_kept(data):
    found = images.open_images("domainnet_clipart_official", size=32)
    for split, file in (("source", "train"), ("test", "test")):
        lines = (data / "domainnet" / f"clipart_{file}.txt").read_text().splitlines()
        part = found.splits[split]
        assert [f"clipart/{part.ids[k]} {part.labels[k]}" for k in part.file_order()] == lines
    assert found.classes[:2] == ("aircraft_carrier", "airplane")


def test_flowers_are_read_as_torchvision_does(data, monkeypatch):
    from torchvision.datasets import Flowers102

    own = {
        key: (file, marker.read(data)["flowers102"].md5.get(file)) for key, (file, _) in Flowers102._file_dict.items()
    }
    monkeypatch.setattr(Flowers102, "_file_dict", own)
    found = images.open_images("flowers102", size=32)
    for split, theirs in (("train", "train"), ("validation", "val"), ("test", "test")):
        other, part = Flowers102(str(data / "flowers102"), split=theirs), found.splits[split]
        order = part.file_order()
        assert [part.ids[k] for k in order] == [path.name for path in other._image_files]
        assert part.labels[order].tolist() == list(other._labels)
        assert order.tolist() != sorted(order.tolist())


def test_pets_are_read_as_torchvision_does(data):
    from torchvision.datasets import OxfordIIITPet

    found = images.open_images("pets", size=32)
    other = OxfordIIITPet(str(data / "pet"), split="test")
    order = found.test.file_order()
    assert [found.test.ids[k] for k in order] == [path.name for path in other._images]
    assert found.test.labels[order].tolist() == other._labels
    assert len(found.source) == len(OxfordIIITPet(str(data / "pet"), split="trainval"))


def test_imagenet_is_a_source_in_the_order_of_wordnet_ids(data):
    found = images.open_images("imagenet_val", size=32)
    assert list(found.splits) == ["source"]
    assert found.classes == ("n01440764", "n01443537", "n01484850")
    order = found.source.file_order()
    assert found.source.labels[order].tolist() == sorted(found.source.labels.tolist())
    assert [found.source.ids[k] for k in order] == sorted(found.source.ids)


def test_a_corruption_made_here_is_applied_at_the_pictures_own_size(data):
    clean, made = images.open_images("pets", size=32).test, images.open_images("pets:contrast:5", size=32).test
    whole, low = clean.picture(0).astype(float), made.picture(0).astype(float)
    assert low.shape == whole.shape
    mean = whole.mean(axis=(0, 1))
    assert np.abs(low - (mean + 0.15 * (whole - mean))).max() <= 0.51


def test_file_order_of_a_subset_and_of_all_sets_without_a_list_is_that_of_the_rows():
    test = images.open_images("digits", size=8).test
    assert [test.ids[k] for k in test.file_order()] == sorted(test.ids)
    part = test.subset([5, 3, 9])
    assert sorted(part.file_order().tolist()) == [0, 1, 2]
    assert part.pictures_size == (8, 8)
    assert part.picture(1).shape == (8, 8, 3)
    with pytest.raises(IndexError):
        part.picture(3)


# ---- made up


def test_made_up_sets_are_refused_unless_allowed(folder, monkeypatch):
    for value in ("", "0"):
        monkeypatch.setenv(marker.VARIABLE, value)
        for name in ("cifar10", "cifar10_c:snow:5", "pets", "flowers102", "imagenet_val", "domainnet_clipart",
                     "domainnet_clipart_official"):  # fmt: skip
            with pytest.raises(MadeUpError, match=r"is made up.*VITPLAST_MADE_UP=1"):
                images.open_images(name, size=32, root=folder)


def test_results_of_made_up_sets_say_so_and_have_other_keys(monkeypatch):
    finetune = {"dataset": "cifar10", "weights": "random", "components": "LN1"}
    monkeypatch.delenv(marker.VARIABLE, raising=False)
    (real,) = parameters.make("finetune", finetune).runs()
    (other,) = parameters.make("finetune", finetune | {"dataset": "digits"}).runs()
    run = parameters.make("finetune", finetune).runs()[real]
    assert "made_up_images" not in provenance.attributes("finetune", run)
    monkeypatch.setenv(marker.VARIABLE, "1")
    (invented,) = parameters.make("finetune", finetune).runs()
    assert invented != real
    assert list(parameters.make("finetune", finetune | {"dataset": "digits"}).runs()) == [other]
    assert provenance.attributes("finetune", run)["made_up_images"].startswith("yes: VITPLAST_MADE_UP")
    assert images.sizes("cifar10") == {}
    assert images.sizes("digits")["test"] == 359


def test_a_real_set_is_never_written_over(tmp_path):
    (tmp_path / "pet" / "oxford-iiit-pet").mkdir(parents=True)
    with pytest.raises(InputError, match="not made up"):
        made_up.write(tmp_path, ["cifar10", "pets"], classes=2)
    assert not (tmp_path / "cifar10").exists()
    with pytest.raises(UnknownNameError, match="cifar10"):
        made_up.write(tmp_path, ["cifra10"])
    with pytest.raises(InputError, match="classes must be"):
        made_up.write(tmp_path, ["cifar10"], classes=1)


def test_writing_again_replaces_and_is_the_same(tmp_path):
    made_up.write(tmp_path, ["imagenet_val", "cifar10"], classes=4, test=3)
    first = marker.read(tmp_path)
    facts = made_up.write(tmp_path, ["imagenet_val"], classes=2, test=2)
    assert facts["imagenet_val"].images == {"source": 4}
    assert len(list((tmp_path / "imagenet" / "val").iterdir())) == 2
    assert marker.read(tmp_path)["cifar10"] == first["cifar10"]
    made_up.write(tmp_path / "again", ["cifar10"], classes=4, test=3)
    assert marker.read(tmp_path / "again")["cifar10"].md5 == first["cifar10"].md5


def test_classes_are_as_many_as_the_real_ones_unless_limited():
    amount = made_up.Amount(None, 2, 2, 16, (), 0)
    assert [amount.of(name) for name in ("cifar10", "pets", "domainnet_real", "imagenet_val")] == [10, 37, 345, 1000]


# ---- the check


def test_the_check_finds_all_in_order_and_says_what_is_made_up(data):
    reports = check_all(PAPER_SETS, size=16)
    assert {report.state for report in reports} == {"in order"}
    assert all(report.made_up for report in reports)
    by_name = {report.name: report for report in reports}
    assert by_name["pets"].counts["test"] == {"Made Up 00": 10, "Made Up 01": 10, "Made Up 02": 10}
    assert by_name["cifar10"].splits[3]["images"] == 30
    assert json.loads(json.dumps(by_name["imagenet_val"].values()))["splits"][0]["classes"] == 3


def test_the_check_goes_on_after_a_set_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv(marker.VARIABLE, raising=False)
    reports = check_all(["imagenet_val", "cifar10_c:fog:2", "domainnet_real_official", "digits"], root=tmp_path, size=8)
    assert [report.state for report in reports[:3]] == ["missing"] * 3
    for report, place in zip(
        reports, ("imagenet/val/WORDNET-ID", "cifar10_c", "domainnet/real_train.txt"), strict=False
    ):
        assert place in report.problems[0]
    assert "never downloaded" in reports[0].problems[0]
