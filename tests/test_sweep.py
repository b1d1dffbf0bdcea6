"""Profiles and sweeps: what a YAML file may say, what is left to do, and what survives failures, signals and kills."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import samples

from vitplast import results
from vitplast.errors import InputError, IntegrityError, MissingDependencyError, UnknownNameError
from vitplast.parameters import KINDS
from vitplast.runs import Unit, done_keys, known_keys, outlook, plan, result_path, runlog, sweep

PROFILE = """
description: three probes and two finetuning runs
defaults:
  every: {weights: random, device: cpu}
  finetune: {steps: 6}
units:
  - {kind: probe, dataset: [mnist5k, photocrops], seeds: [0, 1]}
  - {kind: probe, features: cls}
  - kind: finetune
    components: [MHA, LN1]
"""


@pytest.fixture
def profile(tmp_path, monkeypatch):
    monkeypatch.delenv("VITPLAST_STORE", raising=False)
    (tmp_path / "mine.yaml").write_text(PROFILE)
    return plan.load_profile(tmp_path / "mine.yaml")


def loaded(tmp_path: Path, text: str) -> plan.Profile:
    (tmp_path / "p.yaml").write_text(text)
    return plan.load_profile(str(tmp_path / "p.yaml"))


# --- profiles (fault 17)


def test_lists_become_units(profile):
    assert [u.kind for u in profile.units] == ["probe"] * 3 + ["finetune"] * 2
    first, second, third, mha, ln1 = (u.parameters for u in profile.units)
    assert (first.dataset, second.dataset) == ("mnist5k", "photocrops")
    assert first.seeds == [0, 1]
    assert (third.features, third.weights, third.profile) == ("cls", "random", "mine")
    assert (mha.components, ln1.components, mha.steps) == ("MHA", "LN1", 6)
    assert {k: len(v) for k, v in plan.expected(profile.units).items()} == {"probe": 5, "finetune": 2}


def test_every_packaged_profile_is_valid_and_quick_covers_all_kinds():
    assert "quick" in plan.names()
    for name in plan.names():
        assert plan.load_profile(name).description
    quick = plan.load_profile("quick")
    # the search is run on its own, with a larger budget; its table is in data/
    assert {u.kind for u in quick.units} == set(KINDS) - {"search", "pretrain", "depth", "landscape", "criteria"}
    assert sum(len(u.runs) for u in quick.units if u.kind == "finetune") == 16


REFUSED = {
    "tag": ("!!python/object/apply:os.system [exit]", "is not a profile"),
    "python name": ("units: !!python/name:os.system", "is not a profile"),
    "key twice": ("units: []\nunits: []", "'units' stands twice, line 2"),
    "key twice below": ("units: [{kind: probe, dataset: a, dataset: b}]", "'dataset' stands twice"),
    "anchor": ("defaults: &a {every: {}}\nunits: [*a]", "anchors and aliases are not allowed, line 1"),
    "deep": ("[" * 1500, "nested too deeply"),
    "large": ("description: " + "x" * 1_000_000, "larger than 100 kB"),
    "text": ("just words", "must be a mapping"),
    "empty": ("", "must be a mapping"),
    "no units": ("description: x", "units must be a list that is not empty"),
    "unknown key": ("unit: []", r"unknown key in p\.yaml 'unit'\. Did you mean 'units'"),
    "unknown kind": ("units: [{kind: prob}]", "Did you mean 'probe'"),
    "unknown default": ("defaults: {probes: {}}\nunits: []", "Did you mean 'probe'"),
    "unknown parameter": ("units: [{kind: probe, sed: 3}]", r"entry 1 of units 'sed'\. Did you mean 'seeds'"),
    "parameter of another kind": ("units: [{kind: probe, components: MHA}]", "entry 1 of units 'components'"),
    "unknown everywhere": ("defaults: {every: {sise: 3}}\nunits: [{kind: probe}]", "'sise'"),
    "no kind": ("units: [{dataset: mnist5k}]", "entry 1 of units must be a mapping with the key kind"),
    "list of lists": ("units: [{kind: probe, dataset: [[mnist5k]]}]", "dataset must be str"),
    "empty list": ("units: [{kind: probe, dataset: []}]", "dataset is an empty list"),
    "float as text": ("units: [{kind: finetune, lrs: [1e-4]}]", r"lrs\[0\] must be float.*write 1\.0e-4"),
    "octal": ("units: [{kind: probe, seeds: [08]}]", r"seeds\[0\] must be int, got '08'"),
    "yes": ("units: [{kind: probe, dataset: on}]", "dataset must be str, got True"),
    "not a number": ("units: [{kind: finetune, clip: .nan}]", "clip must be finite"),
    "unknown data set": ("units: [{kind: probe, dataset: mnist}]", "entry 1 of units .*mnist5k"),
    "same result twice": ("units: [{kind: probe}, {kind: probe, batch_size: 3}]", "asked for twice"),
    "too many": (
        "units: [{kind: finetune, dataset: [mnist5k], weight_decay: [%s], momentum: [%s]}]"
        % ((", ".join(f"0.{i:03d}" for i in range(200)),) * 2),
        "more than 20000 units",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_profiles_are_refused_in_words(tmp_path, case):
    text, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as error:
        loaded(tmp_path, text)
    assert len(str(error.value)) < 2000


def test_unknown_profiles_and_files_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'quik'\. Did you mean 'quick'"):
        plan.load_profile("quik")
    with pytest.raises(InputError, match=r"none\.yaml.*can't be read"):
        plan.load_profile(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="can't be read"):
        plan.load_profile(tmp_path / "bytes.yaml")


# --- sweeps with a stand-in for `vitplast run`, which takes ready-made results

STAND_IN = """
import json, os, shutil, sys, time
pool = sys.argv[1]
kind, text, store = sys.argv[3], sys.argv[5], sys.argv[7]
with open(pool + "/pool.json") as file:
    keys = json.load(file)[kind + text]
