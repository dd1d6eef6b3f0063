"""Numba's compiler, with a cache that notices a change in any of the files that are compiled together.

Numba keeps compiled code by the date of the file that a function stands in, and misses changes in the
functions that it calls. Here all share a folder named by the hash of their sources, in the user's cache, so
a package that is installed read-only compiles once as well.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar, cast

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when first called; other threads run beside it."""
    settings = cast("Any", config)
    before = settings.CACHE_DIR
    settings.CACHE_DIR = before or _FOLDER
    try:
        return cast("Function", njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no folder can be written
        return cast("Function", njit(nogil=True)(function))
    finally:
        settings.CACHE_DIR = before


def _folder() -> str:
    package = Path(__file__).parent.parent
    patterns = (
        "graphs/partition_*.py",
        "solvers/search*.py",
        "solvers/weight_offload*.py",
        "solvers/joint_*.py",
    )
    files = sorted(path for pattern in patterns for path in package.glob(pattern))
    sources = b"".join(path.read_bytes() for path in files)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(cache):  # a user without a home
        cache = gettempdir()
    return str(Path(cache) / "memplan" / f"compiled-{sha256(sources).hexdigest()[:16]}")


_FOLDER = _folder()
