"""Profile `paper`: the counts, steps, rates and validations of the authors' code, in both variants; experiments and
variants of profiles in general."""

from __future__ import annotations

import collections

import pytest

from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import make
from vitplast.runs import load_profile, outlook
from vitplast.runs.variants import split_name

CORRECTED, PUBLISHED = "paper", "paper@as-published"
#: Results of each experiment, as the authors' scripts launch them.
LAUNCHED = {
    "main": 924, "adamw": 288, "sizes": 144, "components": 8, "lora": 6, "low_data": 30, "plasticity": 33,
    "plasticity_others": 7, "probing": 11, "landscape": 3,
}  # fmt: skip
FINETUNING = ("main", "adamw", "sizes", "components", "lora", "low_data")
CORRUPTIONS = ("contrast", "gaussian_noise", "motion_blur", "snow", "speckle_noise")
SLOW, FAST = (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.06)
#: Steps, rates, validations and logged points of each set.
PROTOCOL = {
    **{name: (10_000, SLOW, 20, 100) for name in ("cifar10", "cifar100")},
    **{f"cifar10_c:{name}:5": (10_000, SLOW, 28, 142) for name in CORRUPTIONS},
    **{f"domainnet_{name}": (20_000, FAST, 40, 200) for name in ("clipart", "sketch")},
    "flowers102": (5_000, SLOW, 20, 100),
    "pets": (4_000, SLOW, 20, 100),
}


@pytest.fixture(scope="module")
def profiles():
    return {name: load_profile(name) for name in (CORRECTED, PUBLISHED)}


@pytest.fixture(scope="module", params=[CORRECTED, PUBLISHED])
def runs(request, profiles):
    """(name of the variant, experiment to its runs)."""
    found = collections.defaultdict(list)
    for unit in profiles[request.param].units:
        found[unit.experiment] += unit.runs.values()
    return request.param, dict(found)


def set_name(run):
    """The downstream set as `PROTOCOL` spells it, the severity written out."""
    name = run["dataset"]
    return f"{name}:5" if name.startswith("cifar10_c:") and name.count(":") == 1 else name


def points(run):
    """Number of validations, and of steps that are logged at equal distances."""
    every = run["validate_every"]
    return run["steps"] // every if every else run["evaluations"], run["steps"] // run["log_every"]


def test_counts_are_those_launched(runs):
    variant, by_experiment = runs
    counts = {name: len(own) for name, own in by_experiment.items()}
    assert counts == LAUNCHED | {"bounds": 3 if variant == PUBLISHED else 33}
    assert sum(counts[name] for name in ("main", "adamw", "sizes")) == 1356
    assert sum(counts[name] for name in FINETUNING) == 1400
    assert counts["main"] - sum(run["components"] == "emb" for run in by_experiment["main"]) == 792
    assert sum(run["seed"] == 0 for run in by_experiment["adamw"]) == 96
    assert sum(run["seed"] == 0 and "large" in run["model"] for run in by_experiment["sizes"]) == 24


def test_each_unit_is_one_result_so_that_a_job_is_one_run(profiles):
    assert all(len(unit.runs) == 1 for profile in profiles.values() for unit in profile.units)


def test_the_main_experiment_is_a_full_grid(runs):
    _, by_experiment = runs
    main = by_experiment["main"]
    assert {set_name(run) for run in main} == set(PROTOCOL)
    for name, (steps, rates, validations, logged) in PROTOCOL.items():
        own = [run for run in main if set_name(run) == name]
        assert len(own) == 84
        grid = {(run["components"], run["lr"], run["seed"]) for run in own}
        assert grid == {
            (c, lr, seed)
            for c in ("all", "emb", "LN1", "MHA", "LN2", "FC1", "FC2")
            for lr in rates
            for seed in (0, 42, 3407)
        }
        assert {run["steps"] for run in own} == {steps}
        assert {points(run) for run in own} == {(validations, logged)}
    assert {run["model"] for run in main} == {"vit_base_patch16_224.orig_in21k"}