with open(pool + "/order.txt", "a") as file:
    file.write(kind + text + os.environ["OMP_NUM_THREADS"] + "\\n")
with open(pool + "/folders.txt", "a") as file:
    file.write(" ".join(sys.argv[6:]) + "\\n")
if os.path.exists(pool + "/slow"):
    time.sleep(60)
if os.path.exists(pool + "/fail " + kind):
    sys.exit("it would not " + kind)
for key in keys:
    os.makedirs(store + "/" + kind, exist_ok=True)
    shutil.copy(pool + "/" + key + ".nc", store + "/" + kind + "/." + key)
    os.replace(store + "/" + kind + "/." + key, store + "/" + kind + "/" + key + ".nc")
"""


@pytest.fixture
def pool(tmp_path, profile):
    """A folder of results of all runs of the profile; `command(pool)` puts them where a sweep wants them."""
    folder = tmp_path / "pool"
    for unit in profile.units:
        for key, run in unit.runs.items():
            results.write(samples.dataset(unit.kind, run), folder / f"{key}.nc", run=run, kind=unit.kind)
    index = {u.kind + json.dumps(u.values()): list(u.runs) for u in profile.units}
    (folder / "pool.json").write_text(json.dumps(index))
    (folder / "stand_in.py").write_text(STAND_IN)
    return folder


def command(pool: Path) -> list[str]:
    return [sys.executable, "-S", str(pool / "stand_in.py"), str(pool)]


def test_dry_run_sweep_and_gather(tmp_path, profile, pool, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("vitplast.results.provenance.cores", lambda: 8)
    store, said = tmp_path / "store", io.StringIO()
    before = {row["kind"]: row for row in outlook.dry_run(profile, store=store).rows}
    assert before["all"] == {
        "kind": "all",
        "units": 5,
        "units done": 0,
        "results": 7,
        "results done": 0,
        "time left": "9 min (estimate from another machine)",
    }
    assert len(sweep.gather(profile, store=store)) == 7
    assert sweep.sweep(profile, jobs=2, store=store, command=command(pool), stream=said)
    lines = said.getvalue().splitlines()
    assert lines[0] == "mine: 5 units to run, 0 done before, 2 at a time"
    assert [line.split("]")[0] for line in lines[1:-1]] == [f"[{i}/5" for i in range(1, 6)]
    started = (pool / "order.txt").read_text().splitlines()
    assert "probe" in started[0], "the longest come first"
    assert all(line.endswith("4") for line in started), "8 cores for 2 jobs"
    after = {row["kind"]: row for row in outlook.dry_run(profile, store=store).rows}
    assert (after["all"]["units done"], after["all"]["results done"]) == (5, 7)
    assert sweep.gather(profile, store=store) == []
    assert results.read(sweep.gathered_path(profile, "probe", store)).sizes["run"] == 5
    assert sweep.sweep(profile, store=store, command=["/does/not/exist"], stream=said), "nothing is left to run"


def test_time_left_comes_from_the_log(tmp_path, profile):
    store = tmp_path / "store"
    for unit in profile.units:
        runlog.append(store, unit, "done", time.time() - unit.work)
    rows = {row["kind"]: row for row in outlook.dry_run(profile, store=store).rows}
    assert rows["all"]["time left"] == outlook.duration(sum(u.work for u in profile.units))
    assert [outlook.duration(s) for s in (12.4, 300, 7200)] == ["12 s", "5 min", "2.0 h"]


def test_times_of_kinds_never_run_here_are_marked_as_those_of_another_machine(tmp_path, profile):
    store = tmp_path / "store"
    runlog.append(store, profile.units[0], "done", time.time() - profile.units[0].work)
    found = outlook.dry_run(profile, store=store)
    rows = {row["kind"]: row["time left"] for row in found.rows}
    own = sum(u.work for u in profile.units if u.kind == "probe")
    other = outlook.FOREIGN_PACE["finetune"] * sum(u.work for u in profile.units if u.kind == "finetune")
    assert rows["probe"] == outlook.duration(own)
    assert rows["finetune"] == f"{outlook.duration(other)} (estimate from another machine)"
    assert rows["all"] == f"{outlook.duration(own + other)} (estimate from another machine)"
    assert found.borrowed
    assert found.labels == [u.label for u in profile.units]
    assert set(outlook.FOREIGN_PACE) == set(KINDS)


def test_failures_do_not_stop_the_rest_and_are_run_again(tmp_path, profile, pool):
    store, said = tmp_path / "store", io.StringIO()
    (pool / "fail finetune").write_text("")
    assert not sweep.sweep(profile, store=store, command=command(pool), stream=said)
    assert said.getvalue().count("FAILED") == 2
    assert "it would not finetune" in said.getvalue()
    assert len(sweep.gather(profile, store=store)) == 2
    damaged = next((store / "probe").glob("*.nc"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    with pytest.raises(IntegrityError, match=damaged.name):
        sweep.gather(profile, store=store)
    (pool / "fail finetune").unlink()
    (pool / "order.txt").unlink()
    assert sweep.sweep(profile, store=store, command=command(pool), stream=said)
    assert len((pool / "order.txt").read_text().splitlines()) == 3, "the two that failed and the damaged one"


def test_results_in_the_data_folder_count_and_are_gathered(tmp_path, profile, pool):
    store, data, said = tmp_path / "store", tmp_path / "data", io.StringIO()
    assert sweep.sweep(profile, store=store, command=command(pool), stream=said)
    sweep.gather(profile, store=store)
    (store / "gathered").rename(data)
    fresh = tmp_path / "fresh"
    assert all(done_keys(u, fresh, known_keys(data)) == set(u.runs) for u in profile.units)
    assert sweep.sweep(profile, store=fresh, data=data, command=["/does/not/exist"], stream=said)
    assert sweep.gather(profile, store=fresh, data=data) == []
    assert results.read(sweep.gathered_path(profile, "finetune", fresh)).sizes["run"] == 2


def test_results_known_in_part_are_completed_and_the_store_counts_before_the_data(tmp_path, profile, pool, caplog):
    unit = profile.units[0]
    first, second = unit.runs
    store, data = tmp_path / "store", tmp_path / "data"
    shifted = samples.dataset("probe", unit.runs[first], shift=0.25)
    results.write(shifted, tmp_path / "one" / f"{first}.nc", run=unit.runs[first], kind="probe")
    results.write_gathered(results.gather(tmp_path / "one")["probe"], data / "probe.nc")
    known = known_keys(data)
    assert [done_keys(u, store, known) for u in profile.units] == [{first}, *[set()] * 4]
    assert sweep.sweep(profile, store=store, data=data, command=command(pool), stream=io.StringIO())
    passed = (pool / "folders.txt").read_text().splitlines()
    assert passed == [f"--store {store} --data {data}"] * 5
    assert sweep.gather(profile, store=store, data=data) == []
    assert f"holds other numbers for the run {first}" in caplog.text
    gathered = results.read(sweep.gathered_path(profile, "probe", store))
    assert gathered.test_accuracy.sel(run=gathered.run_key.values == first).values.tolist() == [0.5]
    result_path(store, "probe", first).unlink()
    assert sweep.gather(profile, store=store, data=data) == []
    gathered = results.read(sweep.gathered_path(profile, "probe", store))
    assert gathered.test_accuracy.sel(run=gathered.run_key.values == first).values.tolist() == [0.75]
    assert result_path(store, "probe", second).exists()


def test_a_sweep_without_data_tells_its_processes_so(tmp_path, profile, pool):
    assert sweep.sweep(profile, store=tmp_path / "store", command=command(pool), stream=io.StringIO())
    assert {line.split(" --data ")[1] for line in (pool / "folders.txt").read_text().splitlines()} == {""}


def test_a_sweep_starts_nothing_when_an_image_set_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    text = "units: [{kind: probe, weights: random}, {kind: probe, weights: random, dataset: [emoji, stamps]}]"
    with pytest.raises(MissingDependencyError, match=r"(?s)'emoji' needs.*'stamps' needs"):
        sweep.sweep(loaded(tmp_path, text), store=tmp_path / "store", command=["/does/not/exist"])
    assert not (tmp_path / "store").exists()


DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has its children ignore it
from vitplast.runs import load_profile, sweep
try:
    done = sweep.sweep(load_profile(sys.argv[1]), store=sys.argv[2], command=sys.argv[3:] or sweep.COMMAND)
except KeyboardInterrupt:
    sys.exit(130)
sys.exit(0 if done else 1)
"""


