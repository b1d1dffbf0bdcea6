"""The checks of a profile's results, and what the book reads, on made-up results with known answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import samples

from vitplast import book, results
from vitplast.checks import checks
from vitplast.components import COMPONENTS
from vitplast.errors import VitplastError

HIGH = {"LN1": 9.0, "MHA": 0.1, "LN2": 10.0, "FC1": 0.7, "FC2": 0.2}
LOW = {"LN1": 1.0, "MHA": 0.2, "LN2": 1.1, "FC1": 0.8, "FC2": 0.4}
ACCURACY = {"all": 0.9, "emb": 0.4, "LN1": 0.6, "MHA": 0.9, "LN2": 0.62, "FC1": 0.91, "FC2": 0.88, "head": 0.61}


def rates(means, **values):
    key, run = samples.one_run("plasticity", pairs=12, **values)
    ds = samples.dataset("plasticity", run)
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(12)
    ds["rate"][:] = np.array([means[c] for c in COMPONENTS])[None, None, :, None] * noise
    ds["distance_out"] = ds.rate * ds.distance_in
    return key, run, ds


def bounds(limit, **values):
    key, run = samples.one_run("bounds", pairs=12, **values)
    ds = samples.dataset("bounds", run)
    ds["bound"].loc[{"variant": "valid"}] = limit
    return key, run, ds


def runs(accuracy):
    for components, value in accuracy.items():
        key, run = samples.one_run("finetune", components=components, weights="auto")
        yield key, run, samples.dataset("finetune", run).assign(test_accuracy=value)


@pytest.fixture
def gather(tmp_path):
    """Writes made-up results as the package does and gathers them."""

    def gather(kind, made):
        for key, run, ds in made:
            origin = {"weights_source": f"made up, {run['weights']}"}
            results.write(ds, tmp_path / kind / f"{key}.nc", run=run, kind=kind, **origin)
        return results.gather(tmp_path / kind)[kind]

    return gather


def outcome(gather, means=HIGH, random=LOW, limit=20.0, accuracy=ACCURACY):
    measured = gather("plasticity", [rates(means, weights="auto"), rates(random, weights="random")])
    limits = gather("bounds", [bounds(limit, weights="auto"), bounds(limit, weights="random")])
    return checks(measured, limits, gather("finetune", runs(accuracy)))


def test_all_checks_pass_on_results_as_they_should_be(gather):
    table = outcome(gather)
    assert table.passed.all()
    assert "+26.0 points" in table.found.iloc[-1]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"limit": 9.5}, "bound"),
        ({"means": {**HIGH, "FC1": 0.19}}, "FC1"),
        ({"random": {**LOW, "FC1": 0.7}}, "random"),
        ({"accuracy": {**ACCURACY, "head": 0.89}}, "finetune better"),
    ],
)
def test_each_check_fails_when_its_claim_is_false(gather, change, check):
    table = outcome(gather, **change)
    failed = table[~table.passed]
    assert len(failed)
    assert all(check in text for text in failed.check)


def test_pick_finds_the_run_as_it_was(gather):
    made = rates(HIGH, weights="auto")
    gathered = gather("plasticity", [made, rates(LOW, weights="random")])
    one = book.pick(gathered, target="mnist5k", weights="auto")
    np.testing.assert_array_equal(one.rate, made[2].rate)
    assert one.attrs["weights_source"] == "made up, auto"
    with pytest.raises(VitplastError, match="2 runs match"):
        book.pick(gathered, target="mnist5k")
    with pytest.raises(VitplastError, match="0 runs match"):
        book.pick(gathered, target="digits")


def test_facts_name_every_origin(gather):
    facts = book.facts_of(gather("plasticity", [rates(HIGH, weights="auto"), rates(LOW, weights="random")]))
    assert facts["weights"] == "made up, auto, made up, random"
    assert "mnist5k" in facts["data"]
    assert "cores" in facts["machine"]


def test_the_book_reads_the_store_first_and_says_how_to_make_what_is_missing(gather, tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("VITPLAST_PROFILE", "trial")
    with pytest.raises(VitplastError, match="make book PROFILE=trial"):
        book.open_results("plasticity")
    assert "no results yet" in book.footer()
    gathered = gather("plasticity", [rates(HIGH, weights="auto")])
    results.write_gathered(gathered, tmp_path / "store" / "gathered" / "trial" / "plasticity.nc")
    assert book.open_results("plasticity").sizes["run"] == 1
    assert "made up, auto" in book.footer()


def test_main_run_is_the_first_with_pretrained_weights_whatever_their_source(gather):
    gathered = gather(
        "plasticity", [rates(LOW, weights="random"), rates(HIGH, model="vit_tiny_patch16_224", weights="hub")]
    )
    chosen = book.main_run(gathered)
    assert (chosen["model"], chosen["weights"]) == ("vit_tiny_patch16_224", "hub")
    assert float(book.pick(gathered, **chosen).rate.sel(component="LN2").mean()) == pytest.approx(10, rel=0.02)


def test_cost_counts_only_the_units_behind_the_results_shown(gather, tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("VITPLAST_PROFILE", "trial")
    made = rates(HIGH, weights="auto")
    place = tmp_path / "store" / "gathered" / "trial" / "plasticity.nc"
    results.write_gathered(gather("plasticity", [made]), place)
    assert book.cost("plasticity") == "not recorded here"
    lines = [
        {"key": "a", "kind": "plasticity", "status": "done", "results": [made[0]], "start": 0.0, "end": 90.0},
        {"key": "b", "kind": "plasticity", "status": "done", "results": ["other"], "start": 0.0, "end": 900.0},
        {"key": "c", "kind": "plasticity", "status": "failed", "results": [made[0]], "start": 0.0, "end": 900.0},
    ]
    (tmp_path / "store" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert book.cost("plasticity") == "1.5 min"
