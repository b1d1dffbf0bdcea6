"""Finished runs computed again: the same numbers bit for bit, or the table says what differs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import samples

from vitplast import results, units
from vitplast.cli import main
from vitplast.errors import InputError, UnknownNameError
from vitplast.parameters import make
from vitplast.runs import load_profile, result_path
from vitplast.runs.rerun import Finished, differences, parameters_of, rerun

MODEL = {"model": "vit_tiny_patch16_224", "weights": "random", "img_size": 32, "device": "cpu"}
TINY = {
    "dataset": "digits", "components": "LN1", "lrs": [0.1], "seeds": [0], "steps": 2, "warmup": 1, "batch_size": 8,
    "evaluations": 1, "train_images": 30, "validation_images": 20, "test_images": 20,
}  # fmt: skip


def made_up(kind, run):
    """A stand-in for `units.compute`: quick, and the same numbers each time, but for the clock."""
    ds = samples.dataset(kind, run)
    return ds.assign(seconds=ds.seconds + np.random.default_rng().random()) if "seconds" in ds else ds


@pytest.fixture
def store(tmp_path):
    """Two probes and four finetuning runs with made-up numbers."""
    for kind, values in {
        "probe": {"dataset": "digits"},
        "finetune": {"dataset": "digits", "lrs": [0.1, 0.2], "seeds": [0, 1], "steps": 4, "warmup": 0},
    }.items():
        for key, run in samples.make(kind, **values).runs().items():
            results.write(samples.dataset(kind, run), result_path(tmp_path, kind, key), run=run, kind=kind)
    return tmp_path


def test_a_real_run_comes_out_bit_equal_and_a_changed_one_does_not(tmp_path):
    ((key, run),) = make("finetune", MODEL | TINY).runs().items()
    made = units.compute("finetune", run)
    results.write(made, tmp_path / "finetune" / f"{key}.nc", run=run, kind="finetune")
    first = results.read(tmp_path / "finetune" / f"{key}.nc")
    same = rerun(first)
    assert same.equal, same.differences
    assert same.row()["bit-equal"] == "yes"
    made.train_loss.values[1] = np.nextafter(made.train_loss.values[1], 2)
    results.write(made, tmp_path / "other" / f"{key}.nc", run=run, kind="finetune")
    other = rerun(results.read(tmp_path / "other" / f"{key}.nc"))
    assert list(other.differences) == ["train_loss"]
    assert 0 < other.differences["train_loss"] < 1e-14
    assert "train_loss by up to" in other.row()["what differs"]


def test_runs_of_the_store_and_of_kept_files_are_found(store, tmp_path):
    gathered = results.gather(store)
    for kind, ds in gathered.items():
        results.write_gathered(ds, tmp_path / "data" / "mine" / f"{kind}.nc")
    for place in (Finished(store), Finished(tmp_path / "none", tmp_path / "data")):
        assert len(place.files) == 5
        name = place.named(gathered["probe"].run_key.values[0][:6])
        assert name == ("probe", gathered["probe"].run_key.values[0])
        assert rerun(place.read(name), made_up).equal
        assert len(place.where({"lr": 0.1})) == 2
        (one,) = place.where({"lr": 0.2, "seed": 1})
        assert rerun(place.read(one), made_up).equal
        with pytest.raises(UnknownNameError):
            place.named("zzzz")
        with pytest.raises(InputError, match="5 runs begin with"):
            place.named("")
        with pytest.raises(InputError, match="no finished run has lr=7"):
            place.where({"lr": 7})


def test_samples_depend_on_the_seed_alone_and_stay_in_the_profile(store, tmp_path):
    finished = Finished(store)
    assert finished.sample(3, 0) == finished.sample(3, 0)
    assert len({tuple(finished.sample(3, seed)) for seed in range(10)}) > 1
    assert len(set(finished.sample(3, 0))) == 3
    assert sorted(finished.sample(99, 0)) == sorted(finished.files)
    (tmp_path / "mine.yaml").write_text(
        "defaults: {every: {weights: random, device: cpu}}\nunits: [{kind: probe, dataset: [digits, 'digits:snow']}]"
    )
    own = Finished(store, profile=load_profile(tmp_path / "mine.yaml"))
    assert [kind for kind, _ in own.sample(9, 0)] == ["probe"]
    with pytest.raises(InputError, match="no finished runs"):
        Finished(tmp_path / "none").sample(1, 0)


def test_timings_and_gaps_that_are_alike_do_not_count(store):
    first = Finished(store).read(Finished(store).where({"lr": 0.1, "seed": 0})[0])
    second = first.copy(deep=True)
    second["seconds"] = second.seconds + 1
    assert differences(first, second) == {}
    gap = first.copy(deep=True)
    gap.validation_loss.values[0] = np.nan
    assert differences(gap, gap.copy(deep=True)) == {}
    assert differences(first, gap) == {"validation_loss": np.inf}
    assert list(differences(first, first.isel(step=slice(3)))) == [
        "gradient_norm", "gradient_norm_head", "gradient_norm_total", "learning_rate", "step", "train_loss",
    ]  # fmt: skip


def test_options_newer_than_a_result_take_their_defaults_and_other_runs_are_refused(store):
    finished = Finished(store)
    ds = finished.read(finished.where({"lr": 0.1, "seed": 0})[0])
    stored = json.loads(ds.attrs["params_json"])
    older = {name: value for name, value in stored.items() if name != "profile"}
    assert parameters_of(ds.assign_attrs(params_json=json.dumps(older)))["profile"] == ""
    with pytest.raises(InputError, match="stand for the run"):
        parameters_of(ds.assign_attrs(params_json=json.dumps(stored | {"seed": 5})))


def test_as_many_threads_as_the_first_run_had(store):
    import torch

    finished, seen = Finished(store), []
    ds = finished.read(finished.sample(1, 0)[0])

    def compute(kind, run):
        seen.append(torch.get_num_threads())
        return made_up(kind, run)

    before = torch.get_num_threads()
    assert rerun(ds.assign_attrs(threads=3), compute).equal
    assert seen == [3]
    assert torch.get_num_threads() == before


def test_command_prints_a_table_and_fails_when_a_number_differs(store, monkeypatch, capsys):
    monkeypatch.setattr(units, "compute", made_up)
    command = ["rerun", "--store", str(store), "--data", "", "--json"]

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([*command, *arguments])
        return int(end.value.code or 0), capsys.readouterr()

    code, said = run("--sample", "3", "--seed", "1")
    rows = json.loads(said.out)
    assert (code, len(rows), {row["bit-equal"] for row in rows}) == (0, 3, {"yes"})
    key = rows[0]["key"]
    assert run(key[:8])[0] == 0
    code, said = run("-p", "lr=0.1", "-p", "seed=1")
    assert (code, json.loads(said.out)[0]["run"].split()[-2:]) == (0, ["0.1", "1"])
    monkeypatch.setattr(units, "compute", lambda kind, run: samples.dataset(kind, run, shift=0.125))
    code, said = run(key)
    assert code == 1
    assert json.loads(said.out)[0]["bit-equal"] == "NO"
    assert f"1 of 1 runs differ: {rows[0]['kind']} {key}" in said.err
    assert run()[0] == 2
