"""Each notebook, run by the package's own runner on a tiny model, writes valid results."""

from __future__ import annotations

import nbformat
import pytest

from vitplast import results
from vitplast.parameters import KINDS, make
from vitplast.runs import Unit, notebook_path, result_path, run_unit

MODEL = {"model": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "device": "cpu"}
SMOKE = {
    "plasticity": {"source": "digits", "targets": ["digits", "digits:snow:3"], "pairs": 4},
    "bounds": {"source": "digits", "targets": ["digits"], "pairs": 4},
    "theory": {"source": "digits", "targets": ["digits"], "pairs": 4, "local_pairs": 1, "local_points": 2},
    "gradients": {"source": "digits", "targets": ["digits"], "pairs": 2, "images": 1, "factors": [0.5, 1.0]},
    "search": {"cases": ["L1-tall", "N7", "A3-query-bias"], "starts": 2, "steps": 10},
    "finetune": {
        "dataset": "digits", "components": "LN1", "lrs": [0.1, 0.2], "seeds": [0], "steps": 3, "warmup": 1,
        "batch_size": 8, "train_images": 30, "validation_images": 20, "test_images": 20,
    },
    "probe": {"dataset": "digits", "train_images": 40, "test_images": 20},
    "depth": {"dataset": "digits", "train_images": 40, "test_images": 20},
    "landscape": {
        "dataset": "digits", "components": ["LN1"], "images": 4, "head_images": 40, "rate_images": 1, "steps": 2,
        "grid": 2,
    },
    "criteria": {
        "dataset": "digits", "images": 6, "source": "digits", "pairs": 2, "head_images": 20, "jacobian_images": 1,
    },
    "pretrain": {"dataset": "digits", "epochs": 1, "train_images": 64, "test_images": 20},
}  # fmt: skip


@pytest.mark.parametrize("kind", SMOKE)
def test_a_notebook_writes_its_results_once(tmp_path, kind):
    unit = Unit(kind, make(kind, {**({} if kind in ("search", "pretrain") else MODEL), **SMOKE[kind]}))
    assert run_unit(unit, store=tmp_path) == "done"
    for key, run in unit.runs.items():
        ds = results.read(result_path(tmp_path, kind, key))
        assert ds.attrs["run_key"] == key
        assert ds.attrs["weights_origin"] == "random"
        assert kind == "search" or len(ds.attrs["weights_sha256"]) == 64
        if kind == "finetune":
            assert float(ds.lr) == run["lr"]
    assert run_unit(unit, store=tmp_path) == "skipped"


def test_every_kind_has_a_notebook_and_a_smoke_run():
    assert set(SMOKE) == set(KINDS)


@pytest.mark.parametrize("kind", SMOKE)
def test_a_notebook_is_thin_and_says_how_to_adapt_it(kind):
    notebook = nbformat.read(notebook_path(kind), as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) <= 12
    assert not any("def " in cell or "class " in cell for cell in cells)
    assert "Adapt it" in notebook.cells[-1].source
