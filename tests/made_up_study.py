"""A small profile with the experiments of the profile `paper`, and made-up results whose answers are known."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import samples
import xarray as xr

from vitplast import results
from vitplast.components import COMPONENTS
from vitplast.runs import load_profile, result_path
from vitplast.runs.sweep import gather

#: Two clusters, three lengths of a run; the models of the paper by name.
PROFILE = """
description: made up
lists:
  sets: [cifar100, "cifar10_c:motion_blur:5", domainnet_clipart]
  six: [all, LN1, MHA, LN2, FC1, FC2]
defaults:
  every: {img_size: 224}
  finetune:
    model: vit_base_patch16_224.orig_in21k
    batch_size: 32
    warmup: 2
    evaluations: 2
    head_init: default
    train_images: 0
  plasticity: {source: imagenet_val, pairs: 12, conventions: [common, in_situ], design: cycled}
  bounds: {source: imagenet_val, pairs: 12, design: cycled}
  depth: {model: vit_base_patch16_224.orig_in21k, seeds: [42]}
variants:
  first: {}
  second:
    defaults:
      finetune: {batch_size: 16}
units:
  - {kind: finetune, experiment: main, dataset: cifar100, components: [all, emb, LN1, MHA, LN2, FC1, FC2],
     lrs: [0.01, 0.03], steps: 8}
  - {kind: finetune, experiment: main, dataset: "cifar10_c:motion_blur:5",
     components: [all, emb, LN1, MHA, LN2, FC1, FC2], lrs: [0.01, 0.03], steps: 12,
     log_every: 2}
  - {kind: finetune, experiment: main, dataset: domainnet_clipart, components: [all, emb, LN1, MHA, LN2, FC1, FC2],
     lrs: [0.03, 0.06], steps: 20, evaluations: 4}
  - {kind: finetune, experiment: adamw, dataset: cifar100, components: $six, optimizer: adamw, lrs: [0.0001, 0.0003],
     steps: 8}
  - {kind: finetune, experiment: sizes, model: [vit_large_patch16_224.orig_in21k, vit_huge_patch14_224.orig_in21k],
     dataset: domainnet_clipart, components: $six, lrs: [0.03, 0.06], steps: 20, evaluations: 4}
  - {kind: finetune, experiment: components, dataset: cifar100, components: MHA+FC1, lrs: [0.01, 0.03], steps: 8}
  - {kind: finetune, experiment: lora, dataset: cifar100, components: MHA, lora_rank: 8, optimizer: adamw,
     lrs: [0.001, 0.003], steps: 8}
  - {kind: finetune, experiment: lora, dataset: domainnet_clipart, components: MHA, lora_rank: 8, lrs: [0.03, 0.06],
     steps: 20}
  - {kind: finetune, experiment: low_data, dataset: [cifar100, domainnet_clipart], components: $six, per_class: 10,
     lrs: [0.03], steps: 4}
  - kind: plasticity
    experiment: plasticity
    model: [vit_base_patch16_224.orig_in21k, vit_large_patch16_224.orig_in21k, vit_huge_patch14_224.orig_in21k]
    targets: {each: $sets}
  - {kind: plasticity, experiment: plasticity_others, model: vit_small_patch16_dinov3.lvd1689m, targets: [cifar100]}
  - {kind: bounds, experiment: bounds, model: vit_base_patch16_224.orig_in21k, targets: [cifar100]}
  - {kind: depth, experiment: probing, dataset: $sets}
  - {kind: landscape, experiment: landscape, model: vit_base_patch16_224.orig_in21k, dataset: cifar100,
     components: {each: [LN1, MHA]}, variants: [corrected]}