def test_every_finetuning_run_has_the_common_protocol(runs):
    variant, by_experiment = runs
    for run in (run for name in FINETUNING for run in by_experiment[name]):
        common = {name: run[name] for name in ("batch_size", "warmup", "schedule", "clip", "momentum", "weight_decay")}
        assert common == {
            "batch_size": 512, "warmup": 2000, "schedule": "cosine", "clip": 1.0, "momentum": 0.9, "weight_decay": 0.0,
        }  # fmt: skip
        assert (run["head_init"], run["augment"], run["clipping"], run["img_size"]) == (
            "default", "original", "joint", 224,
        )  # fmt: skip
        assert (run["train_images"], run["validation_images"], run["test_images"]) == (0, 0, 0)
        assert (run["precision"], run["normalization"], run["accuracy_batch"], run["last_batch"]) == (
            ("float32", "imagenet", 512, "dropped") if variant == PUBLISHED else ("auto", "checkpoint", 0, "used")
        )


def test_ablations_are_those_of_the_scripts(runs):
    variant, by_experiment = runs
    published = variant == PUBLISHED
    six = {"all", "LN1", "MHA", "LN2", "FC1", "FC2"}
    adamw = by_experiment["adamw"]
    four = {"cifar100", "cifar10_c:motion_blur:5", "domainnet_clipart", "domainnet_sketch"}
    assert {set_name(run) for run in adamw} == four
    assert {run["optimizer"] for run in adamw} == {"adamw"}
    for run in adamw:
        steps, rates, validations, logged = PROTOCOL[set_name(run)]
        assert any(abs(100 * run["lr"] - rate) < 1e-9 for rate in rates)
        assert (run["steps"], *points(run)) == (steps, validations, logged)
    sizes = collections.Counter((run["model"].split("_")[1], run["accumulation"]) for run in by_experiment["sizes"])
    assert sizes == ({("large", 4): 72, ("huge", 8): 72} if published else {("large", 1): 72, ("huge", 1): 72})
    assert {(set_name(run), run["lr"]) for run in by_experiment["sizes"]} == {("domainnet_clipart", lr) for lr in FAST}
    assert {(run["components"], run["seed"]) for run in by_experiment["components"]} == {("MHA+FC1", 0)}
    assert all(run["components"] in six for run in adamw + by_experiment["sizes"])

    lora = {(set_name(run), run["optimizer"], run["lr"]) for run in by_experiment["lora"]}
    assert lora == {("cifar100", "adamw", lr) for lr in (0.001, 0.003, 0.006)} | {
        ("domainnet_clipart", "sgd", lr) for lr in (0.03, 0.06, 0.1)
    }
    for run in by_experiment["lora"]:
        assert (run["lora_rank"], run["lora_alpha"], run["components"]) == (8, 16.0, "MHA")
        assert run["train_head"] is run["train_norm"] is not published

    low = {(set_name(run), run["per_class"]) for run in by_experiment["low_data"]}
    assert low == {
        ("cifar100", 10), ("domainnet_clipart", 10), ("domainnet_sketch", 10), ("pets", 27),
        ("cifar10_c:motion_blur:5", 0 if published else 100),
    }  # fmt: skip
    for run in by_experiment["low_data"]:
        assert (run["steps"], run["lr"], run["seed"], points(run)[0]) == (2500, 0.01, 0, 20)
        assert run["components"] in six
    speckle = {run["accumulation"] for run in by_experiment["main"] if "speckle" in run["dataset"]}
    assert speckle == {4 if published else 1}
    others = {run["accumulation"] for run in by_experiment["main"] if "speckle" not in run["dataset"]}
    assert others == {1}


