"""A sweep through Slurm on this machine: real notebooks, a failing unit, a killed one, a driver killed with -9.

It needs the Debian packages slurmctld, slurmd, slurm-client and munge, and Snakemake 9 with its Slurm plugin, here or
on the PATH; `tests/slurm/loopback.sh` starts the Slurm. It takes ten minutes and more on two slow cores.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitplast import results
from vitplast.runs import load_profile, result_path, runlog

SCRIPT = Path(__file__).parent / "slurm" / "loopback.sh"
MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "snakemake") if not shutil.which(name)]
PROFILE = """
description: 24 units that end well and one that can't
defaults:
  every: {{model: vit_micro_patch14_56, weights: random, device: cpu, img_size: 28}}
  finetune:
    {{dataset: digits, steps: 2, batch_size: 4, warmup: 0, evaluations: 1, train_images: 16, validation_images: 8,
     test_images: 8}}
units:
  - kind: finetune
    components: [all, emb, LN1, MHA, LN2, FC1, FC2, head]
    lrs: {{each: [0.01, 0.03, 0.1]}}
{more}
"""
BAD = "  - {{kind: finetune, weights: {path}}}\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"{', '.join(MISSING)} missing: apt-get install slurmctld slurmd slurm-client munge, and a snakemake "
        "with snakemake-executor-plugin-slurm on the PATH",
    ),
]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A running Slurm with two slots and two simulated GPUs; its settings are in the environment."""
    folder = tmp_path / "slurm"
    started = subprocess.run(["sh", str(SCRIPT), "start", str(folder)], capture_output=True, text=True, check=False)
    if started.returncode:
        pytest.fail(f"Slurm did not start: {started.stdout}{started.stderr}")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    yield folder
    subprocess.run(["sh", str(SCRIPT), "stop", str(folder)], check=False)


def cluster(profile: Path, store: Path, *options: str, log: Path) -> subprocess.Popen:
    line = [sys.executable, "-m", "vitplast", "cluster", "--profile", str(profile), "--store", str(store), "--data", ""]
    with open(log, "a") as file:
        return subprocess.Popen([*line, *options], stdout=file, stderr=file, start_new_session=True)


SLURM = ("--on", "slurm", "--threads", "1", "--jobs", "6")
SNAKEMAKE = (
    "--", "--slurm-status-command", "squeue", "--seconds-between-status-checks", "2", "--latency-wait", "10",
    "--slurm-no-account", "--slurm-init-seconds-before-status-checks", "5",
    "--default-resources", "slurm_partition=gpu",
)  # fmt: skip


def counts(store: Path) -> dict[str, collections.Counter]:
    """Status to how often each unit has it in the log of the store."""
    found: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for entry in runlog.entries(store):
        found[entry["status"]][entry["label"]] += 1
    return found


def running(store: Path) -> dict[int, str]:
    """Process to the words of each `vitplast run` on the store (the process itself, not the shells around it)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if words[1:4] == ["-m", "vitplast", "run"] and str(store) in words:
                found[int(folder.name)] = " ".join(words)
    return found


def children(pid: int) -> list[int]:
    """Processes that this one has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def until(condition, seconds: float = 900.0):
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.2)
    return found


def test_each_unit_runs_once_whatever_is_killed(slurm, tmp_path):
    store, path, log = tmp_path / "store", tmp_path / "many.yaml", tmp_path / "driver.log"
    bad = tmp_path / "broken.safetensors"
    bad.write_bytes(b"no weights")
    path.write_text(PROFILE.format(more=BAD.format(path=bad)))
    units = load_profile(path).units
    assert len(units) == 25
    begun = time.monotonic()
    first = cluster(path, store, *SLURM, *SNAKEMAKE, log=log)
    until(lambda: len(counts(store)["done"]) >= 2)

    def at_work():
        """A unit that has begun and not ended, and its process."""
        seen = counts(store)
        begun = [u for u in units if seen["started"][u.label] > seen["done"][u.label] + seen["failed"][u.label]]
        pairs = [(u, pid) for pid, words in running(store).items() for u in begun if u.command()[3] in words]
        return next(iter(pairs), None)

    killed, victim = until(at_work)
    for process in (victim, *children(victim)):  # with its kernel, which could end the work without it
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    until(lambda: len(counts(store)["done"]) >= 7)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done_before = len(counts(store)["done"])
    assert done_before < 24, "the driver was killed too late to show anything"
    second = cluster(path, store, *SLURM, "--unlock", *SNAKEMAKE, log=log)
    assert second.wait(timeout=3000) == 1, log.read_text()[-3000:]
    seconds = time.monotonic() - begun

    seen = counts(store)
    good = [u for u in units if u.parameters.weights == "random"]
    (broken,) = (u for u in units if u.parameters.weights != "random")
    assert len(good) == 24
    assert seen["done"] == {u.label: 1 for u in good}, "each once, none lost"
    assert seen["started"][killed.label] == 2
    assert {name: n for name, n in seen["started"].items() if n > 1}.keys() <= {killed.label, broken.label}
    assert seen["failed"].keys() == {broken.label}
    assert all(results.is_valid(result_path(store, u.kind, key)) for u in good for key in u.runs)
    assert not list(store.rglob("*.tmp"))
    place = store / "workflow" / "many"
    assert {f.stem for f in (place / "done").rglob("*.ok")} == {u.label for u in good}
    assert "broken.safetensors" in (place / "logs" / "finetune" / f"{broken.label}.txt").read_text()
    said = log.read_text()
    assert "SLURM run ID" in said
    assert "scancel --name RUN_ID" in said
    assert not (place / "gathered.ok").exists()

    path.write_text(PROFILE.format(more=""))  # without the unit that can't run, nothing is left but to gather
    third = cluster(path, store, *SLURM, *SNAKEMAKE, log=log)
    assert third.wait(timeout=600) == 0, log.read_text()[-3000:]
    assert counts(store) == seen
    assert results.read(store / "gathered" / "many" / "finetune.nc").sizes["run"] == 24

    own = sum(e["end"] - e["start"] for e in runlog.entries(store) if e["status"] == "done")
    print(f"\n25 units in {seconds:.0f} s, 2 slots, {done_before} done when the driver was killed; "
          f"{own / 24:.1f} s a unit itself, {(2 * seconds - own) / 25:.1f} s beside it")  # fmt: skip
