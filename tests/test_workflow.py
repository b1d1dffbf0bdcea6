"""The workflow: its plan and stamps, the GPUs of one machine, the Snakemake line, and faults on the path through it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import samples
import yaml

from vitplast import results, workflow
from vitplast.cli import main
from vitplast.errors import AlreadyRunningError, InputError, MissingDependencyError, UnknownNameError
from vitplast.runs import load_profile, result_path, runlog
from vitplast.runs.gpu_share import share
from vitplast.workflow import devices
from vitplast.workflow.needs import MEMORY_MB, RUNTIME, Shared, gpu_hours, needs_of
from vitplast.workflow.planning import Needs

FOLDER = Path(workflow.__file__).parent
SIX = "units: [{kind: probe, weights: random, device: cpu, features: [mean, cls, both], seeds: {each: [0, 1]}}]"


@pytest.fixture
def six(tmp_path, monkeypatch):
    """Path of a profile of six units; the store and notebooks of the test."""
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("VITPLAST_NOTEBOOKS", str(tmp_path / "notebooks"))
    (tmp_path / "six.yaml").write_text(SIX)
    return tmp_path / "six.yaml"


def finish(unit, store):
    for key, run in unit.runs.items():
        results.write(samples.dataset(unit.kind, run), result_path(store, unit.kind, key), run=run, kind=unit.kind)


# --- plan and stamps


def test_the_plan_holds_the_command_and_the_needs_of_every_unit(six, tmp_path):
    profile = load_profile(six)
    store = tmp_path / "store"
    path = workflow.write_plan(
        profile, str(six), store=store, data="", gpus=True, needs=lambda unit: Needs(7, 8, 9), wrapper=["first"]
    )
    assert path == store / "workflow" / "six" / "plan.json"
    plan = json.loads(path.read_text())
    assert plan["gpus"] is True
    assert plan["command"] == ["first", sys.executable, "-m", "vitplast"]
    assert list(plan["units"]) == [f"probe/{u.label}" for u in profile.units]
    first = plan["units"][f"probe/{profile.units[0].label}"]
    assert (first["mem_mb"], first["runtime"], first["threads"]) == (7, 8, 9)
    assert first["arguments"] == profile.units[0].command(store, "")
    assert plan["gather"][3:] == ["gather", "--profile", str(six), "--store", str(store), "--data", ""]
    before = path.read_bytes()
    finish(profile.units[0], store)
    workflow.write_plan(
        profile, str(six), store=store, data="", gpus=True, needs=lambda unit: Needs(7, 8, 9), wrapper=["first"]
    )
    assert path.read_bytes() == before, "what is done already does not change it"
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_stamps_say_what_the_store_says(six, tmp_path):
    profile, store = load_profile(six), tmp_path / "store"
    first, second = profile.units[:2]
    done = workflow.plan_folder(profile, store) / "done"
    finish(first, store)
    assert [u.label for u in workflow.settle(profile, store=store)] == [u.label for u in profile.units[1:]]
    assert {p.stem for p in done.rglob("*.ok")} == {first.label}
    (done / "probe" / f"{second.label}.ok").touch()  # stamped, but its result was lost
    damaged = result_path(store, "probe", next(iter(first.runs)))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    (done.parent / "gathered.ok").touch()
    assert len(workflow.settle(profile, store=store)) == 6
    assert not list(done.rglob("*.ok"))
    assert not (done.parent / "gathered.ok").exists()
    for unit in profile.units:
        finish(unit, store)
    assert workflow.settle(profile, store=store) == []
    assert len(list(done.rglob("*.ok"))) == 6


# --- the line for Snakemake


def test_every_place_has_options_and_none_else_is_taken(tmp_path):
    assert set(workflow.PLACES) == {p.name for p in (FOLDER / "profiles").iterdir()}
    for place in workflow.PLACES:
        options = yaml.safe_load((FOLDER / "profiles" / place / "config.yaml").read_text())
        assert options["keep-going"] is True
        assert options["rerun-incomplete"] is True
        assert options["retries"] == 1, "here, since Snakemake in a job reads those of a rule once more"
        assert options["rerun-triggers"] == ["mtime"]
        assert options["executor"] == ("local" if place in ("laptop", "gpus") else place)
    with pytest.raises(UnknownNameError, match="Did you mean 'slurm'"):
        workflow.arguments("slurn", tmp_path)


@pytest.mark.parametrize(
    ("place", "options", "expected"),
    [
        ("laptop", {"jobs": 2}, ["--cores", "2"]),
        ("laptop", {}, ["--cores", "all"]),
        ("gpus", {"slots": 4}, ["--cores", "all", "--resources", "gpu=4"]),
        ("gpus", {"slots": 4, "jobs": 3}, ["--cores", "all", "--jobs", "3", "--resources", "gpu=4"]),
        ("slurm", {"jobs": 30}, ["--jobs", "30"]),
        ("slurm", {}, []),
        ("kubernetes", {"more": ["--x", "y"]}, ["--x", "y"]),
        ("laptop", {"jobs": 1, "dry_run": True}, ["--cores", "1", "--dry-run", "--quiet", "rules", "reason", "host"]),
    ],
)
def test_lines(tmp_path, place, options, expected):
    line = workflow.arguments(place, tmp_path, **options)
    assert line[:2] == ["--snakefile", str(FOLDER / "Snakefile")]
    assert line[2:4] == ["--directory", str(tmp_path)]
    assert line[4:8] == ["--profile", str(FOLDER / "profiles" / place), "--config", f"plan={tmp_path / 'plan.json'}"]
    assert line[8:] == expected


def test_without_snakemake_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitplast\[cluster\]'"):
        workflow.snakemake()
    (tmp_path / "snakemake").write_text("")
    (tmp_path / "snakemake").chmod(0o755)
    assert workflow.snakemake() == [str(tmp_path / "snakemake")]


def test_needs_are_the_estimate_with_slack_or_stated_numbers(six):
    units = load_profile(six).units
    plain = needs_of(units, gpu=False, shared=Shared(threads=3))(units[0])
    assert plain == Needs(MEMORY_MB[False], RUNTIME[False], 3)
    hours = gpu_hours(units)[units[0].kind, units[0].key]
    assert hours > 0
    alone = needs_of(units, gpu=True)(units[0])
    assert 30 + 180 * hours <= alone.runtime < 31 + 180 * hours
    assert needs_of([], gpu=True)(units[0]).runtime == RUNTIME[True], "a unit that was not judged"
    assert alone.mem_mb == MEMORY_MB[True]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--on", "slurn"], "place for --on 'slurn'. Did you mean 'slurm'"),
        (["--on", "laptop", "--devices", "0"], "--devices and --per-gpu are for --on gpus, got --on laptop"),
        (["--on", "slurm", "--per-gpu", "2"], "--devices and --per-gpu are for --on gpus, got --on slurm"),
        (["--profile", "papr"], "profile 'papr'. Did you mean 'paper'"),
    ],
)
def test_wrong_options_of_cluster_are_refused_before_anything_is_written(six, tmp_path, capsys, line, words):
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "--profile", str(six), *line])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_snakemake_ends_in_its_own_time_when_the_command_is_stopped(tmp_path, sig):
    child = "import signal, sys, time\nfor s in (2, 15): signal.signal(s, lambda n, f: (time.sleep(1), sys.exit(7)))\n"
    child += f"open({str(tmp_path / 'ready')!r}, 'w').close()\ntime.sleep(60)"
    code = "import signal, sys\nsignal.signal(2, signal.default_int_handler)\n"
    code += f"from vitplast.cli.cluster import waited\nsys.exit(waited([sys.executable, '-c', {child!r}]))"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until((tmp_path / "ready").exists)
    if sig == signal.SIGINT:
        os.killpg(process.pid, sig)  # as a terminal does
    else:
        process.send_signal(sig)
    assert process.wait(timeout=60) == 7


# --- the GPUs of one machine

HOLD = """
import os, sys, time
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.readline()
"""


def on_device(folder: Path, slots: str) -> subprocess.Popen:
    line = [sys.executable, "-m", "vitplast.workflow.devices", "--slots", slots, "--folder", str(folder)]
    return subprocess.Popen(
        [*line, "--", sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_jobs_get_gpus_of_their_own_and_give_them_back_when_killed(tmp_path):
    first, second = on_device(tmp_path, "4,7"), on_device(tmp_path, "4,7")
    try:
        got = {first: first.stdout.readline().strip(), second: second.stdout.readline().strip()}
        assert sorted(got.values()) == ["4", "7"]
        with pytest.raises(AlreadyRunningError, match="all 2 GPU slots were taken"):
            devices.take(["4", "7"], tmp_path, wait=0)
        third = on_device(tmp_path, "4,7")
        first.kill()
        assert third.stdout.readline().strip() == got[first]
        third.communicate("end\n", timeout=30)
        assert third.returncode == 0
        device, handle = devices.take(["4", "7"], tmp_path, wait=0)
        assert device == got[first]
        os.close(handle)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_a_gpu_that_is_named_twice_takes_two_jobs(tmp_path):
    held = [devices.take(["0", "1", "0", "1"], tmp_path, wait=0) for _ in range(4)]
    try:
        assert [device for device, _ in held] == ["0", "1", "0", "1"]
        with pytest.raises(AlreadyRunningError):
            devices.take(["0", "1", "0", "1"], tmp_path, wait=0)
    finally:
        for _, handle in held:
            os.close(handle)


def test_slots_without_gpus_and_wrong_lines_are_refused(tmp_path, capsys, monkeypatch):
    with pytest.raises(InputError, match="slots is empty"):
        devices.take([], tmp_path)
    for line in (["--slots", "0"], ["--slots", "0", "--folder", "x"], ["--folder", "x", "--slots", "0", "--"]):
        with pytest.raises(SystemExit) as ended:
            devices.main(line)
        assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, MIG-5")
    assert devices.visible() == ["3", "MIG-5"]


def test_jobs_that_share_a_gpu_share_its_memory(tmp_path):
    assert share(1, 80 * 2**30) == {}
    assert share(4, 80 * 2**30) == {"VITPLAST_MEMORY_GIB": "20.00"}
    assert Shared().wrapper([], tmp_path) == []
    words = Shared().wrapper(["0", "1"], tmp_path)
    assert words[1:] == ["-m", "vitplast.workflow.devices", "--slots", "0,1", "--folder", str(tmp_path), "--"]


# --- through Snakemake on this machine

needs_snakemake = pytest.mark.skipif(
    shutil.which("snakemake") is None and not Path(sys.executable).with_name("snakemake").exists(),
    reason="snakemake is missing: pip install 'vitplast[cluster]', or put one of version 9 on the PATH",
)


def cluster(profile: Path, *options: str, log: Path) -> subprocess.Popen:
    line = [sys.executable, "-m", "vitplast", "cluster", "--profile", str(profile), "--data", "", *options]
    with open(log, "a") as file:
        return subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True)


def until(condition, seconds: float = 180.0):
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)
    return found


def computed(store: Path) -> list[str]:
    return (store / "marker.txt").read_text().split() if (store / "marker.txt").exists() else []


@needs_snakemake
def test_a_dry_run_counts_the_units_that_are_left(six, tmp_path):
    profile = load_profile(six)
    finish(profile.units[0], tmp_path / "store")
    log = tmp_path / "log.txt"
    assert cluster(six, "--on", "laptop", "-n", log=log).wait(timeout=120) == 0, log.read_text()
    words = log.read_text().split()
    assert words[words.index("unit") + 1] == "5"
    assert "5 of 6 units are left" in log.read_text()
    assert not computed(tmp_path / "store")


@needs_snakemake
@pytest.mark.slow
def test_units_run_once_through_snakemake_although_its_driver_and_a_unit_are_killed(six, tmp_path):
    """Faults 1 and 2: kill -9 of the driver, and of one unit's process in mid-work; everything is made once."""
    store, log = tmp_path / "store", tmp_path / "log.txt"
    samples.notebook(tmp_path / "notebooks", "probe", "time.sleep(1)\n")
    profile = load_profile(six)
    first = cluster(six, "--on", "laptop", "--jobs", "2", log=log)
    until(lambda: len(computed(store)) >= 1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert len(computed(store)) < 6
    second = cluster(six, "--on", "laptop", "--jobs", "2", "--unlock", log=log)
    before = {e["label"] for e in runlog.entries(store)}
    label = until(lambda: next((e["label"] for e in runlog.entries(store) if e["label"] not in before), ""))
    victims = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            unit = next(u for u in profile.units if u.label == label)
            if words[1:4] == ["-m", "vitplast", "run"] and unit.command()[3] in words and str(store) in words:
                victims.append(int(folder.name))
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert victims, "the unit ended before it could be killed"
    assert second.wait(timeout=300) == 0, log.read_text()[-3000:]
    keys = [key for unit in profile.units for key in unit.runs]
    assert collections.Counter(computed(store)) == dict.fromkeys(keys, 1)
    assert all(results.is_valid(result_path(store, "probe", key)) for key in keys)
    done = collections.Counter(e["label"] for e in runlog.entries(store) if e["status"] == "done")
    assert set(done.values()) == {1}, "a result that a killed unit's kernel had made is found, not made again"
    assert results.read(store / "gathered" / "six" / "probe.nc").sizes["run"] == 6
    place = store / "workflow" / "six" / "logs" / "probe"
    assert {p.stem for p in place.glob("*.ipynb") if p.stat().st_size} >= set(done)
    third = cluster(six, "--on", "laptop", log=log)
    assert third.wait(timeout=120) == 0
    assert "Nothing to be done" in log.read_text()
    assert len(computed(store)) == 6


@needs_snakemake
@pytest.mark.slow
def test_a_failing_unit_does_not_stop_the_others(tmp_path, six):
    store, log = tmp_path / "store", tmp_path / "log.txt"
    samples.notebook(tmp_path / "notebooks", "probe", "assert chosen.features != 'cls', 'it would not'\n")
    assert cluster(six, "--on", "laptop", "--jobs", "2", log=log).wait(timeout=300) == 1
    assert len(computed(store)) == 4
    failed = collections.Counter(e["label"] for e in runlog.entries(store) if e["status"] == "failed")
    assert sorted(failed.values()) == [2, 2], "each tried twice"
    said = log.read_text()
    assert "Snakemake ended with exit code 1" in said
    logs = store / "workflow" / "six" / "logs" / "probe"
    for label in failed:
        assert "it would not" in (logs / f"{label}.txt").read_text()
        assert "it would not" in (logs / f"{label}.ipynb").read_text(), "the notebook as far as it got"
