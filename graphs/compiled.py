"""Numba's compiler, with a cache that notices a change in any of the files that are compiled together.

Numba keeps compiled code by the date of the file that a function stands in, and misses changes in the
functions that it calls. Here all share a folder named by the hash of their sources, in the user's cache, so
a package that is installed read-only compiles once as well.

Code is read from that folder and run, so it is one that only this user can write; without such a folder
nothing is kept. What is broken there, by a full disk or a process that was killed, is compiled again.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core.caching import FunctionCache

from .cache_folder import cache_folder, private_folder

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when first called; other threads run beside it.

    What Python calls and what takes long gives a number or nothing back, and writes the rest into arrays: to
    make an object compiled code calls Python, where a Ctrl-C that waits is raised, and then crashes.
    """
    compiler: Any = njit(nogil=True)(function)
    settings = cast("Any", config)
    before = settings.CACHE_DIR
    folder = private_folder(Path(before)) if before else _FOLDER
    if folder is not None:
        settings.CACHE_DIR = str(folder)
        try:
            with suppress(RuntimeError):  # there is no room for a folder
                compiler._cache = _Kept(function)
        finally:
            settings.CACHE_DIR = before
    return cast("Function", compiler)


class _Kept(FunctionCache):
    """Numba's cache of one function. A fault of the cache is no fault of the program."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was kept for the signature; None for nothing, or where it is broken or another's."""
        try:
            found: Any = super().load_overload(sig, target_context)
            if found is None or tuple(cast("Any", found).signature.args) == tuple(getattr(sig, "args", sig)):
                return found  # two processes that begin an index at once can mix up their files
        except Exception:  # of any kind: what is unpickled may be anything
            pass
        with suppress(OSError):
            self.flush()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):
            super().save_overload(sig, data)


def sources() -> list[Path]:
    """The files with compiled code."""
    package = Path(__file__).parent.parent
    patterns = (
        "graphs/cluster_*.py",
        "graphs/partition_*.py",
        "solvers/search*.py",
        "solvers/weight_offload*.py",
        "solvers/joint_*.py",
    )
    return sorted(path for pattern in patterns for path in package.glob(pattern))


def _folder() -> Path | None:
    cache, text = cache_folder(), b"".join(path.read_bytes() for path in sources())
    name = f"compiled-{sha256(text).hexdigest()[:16]}"
    return cache and private_folder(cache / name)


_FOLDER = _folder()
