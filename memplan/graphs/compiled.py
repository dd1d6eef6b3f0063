"""Numba's compiler, with a cache that notices a change in any of the files that are compiled together.

Numba names cached code by the path of the file that defines a function, and misses changes in the
functions that it calls. Here each module has a folder, in the user's cache or in NUMBA_CACHE_DIR, named by
the hash of all sources that its compiled code is made of, found by imports. So nothing stale is run, other
copies of the same sources share the code, and a package that is installed read-only compiles once as well.

Numba's files are pickles, and reading one runs code: so they are only in a folder that nobody else can write
(folders/private.py); without such a folder nothing is kept. What is broken there, by a full disk or a process
that was killed, is recompiled.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from .folders.cache import user_cache
from .folders.private import PrivateFolder
from .undisturbed import undisturbed

with undisturbed():
    from numba import config, njit
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
    from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function, to be compiled when first called; other threads run meanwhile (`nogil`).

    A function that Python calls and that takes long returns a number or nothing, and writes the rest into
    arrays. To create an object compiled code calls Python, where a pending Ctrl-C is raised, and then
    crashes.
    """
    compiler: Any = njit(nogil=True)(function)
    compiler._cache = _Cache(function)
    # Numba imports more of itself when it compiles, or loads compiled code, for the first time.
    compiler._compile_for_args = undisturbed()(compiler._compile_for_args)
    return cast("Function", compiler)


def inner(function: Function) -> Function:
    """Mark a function for use by compiled ones alone, compiled as a part of them.

    Called from Python it is Python.
    An entry point from Python takes as long to compile as the function itself, and numba recompiles what is
    called for each literal number in a call. This has no entry point, and is compiled once for each
    type.
    """
    return register_jitable(nogil=True, no_cfunc_wrapper=True)(function)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Tell whether the code of a compiled function exists: in this process, or kept from another one."""
    compiler: Any = function
    if compiler.signatures:
        return True
    folder = compiler._cache.folder.existing()
    # Numba's data files: MODULE.FUNCTION-DISAMBIGUATOR…, with one `.nbc` for each signature.
    return folder is not None and any(folder.glob(f"*.{function.__name__}-*.nbc"))


class _Locator(_CacheLocator):
    """The folder of a module's compiled code, and what names a function in it."""

    def __init__(self, function: Any, folder: PrivateFolder) -> None:
        self._line, self.folder = function.__code__.co_firstlineno, folder

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator | None:
        return cls(py_func, _folder(Path(py_file)))

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder is made when a file is written to it."""

    def get_cache_path(self) -> Any:
        return str(self.folder.path or "")

    def get_source_stamp(self) -> Any:
        return self.folder.path and self.folder.path.name  # the hash of the sources

    def get_disambiguator(self) -> Any:
        return str(self._line)  # for functions of one name in a module


class _CompileResults(CompileResultCacheImpl):
    _locator_classes: ClassVar = [_Locator]


class _Files(IndexDataCacheFile):
    """Numba's files of one function, read and written through a private folder."""

    def __init__(self, folder: PrivateFolder, filename_base: str, source_stamp: Any) -> None:
        super().__init__(str(folder.path or ""), filename_base, source_stamp)
        self._folder = folder

    def _load_index(self) -> Any:
        stream = BytesIO(self._folder.read(self._index_name) or b"")
        # Two pickles in a row, as Numba writes them: its version, then the stamp with the overloads.
        if not stream.getvalue() or pickle.load(stream) != self._version:
            return {}
        stamp, overloads = pickle.load(stream)
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        found = self._folder.read(name)
        if found is None:
            raise FileNotFoundError(name)
        return pickle.loads(found)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Generator[Any]:
        stream = BytesIO()
        yield stream
        self._folder.write(Path(filepath).name, stream.getvalue())


class _Cache(FunctionCache):
    """Numba's cache of one function. A fault of the cache does not stop the program."""

    _impl_class = _CompileResults

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        own = cast("Any", self._impl)
        locator: _Locator = own.locator
        self.folder = locator.folder
        self._cache_file = _Files(self.folder, str(own.filename_base), locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code kept for the signature.

        None if there is none, or if it is broken or another signature's.
        """
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
def _folder(module: Path) -> PrivateFolder:
    """Return the folder of a module's compiled code.

    Its name is the hash of the module's name and of all sources that its compiled code is made of.
    """
    text = b"".join([module.name.encode(), *(path.read_bytes() for path in sources(module))])
    return code_folder() / f"compiled-{sha256(text).hexdigest()[:16]}"


def code_folder() -> PrivateFolder:
    """Return the folder of all compiled code."""
    chosen: str = cast("Any", config).CACHE_DIR
    return PrivateFolder(Path(chosen)) if chosen else user_cache()


def sources(module: Path) -> list[Path]:
    """Return the files that the compiled code of a module is made of.

    These are its own, this one, those that its compiled functions and constants import from, and what these
    are made of in turn.
    """
    found, waiting = {Path(__file__)}, [module]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _named(path)
    return sorted(found)


@cache
def _named(module: Path) -> list[Path]:
    """Return the files that define what a module's compiled functions and constants name."""
    tree = ast.parse(module.read_bytes())
    names = {
        node.id
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) or _is_marked(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    return [
        path
        for statement in tree.body
        # Relative imports alone lead to memplan's files.
        if isinstance(statement, ast.ImportFrom) and statement.level
        for alias in statement.names
        if (alias.asname or alias.name) in names
        for path in _file(module, statement, alias.name)
    ]


def _is_marked(statement: ast.stmt) -> bool:
    decorators = statement.decorator_list if isinstance(statement, ast.FunctionDef) else []
    names = (compiled.__name__, inner.__name__)
    return any(isinstance(each, ast.Name) and each.id in names for each in decorators)


def _file(module: Path, statement: ast.ImportFrom, name: str) -> list[Path]:
    """Return the file of the module that a name is imported from; the name may be that of a module itself."""
    place = module.parents[statement.level - 1].joinpath(*(statement.module or "").split("."))
    files = (place / f"{name}.py", place.with_suffix(".py"), place / "__init__.py")
    return [path for path in files if path.is_file()][:1]
