"""Corruptions: stated constants, closed forms and an independent motion blur; the same image gives the same result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from vitplast.errors import InputError, ShapeError, UnknownNameError
from vitplast.images.corruptions import CONSTANTS, CORRUPTIONS, blur_along, corrupt, generator, zoom_centre


def picture(height=56, width=56, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def flat(level, side=56):
    return np.full((side, side, 3), level, dtype=np.uint8)


def run(image, name, severity=5, image_id="a"):
    return corrupt(image, name, severity, generator("set", image_id, name, severity))


def test_constants_are_those_of_cifar_10_c_at_severity_5():
    assert CONSTANTS["contrast"][4] == 0.15
    assert CONSTANTS["gaussian_noise"][4] == 0.10
    assert CONSTANTS["speckle_noise"][4] == 0.2
    assert CONSTANTS["motion_blur"][4] == (9, 2.5)
    assert CONSTANTS["snow"][4] == (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8)
    assert all(len(constants) == 5 for constants in CONSTANTS.values())


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=10, deadline=None)
@given(height=st.integers(8, 70), width=st.integers(8, 70), severity=st.integers(1, 5), image_id=st.text(max_size=8))
def test_same_image_same_result_any_shape(name, height, width, severity, image_id):
    image = picture(height, width)
    kept = image.copy()
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    first = run(image, name, severity, image_id)
    np.random.seed(2)  # noqa: NPY002
    run(picture(seed=1), name, severity, "another in between")
    assert np.array_equal(first, run(image, name, severity, image_id))
    assert first.dtype == np.uint8
    assert first.shape == image.shape
    assert np.array_equal(image, kept)


@pytest.mark.parametrize("name", [n for n in CORRUPTIONS if n != "contrast"])
def test_images_severities_and_sets_have_their_own_numbers(name):
    image = picture()
    assert not np.array_equal(run(image, name, 5, "a"), run(image, name, 5, "b"))
    numbers = [generator(*key).random() for key in
               (("s", "a", name, 5), ("t", "a", name, 5), ("s", "a", name, 4), ("s", "b", name, 5))]  # fmt: skip
    assert len(set(numbers)) == 4


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_higher_severity_changes_more(name):
    rng = np.random.default_rng(3)
    smooth = ndimage.gaussian_filter(rng.normal(size=(64, 64, 3)), (2, 2, 0))
    image = np.clip(110 + 300 * smooth, 0, 255).astype(np.uint8)
    change = [
        np.mean([np.abs(run(image, name, s, str(i)).astype(float) - image).mean() for i in range(12)]) for s in (1, 5)
    ]
    assert change[1] > 1.3 * change[0] > 0


def test_contrast_is_its_formula():
    image = picture()
    x = image.astype(np.float64)
    mean = x.mean(axis=(0, 1))
    for severity, factor in zip(range(1, 6), (0.75, 0.5, 0.4, 0.3, 0.15), strict=True):
        expected = mean + factor * (x - mean)
        assert np.abs(run(image, "contrast", severity) - expected).max() <= 0.501


def test_noise_has_the_stated_deviation():
    for severity in (1, 5):
        added = run(flat(128, 200), "gaussian_noise", severity).astype(float) - 128
        scaled = run(flat(100, 200), "speckle_noise", severity).astype(float) - 100
        assert added.std() / 255 == pytest.approx(CONSTANTS["gaussian_noise"][severity - 1], rel=0.02)
        assert scaled.std() / 100 == pytest.approx(CONSTANTS["speckle_noise"][severity - 1], rel=0.02)
        assert abs(added.mean()) < 0.3
        assert abs(scaled.mean()) < 0.3
    assert not run(flat(0), "speckle_noise").any()
    noisy = run(flat(128), "gaussian_noise").astype(int)
    assert (noisy[..., 0] != noisy[..., 1]).mean() > 0.5  # colours have their own noise


@pytest.mark.parametrize("angle", [-45.0, -10.0, 0.0, 33.0, 90.0, -120.0])
@pytest.mark.parametrize(("radius", "sigma"), [(6, 1.0), (9, 2.5), (14, 12.0)])
def test_blur_equals_a_correlation_with_the_line_kernel(angle, radius, sigma):
    x = np.random.default_rng(0).random((40, 31, 3)).astype(np.float32)
    reach = 2 * radius + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    for i, weight in enumerate(weights):
        dx = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        kernel[reach + dy, reach + dx] += weight / sum(weights)
    expected = np.stack([ndimage.correlate(x[..., c].astype(np.float64), kernel, mode="nearest") for c in range(3)], -1)
    np.testing.assert_allclose(blur_along(x, radius, sigma, angle), expected, atol=2e-6)


def test_motion_blur_keeps_a_flat_image_and_the_angle_is_within_45_degrees():
    assert np.array_equal(run(flat(77), "motion_blur"), flat(77))
    point = np.zeros((61, 61, 3), dtype=np.uint8)
    point[30, 30] = 255
    sides = set()
    for i in range(20):
        rows, columns = np.nonzero(run(point, "motion_blur", 5, str(i))[..., 0])
        assert columns.min() < 30
        assert columns.max() == 30
        assert abs(rows - 30).max() <= (30 - columns.min()) + 1
        sides.add(int(np.sign((rows - 30).sum())))
    assert {-1, 1} <= sides


def test_snow_whitens_dark_and_grey_images_and_adds_the_flakes_twice():
    weight = CONSTANTS["snow"][4][6]
    black, grey = run(flat(0), "snow").astype(int), run(flat(100), "snow").astype(int)
    floor = (1 - weight) * 0.5 * 255
    assert black.min() >= math.floor(floor)
    assert black.max() > 40
    assert grey.mean() > 110
    assert np.array_equal(black, black[::-1, ::-1])
    assert np.array_equal(black[..., 0], black[..., 1])


def test_zoom_keeps_shape_and_enlarges_the_middle():
    x = np.linspace(0, 1, 50, dtype=np.float32)[None, :].repeat(40, axis=0)
    assert zoom_centre(x, 1.0) is x
    for factor in (1.25, 1.75, 2.25):
        large = zoom_centre(x, factor)
        assert large.shape == x.shape
        slope = np.diff(large[20]).mean() / np.diff(x[20]).mean()
        assert slope == pytest.approx(1 / factor, rel=0.06)


def test_bad_arguments_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(UnknownNameError, match="Did you mean 'snow'"):
        corrupt(picture(), "snwo", 5, rng)
    for severity in (0, 6, 2.0, "3", True):
        with pytest.raises(InputError, match=r"1\.\.5"):
            corrupt(picture(), "snow", severity, rng)
    for image in (picture().astype(np.float32), picture()[..., 0], picture().transpose(2, 0, 1)):
        with pytest.raises(ShapeError, match="uint8"):
            corrupt(image, "snow", 5, rng)
