"""The folder of this user's caches."""

from __future__ import annotations

import os
from pathlib import Path

from .private import PrivateFolder


def cache_folder() -> Path | None:
    """Return the cache folder, `memplan` in XDG_CACHE_HOME or ~/.cache; None for a user without a home.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification demands.
    """
    places = (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache"))
    return next((Path(place, "memplan") for place in places if os.path.isabs(place)), None)


def user_cache() -> PrivateFolder:
    """Return the cache folder as a private one; each cache is a folder in it."""
    return PrivateFolder(cache_folder(), own=True)
