"""The reference numbers of a forward and a backward pass, and of the authors' seven freezing configurations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vitplast import components

# Tolerances of the reference files: forward values absolute, losses and gradient norms relative.
FORWARD = {torch.float64: 1e-10, torch.float32: 1e-5}
GRADIENT = {torch.float64: 1e-9, torch.float32: 2e-5}
# Trained in every configuration.
ALWAYS = ("norm", "head")


def assert_forward(reference, got, key):
    tolerance = FORWARD[reference.dtype]
    np.testing.assert_allclose(got.detach().numpy(), reference.z[key], rtol=0, atol=tolerance, err_msg=key)


def assert_gradient(reference, got, expected):
    np.testing.assert_allclose(got, expected, rtol=GRADIENT[reference.dtype], atol=0)


def tokens(model, x):
    """What enters block 0: patches, class token, positions."""
    return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))


def hidden_states(model, x):
    """The six hidden states of each block, in the order of `probe_components`: (L, 6) list of (B, n, E)."""
    found, state = [], tokens(model, x)
    for block in model.blocks:
        norm1 = block.norm1(state)
        attention = block.attn(norm1)
        middle = state + attention
        norm2 = block.norm2(middle)
        mlp = block.mlp(norm2)
        state = middle + mlp
        found.append([norm1, attention, middle, norm2, mlp, state])
    return found


def gradient_norms(model):
    """Name of each parameter that has a gradient to the gradient's norm."""
    return {name: p.grad.double().norm().item() for name, p in model.named_parameters() if p.grad is not None}


def backward(reference):
    loss = F.cross_entropy(reference.model(reference.x1), reference.y1)
    loss.backward()
    return loss


@pytest.mark.parametrize("side", ["1", "2"])
def test_logits_and_embeddings(reference, side):
    x = reference.x1 if side == "1" else reference.x2
    with torch.no_grad():
        assert_forward(reference, reference.model(x), f"logits{side}")
        assert_forward(reference, tokens(reference.model, x), f"embedding{side}")


def test_hidden_states(reference):
    order = ["attn_norm", "attn", "attn_res", "ffn_norm", "ffn_fc2", "ffn_res"]
    assert reference.z["probe_components"].tolist() == order
    with torch.no_grad():
        states = hidden_states(reference.model, reference.x1)
    stacked = torch.stack([torch.stack(block) for block in states])
    assert_forward(reference, stacked.mean(dim=3), "probe_mean1")
    assert_forward(reference, stacked[:, :, :, 0], "probe_cls1")
    with torch.no_grad():
        normed = reference.model.norm(stacked[-1, -1])
        assert_forward(reference, reference.model.head(normed[:, 0]), "logits1")


def test_attention_weights(reference):
    found = []
    with torch.no_grad():
        for block, states in zip(reference.model.blocks, hidden_states(reference.model, reference.x1), strict=True):
            batch, n, width = states[0].shape
            heads = block.attn.num_heads
            q, k, _ = block.attn.qkv(states[0]).reshape(batch, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            found.append(torch.softmax(q @ k.transpose(-1, -2) / (width // heads) ** 0.5, dim=-1))
    assert_forward(reference, torch.stack(found), "attention1")


def test_loss_and_gradient_norms_of_the_components(reference):
    loss = backward(reference)
    assert_gradient(reference, loss.item(), reference.z["loss1"])
    norms = gradient_norms(reference.model)
    names = reference.z["grad_param_names"].tolist()
    assert sorted(norms) == names
    assert_gradient(reference, [norms[n] for n in names], reference.z["grad_param_norms"])

    by_part = np.zeros_like(reference.z["grad_norm"])
    for part in components.parts(reference.model):
        inside = [v for k, v in norms.items() if k.startswith(part.name + ".")]
        by_part[part.layer, components.COMPONENTS.index(part.component)] = np.linalg.norm(inside)
    assert_gradient(reference, by_part, reference.z["grad_norm"])
    groups = components.groups(reference.model)
    for group, key in (("emb", "embedding"), ("norm", "final_norm"), ("head", "head")):
        assert_gradient(reference, np.linalg.norm([norms[n] for n in groups[group]]), reference.z[f"grad_norm_{key}"])


def test_the_seven_configurations(reference):
    z, model = reference.z, reference.model
    names = z["grad_param_names"].tolist()
    assert z["config_names"].tolist() == list(components.CONFIGURATIONS[:-1])
    for row, name in enumerate(z["config_names"].tolist()):
        model.zero_grad(set_to_none=True)
        trained = components.select(model, name)
        parameters = dict(model.named_parameters())
        trainable = [parameters[n].requires_grad for n in names]
        assert trainable == z["config_trainable"][row].tolist(), name
        chosen = [n for n, t in zip(names, trainable, strict=True) if t]
        assert sorted(n for group in trained.values() for n in group) == chosen
        assert sum(p.numel() for p in parameters.values() if p.requires_grad) == z["config_n_trainable"][row]
        assert set(ALWAYS) <= set(trained)
        backward(reference)
        norms = gradient_norms(model)
        assert sorted(norms) == chosen
        assert_gradient(reference, np.linalg.norm(list(norms.values())), z["config_grad_norm"][row])


def test_groups_cover_the_reference_models_once(reference_name):
    from conftest import load_reference

    reference = load_reference(reference_name, torch.float64)
    found = [n for names in components.groups(reference.model).values() for n in names]
    assert sorted(found) == reference.z["grad_param_names"].tolist()