def test_measurements_are_those_of_the_scripts(runs):
    variant, by_experiment = runs
    published = variant == PUBLISHED
    sizes = collections.Counter()
    for run in by_experiment["plasticity"]:
        size = run["model"].split("_")[1]
        sizes[size] += 1
        batch = {"base": 64, "large": 32, "huge": 32}[size]
        assert (run["pairs"], run["source"], run["design"]) == (12_800, "imagenet_val", "cycled")
        assert (run["conventions"], run["order"], run["drop_last"]) == (
            (["common"], "file", batch) if published else (["common", "in_situ"], "random", 0)
        )
    assert sizes == {"base": 11, "large": 11, "huge": 11}
    others = {run["model"].partition(".")[0] for run in by_experiment["plasticity_others"]}
    assert others == {
        "vit_small_patch16_dinov3", "vit_huge_plus_patch16_dinov3", "vit_7b_patch16_dinov3",
        "vit_base_patch16_224", "vit_large_patch16_224", "vit_huge_patch14_224", "gpt2",
    }  # fmt: skip
    assert sum(run["model"].endswith(".mae") for run in by_experiment["plasticity_others"]) == 3
    assert {run["pairs"] for run in by_experiment["plasticity_others"]} == {12_800}
    by_model = {run["model"].partition(".")[0]: run for run in by_experiment["plasticity_others"]}
    gpt2 = by_model["gpt2"]
    assert (gpt2["source"], gpt2["target"], gpt2["tokens"], gpt2["order"]) == ("wikitext103", "ag_news", 128, "random")
    assert (gpt2["padding"], gpt2["mha_input"]) == (("counted", "normed") if published else ("excluded", "embedding"))
    assert {by_model[f"vit_{size}_patch16_dinov3"]["fc1"] for size in ("huge_plus", "7b")} == {
        "up" if published else "both"
    }
    probing = by_experiment["probing"]
    assert {set_name(run) for run in probing} == set(PROTOCOL)
    assert {(run["max_iter"], run["c"], run["features"], run["view"]) for run in probing} == {
        (5000, 1.0, "mean", "paper" if published else "plain")
    }
    landscapes = by_experiment["landscape"]
    assert sorted(run["components"] for run in landscapes) == [["FC1"], ["LN1"], ["MHA"]]
    assert {(*run["variants"], run["grid"], run["extent"], run["steps"]) for run in landscapes} == {
        ("as_published" if published else "corrected", 20, 0.5, 20)
    }
    assert {run["model"].split("_")[1] for run in by_experiment["bounds"]} == {"base", "large", "huge"}


def test_variants_share_no_result_of_finetuning_and_the_first_one_is_the_plain_name(profiles):
    keys = [{k for u in p.units if u.kind == "finetune" for k in u.runs} for p in profiles.values()]
    assert not keys[0] & keys[1]
    first = load_profile("paper@corrected")
    assert [u.runs.keys() for u in first.units] == [u.runs.keys() for u in profiles[CORRECTED].units]
    assert profiles[CORRECTED].variants == ("corrected", "as-published")
    assert (profiles[PUBLISHED].name, profiles[PUBLISHED].units[0].parameters.profile) == (PUBLISHED, PUBLISHED)
    with pytest.raises(UnknownNameError, match="Did you mean 'as-published'"):
        load_profile("paper@as_published")


def test_the_dry_run_counts_by_experiment_and_is_short(profiles, tmp_path):
    found = outlook.dry_run(profiles[PUBLISHED], store=tmp_path, data="")
    rows = {(row["experiment"], row["kind"]): row for row in found.rows}
    assert {name: row["results"] for (name, _), row in rows.items()} == LAUNCHED | {"bounds": 3, "all": 1457}
    assert rows["main", "finetune"]["units done"] == 0
    assert rows["main", "finetune"]["GPU hours left"] > rows["adamw", "finetune"]["GPU hours left"] > 0
    parts = sum(row["GPU hours left"] for (name, _), row in rows.items() if name != "all")
    assert rows["all", "all"]["GPU hours left"] == pytest.approx(parts, abs=1)
    assert "disk for all: results" in found.needs
    assert not found.borrowed


