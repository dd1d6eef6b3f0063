"""Independent subproblems: solved side by side by joblib, each kept on disk once it is solved.

A function takes a subproblem's content and its seconds, and gives an answer that JSON can carry, and whether
more time would change nothing. Answers are stored under the SHA-256 of the content's `repr`, each as soon as
it is there, written beside and renamed: a solve that is killed takes up where it was. An entry that can't be
read, or whose answer more time might improve on when there is more, is solved again.

Backends: loky (processes on this machine), dask and ray (a cluster: the one that this session is connected
to, else one on this machine). Reference: https://joblib.readthedocs.io.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from joblib import Parallel, delayed, parallel_config

from ..graphs.errors import InputError, MissingPackageError

BACKENDS = ("loky", "dask", "ray")

ENOUGH = 0.8
"""An answer that more time might improve on counts where it had this share of the seconds there are now."""

Solved = tuple[Any, bool]
"""An answer that JSON can carry; whether it is complete: more time would change nothing."""


@dataclass(frozen=True)
class Job:
    """content: what is hashed, by its `repr`."""

    content: Any
    seconds: float


@dataclass(frozen=True)
class Cache:
    """A folder of answers. version: what the answers depend on besides their content."""

    folder: Path
    version: str

    def read(self, job: Job) -> Any:
        """None where there is no answer as good as the job's seconds would give."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            entry = json.loads(self._path(job).read_text())
            if entry["complete"] is True or float(entry["seconds"]) >= ENOUGH * job.seconds:
                return entry["answer"]
        return None

    def write(self, job: Job, solved: Solved) -> None:
        """A disk that is full or read-only costs the entry, not the solve."""
        answer, complete = solved
        path = self._path(job)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as beside:
                json.dump({"complete": complete, "seconds": job.seconds, "answer": answer}, beside)
            os.replace(beside.name, path)

    def _path(self, job: Job) -> Path:
        digest = sha256(f"{self.version}\n{job.content!r}".encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.json"


def cache_of(setting: str, version: str) -> Cache | None:
    """setting: a folder, `off`, or empty for the user's cache folder."""
    if setting.lower() == "off":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(setting or f"{home}/memplan/subproblems").expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"the cache {folder} is not a folder")
    return Cache(folder, version)


def solve_all(
    function: Callable[[Any, float], Solved],
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    backend: str = "loky",
    cache: Cache | None = None,
) -> list[Any]:
    """The answers, in order. Equal jobs are solved once."""
    contents = {repr(job.content): job for job in jobs}
    answers = {key: cache.read(job) if cache else None for key, job in contents.items()}
    missing = {key: job for key, job in contents.items() if answers[key] is None}
    _check(backend)
    if workers == 1 or len(missing) < 2:
        for key, job in missing.items():
            answers[key] = _solve(function, job, cache)
    else:
        with _connected(backend):
            tasks = (delayed(_solve)(function, job, cache) for job in missing.values())
            found = Parallel(n_jobs=workers)(tasks)
        answers |= dict(zip(missing, found, strict=True))
    return [answers[repr(job.content)] for job in jobs]


def _solve(function: Callable[[Any, float], Solved], job: Job, cache: Cache | None) -> Any:
    solved = function(job.content, job.seconds)
    if cache:
        cache.write(job, solved)
    return json.loads(json.dumps(solved[0]))


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}: {', '.join(BACKENDS)}")


@contextmanager
def _connected(backend: str) -> Generator[None]:
    if backend == "dask":
        distributed = _package("dask", "distributed")
        with ExitStack() as own:
            try:
                distributed.get_client()
            except ValueError:
                local = distributed.Client(processes=True, threads_per_worker=1, dashboard_address=None)
                own.enter_context(local)
            own.enter_context(parallel_config(backend="dask"))
            yield
    elif backend == "ray":
        _package("ray", "ray.util.joblib").register_ray()
        with parallel_config(backend="ray"):
            yield
    else:
        with parallel_config(backend="loky", inner_max_num_threads=1):
            yield


def _package(name: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackageError(
            f"the backend {name} needs the package {name}, which is not installed: pip install {name}"
        ) from None
