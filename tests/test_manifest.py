"""Kept results of a profile: small files, exact numbers, a manifest that finds what was changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import samples
import xarray as xr

from vitplast import book, results, shown
from vitplast.cli import main
from vitplast.errors import IntegrityError, VitplastError
from vitplast.results import manifest
from vitplast.runs import known_keys, load_profile, result_path, sweep
from vitplast.runs.keep import keep

ROOT = Path(__file__).parent.parent
TEXT = """
description: made up
defaults: {every: {weights: random, device: cpu}, finetune: {steps: 6, evaluations: 2, warmup: 1}}
units:
  - {kind: probe, dataset: [digits, "digits:snow"]}
  - {kind: finetune, dataset: digits, components: [LN1, MHA], lrs: [0.1, 0.2], seeds: [0]}
"""


@pytest.fixture
def profile(tmp_path):
    (tmp_path / "mine.yaml").write_text(TEXT)
    return load_profile(tmp_path / "mine.yaml")


def make(profile, store, kinds=("probe", "finetune"), seeds_differ=0.0):
    """All results of the profile of these kinds, with made-up numbers."""
    for unit in profile.units:
        for key, run in unit.runs.items() if unit.kind in kinds else ():
            made = samples.dataset(unit.kind, run, seeds_differ)
            results.write(made, result_path(store, unit.kind, key), run=run, kind=unit.kind)


@pytest.fixture
def kept(tmp_path, profile):
    make(profile, tmp_path / "store")
    return keep(profile, data=tmp_path / "data", store=tmp_path / "store")


def test_kept_results_are_complete_exact_and_listed(tmp_path, profile, kept):
    assert kept.folder == tmp_path / "data" / "mine"
    assert (kept.missing, kept.dropped) == ([], {})
    assert manifest.faults(kept.folder) == []
    content = manifest.read(kept.folder)
    one = content["files"]["finetune.nc"]
    assert (content["profile"], content["runs"], one["runs"], one["missing_runs"]) == ("mine", 6, 4, 0)
    assert one["notebook"] == "notebooks/finetune.ipynb"
    assert len(one["sha256"]) == len(one["notebook_sha256"]) == 64
    assert one["versions"]["torch"]
    assert one["machines"] == [results.environment()["machine"]]
    for ds in results.singles(results.read(kept.folder / "finetune.nc")):
        own = results.read(result_path(tmp_path / "store", "finetune", ds.attrs["run_key"]))
        assert ds.train_loss.values.tobytes() == own.train_loss.values.tobytes()
        assert ds.attrs["content_sha256"] == own.attrs["content_sha256"]


def test_text_is_stored_compressed_and_read_as_it_was(tmp_path):
    store = tmp_path / "store"
    runs = samples.make(
        "finetune", dataset="digits", steps=2, warmup=0, evaluations=1, lrs=(np.arange(1, 41) / 100).tolist()
    ).runs()
    for key, run in runs.items():
        results.write(samples.dataset("finetune", run), result_path(store, "finetune", key), run=run, kind="finetune")
    path = results.write_gathered(results.gather(store)["finetune"], tmp_path / "finetune.nc")
    few = [result_path(store, "finetune", key) for key in list(runs)[:10]]
    small = results.write_gathered(results.gather(few)["finetune"], tmp_path / "few.nc")
    assert path.stat().st_size - small.stat().st_size < 30 * 2_000, "a run adds little; its text alone has over 2,500"
    with xr.open_dataset(path, engine="netcdf4") as ds:
        assert ds.params_json.encoding["zlib"]
    ds = results.read(path)
    assert sorted(ds.run_key.values.tolist()) == sorted(runs)
    assert {json.loads(t)["lr"] for t in ds.params_json.values.tolist()} == {run["lr"] for run in runs.values()}
    labels = xr.Dataset({"a": ("run", ["é", "", "a b"]), "b": ("run", ["", "", ""])})
    results.netcdf.save(labels, tmp_path / "labels.nc", lambda ds: None)
    back = results.netcdf.load(tmp_path / "labels.nc")
    assert (back.a.values.tolist(), back.b.values.tolist()) == (["é", "", "a b"], ["", "", ""])


def test_part_of_a_profile_is_kept_and_grows_from_a_store_that_holds_the_rest_only(tmp_path, profile):
    make(profile, tmp_path / "first", ["probe"])
    kept = keep(profile, data=tmp_path / "data", store=tmp_path / "first")
    assert len(kept.missing) == 4
    assert [p.name for p in sorted(kept.folder.glob("*.nc"))] == ["probe.nc"]
    before = (kept.folder / "probe.nc").read_bytes()
    make(profile, tmp_path / "second", ["finetune"])
    kept = keep(profile, data=tmp_path / "data", store=tmp_path / "second")
    assert kept.missing == []
    assert manifest.read(kept.folder)["runs"] == 6
    assert manifest.faults(kept.folder) == []
    assert (kept.folder / "probe.nc").read_bytes() == before, "what has not changed is not written again"
    assert sweep.sweep(profile, store=tmp_path / "none", data=tmp_path / "data", command=["/does/not/exist"])


def test_results_of_units_that_left_the_profile_are_dropped_and_named(tmp_path, profile, kept):
    (tmp_path / "mine.yaml").write_text(TEXT.replace("[LN1, MHA]", "[LN1]").replace("  - {kind: probe", "  #"))
    again = keep(load_profile(tmp_path / "mine.yaml"), data=tmp_path / "data", store=tmp_path / "store")
    assert {kind: len(keys) for kind, keys in again.dropped.items()} == {"probe": 2, "finetune": 2}
    assert list(manifest.read(kept.folder)["files"]) == ["finetune.nc"]
    assert manifest.faults(kept.folder) == []


def test_damaged_results_leave_what_was_kept(tmp_path, profile, kept):
    before = {p.name: p.read_bytes() for p in kept.folder.iterdir()}
    damaged = next((tmp_path / "store" / "finetune").glob("*.nc"))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match=damaged.name):
        keep(profile, data=tmp_path / "data", store=tmp_path / "store")
    assert {p.name: p.read_bytes() for p in kept.folder.iterdir()} == before


FAULTS = {
    "finetune.nc is missing": lambda f: (f / "finetune.nc").unlink(),
    "finetune.nc has another SHA-256": lambda f: (f / "finetune.nc").write_bytes(
        (f / "finetune.nc").read_bytes() + b"x"
    ),
    "more.nc is not in the manifest": lambda f: shutil.copy(f / "probe.nc", f / "more.nc"),
    "profile.yaml has another": lambda f: (f / "profile.yaml").write_text("other"),
    "holds 4 runs of kind finetune, the manifest says 5": lambda f: change(f, "runs", 5),
    "no manifest": lambda f: (f / "manifest.json").write_text("{}"),
}


def change(folder, name, value):
    content = manifest.read(folder)
    content["files"]["finetune.nc"][name] = value
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize("fault", FAULTS)
def test_check_names_what_is_wrong(kept, capsys, fault):
    FAULTS[fault](kept.folder)
    with pytest.raises(SystemExit) as end:
        main(["manifest", "--check", str(kept.folder)])
    assert end.value.code == 1
    assert fault in capsys.readouterr().err


def test_gather_keep_and_check_on_the_command_line(tmp_path, profile, capsys):
    make(profile, tmp_path / "store", ["probe"])
    folders = ["--store", str(tmp_path / "store"), "--data", str(tmp_path / "data")]
    main_ = ["gather", "--profile", str(tmp_path / "mine.yaml"), *folders]
    with pytest.raises(SystemExit) as end:
        main([*main_, "--keep"])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    assert "4 results are missing" in err
    assert "probe.nc" in out
    with pytest.raises(SystemExit) as end:
        main(["manifest", "--check", str(tmp_path / "data" / "mine"), "--json"])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)[0]["runs"] == 2
    with pytest.raises(SystemExit) as end:
        main([*main_[:-1], "", "--keep"])
    assert end.value.code == 2


def test_a_page_may_ask_for_the_results_of_another_profile(tmp_path, monkeypatch, profile, kept):
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(shown, "project_root", lambda: tmp_path)
    monkeypatch.setenv("VITPLAST_PROFILE", "quick")
    runs = book.open_results("finetune", profile="mine")
    assert runs.sizes["run"] == 4
    assert "profile `mine`" in book.provenance(runs, "finetune").data
    assert book.gathered_path("finetune", "mine").parent == kept.folder, "what comes with the project counts here"
    with pytest.raises(VitplastError, match=r"'quick'.*PROFILE=quick"):
        book.open_results("finetune")
    monkeypatch.setenv("VITPLAST_PROFILE", "mine")
    assert book.gathered_path("finetune").parent.parent.name == "gathered"
    assert "profile `mine`" in book.provenance(book.open_results("finetune"), "finetune").data
    assert book.pick(runs, components="MHA", lr=0.2).attrs["run_key"] in known_keys(kept.folder)["finetune"]
    with pytest.raises(VitplastError, match="2 runs match"):
        book.pick(runs, components="MHA")


def test_pages_say_how_many_runs_are_missing(tmp_path, monkeypatch, profile):
    unit = next(u for u in profile.units if u.kind == "finetune")
    key, run = next(iter(unit.runs.items()))
    path = result_path(tmp_path / "store", "finetune", key)
    results.write(samples.dataset("finetune", run), path, run=run, kind="finetune")
    keep(profile, data=tmp_path / "data", store=tmp_path / "store")
    monkeypatch.setattr(shown, "project_root", lambda: tmp_path)
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "none"))
    monkeypatch.setenv("VITPLAST_PROFILE", "mine")
    assert len(book.missing_runs(book.open_results("finetune"))) == 3
    assert "3 runs" in book.provenance(book.open_results("finetune"), "finetune").data
    assert "Not there yet: 3 runs of the profile" in book.footer()


def test_pages_name_models_only_at_the_sizes_they_have():
    runs = xr.Dataset(
        coords={"model": ("run", ["a", "a", "b"]), "img_size": ("run", [56, 98, 56])},
        data_vars={"x": ("run", [0, 0, 0])},
    )
    assert book.facts_of(runs)["model"] == "a, 56 px, a, 98 px, b, 56 px"
    assert book.facts_of(runs.drop_vars("model").assign_attrs(model="c"))["model"] == "c, 56 px, c, 98 px"


KEPT = [path.parent for path in sorted((ROOT / "data").glob("*/manifest.json"))]


def test_results_come_with_the_project():
    assert [folder.name for folder in KEPT] == ["laptop"]


@pytest.mark.parametrize("folder", KEPT)
def test_what_comes_with_the_project_is_what_its_manifest_says(folder):
    assert manifest.faults(folder) == []
    assert manifest.read(folder)["profile"] == folder.name
    assert sum(p.stat().st_size for p in folder.iterdir()) < 12_000_000
