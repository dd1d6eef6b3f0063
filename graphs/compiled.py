"""Numba's compiler, with a cache that notices a change in any of the files that are compiled together.

Numba keeps compiled code by the date of the file that a function stands in, and misses changes in the
functions that it calls. Here each module has a folder in the user's cache, named by the hash of all sources
that its compiled code is made of, found by imports; so a package that is installed read-only compiles once
as well.

Code is read from that folder and run, so it is one that only this user can write; without such a folder
nothing is kept. What is broken there, by a full disk or a process that was killed, is compiled again.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core.caching import FunctionCache
from numba.extending import register_jitable

from .folders.cache import cache_folder, private_folder

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when first called; other threads run beside it.

    What Python calls and what takes long gives a number or nothing back, and writes the rest into arrays: to
    make an object compiled code calls Python, where a Ctrl-C that waits is raised, and then crashes.
    """
    compiler: Any = njit(nogil=True)(function)
    settings = cast("Any", config)
    before = settings.CACHE_DIR
    folder = private_folder(Path(before)) if before else _folder(Path(function.__code__.co_filename))
    if folder is not None:
        settings.CACHE_DIR = str(folder)
        try:
            with suppress(RuntimeError):  # there is no room for a folder
                compiler._cache = _Cache(function)
        finally:
            settings.CACHE_DIR = before
    return cast("Function", compiler)


def inner(function: Function) -> Function:
    """The function for compiled ones alone, kept as a part of them; called from Python it is Python.

    A way in from Python takes as long to compile as the function itself, and numba compiles what is called
    anew for each number that stands in a call. This has no way in, and is compiled once for each type.
    """
    return register_jitable(nogil=True, no_cfunc_wrapper=True)(function)


def is_at_hand(function: Callable[..., Any]) -> bool:
    """Whether it is compiled: in this process, or kept from another one."""
    compiler: Any = function
    if compiler.signatures:
        return True
    with suppress(AttributeError, OSError):  # nothing is kept
        return any(Path(compiler._cache.cache_path).glob(f"*.{function.__name__}-*.nbc"))
    return False


class _Cache(FunctionCache):
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


@cache
def _folder(module: Path) -> Path | None:
    """Where the compiled code of a module is kept: named by all that it is made of."""
    kept, text = cache_folder(), b"".join(path.read_bytes() for path in sources(module))
    return kept and private_folder(kept / f"compiled-{sha256(text).hexdigest()[:16]}")


def sources(module: Path) -> list[Path]:
    """The files that the compiled code of a module is made of: its own, this one, and where it is imported
    from what its compiled functions and its constants name, and what that is made of in turn."""
    found, waiting = {Path(__file__)}, [module]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named(path)
    return sorted(found)


@cache
def _named(module: Path) -> list[Path]:
    """The files that a module's compiled functions and constants name things of."""
    tree = ast.parse(module.read_bytes())
    names = {
        node.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) or _is_compiled(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    return [
        path
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.level
        for alias in statement.names
        if (alias.asname or alias.name) in names
        for path in _file(module, statement, alias.name)
    ]


def _is_compiled(statement: ast.stmt) -> bool:
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    names = (compiled.__name__, inner.__name__)
    return any(isinstance(each, ast.Name) and each.id in names for each in decorators)


def _file(module: Path, statement: ast.ImportFrom, name: str) -> list[Path]:
    """Of the module that a name is imported from; the name may be that of a module itself."""
    place = module.parents[statement.level - 1].joinpath(*(statement.module or "").split("."))
    files = (place / f"{name}.py", place.with_suffix(".py"), place / "__init__.py")
    return [path for path in files if path.is_file()][:1]
