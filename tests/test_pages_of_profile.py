"""The pages of the part on experiments, executed on made-up results of a profile with the structure of `paper`."""

from __future__ import annotations

from pathlib import Path

import made_up_study
import page_cells
import pytest

from vitplast import book

PAGES = sorted((Path(__file__).parent.parent / "book" / "experiments").glob("*.md"))
NAMES = [path.stem for path in PAGES]
BASE = "ViT-B/16"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made_up_study.make(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def part(tmp_path_factory, whole):
    """Only the main experiment is there."""
    return made_up_study.make(tmp_path_factory.mktemp("part"), ("main",), whole=whole)


def page(monkeypatch, profile, name):
    monkeypatch.setenv("VITPLAST_STORE", str(profile.parent / "store"))
    monkeypatch.setenv("VITPLAST_EXPERIMENTS", str(profile))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return page_cells.execute(next(path for path in PAGES if path.stem == name))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_every_page_shows_the_profile_and_no_other(monkeypatch, whole, name):
    text = page(monkeypatch, whole, name).text
    assert "Profile `mine`, at small scale" in text
    assert "profile `laptop`" not in text
    assert "PROFILE=laptop" not in text
    assert "two small models" not in text
    assert "DINOv2 ViT-S/14" not in text


def test_accuracies_are_those_that_were_made(monkeypatch, whole):
    found = page(monkeypatch, whole, "accuracy")
    assert found.glued["acc_total"] == "42 of 42"
    assert found.glued["acc_tasks"] == "3 tasks in 3 clusters"
    assert f"{BASE}: MHA > FC1 > FC2 > LN2 > LN1" in found.glued["acc_seen"]
    gain = 100 * (0.82 / made_up_study.PROBE - 1)  # over the probe read off the results of kind depth
    assert f"{gain:.1f}" in found.text


def test_experiments_are_told_apart(monkeypatch, whole):
    adamw = page(monkeypatch, whole, "adamw")
    assert adamw.glued["aw_n"] == "12 of 12"
    assert "MHA +5.0" in adamw.text
    few = page(monkeypatch, whole, "low_data")
    assert few.glued["ld_n"] == "12 of 12"
    assert "in place of 8 to 20" in few.glued["ld_steps"]
    lora = page(monkeypatch, whole, "lora")
    assert (lora.glued["lo_n"], lora.glued["lo_pair"]) == ("4 of 4", "2 of 2")
    assert "MHA+FC1 − MHA +2.0" in lora.text


def test_plasticity_is_that_of_the_models(monkeypatch, whole):
    found = page(monkeypatch, whole, "plasticity").glued
    assert found["xp_done"] == found["xp_planned"] == 9
    assert found["xp_orders"].startswith(f"{BASE} MHA > FC1 > FC2 > LN2 > LN1")
    assert found["xp_second"] == "ViT-H/14"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_pages_render_with_the_main_experiment_alone(monkeypatch, part, name):
    assert "Profile `mine`" in page(monkeypatch, part, name).text


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_pages_render_without_any_result(monkeypatch, tmp_path, name):
    path = tmp_path / "mine.yaml"
    path.write_text(made_up_study.PROFILE, encoding="utf-8")
    assert "Profile `mine`" in page(monkeypatch, path, name).text


def test_a_profile_in_a_file_is_found_beside_its_results(monkeypatch, whole):
    monkeypatch.setenv("VITPLAST_STORE", str(whole.parent / "store"))
    monkeypatch.setenv("VITPLAST_EXPERIMENTS", "mine")  # as the Makefile gives it, without folder and ending
    assert len(book.study().main) == 42
    runs = book.open_or_none("finetune")
    assert (runs.experiment == "adamw").sum() == 12
    assert runs.attrs["of_profile"] == "mine"
