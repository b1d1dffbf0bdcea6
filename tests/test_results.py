"""Result files: what is written is what is read, and no fault of disk, process or hand gets past writer and reader."""

from __future__ import annotations

import errno
import getpass
import json
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import samples
import torch
import xarray as xr

from vitplast import results
from vitplast.errors import AlreadyRunningError, InputError, IntegrityError, UnknownNameError, VitplastError
from vitplast.results import ATTRIBUTES, SCHEMAS, dictionary, gathering, netcdf, provenance, seal, store
from vitplast.results.validation import validate

KINDS = tuple(SCHEMAS)


def written(folder: Path, kind: str = "probe", shift: float = 0.0, **values) -> Path:
    key, run = samples.one_run(kind, **values)
    return results.write(samples.dataset(kind, run, shift), folder / kind / f"{key}.nc", run=run, kind=kind)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.parent.name != "locks")


# --- one writer, one reader


@pytest.mark.parametrize("kind", KINDS)
def test_reads_back_what_was_written(tmp_path, kind):
    key, run = samples.one_run(kind)
    ds = samples.dataset(kind, run)
    path = results.write(ds, tmp_path / f"{key}.nc", run=run, kind=kind, profile="mine", note=True, many=[1, 2])
    back = results.read(path)
    for name in ds.variables:
        np.testing.assert_array_equal(back[name].values, ds[name].values)
        assert back[name].attrs["units"]
        assert back[name].attrs["long_name"]
    assert set(ATTRIBUTES) <= set(back.attrs)
    assert (back.attrs["run_key"], back.attrs["kind"], back.attrs["profile"]) == (key, kind, "mine")
    assert (back.attrs["note"], back.attrs["many"]) == ("yes", "[1, 2]")
    assert json.loads(back.attrs["params_json"])["seed"] == 0
    assert names(tmp_path) == [f"{key}.nc"]


@pytest.mark.parametrize("kind", KINDS)
def test_dictionary_has_a_full_row_for_every_variable(kind):
    table = dictionary(kind)
    assert list(table.columns) == ["name", "dims", "dtype", "unit", "meaning"]
    assert set(table.name) == set(SCHEMAS[kind].coords) | set(SCHEMAS[kind].variables)
    assert (table.map(len) > 0).all().all()


def test_coordinates_come_from_the_run_and_must_not_contradict_it(tmp_path):
    key, run = samples.one_run("finetune", lrs=[0.1 + 0.2])
    ds = samples.dataset("finetune", run)
    back = results.read(results.write(ds, tmp_path / f"{key}.nc", run=run, kind="finetune"))
    assert back.lr.item() == 0.3
    with pytest.raises(IntegrityError, match=r"lr is 0\.5 in the data but 0\.3 in the run"):
        results.write(ds.assign_coords(lr=0.5), tmp_path / "b.nc", run=run, kind="finetune")


BREAK = {
    "seconds is missing": lambda ds: ds.drop_vars("seconds"),
    "colour is not a variable": lambda ds: ds.assign(colour=1.0),
    r"test_accuracy has dims \('extra',\)": lambda ds: ds.assign(test_accuracy=("extra", [0.5])),
    "best_step has type float64": lambda ds: ds.assign(best_step=1.5),
    "test_accuracy holds values above 1": lambda ds: ds.assign(test_accuracy=97.0),
    "test_loss holds values below 0": lambda ds: ds.assign(test_loss=-1.0),
    "seconds holds values that are not finite": lambda ds: ds.assign(seconds=np.nan),
    "seconds has units 'ms'": lambda ds: ds.assign(seconds=ds.seconds.assign_attrs(units="ms")),
    "step holds a value twice": lambda ds: ds.assign_coords(step=ds.step * 0),
    "best_step must not be a coordinate": lambda ds: ds.set_coords("best_step"),
}


@pytest.mark.parametrize("fault", BREAK)
def test_schema_names_what_is_wrong(tmp_path, fault):
    key, run = samples.one_run("finetune")
    with pytest.raises(IntegrityError, match=fault):
        results.write(BREAK[fault](samples.dataset("finetune", run)), tmp_path / f"{key}.nc", run=run, kind="finetune")
    assert not names(tmp_path)


