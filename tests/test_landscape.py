"""Loss and rate-of-change landscapes: known answers, and both variants on a tiny model."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from vitplast import parameters, results
from vitplast.components import groups
from vitplast.errata.landscape import norm_direction
from vitplast.errors import HypothesisError, InputError, ModeError, ShapeError
from vitplast.figures import COLORS
from vitplast.figures_experiments.landscape import contours, surfaces
from vitplast.landscape import (
    descend,
    fitted_head,
    landscape,
    longest_descent,
    loss_surface,
    orthogonal_to,
    plane_of,
    project,
    rate_surface,
)
from vitplast.local import local_lipschitz
from vitplast.measure.common_input import embedding
from vitplast.results.validation import complete
from vitplast.training.batches import Images

CPU = torch.device("cpu")


def data(n: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    images = torch.randn(n, 3, 32, 32, generator=g, dtype=torch.float64)
    images[torch.arange(n), labels] += 0.5
    return images, labels


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).double().eval()  # fmt: skip


COMPONENTS = ["MHA", "LN1", "FC2"]
OPTIONS = {"steps": 3, "grid": 4, "rate_images": 2, "extent": 0.4}


@pytest.fixture(scope="module")
def made(model):
    return landscape(model, data(30, 1), data(6, 2), data(4, 3), components=COMPONENTS, **OPTIONS)


# --- descent and plane


def test_descent_of_a_parabola_is_geometric():
    w = nn.Parameter(torch.tensor([3.0, 0.0], dtype=torch.float64))
    found = descend(lambda: w.square().sum() / 2, [w], steps=5, lr=0.1)
    np.testing.assert_allclose(found.moves[:, 0], 3 * 0.9 ** np.arange(6) - 3)
    np.testing.assert_allclose(found.losses, 4.5 * 0.81 ** np.arange(6))
    assert w.tolist() == [3.0, 0.0]


def test_longest_descent_takes_the_largest_rate_that_falls_and_stays():
    w = nn.Parameter(torch.tensor([1.0]))
    half = lambda: 30 * w.square().sum()  # noqa: E731  stable below 1/30
    assert longest_descent(half, [w], steps=4, within=9.0)[1] == 2.0**-5
    found, rate = longest_descent(half, [w], steps=4, within=0.5)
    assert rate < 2.0**-5
    assert float(found.moves.norm(dim=1).max()) <= 0.5
    with pytest.raises(HypothesisError, match="gradient of 0"):
        longest_descent(lambda: 0 * w.sum() + 1, [w], steps=2, within=1.0)


def test_a_descent_that_explodes_is_refused_and_put_back():
    w = nn.Parameter(torch.tensor([1.0]))
    with pytest.raises(HypothesisError, match="lower rate"):
        descend(lambda: w.square().sum(), [w], steps=200, lr=10.0)
    assert w.item() == 1
    with pytest.raises(InputError, match="2 steps"):
        descend(lambda: w.sum(), [w], steps=1, lr=0.1)


@pytest.mark.parametrize("with_start", [True, False])
def test_plane_is_the_principal_plane_of_the_points(with_start):
    moves = torch.randn(9, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0)
    moves[0] = 0
    plane = plane_of(moves, with_start=with_start)
    points = (moves if with_start else moves[1:]).numpy()
    _, s, vt = np.linalg.svd(points - points.mean(0))
    np.testing.assert_allclose(abs(plane.directions.numpy() @ vt[:2].T), np.eye(2), atol=1e-10)
    np.testing.assert_allclose(plane.explained, (s**2 / (s**2).sum())[:2])
    assert (project(moves, plane.directions)[-1] >= 0).all()
    np.testing.assert_allclose(project(moves, plane.directions), moves.numpy() @ plane.directions.numpy().T)


def test_a_straight_path_gets_a_random_second_direction_of_its_seed():
    moves = torch.arange(4.0, dtype=torch.float64)[:, None] * torch.ones(5, dtype=torch.float64)
    a, b, c = (plane_of(moves, seed=seed) for seed in (0, 0, 1))
    assert a.explained.tolist() == pytest.approx([1.0, 0.0])
    np.testing.assert_allclose(a.directions @ a.directions.T, np.eye(2), atol=1e-12)
    assert torch.equal(a.directions, b.directions)
    assert not torch.allclose(a.directions[1], c.directions[1])
    with pytest.raises(HypothesisError, match="do not move"):
        plane_of(torch.zeros(3, 4))


# --- surfaces


def test_rate_of_a_linear_map_is_that_of_its_direction():
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 4, generator=g, dtype=torch.float64)
    x, s = (torch.randn(2, 3, 4, generator=g, dtype=torch.float64) for _ in range(2))
    first = local_lipschitz(lambda z: z @ weight.T, x, tolerance=1e-12, max_iterations=2000).direction
    second = orthogonal_to(s, first)
    assert float((first * second).sum((1, 2)).abs().max()) < 1e-12
    grid = np.linspace(-1, 1, 6)
    got = rate_surface(lambda z: z @ weight.T, x, first, second, grid)
    for i, u in enumerate(grid):
        for j, v in enumerate(grid):
            h = u * first + v * second
            assert got[i, j] == pytest.approx(float(((h @ weight.T).norm(dim=(1, 2)) / h.norm(dim=(1, 2))).mean()))
    # along the first direction alone it is the largest singular value
    along = rate_surface(lambda z: z @ weight.T, x, first, second, [-1.0, 0.0, 1.0])
    assert along[0, 1] == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-6)
    assert np.isnan(along[1, 1])
    assert np.isnan(along).sum() == 1
    with pytest.raises(ShapeError):
        rate_surface(lambda z: z, x, first[:1], second, grid)
    with pytest.raises(HypothesisError, match="parallel"):
        orthogonal_to(2 * first, first)


def test_loss_surface_is_the_loss_at_each_point_and_puts_the_weights_back():
    w, b = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    d = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    got = loss_surface(lambda: w.square().sum() + 10 * b.square().sum(), [w, b], d, [-1.0, 0.0, 1.0])
    wanted = [[(1 + u) ** 2 + 4 + 10 * (3 + v) ** 2 for v in (-1, 0, 1)] for u in (-1, 0, 1)]
    np.testing.assert_allclose(got, wanted)
    assert (w.tolist(), b.tolist()) == ([1.0, 2.0], [3.0])
    with pytest.raises(ShapeError, match="3 numbers"):
        loss_surface(lambda: w.sum(), [w, b], d[:, :2], [0.0])


# --- head


def test_fitted_head_is_the_logistic_regression_of_scikit_learn(model):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    images, labels = data(30, 1)
    with torch.no_grad():
        z = model.forward_head(model.forward_features(images), pre_logits=True)
        for classes in (3, 2):
            chosen = labels < classes
            head = fitted_head(model, Images(images[chosen], None, CPU, torch.float64), labels[chosen])
            fit = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000)).fit(z[chosen], labels[chosen])
            got = head(z).softmax(1).numpy()
            np.testing.assert_allclose(got[:, :classes].argmax(1), fit.predict(z.numpy()))
            if classes == 3:
                np.testing.assert_allclose(got, fit.predict_proba(z.numpy()), atol=1e-8)
            assert head.out_features == 3
    with pytest.raises(InputError, match="no head to fit"):
        fitted_head(model, Images(images, None, CPU, torch.float64), torch.zeros(30, dtype=torch.long))


# --- both together


def test_loss_and_trajectory_are_those_of_the_model_with_the_fitted_head(model, made):
    import copy

    twin = copy.deepcopy(model)
    twin.head = fitted_head(model, Images(data(30, 1)[0], None, CPU, torch.float64), data(30, 1)[1])
    images, labels = data(6, 2)
    one = made.sel(variant="corrected", component="LN1")
    with torch.no_grad():
        start = float(F.cross_entropy(twin(images), labels))
    assert float(one.trajectory_loss[0]) == pytest.approx(start)
    assert bool((one.trajectory_loss.diff("step") < 0).all())
    assert float(one.displacement.max()) <= OPTIONS["extent"]
    named = dict(twin.named_parameters())
    moving = [named[name] for name in groups(twin)["LN1"]]
    twin.requires_grad_(False)
    for p in moving:
        p.requires_grad_(True)
    found = descend(lambda: F.cross_entropy(twin(images), labels), moving, steps=3, lr=float(one.lr))
    plane = plane_of(found.moves)
    np.testing.assert_allclose(one.trajectory, project(found.moves, plane.directions), atol=1e-7)
    loss = loss_surface(lambda: F.cross_entropy(twin(images), labels), moving, plane.directions, made.u.values)
    np.testing.assert_allclose(one.loss, loss, rtol=1e-5)


def test_as_published_has_other_labels_images_direction_and_rate(model, made):
    one = made.sel(variant="as_published", component="LN1")
    assert made.images.values.tolist() == [6, 4]
    assert float(one.lr) == 1e-3
    assert float(one.trajectory_loss[0]) == pytest.approx(np.log(1000), rel=0.25)
    assert float(one.start_accuracy) == 0
    x = embedding(model, data(4, 3)[0][:1]).detach()
    f = model.blocks[0].norm1
    direction = norm_direction(f, x)
    h = 1e-6 * direction
    assert float(one.gain.sel(axis="u")) == pytest.approx(float((f(x + h) - f(x)).detach().norm() / 1e-6), rel=1e-3)


def test_power_iteration_finds_more_gain_than_a_random_direction(made):
    gain = made.gain.sel(variant="corrected")
    assert bool((gain.sel(axis="u") > gain.sel(axis="v")).all())
    largest = made.rate.sel(variant="corrected", component="FC2").max()
    assert float(largest) <= float(gain.sel(component="FC2", axis="u")) * (1 + 1e-6)


def test_corrected_panels_do_not_depend_on_their_neighbours(model, made):
    alone = landscape(
        model,
        data(30, 1),
        data(6, 2),
        data(4, 3),
        components=["LN1"],
        variants=["corrected", "as_published"],
        **OPTIONS,
    )
    both = made.sel(component=["LN1"])
    for name in ("loss", "rate", "trajectory"):
        np.testing.assert_array_equal(alone[name].sel(variant="corrected"), both[name].sel(variant="corrected"))
    assert not np.allclose(alone.rate.sel(variant="as_published"), both.rate.sel(variant="as_published"))
    assert made.moved_parameters.values.tolist() == [2 * (3 * 16 * 17 + 16 * 17), 2 * 32, 2 * (16 * 65)]


def test_model_is_never_changed(model, made):
    torch.manual_seed(0)
    fresh = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2, num_classes=3
    ).double()  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_result_is_complete_and_written(tmp_path, made):
    run = next(iter(parameters.make("landscape", {"weights": "random", "device": "cpu"}).runs().values()))
    path = results.write(complete(made, "landscape"), tmp_path / "landscape.nc", kind="landscape", run=run)
    back = results.read(path)
    assert back.loss.dims == ("variant", "component", "u", "v")
    assert set(back.data_vars) == set(results.SCHEMAS["landscape"].variables)


def test_what_can_not_be_shown_is_refused(model):
    arguments = data(30, 1), data(6, 2)
    with pytest.raises(InputError, match="no block 2"):
        landscape(model, *arguments, layer=2)
    with pytest.raises(InputError, match="at most the 6 images"):
        landscape(model, *arguments, rate_images=7)
    with pytest.raises(InputError, match="no published images"):
        landscape(model, *arguments, components=["LN1"], variants=["as_published"], grid=2)
    model.train()
    try:
        with pytest.raises(ModeError):
            landscape(model, *arguments)
    finally:
        model.eval()
    for values, words in (
        ({"rate_images": 7}, "at most images"),
        ({"extent": 0.0}, "extent"),
        ({"components": ["LN3"]}, "LN1"),
        ({"variants": ["published"]}, "as_published"),
    ):
        with pytest.raises(InputError, match=words):
            parameters.make("landscape", values)


# --- figures


def test_figures_share_their_scale_and_take_any_components(made):
    one = made.sel(variant="corrected")
    axes = surfaces(one.loss, ["LN1", "MHA"])
    assert len(axes) == 2
    assert axes[0].get_zlim() == axes[1].get_zlim()
    assert axes[0].get_zlim()[1] == pytest.approx(float(one.loss.sel(component=["LN1", "MHA"]).max()))
    assert surfaces(one.rate, divide=True)[0].get_zlim()[1] == pytest.approx(1)
    axes = contours(one, ["FC2"], cut=0.2)
    assert axes[0].get_xlim() == (-0.2, 0.2)
    path = axes[0].lines[0].get_xydata()
    np.testing.assert_allclose(path, one.trajectory.sel(component="FC2"))
    assert axes[0].lines[-1].get_color() == COLORS["FC2"]
    plt.close("all")
