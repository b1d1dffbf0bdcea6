"""Which runs belong to the main grid, which to a variation, and how many were planned."""

import numpy as np
import pytest
import xarray as xr

from vitplast.analysis.selection import (
    MAIN,
    main_grid,
    main_grids,
    model_name,
    models_of,
    planned,
    varied,
    whole,
)
from vitplast.errors import InputError, UnknownNameError
from vitplast.models import PACKAGED

OWN = "vit_micro_patch14_56.fashion_mnist"


def runs(rows):
    """Gathered runs from rows (model, components, lr, seed, changes); a run of n steps is NaN beyond them."""
    fixed = {name: value for name, value in MAIN.items() if name != "components"} | {"dataset": "digits"}
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
        (OWN, "MHA", 0.3, 0, {"steps": 80}),
        (OWN, "MHA+FC1", 0.3, 0, {}),
        (PACKAGED, "MHA", 0.03, 0, {}),
        (PACKAGED, "MHA", 0.03, 0, {"clipping": "separate"}),
        ("vit_tiny_patch16_224", "MHA", 0.03, 0, {"optimizer": "adamw"}),
    ]
)


def test_packaged_model_comes_first():
    assert models_of(GATHERED) == [PACKAGED, OWN, "vit_tiny_patch16_224"]
    assert (model_name(OWN), model_name("vit_tiny_patch16_224")) == ("own ViT", "vit_tiny_patch16_224")


def test_main_grid_leaves_the_variations_out():
    table = main_grid(GATHERED, OWN)
    assert table.attrs["runs"] == 2
    assert table.sizes["step"] == MAIN["steps"]
    assert table["configuration"].values.tolist() == ["MHA"]
    assert set(main_grids(GATHERED)) == {PACKAGED, OWN}


def test_varied_changes_what_it_says():
    longer = varied(GATHERED, OWN, steps=80)
    assert longer.attrs["runs"] == 1
    assert longer.sizes["step"] == 80
    assert varied(GATHERED, OWN, components=["MHA", "MHA+FC1"]).sizes["configuration"] == 2
    with pytest.raises(InputError, match="no run"):
        varied(GATHERED, OWN, steps=7)
    with pytest.raises(UnknownNameError):
        varied(GATHERED, OWN, stepps=80)


def test_whole_asks_for_every_planned_run():
    table = main_grid(GATHERED, OWN)
    plan = planned("finetune", "laptop", model=OWN, **MAIN)
    assert not whole(table, plan).any()  # three seeds and four rates are planned
    few = plan[(plan.seed == 0) & (plan.lr.isin([0.1, 0.3]))]
    assert whole(table, few).sel(dataset="digits", configuration="MHA").item()


def test_planned_counts_the_main_grid():
    own = planned("finetune", "laptop", model=OWN, **MAIN)
    assert len(own) == 14 * 8 * 4 * 3
    assert len(planned("finetune", "laptop", model=PACKAGED, **MAIN)) == 15 * 8 * 4 * 3
    assert set(own.seed) == {0, 42, 3407}
    with pytest.raises(UnknownNameError):
        planned("finetuning")
    with pytest.raises(UnknownNameError):
        planned("probe", "laptop", stepps=3)
