"""One unit of work: run once, skipped when done, refused before a kernel starts, and killed at the worst moments."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import samples

from vitplast import results, runs
from vitplast.errors import AlreadyRunningError, InputError, MissingDependencyError, UnknownNameError, VitplastError
from vitplast.runs import Unit, execution, result_path, run_unit, runlog
from vitplast.runs.sets import check_sets

WAIT = 'while not (store_folder() / "go").exists(): time.sleep(0.05)\n'
READY = '(store_folder() / "ready.txt").write_text(str(os.getpid()))\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a store and notebooks of its own; `book(body)` writes the probe notebook."""
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store of résults"))
    monkeypatch.setenv("VITPLAST_NOTEBOOKS", str(tmp_path / "notebooks"))
    return tmp_path


def book(project: Path, body: str = "", **options) -> Path:
    return samples.notebook(project / "notebooks", "probe", body, **options)


def probe(**values) -> Unit:
    return Unit("probe", samples.make("probe", **values))


def computed(store: Path) -> list[str]:
    """Keys of results, one for each time that it was computed."""
    return (store / "marker.txt").read_text().split() if (store / "marker.txt").exists() else []


def until(condition, seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def in_process(*units: Unit, code: str = "") -> subprocess.Popen:
    """Another process that runs units one after the other and prints their status."""
    text = f"""
import logging, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has its children ignore it
{code}
from vitplast.parameters import make
from vitplast.runs import Unit, run_unit
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
for kind, values in {[(u.kind, u.values()) for u in units]!r}:
    print(run_unit(Unit(kind, make(kind, values))), flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# --- names, folders, labels


def test_store_and_project_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("VITPLAST_STORE", raising=False)
    (tmp_path / "p" / "a" / "b").mkdir(parents=True)
    (tmp_path / "p" / "pyproject.toml").write_text('[project]\nname = "vitplast"\n')
    monkeypatch.chdir(tmp_path / "p" / "a" / "b")
    assert runs.store_folder() == tmp_path / "p" / "results"
    monkeypatch.setenv("VITPLAST_STORE", "elsewhere")
    assert runs.store_folder() == tmp_path / "p" / "a" / "b" / "elsewhere"
    assert runs.store_folder(tmp_path) == tmp_path
    monkeypatch.delenv("VITPLAST_STORE")
    (tmp_path / "p" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert runs.store_folder() == Path.cwd() / "results"


def test_missing_notebooks_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_NOTEBOOKS", str(tmp_path))
    with pytest.raises(InputError, match=r"no probe\.ipynb in .*VITPLAST_NOTEBOOKS"):
        runs.notebook_path("probe")
    with pytest.raises(UnknownNameError, match="'probe'"):
        runs.notebook_path("prob")


def test_unit_names_itself_and_how_to_run_it():
    unit = Unit("finetune", samples.make("finetune", components="MHA+FC1", lrs=[0.1, 0.2], seeds=[0, 1]))
    assert len(unit.runs) == 4
    assert unit.label.startswith("finetune-mnist5k-MHA+FC1-0.1+0.2-0+1-random-")
    assert unit.key != Unit("finetune", samples.make("finetune", components="MHA+FC1", lrs=[0.1])).key
    _, kind, _, text = unit.command()
    again = Unit(kind, samples.parameters.make(kind, json.loads(text)))
    assert (again, again.key) == (unit, unit.key)
    with pytest.raises(InputError, match="can't have the parameters of finetune"):
        Unit("probe", unit.parameters)


# --- what is refused before a kernel starts (fault 11)


@pytest.fixture
def no_kernel(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a kernel was started")

    monkeypatch.setattr(execution, "execute", refuse)


@pytest.mark.usefixtures("no_kernel")
def test_unknown_parameters_are_refused(project):
    book(project, without=("features",))
    with pytest.raises(UnknownNameError, match=r"parameter of probe\.ipynb 'features'\. Did you mean|Known:"):
        run_unit(probe())


@pytest.mark.usefixtures("no_kernel")
def test_notebooks_without_parameters_and_other_files_are_refused(project):
    path = book(project)
    text = path.read_text().replace('"parameters"', '"other"')
    path.write_text(text)
    with pytest.raises(InputError, match="no cell has the tag 'parameters'"):
        run_unit(probe())
    path.write_text("text")
    with pytest.raises(InputError, match=r"probe\.ipynb is not a notebook"):
        run_unit(probe())


@pytest.mark.usefixtures("no_kernel")
def test_done_units_are_skipped_also_when_their_results_are_gathered(project, tmp_path):
    book(project)
    unit = probe(seeds=[0, 1])
    for key, run in unit.runs.items():
        results.write(samples.dataset("probe", run), result_path("", "probe", key), run=run, kind="probe")
    assert run_unit(unit) == "skipped"
    file = results.write_gathered(results.gather(runs.store_folder())["probe"], tmp_path / "data" / "probe.nc")
    for key in unit.runs:
        result_path("", "probe", key).unlink()
    assert run_unit(unit, data=file.parent) == "skipped"
    with pytest.raises(AssertionError, match="a kernel was started"):
        run_unit(unit)


@pytest.mark.usefixtures("no_kernel")
def test_image_sets_that_are_not_there_are_refused_before_anything_else(project, monkeypatch):
    monkeypatch.setenv("XDG_DATA_DIRS", str(project))
    book(project)
    with pytest.raises(MissingDependencyError, match=r"'emoji' needs .*apt-get install fonts-noto-color-emoji"):
        run_unit(probe(dataset="emoji"))
    assert runlog.entries(runs.store_folder()) == []


def test_all_faults_of_image_sets_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    units = [
        Unit("plasticity", samples.make("plasticity", targets=["stamps", "emoji", "emoji:contrast", "digits"])),
        probe(dataset="stamps"),
    ]
    with pytest.raises(MissingDependencyError) as error:
        check_sets(run for unit in units for run in unit.runs.values())
    assert [line.split("'")[1] for line in str(error.value).splitlines()] == ["stamps", "emoji"]


def test_pairs_of_sets_whose_size_varies_are_counted_when_they_are_opened(tmp_path, monkeypatch):
    for i in range(10):
        path = tmp_path / "tuxpaint" / "stamps" / "animals" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    unit = Unit("plasticity", samples.make("plasticity", targets=["stamps"], pairs=3))
    with pytest.raises(InputError, match=r"photos and stamps: 3 pairs .* 2 are available"):
        check_sets(unit.runs.values())
    check_sets(Unit("plasticity", samples.make("plasticity", targets=["stamps"], pairs=2)).runs.values())


# --- runs


def test_a_unit_known_in_part_from_gathered_files_makes_the_rest_only(project, tmp_path):
    unit, store = probe(seeds=[0, 1]), runs.store_folder()
    (first, run), (second, _) = unit.runs.items()
    results.write(samples.dataset("probe", run), tmp_path / "one" / f"{first}.nc", run=run, kind="probe")
    file = results.write_gathered(results.gather(tmp_path / "one")["probe"], tmp_path / "data" / "probe.nc")
    book(
        project,
        f"""
found = results.read(result_path(store, "probe", "{first}"))
assert (found.attrs["run_key"], found.test_accuracy.item()) == ("{first}", 0.5)
""",
    )
    assert run_unit(unit, data=file.parent) == "done"
    assert computed(store) == [second]
    assert not result_path("", "probe", first).exists()
    assert run_unit(unit, data=file.parent) == "skipped"
    book(project)
    assert run_unit(unit) == "done"
    assert computed(store) == [second, first]
    assert run_unit(unit, data=file.parent, force=True) == "done"
    assert sorted(computed(store)) == sorted([first, second] * 2)


def test_run_skip_and_force(project):
    book(project, 'print("hello from the cell")\n')
    unit, store = probe(seeds=[0, 1], profile="mine"), runs.store_folder()
    assert run_unit(unit) == "done"
    assert run_unit(unit) == "skipped"
    assert sorted(computed(store)) == sorted(unit.runs)
    executed = nbformat.read(execution.executed_path(store, unit), as_version=4)
    assert executed.metadata.papermill.parameters["seeds"] == [0, 1]
    assert str(project) not in json.dumps({k: v for k, v in executed.metadata.papermill.items() if "path" in k})
    assert "hello from the cell" in execution.log_path(store, unit).read_text()
    assert not list(store.rglob(".*"))
    assert [e["status"] for e in runlog.entries(store)] == ["started", "done"]
    assert runlog.pace(store)["probe"] > 0
    assert results.read(result_path("", "probe", next(iter(unit.runs)))).attrs["profile"] == "mine"
    assert run_unit(unit, force=True) == "done"
    assert sorted(computed(store)) == sorted([*unit.runs, *unit.runs])


def test_failing_cell_is_named_kept_and_run_again(project):
    unit, store = probe(), runs.store_folder()
    book(project, 'raise ValueError("no such luck")\n')
    with pytest.raises(VitplastError, match="ValueError: no such luck") as error:
        run_unit(unit)
    assert str(execution.log_path(store, unit)) in str(error.value)
    assert "vitplast run probe --json" in str(error.value)
    assert "no such luck" in execution.log_path(store, unit).read_text()
    assert execution.failed_path(store, unit).exists()
    assert not execution.executed_path(store, unit).exists()
    book(project)
    assert run_unit(unit) == "done"
    assert not execution.failed_path(store, unit).exists()
    assert [e["status"] for e in runlog.entries(store)] == ["started", "failed", "started", "done"]


def test_notebook_that_makes_nothing_has_failed(project):
    book(project, "chosen = parameters.make('probe', {'seeds': [7]})\n")
    unit = probe()
    with pytest.raises(VitplastError, match=f"no valid result {next(iter(unit.runs))}"):
        run_unit(unit)


def test_endless_cell_is_stopped_at_the_limit(project):
    path = book(project)
    text = 'import os, time\nopen(os.environ["VITPLAST_STORE"] + "/ready.txt", "w").write(str(os.getpid()))'
    endless = nbformat.read(path, as_version=4)
    endless.cells[1].source = text + "\ntime.sleep(600)"
    nbformat.write(endless, path)
    with pytest.raises(VitplastError, match="longer than 2 s"):
        run_unit(probe(), time_limit=2)
    pid = int((runs.store_folder() / "ready.txt").read_text())
    until(lambda: not alive(pid))


def test_killed_kernel_is_reported_as_such(project):
    book(project, "os.kill(os.getpid(), 9)\n")
    with pytest.raises(VitplastError, match="killed, likely for lack of memory"):
        run_unit(probe())


def test_store_that_cannot_be_written_to(project, monkeypatch):
    book(project)
    (project / "file").write_text("")
    with pytest.raises(VitplastError, match="can't lock"):
        run_unit(probe(), store=project / "file")


def test_two_processes_share_a_unit(project):
    book(project, WAIT)
    unit, store = probe(), runs.store_folder()
    first = in_process(unit)
    until(lambda: runlog.entries(store))
    with pytest.raises(AlreadyRunningError, match=unit.label.replace("+", r"\+")):
        run_unit(unit, wait=0)
    second = in_process(unit)
    assert "waiting" in second.stderr.readline()
    (store / "go").write_text("")
    assert first.communicate(timeout=60)[0].split() == ["done"]
    assert second.communicate(timeout=60)[0].split() == ["skipped"]
    assert len(computed(store)) == 1


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_kernel_and_says_how_to_go_on(project, sig):
    book(project, READY + WAIT)
    unit, store = probe(), runs.store_folder()
    driver = in_process(unit)
    until(lambda: (store / "ready.txt").exists())
    time.sleep(0.2)
    driver.send_signal(sig)
    out, err = driver.communicate(timeout=30)
    assert driver.returncode != 0
    assert out.split() == []
    assert "go on with: vitplast run probe" in err
    until(lambda: not alive(int((store / "ready.txt").read_text())))
    assert not list(store.rglob("*.nc"))
    assert [e["status"] for e in runlog.entries(store)] == ["started", "stopped"]


def test_killed_driver_loses_and_doubles_nothing(project):
    """The kernel, killed too while it holds a claim, frees it; the next driver makes what is missing, once."""
    pause = f"""
def pause(key):
    if key == list(chosen.runs())[-1] and not (store_folder() / "go").exists():
        {READY}        time.sleep(60)
"""
    path = book(project, pause)
    slow = nbformat.read(path, as_version=4)
    slow.cells[2].source = slow.cells[2].source.replace("if needed:\n", "if needed:\n            pause(key)\n")
    nbformat.write(slow, path)
    unit, store = probe(seeds=[0, 1, 2]), runs.store_folder()
    driver = in_process(unit)
    until(lambda: (store / "ready.txt").exists() and (store / "ready.txt").read_text())
    driver.kill()
    driver.communicate()
    assert len(computed(store)) == 2
    (store / "go").write_text("")
    kernel = int((store / "ready.txt").read_text())
    assert run_unit(unit) == "done"
    until(lambda: not alive(kernel), 5)
    assert sorted(computed(store)) == sorted(unit.runs)
    assert all(results.is_valid(result_path("", "probe", key)) for key in unit.runs)
    assert not [p for p in store.rglob(".*")]


def test_log_survives_lines_cut_short(project):
    store = runs.store_folder()
    runlog.append(store, probe(), "started", 0.0)
    with open(store / runlog.NAME, "a") as file:
        file.write('{"key": "1234", "sta\n[]\n')
    runlog.append(store, probe(), "done", 0.0)
    assert [e["status"] for e in runlog.entries(store)] == ["started", "done"]


def test_log_on_a_full_disk_does_not_stop_the_run(project, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with contextlib.suppress(AttributeError):
        runlog.append(runs.store_folder(), probe(), "started", 0.0)
    monkeypatch.undo()
    assert "No space left" in caplog.text
