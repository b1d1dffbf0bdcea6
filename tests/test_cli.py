"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import samples

from vitplast import results
from vitplast.cli import main
from vitplast.runs import Unit, execution, load_profile

TINY = ["vit_tiny_patch16_224", "--random", "--img-size", "32"]


def run(capsys, *arguments):
    """Exit code, stdout and stderr of `vitplast ARGUMENTS`."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_components_table_holds_the_counts_of_vit_base(capsys):
    code, out, _ = run(capsys, "components", "vit_base_patch16_224", "--json")
    rows = {row["group"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["MHA"]["parameters"] == 28_348_416
    assert rows["MHA"]["trained with head and norm"] == 28_357_642
    assert rows["all"]["parameters"] == 85_806_346


def test_tables_and_versions(capsys):
    for command in (["info"], ["datasets"], ["models", "vit_tiny*"], ["--version"]):
        code, out, _ = run(capsys, *command)
        assert code == 0, command
        assert out.strip(), command


@pytest.mark.parametrize("command", ["measure", "bounds", "theory"])
def test_a_result_is_printed_and_written(capsys, tmp_path, command):
    options = [*TINY, "--source", "digits", "--target", "digits", "--pairs", "4"]
    code, out, _ = run(capsys, command, *options)
    assert code == 0
    assert "in_situ" in out
    code, out, err = run(capsys, command, *options, "-o", str(tmp_path / "out.nc"))
    assert (code, out) == (0, "")
    assert "out.nc" in err
    ds = results.read(tmp_path / "out.nc")
    assert ds.attrs["weights_origin"] == "random"
    assert list(ds.component.values[:5]) == ["LN1", "MHA", "LN2", "FC1", "FC2"]


def test_search_and_gradients_are_printed(capsys):
    code, out, _ = run(capsys, "search", "--case", "N1-positive", "--starts", "2", "--steps", "10", "--json")
    rows = json.loads(out)
    assert code == 0
    assert rows[0]["formula"] == "exact constant"
    assert 0.9 < rows[0]["tight"] <= 1 + 1e-9
    pairs = ("--source", "digits", "--target", "digits", "--pairs", "2", "--images", "1", "--factors", "1")
    code, out, _ = run(capsys, "gradients", *TINY, *pairs, "--json")
    assert code == 0
    assert [row["component"] for row in json.loads(out)] == ["LN1", "MHA", "LN2", "FC1", "FC2"]


def test_finetune_prints_its_accuracy(capsys):
    code, out, _ = run(
        capsys, "finetune", *TINY, "--dataset", "digits", "--components", "head", "--lr", "1e-1", "--steps", "2",
        "--warmup", "0", "--evaluations", "1", "--train-images", "40", "--validation-images", "20",
        "--test-images", "20", "--json",
    )  # fmt: skip
    rows = {row["what"]: row["value"] for row in json.loads(out)}
    assert code == 0
    assert 0 <= rows["test_accuracy"] <= 1
    assert rows["n_test"] == 20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["measur"], ["measure"]),
        (["measure", "vit_smal_patch16_224"], ["vit_small_patch16_224"]),
        (["measure", *TINY, "--target", "mnist"], ["mnist5k"]),
        (["measure", *TINY, "--target", "digits:snwo"], ["snow"]),
        (["measure", *TINY, "--target", "digits:snow:9"], ["9", "5"]),
        (["measure", *TINY, "--convention", "insitu"], ["in_situ"]),
        (["theory", *TINY, "--convention", "insitu"], ["in_situ"]),
        (["theory", *TINY, "--local-points", "1"], ["at least 2"]),
        (["gradients", *TINY, "--factors", "2"], ["hold 1"]),
        (["search", "--case", "N8"], ["N7"]),
        (["measure", *TINY, "--design", "cross"], ["crossed"]),
        (["measure", *TINY, "--precision", "float8"], ["float16"]),
        (["measure", *TINY, "--pairs", "1"], ["at least 2"]),
        (["measure", *TINY, "-o", "nowhere/out.nc"], ["nowhere"]),
        (["measure", *TINY, "-o", "rates.netcdf"], ["rates.nc", "folder"]),
        (["measure", "vit_tiny_patch16_224", "--random", "--img-size", "40"], ["32", "48"]),
        (["measure", *TINY, "--target", "photos"], ["no test images", "mnist5k"]),
        (["measure", *TINY, "--pairs", "2000"], ["1000 are available"]),
        (["probe", *TINY, "--dataset", "photos"], ["no train", "mnist5k"]),
        (["depth", *TINY, "--c", "0"], ["c must be above 0"]),
        (["depth", *TINY, "--features", "both"], ["mean", "cls"]),
        (["landscape", *TINY, "--components", "LN3"], ["LN1"]),
        (["landscape", *TINY, "--rate-images", "9"], ["at most images"]),
        (["measure", "vit_tiny_patch16_224", "--weights", "missing.safetensors"], ["missing.safetensors"]),
        (["finetune", *TINY, "--components", "MAH"], ["MHA"]),
        (["finetune", *TINY, "--components", "all+MHA"], ["all"]),
        (["finetune", *TINY, "--lr", "nan"], ["finite"]),
        (["finetune", *TINY, "--lr", "0"], ["above 0"]),
        (["finetune", *TINY, "--steps", "0"], ["at least 1"]),
        (["finetune", *TINY, "--steps", "5", "--warmup", "5"], ["warmup"]),
        (["finetune", *TINY, "--optimizer", "adam"], ["adamw"]),
        (["run", "finetun"], ["finetune"]),
        (["run", "finetune", "-p", "sed=3"], ["seeds"]),
        (["run", "finetune", "-p", "steps=many"], ["steps"]),
        (["run", "finetune", "-p", "steps"], ["name=value"]),
        (["run", "finetune", "--json", "{"], ["JSON"]),
        (["run", "finetune", "--json", "[1]"], ["object"]),
        (["sweep", "--profile", "quik", "--dry-run"], ["quick"]),
        (["check-data", "mnist"], ["mnist5k"]),
    ],
)
def test_bad_input_is_refused_with_the_nearest_name(capsys, arguments, named):
    code, out, err = run(capsys, *arguments)
    assert code == 2, err
    assert out == ""
    for word in named:
        assert word in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "vit_smal_patch16_224"],
        ["measure", *TINY[:-1], "40"],
        ["measure", *TINY, "--target", "photos"],
        ["measure", *TINY, "--target", "emoji", "--target", "stamps"],
        ["finetune", *TINY, "--dataset", "emoji"],
        ["probe", *TINY, "--dataset", "cifar10"],
        ["run", "probe", "--json", '{"weights": "random", "dataset": "emoji"}'],
    ],
    ids=lambda a: " ".join(a[:1] + a[-1:]),
)
def test_a_refusal_is_quick_and_loads_no_torch(tmp_path, arguments):
    code = (
        "import sys\nfrom vitplast.cli import main\n"
        f"try:\n    main({arguments!r})\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules, 'timm' in sys.modules)\n"
    )
    places = {"XDG_DATA_DIRS": str(tmp_path), "VITPLAST_DATA": str(tmp_path), "VITPLAST_STORE": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | places, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "False", "False"], done.stderr
    assert not list((tmp_path / "store").rglob("*.jsonl"))
    if "stamps" in arguments:
        assert "'emoji' needs" in done.stderr
        assert "apt-get install tuxpaint-stamps-default" in done.stderr


def test_check_data_counts_images(capsys):
    code, out, _ = run(capsys, "check-data", "digits", "--json")
    (report,) = json.loads(out)
    rows = {row["split"]: row for row in report["splits"]}
    assert code == 0
    assert report["state"] == "in order"
    assert rows["test"]["images"] == rows["test"]["expected"] == 359


def test_dry_run_lists_the_units_and_says_where_its_estimate_is_from(capsys, tmp_path):
    quick = load_profile("quick")
    code, out, _ = run(capsys, "sweep", "--profile", "quick", "--dry-run", "--store", str(tmp_path), "--data", "")
    assert code == 0
    _, table, labels = out.partition("kind")
    table, _, labels = (table + labels).partition(f"{len(quick.units)} units to run\n")
    assert table.count("(estimate from another machine)") == 1 + len({unit.kind for unit in quick.units})
    lines = labels.splitlines()
    assert len(lines) == len(quick.units) + 1
    assert sum(line.startswith("finetune-") for line in lines) == 16
    assert lines[-1].startswith("(estimate from another machine: made with the packaged model at 56 pixels")


def test_run_counts_what_is_in_the_data_folder_of_the_project(capsys, tmp_path, monkeypatch):
    unit = Unit("probe", samples.make("probe"))
    for key, single in unit.runs.items():
        results.write(samples.dataset("probe", single), tmp_path / "all" / f"{key}.nc", run=single, kind="probe")
    results.write_gathered(results.gather(tmp_path / "all")["probe"], tmp_path / "data" / "probe.nc")
    (tmp_path / "pyproject.toml").write_text('name = "vitplast"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store"))
    started = []
    monkeypatch.setattr(execution, "execute", lambda *a: started.append(a[3]["VITPLAST_GATHERED"]))
    _, *arguments = unit.command()
    assert run(capsys, "run", *arguments)[:2] == (0, "skipped\n")
    code, _, err = run(capsys, "run", *arguments, "--data", "")
    assert (code, started) == (1, [""])
    assert "made no valid result" in err
