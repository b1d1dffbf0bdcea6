"""Linear probing over depth: which activations, which classifier, what is refused."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import timm
import torch
from torch import nn

from vitplast import results
from vitplast.components import COMPONENTS
from vitplast.depth import ENDS, POINTS, depth_features, depth_probe
from vitplast.errors import HypothesisError, InputError, LayoutError, UnknownNameError
from vitplast.figures import COLORS
from vitplast.figures_experiments.depth import OF_COMPONENTS, accuracy_over_depth
from vitplast.probe import linear_probe
from vitplast.results.validation import complete
from vitplast.training.batches import Images

CPU = torch.device("cpu")


def noise(n: int, seed: int, classes: int = 3):
    """Normalised noise whose channel `label` is brighter, by so much that a straight cut tells them apart."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    images = torch.randn(n, 3, 32, 32, generator=g) * 0.2
    images[torch.arange(n), labels] += 2.0
    return images, labels


@pytest.fixture(scope="module")
def model():
    """Two blocks with LayerScale, so that the output of a component differs from what is added up."""
    torch.manual_seed(0)
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=0, init_values=0.3
    ).eval()


@pytest.fixture(scope="module")
def probed(model):
    return depth_probe(model, noise(45, 1), noise(20, 2))


def by_hand(model, x, pool):
    """Every point written out."""
    unit = lambda z: pool(z) / pool(z).norm(dim=1, keepdim=True)  # noqa: E731
    h = model.norm_pre(model._pos_embed(model.patch_embed(x)))
    found = {(-1, "embedding"): unit(h)}
    for layer, b in enumerate(model.blocks):
        z = {"attn_norm": b.norm1(h)}
        z["attn"] = b.attn(z["attn_norm"])
        z["attn_res"] = h + b.ls1(z["attn"])
        z["ffn_norm"] = b.norm2(z["attn_res"])
        z["ffn_fc1"] = b.mlp.fc1(z["ffn_norm"])
        z["ffn_activation"] = torch.nn.functional.gelu(z["ffn_fc1"])
        z["ffn_fc2"] = b.mlp.fc2(z["ffn_activation"])
        z["ffn_res"] = h = z["attn_res"] + b.ls2(z["ffn_fc2"])
        found |= {(layer, point): unit(values) for point, values in z.items()}
    return found | {(len(model.blocks), "final_norm"): unit(model.norm(h))}


@pytest.mark.parametrize("features", ["mean", "cls"])
def test_features_are_those_of_a_forward_pass_by_hand(model, features):
    images = noise(7, 3)[0]
    with torch.no_grad():
        wanted = by_hand(model, images, (lambda z: z.mean(1)) if features == "mean" else (lambda z: z[:, 0]))
    got = depth_features(model, Images(images, None, CPU, torch.float32), features=features, batch_size=3)
    assert set(got) == set(wanted)
    assert len(got) == 2 * len(POINTS) + len(ENDS)
    for place, values in wanted.items():
        np.testing.assert_allclose(got[place], values.numpy(), atol=1e-5, err_msg=str(place))
    assert not np.allclose(got[0, "attn_res"], got[0, "attn"], atol=1e-2)


def test_points_are_the_authors(reference):
    """The numbers of the authors' code at all points of all blocks."""
    z = reference.z
    inputs = Images(reference.x1, None, CPU, reference.dtype)
    got = depth_features(reference.model, inputs)
    for column, point in enumerate(z["probe_components"].tolist()):
        for layer in range(len(reference.model.blocks)):
            wanted = z["probe_mean1"][layer, column]
            if not np.isfinite(wanted).all() or wanted.shape[-1] != got[layer, point].shape[-1]:
                continue
            unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
            np.testing.assert_allclose(got[layer, point], unit, atol=1e-5, err_msg=f"{layer} {point}")


def test_last_point_is_the_linear_probe(model, probed):
    probe = linear_probe(model, noise(45, 1), noise(20, 2))
    last = probed.sel(layer=1, point="ffn_res")
    assert float(last.test_accuracy) == float(probe.test_accuracy)
    assert float(last.train_accuracy) == float(probe.train_accuracy)


def test_separable_features_give_accuracy_1(probed):
    assert float(probed.test_accuracy.min()) == 1
    assert float(probed.end_test_accuracy.min()) == 1
    assert int(probed.converged.min()) == 1
    assert float(probed.standard_error.max()) == 0


def test_labels_without_relation_give_chance_and_its_error(model):
    images, _ = noise(90, 1)
    labels = torch.randint(0, 2, (90,), generator=torch.Generator().manual_seed(0))
    ds = depth_probe(model, (images[:45], labels[:45]), (images[45:], labels[45:]))
    p = ds.test_accuracy
    assert 0.2 < float(p.mean()) < 0.8
    np.testing.assert_allclose(ds.standard_error, np.sqrt(p * (1 - p) / 45))
    assert set(ds.data_vars) == set(results.SCHEMAS["depth"].variables)


def test_options_of_the_classifier_count(model):
    images, labels = noise(45, 1)
    labels = labels[torch.randperm(45, generator=torch.Generator().manual_seed(1))]
    loose, tight = (depth_probe(model, (images, labels), (images, labels), c=c) for c in (1e4, 1e-4))
    assert float(loose.train_accuracy.mean()) > float(tight.train_accuracy.mean()) + 0.2
    stopped = depth_probe(model, (images, labels), (images, labels), max_iter=1)
    assert int(stopped.converged.max()) == 0
    assert int(stopped.n_iter.max()) == 1


def test_result_is_written_and_read(tmp_path, probed):
    from vitplast import parameters

    run = next(iter(parameters.make("depth", {"weights": "random", "device": "cpu"}).runs().values()))
    path = results.write(complete(probed, "depth"), tmp_path / "depth.nc", kind="depth", run=run)
    assert results.read(path).test_accuracy.dims == ("layer", "point")


def test_model_is_left_as_it_was(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    model.train()
    try:
        depth_features(model, Images(noise(2, 0)[0], None, CPU, torch.float32))
        assert model.training
    finally:
        model.eval()
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_what_can_not_be_probed_is_refused(model):
    inputs = Images(noise(4, 0)[0], None, CPU, torch.float32)
    with pytest.raises(UnknownNameError, match="mean"):
        depth_features(model, inputs, features="men")
    with pytest.raises(InputError, match="nothing to learn"):
        depth_probe(model, (noise(4, 0)[0], torch.ones(4, dtype=torch.long)), noise(4, 0))
    post = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4, num_classes=0, init_values=1e-5,
        block_fn=timm.models.vision_transformer.ResPostBlock,
    )  # fmt: skip
    with pytest.raises(LayoutError, match="ResPostBlock"):
        depth_features(post.eval(), inputs)
    zero = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4, num_classes=0
    ).eval()
    nn.init.zeros_(zero.blocks[0].mlp.fc2.weight)
    nn.init.zeros_(zero.blocks[0].mlp.fc2.bias)
    with pytest.raises(HypothesisError, match="ffn_fc2 of block 0"):
        depth_features(zero, inputs)


def test_figure_gives_components_their_colours(probed):
    ax = accuracy_over_depth(probed)
    lines = {line.get_label(): line for line in ax.lines}
    for component in COMPONENTS:
        assert lines[component].get_color() == COLORS[component]
    others = set(POINTS) - set(OF_COMPONENTS)
    assert len(others) == 3
    assert not {lines[name].get_color() for name in lines if name not in COMPONENTS} & set(
        COLORS[c] for c in COMPONENTS
    )
    np.testing.assert_allclose(lines["MHA"].get_ydata(), 100)
    plt.close("all")
