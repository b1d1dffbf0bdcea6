"""What a rehearsal runs on: made-up image sets, two files of made-up texts, a tiny random GPT-2 with its tokenizer."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitplast.errors import InputError
from vitplast.images import made_up, marker
from vitplast.images.names import parse
from vitplast.images.published import FACTS, Facts
from vitplast.texts import names as text_names
from vitplast.texts.registry import REGISTRY

#: Classes of every set, and images of a class for training and for test. Fewer test images leave a corrupted set, whose
#: test images are all it has, without a validation image of some class.
CLASSES, POOL, TEST = 3, 12, 10
#: Texts of each of the two files.
TEXTS = 40
STAMP = "material.json"
END = "<|endoftext|>"


def write_images(data: Path, sets: Iterable[str]) -> None:
    """The image sets of these names that lie on the disk in files of their own, in their published formats.

    Sets that come with packages need no made-up ones. What was written before with the same numbers is left alone.

    Raises
    ------
    InputError
        If a set lies there that is not made up.
    """
    parsed = [parse(name) for name in dict.fromkeys(sets)]
    wanted = list(dict.fromkeys(one.entry.name for one in parsed if one.entry.name in FACTS))
    corruptions = sorted({one.corruption for one in parsed if one.given.get("corruption")})
    stamp = {"sets": sorted(wanted), "corruptions": corruptions, "amount": [CLASSES, POOL, TEST]}
    if not _written(data, "images", stamp):
        made_up.write(data, wanted, classes=CLASSES, pool=POOL, test=TEST, corruptions=corruptions or made_up.FIVE)
        _note(data, "images", stamp)


def write_texts(data: Path) -> None:
    """Both text files, of words drawn at random, listed as made up in the marker of the folder.

    Raises
    ------
    InputError
        If texts lie there that are not made up.
    """
    there = marker.read(data)
    for name in text_names():
        if name not in there and (data / REGISTRY[name].file).exists():
            raise InputError(f"{data / REGISTRY[name].file} holds texts that are not made up; name another folder")
    if _written(data, "texts", TEXTS):
        return
    rng = np.random.default_rng(0)
    wiki, news = (data / REGISTRY[name].file for name in ("wikitext103", "ag_news"))
    for path in (wiki, news):
        path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(TEXTS):
        lines += ["", f" = Article {number // 4} = ", ""] if number % 4 == 0 else []
        lines.append(f" {_sentence(rng)} ")
    wiki.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with news.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        rows.writerows((1 + k % 4, _sentence(rng, 3), _sentence(rng)) for k in range(TEXTS))
    marker.write(data, {name: Facts(4, {"texts": TEXTS}, made_up=True) for name in text_names()})
    _note(data, "texts", TEXTS)


def write_text_model(folder: Path) -> None:
    """A GPT-2 of two blocks with random weights and a byte-level tokenizer trained on made-up sentences.

    Raises
    ------
    MissingDependencyError
        If the package transformers is not installed.
    """
    from vitplast.models.text import require_transformers
    from vitplast.models.weights import private_random_state

    require_transformers()
    if (folder / "model.safetensors").is_file():
        return
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    rng = np.random.default_rng(1)
    rules = ByteLevelBPETokenizer()
    rules.train_from_iterator((_sentence(rng) for _ in range(TEXTS)), 300, 2, False, [END])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=rules._tokenizer, eos_token=END, bos_token=END, unk_token=END
    )  # fmt: skip
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), wrapped.convert_tokens_to_ids(END))
    config = GPT2Config(vocab_size=len(wrapped), n_positions=64, n_embd=48, n_layer=2, n_head=6, **ends)
    folder.mkdir(parents=True, exist_ok=True)
    wrapped.save_pretrained(folder)
    with private_random_state(0):
        model = GPT2LMHeadModel(config)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    if shown:
        logging.enable_progress_bar()


def _sentence(rng: np.random.Generator, words: int = 14) -> str:
    """Syllables at random; no language."""
    syllables = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
    return " ".join("".join(rng.choice(syllables, int(rng.integers(1, 4)))) for _ in range(words)) + " ."


def _written(data: Path, what: str, stamp: object) -> bool:
    path = data / STAMP
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")).get(what) == stamp


def _note(data: Path, what: str, stamp: object) -> None:
    path = data / STAMP
    noted = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(noted | {what: stamp}, indent=1) + "\n", encoding="utf-8")