def driver(profile_path: Path, store: Path, *run: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(profile_path), str(store), *run], stderr=subprocess.PIPE, text=True
    )


def until(condition, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_the_units_and_say_how_to_go_on(tmp_path, pool, sig):
    (pool / "slow").write_text("")
    process = driver(tmp_path / "mine.yaml", tmp_path / "store", *command(pool))
    until(lambda: (pool / "order.txt").exists() and len((pool / "order.txt").read_text().splitlines()) == 2)
    process.send_signal(sig)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped with 0 of 5 units done; the same command goes on with the rest" in err
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert str(pool / "stand_in.py") not in left.replace(str(process.args), "")


def test_killed_sweep_beside_another_loses_and_doubles_nothing(tmp_path, monkeypatch):
    """Two sweeps with real kernels share a store; one is killed with -9; every result is computed exactly once."""
    store, book = tmp_path / "store", tmp_path / "notebooks"
    monkeypatch.setenv("VITPLAST_NOTEBOOKS", str(book))
    samples.notebook(book, "probe", "time.sleep(0.3)\n")
    path = tmp_path / "two.yaml"
    path.write_text("units: [{kind: probe, weights: random, device: cpu, features: [mean, cls, both]}]")
    sweeps = [driver(path, store) for _ in range(2)]
    until(lambda: (store / "marker.txt").exists())
    sweeps[0].kill()
    _, err = sweeps[1].communicate(timeout=120)
    sweeps[0].communicate()
    assert sweeps[1].returncode == 0, err
    units = plan.load_profile(path).units
    assert sorted((store / "marker.txt").read_text().split()) == sorted(k for u in units for k in u.runs)
    assert all(results.is_valid(result_path(store, "probe", k)) for u in units for k in u.runs)
    assert not [p for p in store.rglob(".*") if p.suffix == ".tmp"]
    assert os.path.exists(store / "notebooks")


def test_unit_passes_through_the_command_line(tmp_path):
    """What a sweep hands to `vitplast run` is what its unit holds, values that YAML would misread included."""
    unit = Unit("finetune", samples.make("finetune", lrs=[1e-4], components="MHA+FC1", train_norm=False))
    _, kind, flag, text, store_flag, store = unit.command(tmp_path)
    assert (kind, flag, store_flag, store) == ("finetune", "--json", "--store", str(tmp_path))
    assert json.loads(text)["lrs"] == [1e-4]
    assert json.loads(text)["train_norm"] is False
    assert unit.command(tmp_path, "")[-2:] == ["--data", ""]
