"""GPT-2 with its tokenizer through transformers: from the hub, from a folder, or with random weights."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vitplast.components import groups, parts
from vitplast.errors import InputError, IntegrityError, MissingDependencyError, VitplastError
from vitplast.models.loading import resolve_device, weights_hash
from vitplast.models.text_names import FOLDER, GPT2_SIZES, check_text_name, folder_of, is_text_model
from vitplast.models.weights import check_finite, first_line, private_random_state

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, eq=False)
class LoadedText:
    """A text model in evaluation mode, its tokenizer, and everything that says where its numbers come from."""

    model: nn.Module
    tokenizer: Any
    name: str
    origin: str
    source: str
    licence: str
    weights_sha256: str
    tokenizer_sha256: str
    init_seed: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def provenance(self) -> dict[str, str | int]:
        """The record as attributes of a result file."""
        return {
            "model": self.name, "model_tag": "", "weights_origin": self.origin, "weights_source": self.source,
            "weights_licence": self.licence, "weights_sha256": self.weights_sha256,
            "tokenizer_sha256": self.tokenizer_sha256, "transformers_version": version("transformers"),
            "init_seed": self.init_seed,
        }  # fmt: skip


def require_transformers() -> None:
    """A MissingDependencyError with the command that installs transformers, if it is not there. Imports nothing."""
    if importlib.util.find_spec("transformers") is None:
        raise MissingDependencyError(
            "the package transformers, which text models need, is not installed: "
            "pip install 'vitplast[transformers]' (or pip install transformers)"
        )


def load_text_model(name: str, *, weights: str = "auto", init_seed: int = 0, device: str = "cpu") -> LoadedText:
    """The backbone of GPT-2 and its tokenizer; `name` and `weights` as in `check_text_name`.

    No code of a repository or folder is run and no pickle is read: weights are safetensors. The global random state of
    torch stays as it was.

    Raises
    ------
    InputError, LayoutError
        See `check_text_name`; MissingDependencyError if transformers is not installed.
    IntegrityError
        If the weights do not fit or are not finite, or the tokenizer does not fit the model.
    VitplastError
        If they can't be fetched.
    """
    if not is_text_model(name):
        raise InputError(f"{name!r} is no text model; there are {', '.join(GPT2_SIZES)} and {FOLDER}PATH")
    check_text_name(name, weights)
    require_transformers()
    target = resolve_device(device)
    local = name.startswith(FOLDER)
    place = str(folder_of(name)) if local else GPT2_SIZES[name][0]
    shown = f"{FOLDER}{folder_of(name).absolute().name}" if local else name
    tokenizer = _tokenizer(place, shown, local)
    if weights == "random":
        model, where, source = (
            _random(name, place, local, init_seed),
            "random",
            f"random initialisation, seed {init_seed}",
        )
    else:
        model = _stored(place, shown, local)
        where, source = ("file", shown) if local else ("hub", f"hub {place}")
    parts(model)
    groups(model)
    check_finite(model, shown)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise IntegrityError(f"the tokenizer of {shown} has {len(tokenizer)} tokens, the model {rows}")
    licence = {"random": "none needed: no trained weights", "hub": "MIT (GPT-2), Apache-2.0 (distilgpt2)"}
    return LoadedText(
        model.eval().to(target), tokenizer, shown, where, source, licence.get(where, "not known"),
        weights_hash(model), _vocabulary_hash(tokenizer), init_seed,
    )  # fmt: skip


def outline_text(name: str) -> nn.Module:
    """The architecture without memory for its weights: of a name from its sizes, of a folder from its file."""
    import torch

    require_transformers()
    local = name.startswith(FOLDER)
    with torch.device("meta"):
        model = _model(_configuration(name, str(folder_of(name)), local))
    groups(model)
    parts(model)
    return model


def _configuration(name: str, place: str, local: bool) -> Any:
    from transformers import GPT2Config

    if local:
        return GPT2Config.from_pretrained(place, local_files_only=True)
    _, width, depth, heads = GPT2_SIZES[name]
    return GPT2Config(n_embd=width, n_layer=depth, n_head=heads)


def _model(config: Any) -> nn.Module:
    from transformers import GPT2Model

    config._attn_implementation = "sdpa"
    return GPT2Model(config)


def _random(name: str, place: str, local: bool, seed: int) -> nn.Module:
    config = _configuration(name, place, local)
    with private_random_state(seed):
        return _model(config)


def _stored(place: str, shown: str, local: bool) -> nn.Module:
    from transformers import GPT2Model

    try:
        model, report = GPT2Model.from_pretrained(
            place, use_safetensors=True, local_files_only=local, attn_implementation="sdpa", output_loading_info=True
        )
    except Exception as error:  # the hub's client raises errors of many packages
        if local:
            raise IntegrityError(f"{shown} does not hold the weights of a GPT-2 ({first_line(error)})") from error
        raise _not_had(f"the weights of {shown}", place, error) from error
    wrong = [key for kind in ("missing_keys", "mismatched_keys") for key in report[kind]]
    if wrong:
        raise IntegrityError(f"{shown} lacks {len(wrong)} tensors of a GPT-2: {', '.join(map(str, sorted(wrong)[:3]))}")
    return model


def _tokenizer(place: str, shown: str, local: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    except Exception as error:  # as above
        if local:
            raise InputError(f"{shown} has no tokenizer that can be read ({first_line(error)})") from error
        raise _not_had(f"the tokenizer of {shown}", place, error) from error


def _not_had(what: str, place: str, error: Exception) -> VitplastError:
    return VitplastError(
        f"{what} could not be had from the model hub, {place} ({first_line(error)}). Way out: a folder with "
        f"config.json, model.safetensors and the files of the tokenizer, named as model {FOLDER}PATH"
    )


def _vocabulary_hash(tokenizer: Any) -> str:
    """SHA-256 of the tokenizer's rules, or of its vocabulary where it has none to show."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(text.encode()).hexdigest()
