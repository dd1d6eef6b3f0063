"""The local cache of the Hugging Face hub: a model's configuration by its id, without the network.

    hub/models--meta-llama--Llama-3.2-1B/refs/main            the name of a snapshot
    hub/models--meta-llama--Llama-3.2-1B/snapshots/…/config.json

Reference: huggingface_hub's page "Understand caching".
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def is_hub_id(text: str) -> bool:
    """Tell whether a text has the form of a model's id, like 'meta-llama/Llama-3.2-1B'."""
    return _ID.fullmatch(text) is not None


def hub_cache() -> Path:
    """Return the cache's folder, which need not be there."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if folder := os.environ.get(name):
            return Path(folder).expanduser() / below
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def cached_file(model: str, name: str) -> Path | None:
    """Return a file of a model's snapshot, that of `main` or else the newest; None if it is not cached."""
    folder = hub_cache() / f"models--{model.replace('/', '--')}"
    snapshots = list[Path]()
    with suppress(OSError):
        snapshots = sorted((folder / "snapshots").iterdir(), key=lambda one: -one.stat().st_mtime)
    with suppress(OSError, UnicodeDecodeError):
        snapshots.insert(0, folder / "snapshots" / (folder / "refs" / "main").read_text().strip())
    return next((file for one in snapshots if (file := one / name).is_file()), None)
