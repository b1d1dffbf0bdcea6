"""Texts: the two files, cutting and padding, pairs of GPT-2 against a plain loop, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from vitplast import models, pairs, results, texts
from vitplast.errors import InputError, IntegrityError, LayoutError, MissingDependencyError, UnknownNameError
from vitplast.measure import rates_of_change
from vitplast.models import load_text_model, text
from vitplast.parameters import key_of, make
from vitplast.results import provenance
from vitplast.runs import sets
from vitplast.texts.files import Texts
from vitplast.units import compute

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WIKI = """\


 = Cats =

 Cats sleep a lot and purr .
 = = Food = =
 They eat fish and mice and birds every day of the week .

 = Dogs =
 Dogs bark .
 A dog walks with a man and a cat .
"""
NEWS = """"3","Fish sold","Prices of fish rise, ""again"" and again"
"1","Cats, dogs","Dogs walk "
"4","Man","walks a lot every day of the week and the next week with a dog and a cat and more"
"2","Birds eat","mice"
"2","Week","of mice and men"
"""
WORDS = sorted({w.strip('",').lower() for w in (WIKI + NEWS).replace(",", " ").split()} - {""})


def folder(path, **changes):
    """A folder of transformers with a tokenizer of whole words and a random GPT-2 of two blocks."""
    vocabulary = {"<|endoftext|>": 0, "[UNK]": 1, **{w: i + 2 for i, w in enumerate(WORDS)}}
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.normalizer = tokenizers.normalizers.Lowercase()
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rules, eos_token="<|endoftext|>", bos_token="<|endoftext|>", unk_token="[UNK]"
    )
    wrapped.save_pretrained(path)
    sizes = {"vocab_size": len(vocabulary), "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **changes})
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("models") / "tiny gpt2")


@pytest.fixture(scope="module")
def loaded(place):
    return load_text_model(f"hf:{place}")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("VITPLAST_DATA", str(tmp_path / "data"))
    for name, content in (("wikitext-103-raw/wiki.test.raw", WIKI), ("ag_news/test.csv", NEWS)):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True)
        file.write_text(content, encoding="utf-8")
    return tmp_path / "data"


# --- files


def test_lines_of_wikitext_and_their_articles(data):
    found = texts.read_texts("wikitext103")
    assert found.texts == [f"{line}\n" for line in WIKI.split("\n") if line.strip()]
    assert found.ids == [f"line {n}" for n in (3, 5, 6, 7, 9, 10, 11)]
    assert found.units == ["3: Cats"] * 4 + ["9: Dogs"] * 3


def test_rows_of_ag_news(data):
    found = texts.read_texts("ag_news")
    assert found.texts[0] == 'Fish sold Prices of fish rise, "again" and again'
    assert found.texts[1] == "Cats, dogs Dogs walk"
    assert found.ids == found.units == [f"row {n}" for n in range(1, 6)]
    (data / "ag_news" / "test.csv").write_text("Class Index,Title,Description\n" + NEWS)
    assert texts.read_texts("ag_news").texts == found.texts


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ag_news", b'"3","a","b"\n"1","a"\n', "row 2: expected a class 1 to 4.*2 columns"),
        ("ag_news", b'"3","a","b"\n"5","a","b"\n', "row 2"),
        ("ag_news", b'"3","a","b\n', "line 1: unexpected end of data"),
        ("ag_news", b"", "holds no text"),
        ("ag_news", b'"3","\xff","b"\n', "byte 5 can't be read"),
        ("wikitext103", b" \n\n", "holds no text"),
        ("wikitext103", b" a \n \xc3", "byte 5 can't be read"),
    ],
)
def test_damaged_files_are_named(data, name, content, words):
    file = data / texts.describe(name)["file"]
    file.write_bytes(content)
    with pytest.raises(IntegrityError, match=rf"{file.name}.*{words}"):
        texts.read_texts(name)


def test_a_set_that_is_not_there_says_where_it_should_be(tmp_path, monkeypatch, loaded):
    monkeypatch.setenv("VITPLAST_DATA", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"ag_news' is not on this machine: expected .*test\.csv.*Zhang"):
        texts.open_texts("ag_news", loaded.tokenizer)
    with pytest.raises(UnknownNameError, match="'ag_news'"):
        texts.open_texts("agnews", loaded.tokenizer)


# --- tokens


def test_texts_are_cut_and_padded(data, loaded):
    own = texts.open_texts("ag_news", loaded.tokenizer, tokens=6)
    assert own.lengths.tolist() == [6, 5, 6, 3, 5]
    words = loaded.tokenizer.convert_ids_to_tokens(own.tokens([1, 4], 3)[0].tolist())
    assert words == ["cats", "[UNK]", "dogs"]
    full = texts.open_texts("ag_news", loaded.tokenizer, tokens=6, padding="counted")
    assert full.lengths.tolist() == [6] * 5
    assert full.tokens([3], 6)[0, 3:].tolist() == [loaded.tokenizer.eos_token_id] * 3
    assert torch.equal(full.tokens([1, 3], 3), own.tokens([1, 3], 3))
    with pytest.raises(InputError, match="ag_news, row 4 has fewer than 5 tokens"):
        own.tokens([1, 3], 5)
    assert [tuple(b.shape) for b in own.batches([3, 0, 3, 1, 4, 2], 1)] == [(1, 3), (1, 5), (1, 5), (1, 6), (1, 6)]
    for wrong in ({"tokens": 1}, {"tokens": 2.0}, {"padding": "none"}):
        with pytest.raises(InputError):
            texts.open_texts("ag_news", loaded.tokenizer, **wrong)


def one_pair(model, a, b, convention):
    """Rates (layer, component) of two token lists of the same length, from the hidden states of the plain model."""
    e = [model.wte(torch.tensor(t)) + model.wpe(torch.arange(len(t))) for t in (a, b)]
    found = []
    inside = [x[None] for x in e]
    for block in model.h:
        row = []

        def rate(f, x, y):
            return float((f(x) - f(y)).norm() / (x - y).norm())

        def attend(x, block=block):
            return block.attn(x)[0]

        def padded(x, block=block):
            return block.mlp.c_proj(torch.nn.functional.pad(x, (0, 3 * x.shape[-1])))

        if convention == "common":
            row = [rate(f, e[0][None], e[1][None]) for f in (block.ln_1, attend, block.ln_2, block.mlp.c_fc, padded)]
        else:
            normed = [block.ln_1(x) for x in inside]
            middle = [x + attend(z) for x, z in zip(inside, normed, strict=True)]
            second = [block.ln_2(x) for x in middle]
            hidden = [block.mlp.act(block.mlp.c_fc(x)) for x in second]
            row = [
                rate(block.ln_1, *inside), rate(attend, *normed), rate(block.ln_2, *middle),
                rate(block.mlp.c_fc, *second), rate(block.mlp.c_proj, *hidden),
            ]  # fmt: skip
            inside = [x + block.mlp.c_proj(z) for x, z in zip(middle, hidden, strict=True)]
        found.append(row)
    return found


@pytest.mark.parametrize("convention", ["common", "in_situ"])
@torch.no_grad()
def test_a_pair_is_measured_on_the_tokens_that_both_texts_have(data, loaded, convention):
    """Against the model called with the cut texts one by one: no padding is in any distance."""
    wide = dataclasses.replace(loaded, model=loaded.model.double())
    x, y = (texts.open_texts(n, loaded.tokenizer, tokens=12) for n in ("wikitext103", "ag_news"))
    i, j = np.array([0, 3, 1, 6, 5, 3]), np.array([2, 2, 3, 0, 1, 4])
    found = rates_of_change(wide, x, y, convention=convention, source_index=i, target_index=j, batch_size=4)
    lengths = np.minimum(x.lengths[i], y.lengths[j])
    assert len(set(lengths)) > 2
    np.testing.assert_array_equal(found.pair_tokens, lengths)
    assert list(found.source_id.values) == [x.ids[k] for k in i]
    assert list(found.source_group.values) == [x.groups[k] for k in i]
    for place, (a, b, n) in enumerate(zip(i, j, lengths, strict=True)):
        expected = one_pair(wide.model, x.tokens([a], n)[0].tolist(), y.tokens([b], n)[0].tolist(), convention)
        np.testing.assert_allclose(found.rate[..., place], expected, rtol=1e-8)
    loaded.model.float()


@torch.no_grad()
def test_padding_that_counts_changes_the_rates(data, loaded):
    sides = {
        padding: [texts.open_texts(n, loaded.tokenizer, tokens=12, padding=padding) for n in ("wikitext103", "ag_news")]
        for padding in texts.PADDING
    }
    index = {"source_index": [0, 3], "target_index": [2, 2]}
    own, full = (rates_of_change(loaded, *sides[p], convention="common", **index) for p in ("excluded", "counted"))
    assert own.pair_tokens.values.tolist() == [3, 12]
    assert full.pair_tokens.values.tolist() == [12, 12]
    np.testing.assert_allclose(own.rate[..., 1], full.rate[..., 1], rtol=1e-5)
    assert abs(own.rate[..., 0] / full.rate[..., 0] - 1).sel(component="FC1").max() > 1e-3


def test_sides_that_do_not_fit_the_model_are_refused(data, loaded, tiny_vit):
    split = texts.open_texts("ag_news", loaded.tokenizer)
    images = torch.randn(2, 3, 32, 32)
    with pytest.raises(InputError, match="are texts, but VisionTransformer takes images"):
        rates_of_change(tiny_vit, split, split, convention="common")
    with pytest.raises(InputError, match=r"no texts .TextSplit., but GPT2Model reads text"):
        rates_of_change(loaded, images, images, convention="common")
    with pytest.raises(InputError, match="crossed"):
        rates_of_change(loaded, split, split, convention="common", design="crossed", pairs=2)
    long = texts.TextSplit("long", Texts(["cats " * 40], ["a"], ["a"]), loaded.tokenizer)
    with pytest.raises(InputError, match="40 tokens, the model takes 32"):
        rates_of_change(loaded, long, long, convention="common")
    narrow = transformers.GPT2Model(transformers.GPT2Config(vocab_size=5, n_embd=8, n_layer=1, n_head=1)).eval()
    with pytest.raises(IntegrityError, match="the model knows 5 tokens"):
        rates_of_change(narrow, split, split, convention="common")


# --- loading


def test_a_folder_is_loaded_as_it_is(place, loaded):
    again = transformers.GPT2Model.from_pretrained(place)
    for name, tensor in again.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    assert (loaded.name, loaded.origin, loaded.source) == ("hf:tiny gpt2", "file", "hf:tiny gpt2")
    assert not any(m.training for m in loaded.model.modules())
    assert str(place.parent) not in str(loaded.provenance)
    assert {len(loaded.provenance[k]) for k in ("weights_sha256", "tokenizer_sha256")} == {64}
    one, two, other = (load_text_model(f"hf:{place}", weights="random", init_seed=s) for s in (1, 1, 2))
    assert one.weights_sha256 == two.weights_sha256 != other.weights_sha256
    assert one.tokenizer_sha256 == loaded.tokenizer_sha256
    assert (one.origin, one.source) == ("random", "random initialisation, seed 1")


def test_bad_folders_and_weights_are_refused(tmp_path, place):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "gpt2"}')
    for name, weights, kind, words in (
        ("hf:nowhere/at/all", "auto", InputError, "'nowhere/at/all'.*does not exist"),
        (f"hf:{tmp_path / 'empty'}", "auto", InputError, "has no config.json"),
        (f"hf:{tmp_path / 'bert'}", "auto", LayoutError, "'bert' model.*only gpt2"),
        (f"hf:{tmp_path / 'bare'}", "auto", InputError, "no model.safetensors"),
        ("gpt2", "packaged", InputError, "auto, hub, random"),
        ("gpt2", "w.safetensors", InputError, "folder of transformers"),
        (f"hf:{place}", "hub", InputError, "leave weights at auto"),
        ("gpt3", "auto", UnknownNameError, "'gpt2'"),
    ):
        with pytest.raises(kind, match=words) as error:
            models.check_name(name, weights)
        assert error.value.exit_code == 2


@pytest.mark.parametrize("damage", ["cut", "missing", "tokenizer"])
def test_damaged_folders_are_refused(tmp_path, damage):
    import safetensors.torch

    path = folder(tmp_path / "m", **({"vocab_size": 7} if damage == "tokenizer" else {}))
    weights = path / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    if damage == "missing":
        tensors = safetensors.torch.load_file(weights)
        del tensors["transformer.h.1.ln_2.weight"]
        safetensors.torch.save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(
        IntegrityError, match={"missing": "h.1.ln_2.weight", "tokenizer": "the model 7"}.get(damage, "m")
    ):
        load_text_model(f"hf:{path}")


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitplast\[transformers\]'"):
        load_text_model("gpt2", weights="random")


# --- parameters and runs


def run_of(place, **values):
    chosen = {"model": f"hf:{place}", "source": "wikitext103", "targets": ["ag_news"], "device": "cpu", "pairs": 5}
    (found,) = make("plasticity", chosen | values).runs().values()
    return found


def test_text_models_go_with_text_sets():
    for values, words in (
        ({"model": "gpt2"}, "reads text, but 'photos' is no text set; there are wikitext103, ag_news"),
        ({"model": "gpt2", "source": "wikitext103", "targets": ["ag_news", "mnist5k"]}, "'mnist5k' is no text set"),
        ({"source": "ag_news"}, "'ag_news' is a set of texts, but model .* takes images"),
        ({"targets": ["ag_news"]}, "'ag_news' is a set of texts"),
        ({"model": "gpt2", "source": "ag_news", "targets": ["ag_news"], "design": "crossed"}, "crossed"),
        (
            {"model": "gpt2", "source": "ag_news", "targets": ["ag_news"], "rescale": "LN2/FC1:4"},
            "rescale is for plain",
        ),
    ):
        with pytest.raises(InputError, match=words):
            make("plasticity", values)
    for kind in ("theory", "gradients", "finetune", "probe", "depth", "landscape", "criteria"):
        with pytest.raises(
            LayoutError, match=f"{kind} takes models of the families .* but 'gpt2' is of the family gpt2"
        ):
            make(kind, {"model": "gpt2"})
    with pytest.raises(InputError, match="lora_rank is for plain"):
        make("finetune", {"model": "vit_small_patch16_dinov3", "img_size": 64, "components": "MHA", "lora_rank": 2})


def test_keys_of_text_models(tmp_path, place):
    import shutil

    copy = tmp_path / "tiny gpt2"
    shutil.copytree(place, copy)
    key = key_of("plasticity", run_of(place))
    assert key == key_of("plasticity", run_of(copy)) == key_of("plasticity", run_of(place, img_size=224))
    assert key != key_of("plasticity", run_of(place, padding="counted"))
    assert key != key_of("plasticity", run_of(place, mha_input="normed"))
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert key != key_of("plasticity", run_of(copy))
    assert str(tmp_path) not in str(provenance.public(run_of(copy)))


def test_the_cycled_design_starts_texts_again(data, place):
    run = run_of(place, pairs=9, design="cycled", tokens=8)
    sets.check_sets([run])
    found = compute("plasticity", run)
    assert found.sizes["pair"] == 9
    sources, targets = found.source_id.values, found.target_id.values
    assert list(sources[:2]) == list(sources[7:])
    assert list(targets[:4]) == list(targets[5:])
    with pytest.raises(InputError, match="9 pairs in the disjoint design need as many images a side, but 5"):
        sets.check_sets([run_of(place, pairs=9)])


def test_results_of_text_models_are_valid_and_bounds_hold(tmp_path, data, place):
    chosen = {"model": f"hf:{place}", "source": "wikitext103", "targets": ["ag_news"], "device": "cpu", "pairs": 4}
    found = {}
    for kind in ("plasticity", "bounds"):
        (run,) = make(kind, chosen | {"tokens": 10}).runs().values()
        results.write(compute(kind, run), tmp_path / f"{kind}.nc", kind=kind, run=run)
        found[kind] = results.read(tmp_path / f"{kind}.nc")
        assert found[kind].attrs["weights_origin"] == "file"
        assert str(place) not in str(found[kind].attrs)
    assert (found["plasticity"].pair_tokens <= 10).all()
    new = found["bounds"].bound.sel(variant="new")
    assert (found["plasticity"].rate.max("pair") <= new * (1 + 1e-6)).all()
    assert found["bounds"].attrs["tokens"] == 10
    assert "mask" in found["bounds"].attrs["no_bound"]


# --- pairs in the order of files


class Files:
    """Images that stand in a shuffled order; `file_order` gives back that of their files."""

    def __init__(self, names):
        self.names = names

    def file_order(self):
        return np.argsort(self.names, kind="stable")


def test_pairs_in_file_order_are_those_of_two_unshuffled_loaders():
    """Batch k with batch k, incomplete batches dropped, each loader started again when it is exhausted."""
    batch, steps = 3, 5
    rng = np.random.default_rng(0)
    source, target = (Files([f"f{n:02d}" for n in rng.permutation(count)]) for count in (11, 8))
    in_file = source.file_order(), target.file_order()
    run = {"pairs": batch * steps, "design": "cycled", "seed": 5, "order": "file", "drop_last": batch}
    i, j = pairs.pairs_of(run, 11, 8, in_file)
    loaders = []
    for side in (source, target):
        ordered = sorted(side.names)
        batches = [ordered[b * batch : (b + 1) * batch] for b in range(len(ordered) // batch)]
        loaders.append([name for step in range(steps) for name in batches[step % len(batches)]])
    assert [source.names[k] for k in i] == loaders[0]
    assert [target.names[k] for k in j] == loaders[1]
    assert [sorted(source.names).index(source.names[k]) for k in i] == [n % 9 for n in range(15)]
    assert [sorted(target.names).index(target.names[k]) for k in j] == [n % 6 for n in range(15)]


def test_cutting_keeps_the_random_order_and_refuses_what_leaves_nothing():
    whole = pairs.pair_indices(20, 11, 16, "cycled", 3)
    cut = pairs.pair_indices(20, 11, 16, "cycled", 3, drop_last=4)
    np.testing.assert_array_equal(whole[0], cut[0])
    np.testing.assert_array_equal(cut[1], np.resize(whole[1][:8], 16))
    with pytest.raises(InputError, match="but 8 are available"):
        pairs.pair_indices(20, 11, 9, "disjoint", 3, drop_last=4)
    with pytest.raises(InputError, match="drop_last=12 leaves nothing of the target, which has 11"):
        pairs.pair_indices(20, 11, 9, "disjoint", 3, drop_last=12)
    with pytest.raises(UnknownNameError, match="'file'"):
        pairs.pair_indices(20, 11, 9, order="files")
    first = pairs.pair_indices(5, 4, 3, "disjoint", 9, order="file")
    assert [side.tolist() for side in first] == [[0, 1, 2]] * 2
    with pytest.raises(InputError, match="but 4 are available"):
        pairs.pair_indices(5, 4, 5, "disjoint", 9, order="file")


def test_a_folder_is_paired_in_the_order_of_its_files(tmp_path):
    """Through parameters, image set and measurement: the ids of the pairs are the files one after the other."""
    from PIL import Image

    rng = np.random.default_rng(1)
    for side, count in (("a", 20), ("b", 15)):
        for number in range(count):
            path = tmp_path / side / ("cats" if number % 2 else "dogs") / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    chosen = {
        "model": "test_vit", "weights": "random", "img_size": 32, "device": "cpu", "source": f"folder:{tmp_path / 'a'}",
        "targets": [f"folder:{tmp_path / 'b'}"], "design": "cycled", "pairs": 18, "order": "file", "drop_last": 2,
        "conventions": ["common"],
    }  # fmt: skip
    (run,) = make("plasticity", chosen).runs().values()
    sets.check_sets([run])
    found = compute("plasticity", run)
    for name in ("source_id", "target_id"):
        ids = list(found[name].values)
        size = len(dict.fromkeys(ids))
        assert size % 2 == 0
        assert ids[:size] == sorted(ids[:size])
        assert ids == [ids[k % size] for k in range(18)]
    assert len(set(found.target_id.values)) == 2
