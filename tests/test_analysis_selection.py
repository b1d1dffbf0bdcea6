"""Which runs belong to which experiment of a profile, as a grid, and how many were planned."""

import numpy as np
import pytest
import xarray as xr

from vitplast import book, results
from vitplast.analysis.selection import main_grid, main_grids, model_name, models_of, of_experiment, varied, whole
from vitplast.analysis.study import Study, span
from vitplast.errors import InputError, UnknownNameError
from vitplast.models import PACKAGED
from vitplast.runs import load_profile, project_root

OWN = "vit_micro_patch14_56.fashion_mnist"


def runs(rows):
    """Gathered runs from rows (model, components, lr, seed, changes); a run of n steps is NaN beyond them."""
    fixed = {"experiment": "main", "dataset": "digits", "steps": 40, "optimizer": "sgd", "clipping": "joint"}
    full = [fixed | {"model": m, "components": c, "lr": lr, "seed": s} | more for m, c, lr, s, more in rows]
    length = max(row["steps"] for row in full)
    step = np.arange(length)
    steps = np.array([row["steps"] for row in full])
    loss = np.where(step < steps[:, None], 1.0, np.nan)
    data = {
        "test_accuracy": ("run", np.linspace(0.5, 0.6, len(full))),
        "validation_accuracy": ("run", np.linspace(0.5, 0.6, len(full))),
        "n_test": ("run", [400] * len(full)),
        "train_loss": (("run", "step"), loss),
    }
    coords = {name: ("run", [row[name] for row in full]) for name in full[0]}
    return xr.Dataset(data, coords | {"step": step})


GATHERED = runs(
    [
        (OWN, "MHA", 0.1, 0, {}),
        (OWN, "MHA", 0.3, 0, {}),
        (OWN, "MHA", 0.3, 0, {"steps": 80, "experiment": "budget"}),
        (OWN, "MHA+FC1", 0.3, 0, {"experiment": "components"}),
        (PACKAGED, "MHA", 0.03, 0, {}),
        (PACKAGED, "MHA", 0.03, 0, {"clipping": "separate", "experiment": "clipping"}),
        ("vit_tiny_patch16_224", "MHA", 0.03, 0, {"optimizer": "adamw", "experiment": "adamw"}),
    ]
)


@pytest.fixture(scope="module")
def laptop():
    return Study(load_profile("laptop"))


def test_packaged_model_comes_first():
    assert models_of(GATHERED) == [PACKAGED, OWN, "vit_tiny_patch16_224"]
    assert (model_name(OWN), model_name("vit_tiny_patch16_224")) == ("own ViT", "vit_tiny_patch16_224")
    assert model_name("vit_huge_patch14_224.orig_in21k") == "ViT-H/14"


def test_main_grid_leaves_other_experiments_out():
    table = main_grid(GATHERED, OWN)
    assert table.attrs["runs"] == 2
    assert table.sizes["step"] == 40
    assert table["configuration"].values.tolist() == ["MHA"]
    assert set(main_grids(GATHERED)) == {PACKAGED, OWN}


def test_varied_takes_the_experiment_and_what_its_runs_differ_in():
    longer = varied(GATHERED, OWN, "budget", steps=80)
    assert longer.attrs["runs"] == 1
    assert longer.sizes["step"] == 80
    assert varied(GATHERED, OWN, "components")["configuration"].values.tolist() == ["MHA+FC1"]
    with pytest.raises(InputError, match="no run"):
        varied(GATHERED, OWN, "budget", steps=7)
    with pytest.raises(InputError, match="'budgets'; there are runs of main, budget"):
        varied(GATHERED, OWN, "budgets")
    with pytest.raises(UnknownNameError):
        varied(GATHERED, OWN, "budget", stepps=80)


def test_steps_may_depend_on_the_image_set_and_on_nothing_else():
    own = {"dataset": "emoji", "steps": 60}
    table = main_grid(runs([(OWN, "MHA", 0.1, 0, {}), (OWN, "LN1", 0.1, 0, {}), (OWN, "MHA", 0.1, 0, own)]), OWN)
    assert dict(zip(table["dataset"].values.tolist(), table["steps"].values.tolist(), strict=True)) == {
        "digits": 40,
        "emoji": 60,
    }
    assert "steps" not in table.attrs
    assert table["train_loss"].sel(dataset="digits", configuration="MHA").notnull().sum() == 40
    with pytest.raises(InputError, match="steps=40 or 60"):
        main_grid(runs([(OWN, "MHA", 0.1, 0, {}), (OWN, "LN1", 0.1, 0, {"steps": 60})]), OWN)
    with pytest.raises(InputError, match="optimizer=adamw or sgd"):
        main_grid(runs([(OWN, "MHA", 0.1, 0, {}), (OWN, "MHA", 0.1, 0, own | {"optimizer": "adamw"})]), OWN)


