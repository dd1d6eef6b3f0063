"""Programs traced for GPUs that are absent, kept on disk: the next command for this model traces nothing.

An entry is found by the hash of all that it depends on and that is known before the model's code runs: the
text of the model file or configuration, the options, the batch, the compute capability, PyTorch, Python,
memplan's own files and the environment variables of PyTorch, CUDA and transformers. It names the files that
the code has read or imported meanwhile, with size and time of their last change, and the environment
variables that it has read, with the hash of each: it holds as long as these are the same. What a model takes
from elsewhere (the clock, the network, random numbers for its own shape) is not seen.

    traces/1f0c…   {"digest": …, "files": {"/…/layers.py": [4711, 1764…]}, "variables": {"LAYERS": "9f86…"},
                   "environment": null}  newline  the program as JSON (saved_program.py)

Only this user can write there (graphs/folders/private.py), or nothing is kept. An entry that is damaged is
made anew; above `MOST` bytes the least recently used ones are removed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...devices.absent_gpu.capability import Capability
from ...devices.absent_gpu.questions import all_kinds
from ...graphs.errors import InputError
from ...graphs.files.documents import regular_size
from ...graphs.folders.cache import user_cache
from ...graphs.folders.sources import sources_digest
from .estimate import Traced
from .saved_program import UnsavableError, program_from_document, program_to_document
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
    """Traces of one model that are kept on disk.

    path: its file. asked: all options that it depends on. environment: variables before any code of the model
    has run, None: those of now.
    """

    def __init__(self, path: Path, *asked: object, environment: Mapping[str, str] | None = None) -> None:
        self._path, self._folder = path, user_cache() / "traces"
        # MEMPLAN_*: options, of which `asked` has those that matter
        self._environment = {
            name: value
            for name, value in (os.environ if environment is None else environment).items()
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
        self._key = None  # it can't be read: the next reader says why

    def with_options(self, *asked: object) -> KeptTraces:
        """Return the traces with other options; they too depend on all that was read so far."""
        # Packages set variables when they are imported, and another command may not import them.
        others = KeptTraces(self._path, *asked, environment=self._environment)
        others._reads.add(self._reads)
        return others

    @contextmanager
    def watching(self) -> Generator[None]:
        """Let all traces depend on what is read in the block."""
        with watched() as reads:
            yield
        self._reads.add(reads)

    def trace(self, make: Callable[[], Traced], batch: int, kind: Capability) -> Traced:
        """Return the trace of a batch that `make` returns, or has returned before.

        kind: the capability it is for. A trace for another one is taken if it holds for this one too.
        """
        if self._key is None:
            return make()
        for one in sorted(all_kinds() | {kind}, key=lambda one: one != kind):
            found = self._read(self._name("trace", batch, one), partial(_trace_of, kind))
            if found is not None:
                return found
        with self.watching():  # an earlier trace's reads count too: what it imported is not imported twice
            program, kinds = make()
        made = Traced(replace(program, reads=None, used=None, host_part=None), kinds)
        with suppress(UnsavableError):
            document = {"kinds": sorted(kinds), **program_to_document(made.program)}
            self._keep(document, "trace", batch, kind)
        return made

    def value(
        self, make: Callable[[], T], written: Callable[[T], Any], read: Callable[[Any], T], *asked: object
    ) -> T:
        """Return what `make` returns, or has returned before.

        written, read: to what JSON can carry, and back.
        """
        if self._key is None:
            return make()
        found = self._read(self._name(*asked), read)
        if found is not None:
            return found
        with self.watching():
            made = make()
        self._keep(written(made), *asked)
        return made

    def _name(self, *asked: object) -> str:
        """Return the name of an entry. asked: what it depends on besides the model and its options."""
        return sha256(repr((self._key, sources_digest(), asked)).encode()).hexdigest()[:32]

    def _keep(self, document: Any, *asked: object) -> None:
        with suppress(OSError, ValueError):
            self._write(self._name(*asked), document)
            self._trim()

    def _read(self, name: str, read: Callable[[Any], T]) -> T | None:
        """Return what an entry holds, None if there is none that holds."""
        found = self._holding(name, read)
        _log.debug("kept traces: %s %s", name, "is not there" if found is None else "is used")
        return found

    def _holding(self, name: str, read: Callable[[Any], T]) -> T | None:
        try:
            head, _newline, body = (self._folder.read(name) or b"").partition(b"\n")
            about = json.loads(head or "null")
            if (
                about is None
                or about["name"] != name
                or about["digest"] != sha256(body).hexdigest()
                or about["files"] != _states(about["files"])
                or about["variables"] != self._values(about["variables"])
                or about["environment"] not in (None, _hash(repr(sorted(self._environment.items()))))
            ):
                return None
            made = read(json.loads(body))
            if (folder := self._folder.existing()) is not None:
                # Its time is that of its last use, by which _trim sorts.
                os.utime(folder / name)
        except Exception:  # damaged, or of operators that are not here
            return None
        return made

    def _write(self, name: str, document: Any) -> None:
        body, reads = json.dumps(document, separators=(",", ":")).encode(), self._reads
        about = {
            "name": name,
            "digest": sha256(body).hexdigest(),
            "files": _states({*map(os.path.abspath, reads.files), *_imported()}),
            "variables": self._values(reads.variables),
            "environment": _hash(repr(sorted(self._environment.items()))) if reads.every_variable else None,
        }
        self._folder.write(name, json.dumps(about).encode() + b"\n" + body)

    def _trim(self) -> None:
        folder = self._folder.existing()
        paths = () if folder is None else folder.iterdir()
        entries = [(about.st_mtime, about.st_size, path) for path in paths if (about := path.stat())]
        left = sum(size for _used, size, _path in entries)
        for _used, size, path in sorted(entries):
            if left <= MOST:
                return
            path.unlink(missing_ok=True)
            left -= size

    def _values(self, names: Iterable[str]) -> Mapping[str, str | None]:
        """Return the hashes of variables as they were before any code of the model ran, None if unset.

        Code may set a variable and read it then: what it sets follows from the others.
        """
        known = self._environment
        return {name: None if name not in known else _hash(known[name]) for name in sorted(names)}


def _trace_of(kind: Capability, document: Any) -> Traced:
    """Return the trace of a document. Raises ValueError if it does not hold for GPUs of this kind."""
    kinds = frozenset(Capability(*one) for one in document["kinds"])
    if kind not in kinds:
        raise ValueError(f"it is for {document['kinds']}")
    return Traced(program_from_document(document), kinds)


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
        # site-packages may lie within the folder of Python's own modules.
        and (file.startswith(packages) or not file.startswith(python))
    }


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()
