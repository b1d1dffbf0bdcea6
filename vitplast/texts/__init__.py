"""Text sets by name, for models that read text: `open_texts("ag_news", tokenizer)`.

Listing and checking names reads no file and imports nothing heavy. Every set has one split, the published test part.
"""

from __future__ import annotations

from vitplast.texts.registry import Entry, check_name, describe, is_text, key_name, names
from vitplast.texts.split import PADDING, TextSplit, open_texts, read_texts

__all__ = [
    "PADDING", "Entry", "TextSplit", "check_name", "describe", "is_text", "key_name", "names", "open_texts",
    "read_texts",
]  # fmt: skip