def test_runs_of_an_experiment_by_parameters():
    assert of_experiment(GATHERED, "main", "clipping", model=PACKAGED).sizes["run"] == 2
    assert of_experiment(GATHERED, "main", model=[PACKAGED, OWN], lr=0.03).sizes["run"] == 1
    assert of_experiment(GATHERED, "sizes") is None
    assert of_experiment(None, "main") is None
    with pytest.raises(InputError, match="say of no experiment"):
        of_experiment(GATHERED.drop_vars("experiment"), "main")
    with pytest.raises(UnknownNameError, match="clipping"):
        of_experiment(GATHERED, "main", cliping="joint")


def test_whole_asks_for_every_planned_run(laptop):
    table = main_grid(GATHERED, OWN)
    plan = laptop.planned("finetune", "main", model=OWN)
    assert not whole(table, plan).any()  # three seeds and four rates are planned
    few = plan[(plan.seed == 0) & (plan.lr.isin([0.1, 0.3]))]
    assert whole(table, few).sel(dataset="digits", configuration="MHA").item()


def test_planned_counts_the_experiments(laptop):
    own = laptop.planned("finetune", "main", model=OWN)
    assert len(own) == 14 * 8 * 4 * 3
    assert len(laptop.planned("finetune", "main", model=PACKAGED)) == 15 * 8 * 4 * 3
    assert set(own.seed) == {0, 42, 3407}
    counts = laptop.planned("finetune").groupby("experiment").size().to_dict()
    others = {"budget": 264, "clipping": 112, "adamw": 96, "lora": 32, "components": 16, "low_data": 112, "pixels": 28}
    assert counts == {"main": 2784, "rescaling": 288, "plasticity_change": 20} | others
    assert set(laptop.planned("finetune", "budget").steps) == {80, 160, 320}
    with pytest.raises(UnknownNameError):
        laptop.planned("finetuning")
    with pytest.raises(UnknownNameError):
        laptop.planned("probe", stepps=3)
    assert not len(laptop.planned("search"))


def test_the_kept_results_are_all_of_an_experiment(laptop):
    """The names of experiments changed no key: every kept run is still one that the profile asks for."""
    for path in sorted((project_root() / "data" / "laptop").glob("*.nc")):
        gathered = laptop.label(results.read(path), path.stem)
        assert set(gathered["run_key"].values) <= set(laptop.planned(path.stem)["run_key"]), path.stem
        assert (gathered["experiment"] != "").all(), path.stem


def test_labels_are_found_by_key(laptop):
    key = laptop.planned("finetune", "budget")["run_key"].iloc[0]
    found = laptop.label(xr.Dataset(coords={"run_key": ("run", [key, "0" * 16])}), "finetune")
    assert found["experiment"].values.tolist() == ["budget", ""]


def test_scale_is_said(laptop):
    assert laptop.scale == "at small scale"
    assert laptop.span("steps") == "40"
    assert laptop.span("img_size", "finetune", "sizes") == "none"
    with pytest.raises(InputError, match="stepps"):
        laptop.span("stepps")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([40, 40], "40"),
        ([4000, 20000, 10000], "4,000 to 20,000"),
        ([0.5, 0.03], "0.03 to 0.5"),
        (["a", "b", "a"], "a and b"),
    ],
)
def test_span_says_one_value_or_the_range(values, text):
    assert span(values) == text


def test_profile_of_the_experiments_is_named_by_the_environment(monkeypatch):
    monkeypatch.delenv("VITPLAST_EXPERIMENTS", raising=False)
    assert book.experiments() == "laptop"
    monkeypatch.setenv("VITPLAST_EXPERIMENTS", "some.d/mine.yaml@second")
    assert book.experiments() == "mine@second"
    assert book.command() == "make sweep keep PROFILE=mine@second"