def test_schema_checks_names_of_components_and_allows_stated_gaps(tmp_path):
    key, run = samples.one_run("bounds")
    ds = samples.dataset("bounds", run)
    assert np.isnan(ds.bound).any()
    results.write(ds, tmp_path / f"{key}.nc", run=run, kind="bounds")
    with pytest.raises(IntegrityError, match="component holds other values"):
        results.write(ds.assign_coords(component=list("abcde")), tmp_path / "b.nc", run=run, kind="bounds")
    with pytest.raises(UnknownNameError, match="bounds"):
        results.write(ds, tmp_path / "b.nc", run=run, kind="bound")


@pytest.mark.parametrize("value", [None, Path("x"), 1j, 2**70, object()])
def test_attributes_that_netcdf_cannot_hold_are_refused(value):
    with pytest.raises(InputError, match="attribute it="):
        netcdf.attribute("it", value)


def test_key_and_kind_cannot_be_given_as_attributes(tmp_path):
    key, run = samples.one_run("probe")
    with pytest.raises(InputError, match="run_key can't be given"):
        results.write(samples.dataset("probe", run), tmp_path / f"{key}.nc", run=run, kind="probe", run_key="0" * 16)


def test_nothing_private_is_recorded(tmp_path):
    for number in range(10):
        picture = tmp_path / "pictures" / "class" / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.touch()
    _, run = samples.one_run("probe", store=str(tmp_path), dataset=f"folder:{tmp_path / 'pictures'}")
    ds = results.read(results.write(samples.dataset("probe", run), tmp_path / "a.nc", run=run, kind="probe"))
    text = json.dumps({**ds.attrs, "dataset": ds.dataset.item()}, default=str)
    assert str(tmp_path.parent) not in text
    assert str(Path.home()) + os.sep not in text
    private = {platform.node(), getpass.getuser()} - {"root", ""}
    assert not [name for name in private if name in text]
    assert "store" not in json.loads(ds.attrs["params_json"])


def test_provenance_works_outside_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "site-packages" / "vitplast")
    assert provenance.git_state() == ("unknown", "unknown")
    (tmp_path / "site-packages" / ".git").mkdir(parents=True)
    assert provenance.git_state() == ("unknown", "unknown")


def test_environment_names_versions_and_machine():
    facts = provenance.environment()
    assert facts["torch"] == provenance.version_of("torch") != "not installed"
    assert "cores" in facts["machine"]


