"""The rehearsal: the rule of the miniature, its tiny models, its made-up material, and a small one run to its pages."""

from __future__ import annotations

from pathlib import Path

import page_cells
import pytest

from vitplast import images, models, rehearsal, results, texts
from vitplast.analysis.selection import model_name
from vitplast.errors import InputError, UnknownNameError, VitplastError
from vitplast.images.checking import GOOD, check_set
from vitplast.images.problems import MadeUpError
from vitplast.models import tiny
from vitplast.rehearsal import material
from vitplast.rehearsal.miniature import Choice, miniature, profile_file
from vitplast.rehearsal.numbers import RULES, validation
from vitplast.runs import load_profile

PAGES = Path(__file__).parent.parent / "book" / "experiments"
VARIANTS = ("corrected", "as-published")
#: Parameters that the choice and the models change, and those that decide nothing.
CHANGED = {"model", "weights", "dataset", "targets", "lrs", "seeds", "validate_every", "profile", "store"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the text model."""
    folder = tmp_path_factory.mktemp("re hearsal")
    material.write_text_model(folder / "models" / "gpt2")
    return folder


@pytest.fixture(scope="module")
def small(place):
    """File of `paper` in miniature, with a text model and no images."""
    file = place / "paper-rehearsal.yaml"
    file.write_text(miniature(profile_file("paper"), place / "models" / "gpt2"))
    return file


@pytest.fixture(params=VARIANTS, scope="module")
def both(request, small):
    """Units of the real profile and of the miniature, by experiment and kind."""
    return [_by(load_profile(f"{name}@{request.param}")) for name in ("paper", small)]


def _by(profile):
    found = {}
    for unit in profile.units:
        found.setdefault((unit.experiment, unit.kind), []).append(unit)
    return found


# Tiny models


@pytest.mark.parametrize(
    ("name", "width", "blocks", "mean"),
    [
        ("vit_base_patch16_224.orig_in21k", 48, 2, 0.5),
        ("vit_base_patch16_224.mae", 48, 2, 0.485),
        ("vit_large_patch16_224.orig_in21k", 64, 4, 0.5),
        ("vit_huge_patch14_224.orig_in21k", 80, 5, 0.5),
        ("vit_small_patch16_dinov3.lvd1689m", 24, 2, 0.485),
        ("vit_huge_plus_patch16_dinov3.lvd1689m", 80, 5, 0.485),
    ],
)
def test_a_tiny_model_is_the_real_one_but_for_three_numbers(name, width, blocks, mean):
    loaded = models.load_model(f"tiny:{name}", weights="random", img_size=32, num_classes=3)
    real = models.outline(name)
    assert (loaded.model.embed_dim, len(loaded.model.blocks), loaded.mean[0]) == (width, blocks, mean)
    assert type(loaded.model) is type(real)
    assert type(loaded.model.blocks[0].mlp) is type(real.blocks[0].mlp)
    assert loaded.model.num_prefix_tokens == real.num_prefix_tokens
    block = loaded.model.blocks[0]
    assert {n for n, _ in block.named_parameters()} == {n for n, _ in real.blocks[0].named_parameters()}
    assert loaded.n_tokens == 16 + real.num_prefix_tokens
    assert models.family(f"tiny:{name}") == models.family(name)
    assert loaded.name == f"tiny:{name.partition('.')[0]}"


def test_short_names_say_tiny(place):
    assert model_name("tiny:vit_base_patch16_224.mae") == "tiny MAE ViT-B/16"
    assert model_name(f"hf:{place / 'models' / 'gpt2'}") == "hf:gpt2"


def test_tiny_models_have_random_weights_and_patches_of_eight():
    models.check_size("tiny:vit_huge_patch14_224", 32)
    with pytest.raises(InputError, match="multiple of the patch, 8 pixels"):
        models.check_size("tiny:vit_huge_patch14_224", 28)
    with pytest.raises(InputError, match="weights must be random, got 'auto'"):
        models.check_name("tiny:vit_base_patch16_224", "auto")
    with pytest.raises(UnknownNameError, match="vit_base_patch16_224"):
        models.check_name("tiny:vit_base_patch16_22", "random")
    with pytest.raises(UnknownNameError):
        models.check_name("tiny:tiny:vit_base_patch16_224", "random")
    assert tiny.options("vit_small_patch16_dinov3")["num_heads"] == 3


# The rule of the miniature


def test_counts_by_experiment(both):
    real, made = both
    counts = {key[0]: sum(len(unit.runs) for unit in units) for key, units in made.items()}
    sets, bounded = 6, len({t for u in made["bounds", "bounds"] for t in u.parameters.targets})
    assert counts == {
        "main": 7 * 7 * 2 * 2, "adamw": 3 * 6 * 2 * 2, "sizes": 2 * 6 * 2 * 2, "components": 4, "lora": 4,
        "low_data": 4 * 6, "plasticity": 3 * sets, "plasticity_others": 7, "probing": sets, "landscape": 3,
        "bounds": 3 * bounded,
    }  # fmt: skip
    assert sum(len(units) for units in made.values()) < 140  # kernels
    assert list(made) == list(real)


def test_every_option_of_the_real_profile_is_used(both):
    real, made = both
    for key, units in real.items():
        own, small = ([u.parameters.to_dict() for u in side] for side in (units, made[key]))
        chosen, kept = ({n for u in side for n in u.values()} for side in (units, made[key]))
        assert chosen <= kept | {"validate_every", "evaluations", "images", "rate_images"}, key
        for name in own[0]:
            before, after = ({str(p[name]) for p in side} for side in (own, small))
            if name not in RULES and name not in CHANGED:
                assert before == after, (key, name)
            elif name in RULES and name not in CHANGED:  # what is switched off stays so, and nothing else does
                assert {v in ("0", "1") for v in before} == {v in ("0", "1") for v in after} or name in (
                    "warmup",
                    "batch_size",
                ), (key, name)


def test_every_model_and_set_format_is_there(both, place):
    real, made = both
    for key, units in real.items():
        named, tiny_ones = ({u.parameters.model for u in side} for side in (units, made[key]))
        text = {f"hf:{place / 'models' / 'gpt2'}"} if "gpt2" in named else set()
        assert tiny_ones == {f"tiny:{name}" for name in named - {"gpt2"}} | text
        assert {models.family(n) for n in named} == {models.family(n) for n in tiny_ones}
    formats = {n.partition(":")[0] for u in made["main", "finetune"] for n in [u.parameters.dataset]}
    assert formats == {"cifar10", "cifar100", "cifar10_c", "domainnet_clipart", "flowers102", "pets"}


def test_validations_keep_their_place(both):
    """The last one lies before the end where it does so in the real profile, and nowhere else."""

    def short(units):
        return {
            u.parameters.dataset
            for u in units
            if u.parameters.validate_every and u.parameters.steps % u.parameters.validate_every
        }

    real, made = ([u for (_, kind), units in side.items() if kind == "finetune" for u in units] for side in both)
    assert short(made) == short(real) & {u.parameters.dataset for u in made}
    assert [validation(*of) for of in ((0, [10000]), (500, [10000, 20000]), (350, [10000]), (125, [2500]))] == [
        0, 2, 3, 2,
    ]  # fmt: skip


def test_what_stays_is_chosen(place):
    choice = Choice(sets=("pets",), rates=3, seeds=1, configurations=("MHA", "LN1"))
    assert choice.of_list("components", ["all", "LN1", "MHA"]) == ["LN1", "MHA"]
    assert choice.of_list("components", ["all", "FC1"]) == ["all"]
    assert Choice().of_list("components", ["all", "FC1"]) == ["all", "FC1"]
    assert choice.of_list("lrs", [1, 2, 3, 4]) == [1, 3, 4]
    assert choice.of_list("targets", ["cifar10", "pets"]) == ["pets"]
    assert choice.of_list("dataset", ["cifar10", "cifar100"]) == ["cifar10"]
    assert choice.of_list("seeds", [0, 42, 3407]) == [0]
    for wrong in ({"sets": ()}, {"rates": 0}, {"seeds": True}, {"configurations": ("MHX",)}):
        with pytest.raises(InputError):
            Choice(**wrong)


def test_one_list_for_two_rules_is_refused(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text("lists: {n: [8, 500]}\nunits:\n- {kind: finetune, steps: $n, train_images: $n, warmup: 1}\n")
    with pytest.raises(InputError, match="the list n is used for parameters that shrink in different ways"):
        miniature(file, tmp_path)


# The material


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_DATA", str(tmp_path))
    monkeypatch.setenv("VITPLAST_MADE_UP", "1")
    return tmp_path


def test_made_up_sets_are_in_order_and_need_the_variable(data, monkeypatch):
    names = [*rehearsal.Choice().sets, "imagenet_val"]
    material.write_images(data, [*names, "photos"])
    written = {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    assert {check_set(name).state for name in names} == {GOOD}
    material.write_images(data, names)  # the same again: nothing is touched
    assert written == {path: path.stat().st_mtime_ns for path in data.rglob("*") if path.is_file()}
    monkeypatch.delenv("VITPLAST_MADE_UP")
    with pytest.raises(MadeUpError):
        images.open_images("cifar10", size=32)


def test_made_up_texts_need_the_variable_and_spare_real_ones(data, monkeypatch):
    material.write_texts(data)
    assert [len(texts.read_texts(name).texts) for name in texts.names()] == [
        material.TEXTS + material.TEXTS // 4,  # titles are lines too
        material.TEXTS,
    ]
    assert texts.key_name("ag_news") == "ag_news#made-up"
    monkeypatch.delenv("VITPLAST_MADE_UP")
    assert texts.key_name("ag_news") == "ag_news"
    with pytest.raises(MadeUpError, match="VITPLAST_MADE_UP=1"):
        texts.read_texts("ag_news")
    real = data / "real" / "ag_news" / "test.csv"
    real.parent.mkdir(parents=True)
    real.write_text('"1","a","b"\n')
    with pytest.raises(InputError, match="not made up; name another folder"):
        material.write_texts(data / "real")
    assert real.read_text() == '"1","a","b"\n'


def test_the_text_model_loads_with_its_tokenizer(place):
    loaded = models.load_text_model(f"hf:{place / 'models' / 'gpt2'}")
    assert (loaded.origin, loaded.model.config.n_layer) == ("file", 2)
    assert loaded.tokenizer.decode(loaded.tokenizer("badu gi .")["input_ids"]) == "badu gi ."


# A small one from the start to the pages

WHOLE = """
description: one unit of every kind
lists: {sets: [cifar10, cifar100]}
defaults:
  finetune: {model: vit_base_patch16_224.orig_in21k, img_size: 224, steps: 10000, batch_size: 512, warmup: 2000,
             augment: original, workers: 4, validation_images: 0, test_images: 0, head_init: default, log_every: 100}
units:
- {kind: finetune, experiment: main, dataset: domainnet_clipart, components: MHA, lrs: {each: [0.01, 0.02, 0.03]},
   seeds: {each: [0, 42]}, validate_every: 350}
- {kind: plasticity, experiment: plasticity, model: vit_huge_patch14_224.orig_in21k, source: imagenet_val,
   targets: {each: $sets}, pairs: 12800, design: cycled, img_size: 224}
- {kind: plasticity, experiment: plasticity_others, model: gpt2, source: wikitext103, targets: [ag_news], pairs: 12800,
   design: cycled}
- {kind: depth, experiment: probing, dataset: "cifar10_c:snow:5", model: vit_base_patch16_224.orig_in21k, img_size: 224,
   train_images: 0, test_images: 0}
- {kind: landscape, experiment: landscape, dataset: cifar10, model: vit_base_patch16_224.orig_in21k, img_size: 224,
   variants: [corrected]}
- {kind: bounds, experiment: bounds, model: vit_small_patch16_dinov3.lvd1689m, source: imagenet_val, targets: [pets],
   pairs: 12800, design: cycled, img_size: 224}
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_rehearsal_from_the_profile_to_the_pages(tmp_path, monkeypatch, capsys):
    """Six kernels and every page; four minutes on two cores that are busy with other work."""
    (tmp_path / "whole.yaml").write_text(WHOLE)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    found = rehearsal.prepare(str(tmp_path / "whole.yaml"), tmp_path / "here")
    rows = rehearsal.run(found)
    done = {row["experiment"]: (row["units"], row["done"], row["results"], row["results done"]) for row in rows}
    assert done == {
        "main": (1, 1, 4, 4), "plasticity": (1, 1, 2, 2), "plasticity_others": (1, 1, 1, 1), "probing": (1, 1, 1, 1),
        "landscape": (1, 1, 1, 1), "bounds": (1, 1, 1, 1), "all": (6, 6, 10, 10),
    }  # fmt: skip
    assert rows[-1]["seconds"] > 0
    assert rows[-1]["kB"] > 100
    for kind in ("finetune", "plasticity", "depth", "landscape", "bounds"):
        (gathered,) = (found.store / "gathered" / "whole-rehearsal").glob(f"{kind}.nc")
        assert results.read(gathered).attrs["made_up_images"].startswith("yes") or kind == "plasticity"
    before = {path: path.stat().st_mtime_ns for path in found.store.glob("*/*.nc")}
    assert rehearsal.prepare(str(tmp_path / "whole.yaml"), tmp_path / "here") == found
    assert rehearsal.run(found)[-1]["done"] == 6
    assert before == {path: path.stat().st_mtime_ns for path in found.store.glob("*/*.nc")}
    assert "6 done before" in capsys.readouterr().err
    monkeypatch.setenv("VITPLAST_EXPERIMENTS", found.name)
    for name, value in found.variables.items():
        monkeypatch.setenv(name, value)
    for path in sorted(PAGES.glob("*.md")):
        said = page_cells.execute(path).text
        assert "Profile `whole-rehearsal`, at small scale" in said
        assert "Made-up data" in said


def test_a_failure_is_told_with_the_table(tmp_path, monkeypatch):
    (tmp_path / "one.yaml").write_text(WHOLE.partition("- {kind: plasticity")[0])
    found = rehearsal.prepare(str(tmp_path / "one.yaml"), tmp_path / "here")
    monkeypatch.setattr("vitplast.rehearsal.running._swept", lambda *given: False)
    with pytest.raises(rehearsal.RehearsalError, match="4 results of one-rehearsal are missing") as caught:
        rehearsal.run(found)
    assert caught.value.rows[-1]["done"] == 0
    (found.folder / "data" / "domainnet" / "clipart" / "airplane").rename(found.folder / "elsewhere")
    with pytest.raises(VitplastError, match="domainnet_clipart"):
        rehearsal.run(found)
    with pytest.raises(InputError, match="sweep or laptop"):
        rehearsal.run(found, on="cloud")


def test_the_command_writes_a_folder_and_names_mistakes(tmp_path, monkeypatch, capsys):
    from vitplast.cli.commands import app

    (tmp_path / "one.yaml").write_text(WHOLE.partition("- {kind: plasticity")[0])
    folder = ["--profile", str(tmp_path / "one.yaml"), "--folder", str(tmp_path / "here")]
    app(["rehearse", *folder, "--seeds", "1", "--rates", "1", "--write-only"], standalone_mode=False)
    file = tmp_path / "here" / "one-rehearsal.yaml"
    assert f"profile: {file}" in capsys.readouterr().err
    found = rehearsal.Rehearsal(tmp_path / "here", file)
    with found.environment():
        (unit,) = found.profile().units
    assert (unit.parameters.lrs, unit.parameters.seeds) == ([0.02], [0])
    assert "VITPLAST_MADE_UP='1'" in found.pages()
    assert f"EXPERIMENTS='{file}'" in found.pages()
    with pytest.raises(InputError, match="has no variants"):
        app(["rehearse", *folder, "--variant", "other"], standalone_mode=False)
    with pytest.raises(InputError, match="leave --variant corrected out"):
        app(["rehearse", "--profile", "paper@corrected", "--variant", "corrected", "--folder", "x"],
            standalone_mode=False)  # fmt: skip
