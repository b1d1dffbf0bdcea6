"""The rule that chooses the tasks: each condition alone, at its edge, and the rows that a probe gives."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from vitplast.analysis import screening
from vitplast.analysis.screening import screen
from vitplast.errors import InputError

GOOD = {"dataset": "a", "images": 300, "licence": "MIT", "made_of": "photos", "chance": 0.25, "correct": 200,
        "validation_images": 400}  # fmt: skip


def test_a_good_task_is_kept_with_wilsons_interval():
    row = screen([GOOD]).iloc[0]
    z2 = 1.959963984540054**2
    centre, half = (0.5 + z2 / 800) / (1 + z2 / 400), (z2 * (0.25 / 400 + z2 / (4 * 400**2))) ** 0.5 / (1 + z2 / 400)
    assert (row.low, row.high) == pytest.approx((centre - half, centre + half), abs=1e-12)
    assert row.probe_accuracy == 0.5
    assert row.kept
    assert row.reason == "all conditions hold"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chance": 0.46}, "not above chance: lower end 0.451"),
        ({"correct": 392}, "saturated: accuracy 0.980"),
        ({"correct": 39, "validation_images": 40}, "saturated: accuracy 0.975, upper end 0.996"),
        ({"correct": 29, "validation_images": 30}, "saturated: accuracy 0.967, upper end 0.994"),
        ({"licence": "none stated"}, "no licence"),
        ({"licence": ""}, "no licence"),
        ({"made_of": ""}, "simulated"),
        ({"images": 299}, "299 training images, at least 300"),
    ],
)
def test_each_condition_alone_refuses(change, words):
    row = screen([GOOD | change]).iloc[0]
    assert not row.kept
    assert words in row.reason
    assert ";" not in row.reason


@pytest.mark.parametrize("change", [{"chance": 0.45}, {"correct": 388}])
def test_just_inside_is_kept(change):
    assert screen([GOOD | change]).iloc[0].kept


def test_all_reasons_are_told():
    row = screen([GOOD | {"images": 2, "licence": "", "made_of": "", "chance": 0.9}]).iloc[0]
    assert row.reason.count(";") == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "rows lack dataset"),
        ([{"dataset": "a"}], "rows lack images"),
        ([GOOD, GOOD], "twice: a"),
        ([GOOD | {"correct": 401}], "impossible"),
        ([GOOD | {"validation_images": 0, "correct": 0}], "impossible"),
        ([GOOD | {"chance": 1.2}], "impossible"),
    ],
)
def test_wrong_rows_are_named(rows, words):
    with pytest.raises(InputError, match=words):
        screen(rows)


def test_rows_come_from_validation_images_and_never_from_test(tiny_vit, monkeypatch, tmp_path):
    from types import SimpleNamespace

    from vitplast.images import sets

    monkeypatch.setattr(screening, "TRAIN_IMAGES", 60)
    monkeypatch.setattr(screening, "VALIDATION_IMAGES", 40)
    opened, own = [], sets.ImageSplit.all
    monkeypatch.setattr(sets.ImageSplit, "all", lambda self: opened.append((self.name, len(self))) or own(self))
    model = SimpleNamespace(model=tiny_vit, prepare=lambda x: x.to(torch.float32) / 255)
    rows = screening.probe_rows(["digits", "digits:contrast"], model, size=32)
    assert opened == 2 * [("train", 60), ("validation", 40)]
    assert rows["dataset"].tolist() == ["digits", "digits:contrast:5"]
    assert rows["cluster"].tolist() == ["digits", "digits"]
    assert rows["images"].tolist() == [1151, 1151]
    assert rows["correct"].between(1, 40).all()
    assert (rows["chance"] * 40 % 1 < 1e-9).all()
    table = screen(rows)
    screening.write_tasks(table, tmp_path / "tasks.csv", "a tiny model")
    back = pd.read_csv(tmp_path / "tasks.csv", comment="#")
    assert back.columns.tolist() == list(screening.COLUMNS)
    assert back["kept"].tolist() == table["kept"].tolist()
    assert "a tiny model, seed 0" in (tmp_path / "tasks.csv").read_text()
