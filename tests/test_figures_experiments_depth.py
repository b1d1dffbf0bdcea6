"""Probing over depth: the numbers of the page and its figures, on made-up accuracies."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from vitplast.analysis.depth_table import advantage, best_place, by_task, place_from_others, reported
from vitplast.errors import InputError, UnknownNameError
from vitplast.figures import COLORS
from vitplast.figures_experiments.depth import OF_COMPONENTS, accuracy_by_task, advantage_map, point_name
from vitplast.results.tables.depth import ENDS, POINTS

LAYERS = 4


def runs(rows, **more):
    """Gathered results; `rows` are (model, dataset, seed, layers); accuracy 0.5 + layer / 20 + point / 1000."""
    shape = (len(rows), LAYERS, len(POINTS))
    accuracy = np.full(shape, np.nan)
    for i, (_, _, _, layers) in enumerate(rows):
        accuracy[i, :layers] = 0.5 + np.arange(layers)[:, None] / 20 + np.arange(len(POINTS)) / 1000
    end = np.tile([0.3, 0.7], (len(rows), 1))
    names = ("model", "dataset", "seed")
    coords = {n: ("run", [row[i] for row in rows]) for i, n in enumerate(names)} | {
        "layer": np.arange(LAYERS), "point": list(POINTS), "end": list(ENDS)
    }  # fmt: skip
    return xr.Dataset(
        {
            "test_accuracy": (("run", "layer", "point"), accuracy),
            "standard_error": (("run", "layer", "point"), np.full(shape, 0.02)),
            "end_test_accuracy": (("run", "end"), end),
            "end_standard_error": (("run", "end"), np.full(end.shape, 0.03)),
            "n_test": ("run", [400] * len(rows)),
        },
        coords | {n: ("run", v) for n, v in more.items()},
    )


@pytest.fixture
def table():
    """Three image sets; block 2, attn is best on two of them, and by much on the third is another."""
    made = by_task(runs([("m", d, 0, LAYERS) for d in "abc"]), "m")
    for d in "ab":
        made["test_accuracy"].loc[{"dataset": d, "layer": 2, "point": "attn"}] = 0.9
    made["test_accuracy"].loc[{"dataset": "c", "layer": 0, "point": "ffn_fc1"}] = 0.95
    return made


def test_tables_are_means_over_seeds_of_one_model():
    gathered = runs(
        [("small", "a", 0, 2), ("large", "a", 0, LAYERS), ("large", "a", 1, LAYERS), ("large", "b", 0, LAYERS)]
    )
    gathered["test_accuracy"][2] += 0.1
    large, small = by_task(gathered, "large"), by_task(gathered, "small")
    assert small.sizes["layer"] == 2
    assert large.dataset.values.tolist() == ["a", "b"]
    assert large.seeds.values.tolist() == [2, 1]
    np.testing.assert_allclose(large.test_accuracy.sel(dataset="a") - large.test_accuracy.sel(dataset="b"), 0.05)
    assert large.attrs["model"] == "large"
    np.testing.assert_allclose(reported(small).accuracy, 0.5 + 1 / 20 + 7 / 1000)


def test_what_can_not_be_averaged_is_refused():
    gathered = runs([("m", "a", 0, 2), ("m", "b", 0, 2)], img_size=[56, 98])
    with pytest.raises(InputError, match="img_size: 56, 98"):
        by_task(gathered, "m")
    with pytest.raises(UnknownNameError, match="other"):
        by_task(gathered, "other")
    with pytest.raises(InputError, match="two or more"):
        place_from_others(by_task(runs([("m", "a", 0, 2)]), "m"))


def test_the_best_place_is_optimistic_and_the_one_from_other_sets_is_not(table):
    last = 0.5 + 3 / 20 + 7 / 1000
    best, other = best_place(table), place_from_others(table)
    assert best.layer.values.tolist() == [2, 2, 0]
    assert best.point.values.tolist() == ["attn", "attn", "ffn_fc1"]
    np.testing.assert_allclose(best.advantage, np.array([0.9, 0.9, 0.95]) - last)
    np.testing.assert_allclose(best.error, 0.02 * np.sqrt(2))
    assert (other.accuracy <= best.accuracy).all()
    assert (int(other.layer[2]), str(other.point[2].values)) == (2, "attn")
    np.testing.assert_allclose(other.advantage[2], 0.5 + 2 / 20 + 1 / 1000 - last)


def test_a_reported_point_that_is_best_has_no_lead_and_no_error():
    best = best_place(by_task(runs([("m", "a", 0, LAYERS)]), "m"))
    assert (int(best.layer[0]), str(best.point[0].values)) == (LAYERS - 1, "ffn_res")
    assert best.advantage.values.tolist() == [0.0]
    assert best.error.values.tolist() == [0.0]


def test_one_panel_an_image_set_with_the_colours_of_components(table):
    axes = accuracy_by_task(table)
    assert [ax.texts[0].get_text() for ax in axes] == ["a", "b", "c"]
    lines = {line.get_color(): line for line in axes[0].lines}
    np.testing.assert_allclose(
        lines[COLORS["MHA"]].get_ydata(), 100 * table.test_accuracy.sel(dataset="a", point="attn")
    )
    assert len(axes[0].collections) >= len(POINTS)  # a band each
    legends = [ax.get_legend() for ax in axes[0].figure.axes if ax.get_legend()]
    assert len(legends) == 1
    assert set(OF_COMPONENTS.values()) <= {t.get_text() for t in legends[0].get_texts()}
    plt.close("all")


def test_the_map_frames_the_largest_mean_and_counts_image_sets(table):
    lead = advantage(table)
    (ax,) = advantage_map({"model": lead})
    image = ax.images[0].get_array()
    np.testing.assert_allclose(image, 100 * lead.mean("dataset").transpose("point", "layer"))
    frame = ax.patches[0]
    assert (frame.get_x() + 0.5, frame.get_y() + 0.5) == (2.0, POINTS.index("attn"))
    counts = {t.get_position(): t.get_text() for t in ax.texts}
    assert counts[2, POINTS.index("attn")] == "2"
    assert counts[LAYERS - 1, POINTS.index("ffn_res")] == "0"
    assert [t.get_text() for t in ax.get_yticklabels()] == [point_name(p) for p in POINTS]
    plt.close("all")
