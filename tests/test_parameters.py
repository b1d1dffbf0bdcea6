"""Parameters are refused before any work, by name, type, range and choice; the message says what is allowed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import KINDS, Parameters, make, run_key

# --- fault 11: names


WRONG_NAMES = [
    ("prob", {}, "Did you mean 'probe'"),
    ("Probe", {}, "Did you mean 'probe'"),
    ("probe", {"sed": 3}, "Did you mean 'seeds'"),
    ("finetune", {"Steps": 3}, "Did you mean 'steps'"),
    ("finetune", {"learning_rate": 0.1}, "Known:|Did you mean"),
    ("finetune", {"components": "MHAA"}, "Did you mean 'MHA'"),
    ("finetune", {"components": "MHA+fc3"}, "Did you mean"),
    ("finetune", {"components": ""}, "no component named"),
    ("finetune", {"components": "all+MHA"}, "'all' stands alone"),
    ("finetune", {"optimizer": "sdg"}, "Did you mean 'sgd'"),
    ("finetune", {"schedule": "linear"}, "cosine"),
    ("finetune", {"precision": "fp16"}, "float16"),
    ("probe", {"features": "CLS"}, "Did you mean 'cls'"),
    ("probe", {"dataset": "minst5k"}, "Did you mean 'mnist5k'"),
    ("probe", {"dataset": "photocrops:contrst"}, "contrast"),
    ("probe", {"dataset": "photocrops:contrast:6"}, "6"),
    ("probe", {"model": "vit_smal_patch14_dinov2"}, "Did you mean"),
    ("probe", {"model": "resnet50"}, "resnet50"),
    ("probe", {"weights": "randm"}, "randm"),
    ("probe", {"weights": "no_such_folder/weights.safetensors"}, "no_such_folder"),
    ("probe", {"device": "gpu"}, "cuda"),
    ("probe", {"normalization": "imagnet"}, "Did you mean 'imagenet'"),
    ("plasticity", {"conventions": ["common", "insitu"]}, "Did you mean 'in_situ'"),
    ("plasticity", {"design": "cross"}, "crossed"),
    ("plasticity", {"source": "photos", "targets": ["photos"]}, "'photos' has no test images; it has: source.*mnist5k"),
    ("finetune", {"dataset": "photos"}, "'photos' has no train and no validation and no test images"),
    ("probe", {"dataset": "photos:contrast"}, "'photos:contrast:5' has no train and no test images"),
]


@pytest.mark.parametrize(("kind", "values", "words"), WRONG_NAMES)
def test_wrong_names_are_refused_with_the_nearest(kind, values, words):
    with pytest.raises(InputError, match=words):
        make(kind, values)


# --- fault 12: types and ranges

WRONG_VALUES = [
    ("finetune", {"train_head": "false"}, "train_head must be bool, got 'false'.*True and False"),
    ("finetune", {"train_head": 1}, "train_head must be bool"),
    ("finetune", {"lrs": ["1e-4"]}, r"lrs\[0\] must be float, got '1e-4'.*write 1\.0e-4"),
    ("finetune", {"lrs": 0.1}, "lrs must be a list"),
    ("finetune", {"lrs": []}, "lrs must be a list that is not empty"),
    ("finetune", {"lrs": [0.1, 0.1]}, "lrs holds a value twice"),
    ("finetune", {"lrs": [float("nan")]}, r"lrs\[0\] must be finite"),
    ("finetune", {"lrs": [float("inf")]}, r"lrs\[0\] must be finite"),
    ("finetune", {"lrs": [-0.1]}, r"lrs\[0\] must be at least 0"),
    ("finetune", {"seeds": ["08"]}, r"seeds\[0\] must be int, got '08'"),
    ("finetune", {"seeds": [True]}, r"seeds\[0\] must be int, got True"),
    ("finetune", {"seeds": [1.0]}, r"seeds\[0\] must be int"),
    ("finetune", {"steps": 0}, "steps must be at least 1"),
    ("finetune", {"steps": 3, "warmup": 3}, "warmup must be smaller than steps"),
    ("finetune", {"steps": 10, "evaluations": 11}, "evaluations=11 is more than steps=10"),
    ("finetune", {"batch_size": 10, "accumulation": 3}, "accumulation=3 does not divide batch_size=10"),
    ("finetune", {"momentum": 1.5}, "momentum must be at most 1"),
    ("probe", {"img_size": None}, "img_size must be int, got None"),
    ("probe", {"img_size": 10**6}, "img_size must be at most"),
    ("probe", {"dataset": 7}, "dataset must be str, got 7"),
    ("probe", {"train_images": -1}, "train_images must be at least 0"),
    ("plasticity", {"pairs": 1}, "pairs must be at least 2"),
    ("plasticity", {"targets": "mnist5k"}, "targets must be a list"),
    ("plasticity", {"img_size": 60}, r"multiple of the patch, 14 pixels.*got 60\. Nearest: 56 and 70"),
    ("probe", {"model": "vit_tiny_patch16_224", "weights": "random", "img_size": 8}, "Nearest: 16 and 32"),
    ("plasticity", {"pairs": 1001}, "photos and mnist5k: 1001 pairs.*a side, but 1000 are available"),
    ("bounds", {"pairs": 1001, "design": "crossed"}, "photos and mnist5k: 1001 pairs"),
    ("plasticity", {"pairs": 4097, "design": "cycled"}, "of the source, but 4096 are available"),
]


@pytest.mark.parametrize(("kind", "values", "words"), WRONG_VALUES)
def test_wrong_values_are_refused_in_words(kind, values, words):
    with pytest.raises(InputError, match=words):
        make(kind, values)


def test_whole_numbers_are_taken_for_floats():
    assert make("finetune", {"clip": 1, "lrs": [1]}).to_dict()["lrs"] == [1.0]


REFUSED_AT_ONCE = [
    ["run", "finetune", "-p", "sed=3"],
    ["run", "finetune", "--json", '{"components": "MHAA"}'],
    ["run", "finetun"],
    ["sweep", "--profile", "quik"],
]


@pytest.mark.parametrize("arguments", REFUSED_AT_ONCE, ids=lambda a: " ".join(a))
def test_command_line_refuses_within_seconds_and_starts_nothing(tmp_path, arguments):
    env = {**os.environ, "VITPLAST_STORE": str(tmp_path / "store")}
    start = time.process_time(), time.monotonic(), os.times().children_user
    done = subprocess.run(
        [sys.executable, "-m", "vitplast", *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Did you mean" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.times().children_user - start[2] < 3
    assert not (tmp_path / "store").exists()


# --- keys


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_comment_and_decides_the_key_or_says_that_it_does_not(kind):
    base = (
        {} if kind in ("search", "pretrain") else {"weights": "random"}
    )  # with trained weights the seed of random ones decides nothing
    base |= {"head_init": "default"} if kind == "finetune" else {}  # a head of zeros has to train
    key = next(iter(make(kind, base).runs()))
    for f in dataclasses.fields(KINDS[kind]):
        assert f.metadata["help"]
        assert "=" not in f.metadata["help"]
        if f.name in ("model", "device", "weights", "store", "profile") or str(f.type) not in ("int", "float", "bool"):
            continue
        default = getattr(make(kind, {}), f.name)
        other = (not default) if str(f.type) == "bool" else type(default)(default + 1)
        if f.name == "accumulation":
            other = 2
        if f.name == "momentum":
            other = 0.5
        if f.name == "plasticity_pairs":
            other = 2
        if f.name == "img_size":
            other = 70
        needs = {"lora_rank": 8} if f.name == "lora_alpha" else {}
        if f.name == "view_batch":
            needs = {"view": "paper"}
        if f.name == "tokens":
            needs = {"model": "gpt2", "source": "wikitext103", "targets": ["ag_news"]}
        key = next(iter(make(kind, base | needs).runs()))
        changed = next(iter(make(kind, base | needs | {f.name: other}).runs()))
        assert (changed != key) == f.metadata.get("key", True), f.name


def test_runs_are_all_combinations_each_with_its_own_key():
    runs = make("finetune", {"lrs": [0.1, 0.2], "seeds": [0, 1, 2]}).runs()
    assert len(runs) == 6
    assert {(r["lr"], r["seed"]) for r in runs.values()} == {(lr, s) for lr in (0.1, 0.2) for s in (0, 1, 2)}
    assert not any("lrs" in r or "seeds" in r for r in runs.values())
    alone = make("finetune", {"lrs": [0.2], "seeds": [1]}).runs()
    assert set(alone) < set(runs), "the key of a run does not depend on its company"


def test_store_profile_and_device_do_not_change_the_key(tmp_path):
    there = make("probe", {"store": str(tmp_path), "profile": "x", "device": "cpu", "batch_size": 7}).runs()
    assert set(there) == set(make("probe", {}).runs())


def key(kind="plasticity", **values):
    (found,) = make(kind, values).runs()
    return found


def test_the_same_numbers_have_the_same_key():
    assert key(weights="packaged") == key(weights="auto") == key(init_seed=7)
    assert (
        key(conventions=["in_situ", "common"]) == key(conventions=["common", "in_situ"]) != key(conventions=["common"])
    )
    assert key("finetune", init_seed=7) == key("finetune"), "the head is drawn from the run's own seed"
    assert key(weights="random", init_seed=7) != key(weights="random") != key()
    hub = {"model": "vit_tiny_patch16_224", "img_size": 32}
    assert key(weights="hub", **hub) == key(weights="auto", **hub) != key(weights="random", **hub)
    p = make("plasticity", {"weights": "packaged", "init_seed": 7})
    assert (p.weights, p.init_seed) == ("auto", 0)


def test_keys_of_the_committed_results_stay():
    """Keys are names of files: a change makes every result count as missing."""
    assert key(img_size=56) == "d03966bbca42f5b9"
    assert key("finetune", seeds=[0], steps=50, components="MHA", lrs=[0.03]) == "9a920583cfbbba86"


def test_a_weight_file_counts_as_its_content(tmp_path):
    one, two = tmp_path / "a" / "w.safetensors", tmp_path / "b" / "v.safetensors"
    for path in (one, two):
        path.parent.mkdir()
        path.write_bytes(b"12345")
    same = key(weights=str(one))
    assert same == key(weights=str(two)) != key(weights="random")
    assert make("plasticity", {"weights": str(one), "init_seed": 3}).init_seed == 0
    one.write_bytes(b"123456")
    assert key(weights=str(one)) != same


def folder_of_pictures(root, number=10):
    for name in ("cats", "dogs"):
        (root / name).mkdir(parents=True)
        for i in range(number):
            (root / name / f"{i}.png").write_bytes(b"x" * (i + 1))
    return root


def test_a_folder_counts_as_its_listing(tmp_path, monkeypatch):
    one, two = folder_of_pictures(tmp_path / "a" / "pets"), folder_of_pictures(tmp_path / "b" / "pets")
    same = key("probe", dataset=f"folder:{one}")
    monkeypatch.chdir(tmp_path / "b")
    assert same == key("probe", dataset=f"folder:{two}") == key("probe", dataset="folder:pets")
    assert same != key("probe", dataset=f"folder:{one}:contrast")
    (two / "cats" / "0.png").write_bytes(b"xx")
    assert same != key("probe", dataset=f"folder:{two}")
    (one / "cats" / "0.png").rename(one / "dogs" / "a.png")
    assert same != key("probe", dataset=f"folder:{one}")


def test_sides_in_a_folder_are_counted(tmp_path):
    folder = f"folder:{folder_of_pictures(tmp_path / 'pets')}"
    assert make("plasticity", {"targets": [folder], "pairs": 4}).targets == [folder]
    with pytest.raises(InputError, match=r"5 pairs .* 4 are available"):
        make("plasticity", {"targets": [folder], "pairs": 5})
    few = f"folder:{folder_of_pictures(tmp_path / 'few', 1)}"
    with pytest.raises(InputError, match="'folder:few' has no test images"):
        make("probe", {"dataset": few})


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=5))))
def test_key_depends_on_content_alone(values):
    shuffled = dict(reversed(list(values.items())))
    assert run_key("probe", values) == run_key("probe", shuffled)
    assert run_key("probe", values) != run_key("bounds", values)
    assert run_key("probe", json.loads(json.dumps(values))) == run_key("probe", values)


def test_parameters_are_frozen_and_lists_are_not_shared():
    one, two = make("finetune", {}), make("finetune", {})
    assert one == two
    assert one.lrs is not two.lrs
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.steps = 3
    assert isinstance(one, Parameters)


def test_unknown_notebook_is_a_usage_error():
    with pytest.raises(UnknownNameError) as error:
        make("figure", {})
    assert error.value.exit_code == 2
