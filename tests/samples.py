"""Small results of every kind with made-up numbers, and notebooks that write them, for the tests of files and runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vitplast import parameters
from vitplast.components import COMPONENTS
from vitplast.results import schema_of

LAYERS = 2


def make(kind: str, **values: Any) -> parameters.Parameters:
    of_model = issubclass(parameters.KINDS[kind], parameters.ModelParameters)
    return parameters.make(kind, ({"weights": "random", "device": "cpu"} if of_model else {}) | values)


def one_run(kind: str, **values: Any) -> tuple[str, dict[str, Any]]:
    """Key and parameters of the first run."""
    return next(iter(make(kind, **values).runs().items()))


def dataset(kind: str, run: dict[str, Any], shift: float = 0.0) -> xr.Dataset:
    """A result of `kind` that fits `run`; `shift` changes its numbers."""
    rng = np.random.default_rng(run["seed"])
    makers = {
        "plasticity": _plasticity,
        "bounds": _bounds,
        "theory": _from_schema,
        "gradients": _from_schema,
        "search": _from_schema,
        "finetune": _finetune,
        "probe": _probe,
        "depth": _from_schema,
        "landscape": _from_schema,
        "pretrain": _from_schema,
        "criteria": _from_schema,
    }
    made = makers[kind](run, rng, shift) if makers[kind] is not _from_schema else _from_schema(kind, run, rng, shift)
    return made.assign_attrs({name: "none" for name in schema_of(kind).attrs if name not in made.attrs})


def _plasticity(run, rng, shift):
    shape = (len(run["conventions"]), LAYERS, 5, run["pairs"])
    d_in, d_out = rng.random(shape) + 1, rng.random(shape) + shift
    dims = ("convention", "layer", "component", "pair")
    names = [f"image {i}" for i in range(run["pairs"])]
    return xr.Dataset(
        {"rate": (dims, d_out / d_in), "distance_in": (dims, d_in), "distance_out": (dims, d_out)},
        coords={
            "convention": run["conventions"],
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
            "pair": np.arange(run["pairs"]),
            **{n: ("pair", names) for n in ("source_id", "target_id", "source_group", "target_group")},
        },
        attrs={"design": run["design"], "dropped_pairs": 0},
    )


def _bounds(run, rng, shift):
    values = rng.random((2, 4, LAYERS, 5)) + shift
    values[1, :2] = np.nan
    return xr.Dataset(
        {"bound": (("convention", "variant", "layer", "component"), values)},
        coords={
            "convention": ["common", "in_situ"],
            "variant": ["as_coded", "heads_fixed", "valid", "new"],
            "layer": np.arange(LAYERS),
            "component": list(COMPONENTS),
        },
    )


def _finetune(run, rng, shift):
    steps = np.arange(run["steps"])
    evaluations = np.unique(np.linspace(1, run["steps"], run["evaluations"]).astype(int))
    whole = {
        "best_step": int(evaluations[-1]),
        "diverged_step": -1,
        "trainable_parameters": 1000,
        "component_parameters": 900,
        "n_train": 100,
        "n_validation": 50,
        "n_test": 50,
    }
    real = {
        "test_accuracy": 0.5,
        "test_loss": 1.0 + shift,
        "validation_accuracy": 0.5,
        "seconds": 0.1,
        "images_per_second": 10.0,
    }
    by_step = ("train_loss", "learning_rate", "gradient_norm", "gradient_norm_total", "gradient_norm_head")
    return xr.Dataset(
        {
            **{n: ((), v) for n, v in (whole | real).items()},
            **{n: ("step", rng.random(len(steps)) + shift) for n in by_step},
            "validation_accuracy_curve": ("evaluation", rng.random(len(evaluations))),
            "validation_loss": ("evaluation", rng.random(len(evaluations)) + shift),
        },
        coords={"step": steps, "evaluation": evaluations},
    )


def _from_schema(kind, run, rng, shift):
    """Every variable of the schema, with made-up numbers in its range."""
    table = schema_of(kind)
    labels = {dim: list(v.choices) or list(range(2)) for dim, v in table.coords.items() if v.dims == (dim,)} | {
        "layer": list(range(LAYERS))
    }
    labels |= {"factor": [0.5, 1.0]} if kind == "gradients" else {"formula": ["a", "b"]} if kind == "search" else {}
    coords, data = {}, {}
    for name, v in table.coords.items():
        values = (
            labels[name]
            if name in labels
            else [v.choices[0] if v.choices else "x"] * (len(labels[v.dims[0]]) if v.dims else 1)
        )
        coords[name] = (v.dims, values) if v.dims else run.get(name, values[0])
    for name, v in table.variables.items():
        values = rng.random([len(labels[d]) for d in v.dims]) * 0.5 + shift
        data[name] = (v.dims, values if v.dtype == "float64" else np.ones(values.shape, dtype=v.dtype))
    return xr.Dataset(data, coords=coords)


def _probe(run, rng, shift):
    return xr.Dataset({"test_accuracy": 0.5 + shift, "train_accuracy": 0.75, "n_train": 100, "n_test": 50})


def notebook(path: Path, kind: str, body: str = "", *, without: tuple[str, ...] = ()) -> Path:
    """A notebook with the parameters of `kind` that claims and writes each of its results from `dataset`.

    It adds the key of each result it computes to `marker.txt` in the store; `body` runs before the results are made.
    """
    import nbformat

    cls = parameters.KINDS[kind]
    lines = [
        f"{f.name}: {f.type} = {getattr(cls(), f.name)!r}  # {f.metadata['help']}"
        for f in dataclasses.fields(cls)
        if f.name not in without
    ]
    work = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import samples
from vitplast import parameters, results
from vitplast.runs import result_path, store_folder
names = [f for f in parameters.KINDS[{kind!r}].__dataclass_fields__ if f in globals()]
chosen = parameters.make({kind!r}, {{n: globals()[n] for n in names}})
marker = store_folder() / "marker.txt"
"""
    write = f"""
for key, run in chosen.runs().items():
    with results.claim(result_path(store, {kind!r}, key)) as needed:
        if needed:
            with open(marker, "a") as file:
                file.write(key + "\\n")
            results.write(samples.dataset({kind!r}, run), result_path(store, {kind!r}, key), run=run, kind={kind!r})
"""
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in ("\n".join(lines), work + body, write)]
    book.cells[0].metadata["tags"] = ["parameters"]
    for i, cell in enumerate(book.cells):
        cell["id"] = f"cell-{i}"
    path.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path / f"{kind}.ipynb")
    return path / f"{kind}.ipynb"
