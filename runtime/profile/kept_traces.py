"""Programs traced for GPUs that are absent, kept on disk: the next command for this model traces nothing.

An entry is found by the hash of all that it depends on and that is known before the model's code runs: the
text of the model file or configuration, the options, the batch, the compute capability, PyTorch, Python,
memplan's own files and the environment variables of PyTorch, CUDA and transformers. It names the files that
the code has read or imported meanwhile, with size and time of their last change, and the environment
variables that it has read, with the hash of each: it holds as long as these are the same. What a model takes
from elsewhere (the clock, the network, random numbers for its own shape) is not seen.

    traces/1f0c…   {"digest": …, "files": {"/…/layers.py": [4711, 1764…]}, "variables": {"LAYERS": "9f86…"},
                   "environment": null}  newline  a pickle

Only this user can write there (graphs/folders/cache.py), or nothing is kept. An entry that is damaged is
made anew; above `MOST` bytes the least recently used ones are removed.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import torch

from ...graphs.errors import InputError
from ...graphs.files.documents import regular_size
from ...graphs.folders.cache import cache_folder, private_folder
from ...graphs.folders.sources import sources_digest
from ..program.program import Program
from ..torch_internals import OpOverload
from .watched_reads import Reads, watched

_log = logging.getLogger(__name__)

MOST = 2**28
"""Limit of the bytes of all entries."""

_OF_THE_SHELL = frozenset(("_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES"))
"""Environment variables that change from command to command and that no model is made of."""

_KNOWN_READERS = (
    *("ATEN", "ATTN", "CUBLAS", "CUDA", "CUDNN", "DNNL", "FLASH", "HF_", "HUGGINGFACE", "LD_", "MKLDNN"),
    *("NCCL", "NVIDIA", "ONEDNN", "PYTHON", "PYTORCH", "TORCH", "TRANSFORMERS", "TRITON", "USE_", "XFORMERS"),
)
"""Beginnings of environment variables that count in any case: PyTorch reads some in C++, or before a trace is
watched."""

T = TypeVar("T")


class KeptTraces:
    """Traces of one model that are kept on disk. path: its file. asked: all options that it depends on."""

    def __init__(self, path: Path, *asked: object) -> None:
        user = cache_folder()
        self._folder = None if user is None else private_folder(user / "traces")
        # MEMPLAN_*: options, of which `asked` has those that matter
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_THE_SHELL and not name.startswith("MEMPLAN_")
        }
        variables = sorted(one for one in self._environment.items() if one[0].startswith(_KNOWN_READERS))
        self._reads = Reads()
        with suppress(OSError, InputError):
            regular_size(path)  # to open a named pipe waits for a writer
            self._key = repr(
                (path.resolve(), path.read_bytes(), asked, variables, sys.version, torch.__version__)
            )
            return
        self._folder = None  # the next reader says why it can't be read

    @contextmanager
    def watching(self) -> Generator[None]:
        """Let all traces depend on what is read in the block."""
        with watched() as reads:
            yield
        self._reads.add(reads)

    def program(self, trace: Callable[[], Program], *asked: object) -> Program:
        """Return what `trace` returns, or has returned before. asked: what else it depends on."""

        def lean() -> Program:
            return replace(trace(), reads=None, used=None, host_part=None)

        return self.value(lean, "program", *asked)

    def value(self, make: Callable[[], T], *asked: object) -> T:
        """Return what `make` returns, or has returned before: what can be pickled, and is never None."""
        if self._folder is None:
            return make()
        text = repr((self._key, sources_digest(), asked))
        place = self._folder / sha256(text.encode()).hexdigest()[:32]
        found = self._read(place)
        _log.debug("kept traces: %s %s", place, "is not there" if found is None else "is used")
        if found is not None:
            return found
        with self.watching():  # an earlier trace's reads count too: what it imported is not imported twice
            made = make()
        with suppress(OSError, pickle.PicklingError, RuntimeError, TypeError, AttributeError):
            self._write(place, made)
            _trim(self._folder)
        return made

    def _read(self, place: Path) -> Any:
        """Return what an entry holds, None if there is none that holds."""
        try:
            head, _newline, body = place.read_bytes().partition(b"\n")
            about = json.loads(head)
            if (
                about["digest"] != sha256(body).hexdigest()
                or about["files"] != _states(about["files"])
                or about["variables"] != self._values(about["variables"])
                or about["environment"] not in (None, _hash(repr(sorted(self._environment.items()))))
            ):
                return None
            made = pickle.loads(body)
            os.utime(place)
        except Exception:  # damaged, or of operators that are not here
            return None
        return made

    def _write(self, place: Path, made: object) -> None:
        stream, reads = BytesIO(), self._reads
        _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(made)
        body = stream.getvalue()
        about = {
            "digest": sha256(body).hexdigest(),
            "files": _states({*map(os.path.abspath, reads.files), *_imported()}),
            "variables": self._values(reads.variables),
            "environment": _hash(repr(sorted(self._environment.items()))) if reads.every_variable else None,
        }
        with NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as file:
            file.write(json.dumps(about).encode() + b"\n" + body)
        os.replace(file.name, place)  # at once: another process may be reading it

    def _values(self, names: Iterable[str]) -> Mapping[str, str | None]:
        """Return the hashes of variables as they were before any code of the model ran, None if unset.

        Code may set a variable and read it then: what it sets follows from the others.
        """
        known = self._environment
        return {name: None if name not in known else _hash(known[name]) for name in sorted(names)}


def _states(paths: Iterable[str]) -> dict[str, list[int]]:
    """Return size and time of the last change of each file that is there."""
    found = dict[str, list[int]]()
    for path in sorted(paths):
        with suppress(OSError):
            about = os.stat(path)
            found[path] = [about.st_size, about.st_mtime_ns]
    return found


def _imported() -> set[str]:
    """Return the files of imported modules, but for Python's, PyTorch's and memplan's own."""
    python, packages = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return {
        file
        for file in files
        if os.path.isabs(file)
        and not file.startswith(own)
        and (file.startswith(packages) or not file.startswith(python))
    }


class _Pickler(pickle.Pickler):
    """Pickler that names PyTorch's operators, by namespace, name and overload."""

    def reducer_override(self, obj: Any) -> Any:
        return (_operator, tuple(str(obj).split("."))) if isinstance(obj, OpOverload) else NotImplemented


def _operator(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _trim(folder: Path) -> None:
    entries = [(about.st_mtime, about.st_size, path) for path in folder.iterdir() if (about := path.stat())]
    left = sum(size for _used, size, _path in entries)
    for _used, size, path in sorted(entries):
        if left <= MOST:
            return
        path.unlink(missing_ok=True)
        left -= size


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()