# --- experiments, variants and `each` of any profile

SMALL = """
lists:
  sets: [mnist5k, digits]
  size: [32]
defaults:
  every: {weights: random}
  probe: {test_images: 7}
variants:
  plain: {}
  small:
    lists: {sets: [digits]}
    defaults:
      every: {device: cpu}
      probe: {train_images: 5}
units:
  - {kind: probe, experiment: first, dataset: $sets, seeds: {each: [0, 1]}}
  - {kind: probe, features: cls, test_images: 9}
"""


def loaded(tmp_path, text, variant=""):
    (tmp_path / "p.yaml").write_text(text)
    return load_profile(f"{tmp_path / 'p.yaml'}{variant}")


def test_a_variant_replaces_lists_and_defaults_and_nothing_else(tmp_path):
    plain, small = loaded(tmp_path, SMALL), loaded(tmp_path, SMALL, "@small")
    assert (plain.name, small.name) == ("p", "p@small")
    assert plain.experiments == ("first",)
    assert [u.experiment for u in plain.units] == ["first"] * 4 + [""]
    assert [(u.parameters.dataset, u.parameters.seeds) for u in plain.units[:4]] == [
        (name, [seed]) for name in ("mnist5k", "digits") for seed in (0, 1)
    ]
    assert [u.parameters.dataset for u in small.units] == ["digits", "digits", "mnist5k"]
    assert {(u.parameters.train_images, u.parameters.device) for u in small.units} == {(5, "cpu")}
    assert [u.parameters.test_images for u in small.units] == [7, 7, 9], "an entry's own value counts"
    assert {u.parameters.train_images for u in plain.units} == {0}


def test_the_experiment_decides_no_key():
    from vitplast.runs import Unit

    p = make("probe", {"weights": "random"})
    assert Unit("probe", p, "one").key == Unit("probe", p, "two").key
    assert Unit("probe", p, "one") == Unit("probe", p)


@pytest.mark.parametrize(
    ("text", "variant", "words"),
    [
        ("units: [{kind: probe}]", "@a", "has no variants"),
        ("variants: {b: {}}\nunits: [{kind: probe}]", "@a", "variant of p.yaml 'a'"),
        ("gpu: 1\nunits: [{kind: probe}]", "", "gpu must be true or false, got 1"),
        ("variants: [b]\nunits: [{kind: probe}]", "", "variants must be a mapping"),
        ("variants: {b: {units: []}}\nunits: [{kind: probe}]", "", "variants: b 'units'"),
        ("variants: {b: {defaults: {prob: {}}}}\nunits: [{kind: probe}]", "", "Did you mean 'probe'"),
        ("variants: {b: {lists: {a: [1]}}}\nunits: [{kind: probe}]", "", "list in p.yaml: variants: b 'a'"),
        ("units: [{kind: probe, experiment: [a]}]", "", "experiment must be a name"),
        ("units: [{kind: probe, seeds: {every: [1]}}]", "", "seeds must be a list, or each:"),
        ("units: [{kind: probe, seeds: {each: []}}]", "", "seeds is an empty list"),
        ("units: [{kind: probe, dataset: {each: [digits]}}]", "", "dataset must be str"),
    ],
)
def test_wrong_variants_and_experiments_are_refused_in_words(tmp_path, text, variant, words):
    with pytest.raises(InputError, match=words):
        loaded(tmp_path, text, variant)


def test_names_with_variants_are_taken_apart_at_the_last_folder():
    assert split_name("paper@as-published") == ("paper", "as-published")
    assert split_name("a@b/mine.yaml") == ("a@b/mine.yaml", "")
    assert split_name("a@b/mine.yaml@small") == ("a@b/mine.yaml", "small")
