"""The folder of this user's caches, and whether only this user can write there."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISVTX


def cache_folder() -> Path | None:
    """Return the cache folder, `memplan` in XDG_CACHE_HOME or ~/.cache; None for a user without a home.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification demands.
    """
    places = (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache"))
    return next((Path(place, "memplan") for place in places if os.path.isabs(place)), None)


def private_folder(folder: Path) -> Path | None:
    """Return the folder, created if it is missing.

    None if it cannot be, or if others could change its content.
    Others must not be able to write in it, nor to replace it or a folder above it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        safe = os.name != "posix" or all(map(_is_safe, (folder, *folder.parents)))
        return folder if safe and folder.stat().st_uid == _user(folder) else None
    except OSError:
        return None


def _is_safe(folder: Path) -> bool:
    """Tell whether a folder is this user's or root's, and nobody else can change what this user keeps in it.

    Others may write to it only if its sticky bit is set, as that of /tmp: then they cannot touch others'
    files.
    """
    about = folder.stat()
    others_write = about.st_mode & 0o022 and not about.st_mode & S_ISVTX
    return about.st_uid in (0, _user(folder)) and not others_write


def _user(folder: Path) -> int:
    return os.geteuid() if os.name == "posix" else folder.stat().st_uid
