"""Eight steps of the authors' seven configurations on the two reference models, number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitplast.components import CONFIGURATIONS, select
from vitplast.finetune import Recipe, finetune
from vitplast.training.stages import Stages
from vitplast.training.step import Stepper

SEVEN = [name for name in CONFIGURATIONS if name != "head"]
RTOL = {torch.float64: 1e-9, torch.float32: 2e-5}
ATOL_LOGITS = {torch.float64: 1e-10, torch.float32: 1e-5}


def recipe(components: str, **changes) -> Recipe:
    values = {"components": components, "lr": 0.05, "steps": 8, "warmup": 2, "precision": "float32", "clip": 1.0}
    return Recipe(**{**values, **changes})


def test_rates(reference):
    got = [recipe("all").rate(step) for step in range(8)]
    np.testing.assert_allclose(got, reference.z["train_lr"], rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("components", SEVEN)
@pytest.mark.parametrize("cut", [True, False], ids=["stages", "whole"])
def test_steps(reference, components, cut):
    z, model = reference.z, reference.model
    row = list(z["config_names"]).index(components)
    trained = select(model, components)
    names = {name for group in trained.values() for name in group}
    assert [n in names for n in z["grad_param_names"]] == z["config_trainable"][row].tolist()
    stepper = Stepper(Stages(model) if cut else model, model, trained, recipe(components))
    logs = [stepper.step(reference.x1, reference.y1, stepper.recipe.rate(step)) for step in range(8)]
    rtol = RTOL[reference.dtype]
    np.testing.assert_allclose([log.loss for log in logs], z["train_loss"][row], rtol=rtol)
    np.testing.assert_allclose([log.norm(stepper.groups) for log in logs], z["train_grad_norm"][row], rtol=rtol)
    with torch.no_grad():
        logits = model(reference.x1).numpy()
    np.testing.assert_allclose(logits, z["train_final_logits1"][row], rtol=0, atol=ATOL_LOGITS[reference.dtype])


@pytest.mark.parametrize("components", SEVEN)
def test_component_norms_at_the_first_step(reference, components):
    z, model = reference.z, reference.model
    stepper = Stepper(model, model, select(model, components), recipe(components))
    log = stepper.step(reference.x1, reference.y1, 0.0)
    inner = dict(zip(z["components"].tolist(), np.linalg.norm(z["grad_norm"], axis=0), strict=True))
    inner["emb"] = float(z["grad_norm_embedding"])
    inner["all"] = np.sqrt(sum(v**2 for v in inner.values()))
    rtol = RTOL[reference.dtype]
    assert log.norm(stepper.component) == pytest.approx(inner[components], rel=rtol)
    assert log.norms["head"] == pytest.approx(float(z["grad_norm_head"]), rel=rtol)
    assert log.norms["norm"] == pytest.approx(float(z["grad_norm_final_norm"]), rel=rtol)


@pytest.mark.parametrize("components", ["MHA", "LN1"])
def test_whole_call(reference, components):
    """`finetune` itself: with as many images as the batch holds, each step sees the reference's batch (reordered)."""
    z, pair = reference.z, (reference.x1, reference.y1)
    row = list(z["config_names"]).index(components)
    ds = finetune(reference.model, pair, pair, pair, recipe(components, batch_size=len(reference.y1)))
    rtol = RTOL[reference.dtype]
    np.testing.assert_allclose(ds.train_loss, z["train_loss"][row], rtol=rtol)
    np.testing.assert_allclose(ds.gradient_norm_total, z["train_grad_norm"][row], rtol=rtol)
    with torch.no_grad():
        logits = reference.model(reference.x1).numpy()
    np.testing.assert_allclose(logits, z["train_final_logits1"][row], rtol=0, atol=ATOL_LOGITS[reference.dtype])
    hits = z["train_final_logits1"][row].argmax(axis=1) == z["y1"]
    assert float(ds.test_accuracy) == hits.mean()