"""
#: Test accuracy at the smaller rate with SGD; the larger one adds `RATE`, AdamW `ADAMW`, few images take `FEW` away.
ACCURACY = {
    "MHA": 0.80, "FC1": 0.70, "FC2": 0.68, "LN2": 0.60, "LN1": 0.58, "all": 0.72, "emb": 0.5, "MHA+FC1": 0.82,
}  # fmt: skip
RATE, ADAMW, FEW, PROBE = 0.02, 0.05, -0.1, 0.4
PLASTICITY = {"LN1": 1.0, "MHA": 8.0, "LN2": 1.5, "FC1": 4.0, "FC2": 3.0}
LARGER_RATES = (0.03, 0.06, 0.0003, 0.003)


def make(folder: Path, experiments: tuple[str, ...] = (), *, whole: Path | None = None) -> Path:
    """Writes the profile to `folder/mine.yaml` and its gathered results to `folder/store`; returns the profile's path.

    `experiments`: only the results of these are there, by default all; `whole`: the profile of results made before,
    which are used again.
    """
    path = folder / "mine.yaml"
    path.write_text(PROFILE, encoding="utf-8")
    profile = load_profile(path)
    for unit in [u for u in profile.units if not experiments or u.experiment in experiments]:
        for key, run in unit.runs.items():
            where = result_path(folder / "store", unit.kind, key)
            where.parent.mkdir(parents=True, exist_ok=True)
            if whole is not None:
                shutil.copyfile(result_path(whole.parent / "store", unit.kind, key), where)
            else:
                results.write(_made(unit.kind, run), where, run=run, kind=unit.kind)
    gather(profile, store=folder / "store")
    return path


def _made(kind: str, run: dict[str, Any]) -> xr.Dataset:
    ds = samples.dataset(kind, run)
    change = {"finetune": _finetune, "plasticity": _plasticity, "depth": _depth, "landscape": _landscape}
    return change[kind](ds, run) if kind in change else ds


def _finetune(ds: xr.Dataset, run: dict[str, Any]) -> xr.Dataset:
    value = ACCURACY[run["components"]]
    value += RATE * (run["lr"] in LARGER_RATES and not (run["lr"] == 0.03 and run["dataset"].startswith("domainnet")))
    value += ADAMW * (run["optimizer"] == "adamw") + FEW * (run["per_class"] > 0)
    norm = np.full(ds.sizes["step"], PLASTICITY.get(run["components"], 2.0))
    every = run.get("log_every", 1)
    ds = ds.isel(step=slice(None, None, every)) if ds.sizes["step"] == run["steps"] else ds
    norm = norm[: ds.sizes["step"]]
    data = {"test_accuracy": value, "validation_accuracy": value, "n_test": 1000}
    data |= {"component_parameters": 100 if run["components"].startswith("LN") else 1000}
    curves = {"gradient_norm": norm, "gradient_norm_head": np.ones_like(norm), "gradient_norm_total": np.hypot(norm, 1)}
    return ds.assign({n: ((), v) for n, v in data.items()} | {n: ("step", v) for n, v in curves.items()})


def _plasticity(ds: xr.Dataset, run: dict[str, Any]) -> xr.Dataset:
    scale = xr.DataArray([PLASTICITY[c] for c in COMPONENTS], dims="component", coords={"component": list(COMPONENTS)})
    out = ds["distance_in"] * scale * (1 + 0.01 * ds["distance_out"])
    out = out.transpose(*ds["distance_out"].dims)
    groups = [f"group {i}" for i in range(run["pairs"])]
    return ds.assign(distance_out=out, rate=out / ds["distance_in"]).assign_coords(
        source_group=("pair", groups), target_group=("pair", groups)
    )


def _depth(ds: xr.Dataset, run: dict[str, Any]) -> xr.Dataset:
    last = (ds["layer"] == ds["layer"].max()) & (ds["point"] == "ffn_res")
    accuracy = xr.where(last, PROBE, 0.3).transpose(*ds["test_accuracy"].dims)
    return ds.assign(test_accuracy=accuracy)


def _landscape(ds: xr.Dataset, run: dict[str, Any]) -> xr.Dataset:
    ds = ds.sel(component=run["components"], variant=run["variants"])
    way = np.linspace(-0.5, 0.5, 11)
    u, v = xr.DataArray(way, dims="u"), xr.DataArray(way, dims="v")
    each = xr.ones_like(ds["lr"], dtype=float)
    surface = {"loss": 1 + u**2 + v**2, "rate": 2 + u + 0 * v}
    ds = ds.drop_dims(["u", "v"]).assign_coords(u=way, v=way)
    return ds.assign({n: (each * s).transpose("variant", "component", "u", "v") for n, s in surface.items()})