def test_migrations_lift_old_files(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setattr(store, "SCHEMA_VERSION", 2)
    monkeypatch.setattr("vitplast.results.validation.SCHEMA_VERSION", 2)
    monkeypatch.setitem(store.MIGRATIONS, 1, lambda ds: ds.assign_attrs(vitplast_schema=2, lifted="yes"))
    assert results.read(path).attrs["lifted"] == "yes"


# --- damage (fault 6)


def damaged(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_truncated_files_are_named(tmp_path):
    path = written(tmp_path, "finetune")
    data = path.read_bytes()
    for length in np.linspace(0, len(data) - 1, 20).astype(int):
        with pytest.raises(IntegrityError, match=path.name):
            results.read(damaged(path, data[:length]))
        assert not results.is_valid(path)


def test_a_flipped_bit_is_found_before_the_file_is_opened(tmp_path, monkeypatch):
    path = written(tmp_path, "finetune")
    data, good = path.read_bytes(), results.read(path)
    assert data[-seal.LENGTH :].startswith(seal.MARK)
    assert results.read(damaged(path, data[: -seal.LENGTH])).identical(good)  # as files of releases without a seal
    monkeypatch.setattr(xr, "open_dataset", lambda *args, **options: pytest.fail("opened a changed file"))
    for place in np.linspace(0, len(data) - seal.LENGTH - 1, 40).astype(int):
        changed = bytearray(data)
        changed[place] ^= 1 << int(place) % 8
        with pytest.raises(IntegrityError, match="sealed"):
            results.read(damaged(path, bytes(changed)))


def test_flipped_bits_are_found_or_harmless(tmp_path):
    path = written(tmp_path, "finetune")
    data, good, rng = path.read_bytes(), results.read(path), random.Random(0)
    found = 0
    for _ in range(60):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            assert results.read(damaged(path, bytes(changed))).identical(good)
        except IntegrityError:
            found += 1
    assert found


@pytest.mark.parametrize("what", ["value", "attribute", "unit"])
def test_changed_content_is_found(tmp_path, what):
    import netCDF4

    path = written(tmp_path)
    with netCDF4.Dataset(path, "a") as file:
        if what == "value":
            file["test_accuracy"][...] = 0.6
        elif what == "attribute":
            file.commit = "0" * 40
        else:
            file["test_accuracy"].units = "percent"
    with pytest.raises(IntegrityError, match=rf"{path.name}: damaged.*vitplast sweep"):
        results.read(path)


def test_other_files_are_no_results(tmp_path):
    for name, make in {
        "text.nc": lambda p: p.write_text("test_accuracy: 0.9\n"),
        "empty.nc": lambda p: p.write_bytes(b""),
        "zeros.nc": lambda p: p.write_bytes(bytes(5000)),
        "foreign.nc": lambda p: xr.Dataset({"a": 1.0}).to_netcdf(p, engine="netcdf4"),
        "folder.nc": lambda p: p.mkdir(),
        "absent.nc": lambda p: None,
    }.items():
        make(tmp_path / name)
        with pytest.raises(IntegrityError, match=name):
            results.read(tmp_path / name)


def _rewritten(ds: xr.Dataset, path: Path) -> Path:
    ds.attrs["attrs_sha256"] = netcdf.attrs_checksum(ds)
    return netcdf.save(ds, path, lambda written: None)


def test_other_schemas_kinds_and_names_are_refused(tmp_path):
    path = written(tmp_path)
    good = results.read(path)
    _rewritten(good.assign_attrs(vitplast_schema=2), tmp_path / "newer.nc")
    with pytest.raises(InputError, match=r"newer\.nc has schema version 2.*update vitplast"):
        results.read(tmp_path / "newer.nc")
    _rewritten(good.assign_attrs(kind="finetune"), tmp_path / "kind.nc")
    with pytest.raises(IntegrityError, match="not a finetune result"):
        results.read(tmp_path / "kind.nc")
    path.rename(tmp_path / f"{'0' * 16}.nc")
    with pytest.raises(IntegrityError, match="not the one of its name"):
        results.read(tmp_path / f"{'0' * 16}.nc")


# --- faults while writing (faults 4, 5, 13)

KILL = """
import os, signal, sys
import samples
from vitplast import results
from vitplast.results import netcdf
import xarray as xr
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
def half(self, target, **options):
    whole(self, target, **options)
    os.truncate(target, os.path.getsize(target) // 2)
    die()
whole = xr.Dataset.to_netcdf
where = {"write": (xr.Dataset, "to_netcdf", half), "fsync": (os, "fsync", die), "replace": (os, "replace", die),
         "folder": (netcdf, "sync_folder", die)}
key, run = samples.one_run("probe")
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        setattr(*where[path.split("/")[-3]])
        with results.claim(path, force=True):
            results.write(samples.dataset("probe", run, 0.25), path, run=run, kind="probe")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
"""


def start(code: str, *arguments: str) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def test_kill_during_the_write_leaves_the_old_or_the_new_file(tmp_path):
    points = ("write", "fsync", "replace", "folder")
    paths = {point: written(tmp_path / point) for point in points}
    code, text = finish(start(KILL, *map(str, paths.values())))
    assert code == 0, text
    for point, path in paths.items():
        assert results.read(path).test_accuracy == (0.75 if point == "folder" else 0.5)
        assert len(names(tmp_path / point)) == (1 if point == "folder" else 2)
        with results.claim(path) as needed:
            assert not needed
        assert names(tmp_path / point) == [path.name]


@pytest.mark.parametrize("where", ["to_netcdf", "fsync", "replace", "silent"])
@pytest.mark.parametrize("old", [False, True])
def test_full_disk(tmp_path, monkeypatch, where, old):
    key, run = samples.one_run("probe")
    ds, path = samples.dataset("probe", run, 0.25), tmp_path / f"{key}.nc"
    if old:
        results.write(samples.dataset("probe", run), path, run=run, kind="probe")

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def silent(self, target, **options):
        Path(target).write_bytes(bytes(1000))

    with monkeypatch.context() as patch:
        if where in ("to_netcdf", "silent"):
            patch.setattr(xr.Dataset, "to_netcdf", full if where == "to_netcdf" else silent)
        else:
            patch.setattr(os, where, full)
        with pytest.raises(VitplastError, match=rf"{path.name} was not written.*(No space|disk full)"):
            results.write(ds, path, run=run, kind="probe")
    assert names(tmp_path) == ([path.name] if old else [])
    if old:
        assert results.read(path).test_accuracy == 0.5
    assert results.read(results.write(ds, path, run=run, kind="probe")).test_accuracy == 0.75


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(VitplastError, match="was not written"):
        written(tmp_path / "store")
    with pytest.raises(VitplastError, match="can't lock"), results.claim(tmp_path / "store" / "a.nc"):
        pass


WRITE_MANY = """
import os, sys, samples
from vitplast import results
key, run = samples.one_run("probe")
child = os.fork()
for _ in range(30):
    results.write(samples.dataset("probe", run, 0.25 if child else 0.0), sys.argv[1], run=run, kind="probe")
    assert float(results.read(sys.argv[1]).test_accuracy) in (0.5, 0.75)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_two_writers_of_one_result(tmp_path):
    key, _ = samples.one_run("probe")
    path = tmp_path / f"{key}.nc"
    code, text = finish(start(WRITE_MANY, str(path)))
    assert code == 0, text
    assert results.is_valid(path)
    assert names(tmp_path) == [path.name]


# --- claims and locks (fault 14)

HOLD = """
import sys, time, samples
from vitplast import results
with results.claim(sys.argv[1]) as needed:
    print(needed, flush=True)
    time.sleep(60)
"""


def test_claim_says_what_is_to_be_done_and_sets_damaged_files_aside(tmp_path):
    key, run = samples.one_run("probe")
    path = tmp_path / f"{key}.nc"
    with results.claim(path) as needed:
        assert needed
        results.write(samples.dataset("probe", run), path, run=run, kind="probe")
    with results.claim(path) as needed:
        assert not needed
    with results.claim(path, force=True) as needed:
        assert needed
        assert path.exists()
    for n in (1, 2):
        path.write_bytes(path.read_bytes()[:-100] if path.exists() else b"text")
        with results.claim(path) as needed:
            assert needed
            assert names(tmp_path) == [f"{path.name}.bad-{i}" for i in range(1, n + 1)]


def test_claim_is_refused_while_another_holds_it_and_free_when_that_one_is_killed(tmp_path):
    path = tmp_path / "x.nc"
    holder = start(HOLD, str(path))
    assert holder.stdout.readline().strip() == "True"
    with pytest.raises(AlreadyRunningError, match=r"working on .*x\.nc"), results.claim(path, wait=0):
        pass
    with pytest.raises(AlreadyRunningError), results.claim(path, wait=0.2):
        pass
    holder.kill()
    begin = time.monotonic()
    with results.claim(path, wait=10) as needed:
        assert needed
    assert time.monotonic() - begin < 5
    finish(holder)


@pytest.mark.parametrize("age", [-3600, 0, 10**8], ids=["future", "now", "old"])
def test_lock_files_left_behind_hold_nothing(tmp_path, age):
    lock = tmp_path / "locks" / "x.nc.lock"
    lock.parent.mkdir()
    lock.write_text("99999999\nanother-host\n")
    os.utime(lock, (time.time() - age,) * 2)
    with results.claim(tmp_path / "x.nc", wait=0) as needed:
        assert needed


def test_only_leftovers_of_dead_writers_are_removed(tmp_path):
    path = tmp_path / "x.nc"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, old = netcdf._owner(), time.time() - 2 * netcdf.ABANDONED
    left = {
        name: tmp_path / f".x.nc.{name}-aa.tmp"
        for name in (f"{here}-{ended.pid}", f"{here}-{os.getpid()}", "elsewhere-1", "elsewhere-2")
    }
    for file in left.values():
        file.write_text("")
    os.utime(left["elsewhere-2"], (old, old))
    (tmp_path / ".y.nc.elsewhere-2-aa.tmp").write_text("")
    with results.claim(path):
        pass
    kept = {f".x.nc.{here}-{os.getpid()}-aa.tmp", ".x.nc.elsewhere-1-aa.tmp", ".y.nc.elsewhere-2-aa.tmp"}
    assert set(names(tmp_path)) == kept


# --- gathering (fault 18)


def test_gather_labels_runs_and_pads_what_is_shorter(tmp_path):
    for seed, steps in ((0, 6), (1, 8)):
        written(tmp_path, "finetune", seeds=[seed], steps=steps, components="MHA", lrs=[0.1 + 0.2])
    written(tmp_path, "plasticity", pairs=4)
    written(tmp_path, "plasticity", pairs=6, conventions=["common"])
    found = gathering.gather(tmp_path)
    assert set(found) == {"finetune", "plasticity"}
    fine = found["finetune"]
    assert fine.sizes == {"run": 2, "step": 8, "evaluation": 3}
    assert fine.seed.values.tolist() == [0, 1]
    assert fine.lr.values.tolist() == [0.3, 0.3]
    assert fine.components.values.tolist() == ["MHA", "MHA"]
    assert fine.train_head.values.tolist() == ["yes", "yes"]
    assert fine.best_step.dtype == np.int64
    np.testing.assert_array_equal(np.isnan(fine.train_loss).sum("step"), [2, 0])
    plastic = found["plasticity"]
    assert plastic.rate.dims == ("run", "convention", "layer", "component", "pair")
    assert plastic.source_id.dims == ("run", "pair")
    assert sorted(plastic.conventions.values.tolist()) == ["common", "common+in_situ"]
    for kind, ds in found.items():
        path = gathering.write_gathered(ds, tmp_path / "gathered" / f"{kind}.nc")
        xr.testing.assert_equal(results.read(path).drop_attrs(), ds.drop_attrs())
        assert gathering.known_keys(tmp_path / "gathered")[kind] == set(ds.run_key.values.tolist())
    assert set(gathering.gather(tmp_path)) == {"finetune", "plasticity"}, "the folder gathered is left out"


def test_single_runs_come_out_of_a_gathered_file_as_they_went_in(tmp_path):
    paths = [written(tmp_path, "plasticity", pairs=p, conventions=c) for p, c in ((4, ["common"]), (3, ["in_situ"]))]
    file = gathering.write_gathered(gathering.gather(tmp_path)["plasticity"], tmp_path / "all" / "plasticity.nc")
    ones = {one.attrs["run_key"]: one for one in gathering.singles(results.read(file))}
    for path in paths:
        before = results.read(path)
        xr.testing.assert_equal(ones[path.stem], before)
        for name in ("params_json", "content_sha256", "threads", "design", "created"):
            assert ones[path.stem].attrs[name] == before.attrs[name]
    again = gathering.gather([file, *paths])["plasticity"]
    assert again.sizes["run"] == 2, "the same numbers count once"


def test_a_variable_that_only_some_runs_have_is_not_given_to_the_others(tmp_path):
    paths = [written(tmp_path, "plasticity", pairs=pairs) for pairs in (3, 4)]
    key, run = samples.one_run("plasticity", pairs=5)
    texts = samples.dataset("plasticity", run).assign_coords(pair_tokens=("pair", np.arange(5) + 7))
    paths.append(results.write(texts, tmp_path / f"{key}.nc", run=run, kind="plasticity"))
    file = gathering.write_gathered(gathering.gather(paths)["plasticity"], tmp_path / "all" / "plasticity.nc")
    ones = {one.attrs["run_key"]: one for one in gathering.singles(results.read(file))}
    assert ["pair_tokens" in ones[path.stem] for path in paths] == [False, False, True]
    for path in paths:
        xr.testing.assert_equal(ones[path.stem], results.read(path))


def test_gather_refuses_two_answers_for_one_run_but_not_two_clocks(tmp_path):
    key, run = samples.one_run("finetune")
    ds = samples.dataset("finetune", run)
    for folder, change in (("a", {}), ("b", {"seconds": 99.0})):
        results.write(ds.assign(change), tmp_path / folder / f"{key}.nc", run=run, kind="finetune")
    assert gathering.gather([tmp_path / "a", tmp_path / "b"])["finetune"].sizes["run"] == 1
    results.write(ds.assign(test_loss=9.0), tmp_path / "c" / f"{key}.nc", run=run, kind="finetune")
    with pytest.raises(IntegrityError, match=f"different numbers for the same run {key}"):
        gathering.gather(tmp_path)


def test_results_behind_count_where_there_are_none_and_a_warning_says_where_they_differ(tmp_path, caplog):
    keys = []
    for folder, seed, shift in (("own", 0, 0.0), ("old", 0, 0.25), ("old", 1, 0.0)):
        keys.append(written(tmp_path / folder, seeds=[seed], shift=shift).stem)
    found = gathering.gather(tmp_path / "own", behind=tmp_path / "old")["probe"]
    assert dict(zip(found.run_key.values, found.test_accuracy.values, strict=True)) == {keys[0]: 0.5, keys[2]: 0.5}
    (record,) = caplog.records
    assert keys[0] in record.getMessage()
    assert str(tmp_path / "own") in record.getMessage()
    with pytest.raises(IntegrityError, match="different numbers"):
        gathering.gather([tmp_path / "own", tmp_path / "old"])
    with pytest.raises(IntegrityError, match="different numbers"):
        gathering.gather((), behind=[tmp_path / "own", tmp_path / "old"])


def test_a_result_of_a_gathered_file_is_known_and_read_as_its_own(tmp_path, monkeypatch):
    paths = [written(tmp_path / "one", "plasticity", pairs=p) for p in (4, 3)]
    before = {path.stem: results.read(path) for path in paths}
    gathering.write_gathered(gathering.gather(tmp_path / "one")["plasticity"], tmp_path / "data" / "p.nc")
    here = [tmp_path / "store" / "plasticity" / path.name for path in paths]
    with results.claim(here[0]) as needed:
        assert needed
    monkeypatch.setenv("VITPLAST_GATHERED", str(tmp_path / "data"))
    for path in here:
        with results.claim(path) as needed:
            assert not needed
        xr.testing.assert_equal(results.read(path), before[path.stem])
        assert not results.is_valid(path), "the file itself is not there"
    with results.claim(here[0], force=True) as needed:
        assert needed
    with results.claim(tmp_path / "store" / "bounds" / paths[0].name) as needed:
        assert needed
    with pytest.raises(IntegrityError, match="not there"):
        results.read(tmp_path / "store" / "plasticity" / f"{'0' * 16}.nc")
    here[0].write_bytes(b"damaged")
    with results.claim(here[0]) as needed:
        assert not needed
    assert here[0].with_name(f"{here[0].name}.bad-1").exists()


def test_gather_lists_missing_runs_and_all_bad_files(tmp_path):
    paths = [written(tmp_path, seeds=[seed]) for seed in (0, 1, 2)]
    expected = {"probe": dict.fromkeys([p.stem for p in paths] + ["f" * 16]), "bounds": {"e" * 16: None}}
    found = gathering.gather(tmp_path, expected)
    assert json.loads(found["probe"].attrs["missing_runs"]) == ["f" * 16]
    assert gathering.missing(found, expected) == {"probe": ["f" * 16], "bounds": ["e" * 16]}
    for path in paths[:2]:
        path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(IntegrityError, match="2 bad files") as error:
        gathering.gather(tmp_path)
    assert all(p.name in str(error.value) for p in paths[:2])


def test_gather_refuses_mixed_schemas_and_absent_paths(tmp_path):
    path = written(tmp_path)
    _rewritten(results.read(path).assign_attrs(vitplast_schema=2), tmp_path / "newer.nc")
    with pytest.raises(InputError, match="schema version 2"):
        gathering.gather(tmp_path)
    with pytest.raises(VitplastError, match="is not there"):
        gathering.gather(tmp_path / "nowhere")


def test_gathered_rates_that_differ_in_the_last_digit_only_are_one(tmp_path):
    for seed, lr in ((0, 0.1 + 0.2), (1, 0.3)):
        written(tmp_path, "finetune", lrs=[lr], seeds=[seed])
    assert set(gathering.gather(tmp_path)["finetune"].lr.values.tolist()) == {0.3}


def test_gathered_file_with_a_changed_run_is_refused(tmp_path):
    written(tmp_path, seeds=[0])
    written(tmp_path, seeds=[1])
    ds = gathering.gather(tmp_path)["probe"]
    validate(ds.assign_attrs(content_sha256=""), "probe", gathered=True)
    ds.test_accuracy[0] = 0.9
    with pytest.raises(IntegrityError, match="does not match its checksum"):
        gathering.singles(ds)


# --- device


def test_the_device_recorded_is_the_gpu_that_was_used(monkeypatch):
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda device: f"card {device.index or 0}")
    monkeypatch.setattr(torch, "cuda", cuda)
    names = {asked: provenance.device(asked) for asked in ("auto", "cuda", "cuda:1", "cpu")}
    assert names == {"auto": "cuda (card 0)", "cuda": "cuda (card 0)", "cuda:1": "cuda:1 (card 1)", "cpu": "cpu"}
    cuda.is_available = lambda: False
    assert provenance.device("auto") == "cpu"
