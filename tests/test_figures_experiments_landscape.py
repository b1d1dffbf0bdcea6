"""Numbers and sections of landscapes, on surfaces with known curvature."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import timm
import xarray as xr

from vitplast.analysis.landscape_table import curvature, summary, weight_norm
from vitplast.components import groups
from vitplast.errors import InputError
from vitplast.figures import COLORS
from vitplast.figures_experiments.landscape import LINEAR, contours, sections

VARIANTS, COMPONENTS = ["corrected", "as_published"], ["LN1", "MHA"]
GRID = np.linspace(-0.5, 0.5, 20)


@pytest.fixture
def landscape():
    """`2 + s (u - 2 v + 3 u^2 + v^2 / 2 + u v)` with s = 1, 2, 3, 4."""
    u, v = np.meshgrid(GRID, GRID, indexing="ij")
    surface = u - 2 * v + 3 * u**2 + v**2 / 2 + u * v
    scale = np.arange(1.0, 5).reshape(2, 2)
    steps = np.linspace(0, 1, 4)
    path = np.zeros((2, 2, 4, 2)) + np.stack([-0.1 * steps, 0.2 * steps], axis=1)
    each = ("variant", "component")
    return xr.Dataset(
        {
            "loss": ((*each, "u", "v"), 2 + scale[..., None, None] * surface),
            "rate": ((*each, "u", "v"), scale[..., None, None] * (1 + u**2)),
            "trajectory": ((*each, "step", "axis"), path),
            "trajectory_loss": ((*each, "step"), np.full((2, 2, 4), 2.0) - steps / 10),
            "displacement": ((*each, "step"), np.zeros((2, 2, 4)) + steps),
            "gain": ((*each, "axis"), scale[..., None] * [3.0, 1.5]),
            "explained_variance": ((*each, "axis"), np.broadcast_to([0.8, 0.2], (2, 2, 2))),
        },
        coords={
            "variant": VARIANTS,
            "component": COMPONENTS,
            "u": GRID,
            "v": GRID,
            "step": range(4),
            "axis": ["u", "v"],
        },
    )


@pytest.mark.parametrize("within", [0.1, 0.2, 0.5])
def test_curvature_of_a_quadratic_is_exact_within_any_square(landscape, within):
    found = curvature(landscape.loss, within).sel(variant="as_published", component="MHA")
    wanted = {"level": 2, "slope_u": 4, "slope_v": -8, "curvature_u": 24, "curvature_v": 4, "mixed": 4, "misfit": 0}
    for name, value in wanted.items():
        assert float(found[name]) == pytest.approx(value, abs=1e-9), name


def test_cubic_terms_leave_the_curvature_and_show_in_the_misfit(landscape):
    bent = landscape.loss + 5 * landscape.u**3
    found, before = curvature(bent), curvature(landscape.loss)
    xr.testing.assert_allclose(found.curvature_u, before.curvature_u)
    assert (found.misfit > 1e-3).all()
    flat = curvature(xr.zeros_like(landscape.loss))
    assert float(abs(flat.to_array()).max()) == 0
    with pytest.raises(InputError, match="three values"):
        curvature(landscape.loss, within=0.03)


def test_summary_reads_rise_descent_and_gains(landscape):
    one = summary(landscape).sel(variant="corrected", component="LN1")
    loss = landscape.loss.sel(variant="corrected", component="LN1")
    assert float(one.rise) == pytest.approx(float(loss.max()) - 2)
    assert float(one.fall) == pytest.approx(float(loss.min()) - 2)
    assert (float(one.start), float(one.end), float(one.length)) == pytest.approx((2.0, 1.9, 1.0))
    assert float(one.gain_ratio) == 2
    assert float(one.ratio) == pytest.approx(6)
    assert float(one.rate_high) == pytest.approx(1.25)
    assert float(one.rate_low) < float(one.rate_mean) < float(one.rate_high)


def test_weight_norm_is_that_of_all_parameters_of_all_blocks():
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2
    )  # fmt: skip
    named = dict(model.named_parameters())
    parts = np.concatenate([named[n].detach().numpy().ravel() for n in groups(model)["FC1"]])
    assert weight_norm(model, "FC1") == pytest.approx(float(np.linalg.norm(parts)))


def test_sections_run_through_the_start(landscape):
    axes = sections(landscape, ["MHA", "LN1"])
    assert [ax.texts[0].get_text() for ax in axes] == ["corrected", "as published"]
    line = axes[0].lines[0]
    assert line.get_color() == COLORS["MHA"]
    middle = landscape.loss.sel(variant="corrected", component="MHA").isel(v=[9, 10]).mean("v") - 2
    np.testing.assert_allclose(line.get_ydata(), middle)
    assert axes[0].lines[1].get_linestyle() == "--"
    across = landscape.loss.sel(variant="corrected", component="MHA").isel(u=[9, 10]).mean("u") - 2
    np.testing.assert_allclose(axes[0].lines[1].get_ydata(), across)
    assert len(axes[0].collections) == 4  # spread of each line
    assert axes[0].get_yscale() == "symlog"
    assert axes[0].yaxis.get_transform().linthresh == LINEAR
    plt.close("all")


def test_a_section_on_a_grid_with_zero_is_that_line(landscape):
    odd = landscape.isel(u=slice(1, None), v=slice(1, None))
    odd = odd.assign_coords(u=np.linspace(-0.5, 0.5, 19), v=np.linspace(-0.5, 0.5, 19))
    line = sections(odd.isel(variant=[0]))[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), odd.loss.isel(variant=0, component=0).sel(v=0, method="nearest") - 2)
    plt.close("all")


def test_contours_share_their_levels_or_have_their_own(landscape):
    one = landscape.sel(variant="corrected")
    together = [ax.collections[0].levels for ax in contours(one)]
    apart = [ax.collections[0].levels for ax in contours(one, shared=False)]
    np.testing.assert_array_equal(*together)
    assert apart[0].max() == pytest.approx(float(one.loss.sel(component="LN1").max()))
    assert apart[0].max() < apart[1].max()
    plt.close("all")
