"""Independent subproblems: solved in parallel by joblib, each kept on disk once it is solved.

A function takes a subproblem's content and its seconds, and gives an answer that JSON can carry, and whether
more time would change nothing. Answers are stored under the SHA-256 of the content's `repr`, each as soon as
it is there, written to another name and renamed: a solve that is killed resumes where it was. An entry that
is not as it was written, or whose answer more time might improve on when there is more, is solved once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from ....graphs.errors import InputError
from ....graphs.folders.cache import user_cache
from ....graphs.folders.private import PrivateFolder
from ...skipped import add_note, collecting
from ...workers.cluster import check_backend, connected
from ...workers.process import end_with

ENOUGH = 0.8
"""Share of the seconds there are now from which on an answer counts, though more time might improve on it."""

MOST_BYTES = 2**26
"""Size above which an entry was not written by memplan."""

Solved = tuple[Any, bool]
"""An answer that JSON can carry; whether it is complete: more time would change nothing."""


@dataclass(frozen=True)
class Job:
    """A subproblem to solve.

    content: what is hashed, by its `repr`.
    seconds: the time limit.
    """

    content: Any
    seconds: float


@dataclass(frozen=True)
class Cache:
    """A folder of answers. version: what the answers depend on besides their content."""

    folder: PrivateFolder
    version: str

    def read(self, job: Job) -> Any:
        """Return the stored answer; None if there is none as good as the job's seconds would give."""
        folder, name = self._place(job)
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            entry = json.loads(folder.read(name, MOST_BYTES) or "null")
            enough = entry["complete"] is True or float(entry["seconds"]) >= ENOUGH * job.seconds
            # The digest finds entries that were cut off or edited.
            if enough and entry["sha256"] == _digest(entry["answer"]):
                return entry["answer"]
        return None

    def write(self, job: Job, solved: Solved) -> None:
        """Store an answer. A disk that is full or read-only costs the entry, not the solve."""
        answer, complete = solved
        folder, name = self._place(job)
        entry = {"complete": complete, "seconds": job.seconds, "sha256": _digest(answer), "answer": answer}
        folder.write(name, json.dumps(entry).encode())

    def _place(self, job: Job) -> tuple[PrivateFolder, str]:
        digest = sha256(f"{self.version}\n{job.content!r}".encode()).hexdigest()
        return self.folder / digest[:2], f"{digest}.json"


def _digest(answer: Any) -> str:
    return sha256(json.dumps(answer).encode()).hexdigest()


def cache_of(setting: str, version: str) -> Cache | None:
    """Return the cache of a setting; None if there is none.

    setting: a folder, `off`, or empty for the user's cache folder.
    version: as in `Cache`.
    """
    if setting.lower() == "off":
        return None
    chosen = Path(os.path.expanduser(setting))
    if setting and chosen.exists() and not chosen.is_dir():
        raise InputError(f"the cache {chosen} is not a folder")
    folder = PrivateFolder(chosen) if setting else user_cache() / "subproblems"
    # Made here, so that a folder that is refused is named once, not by each worker process.
    return None if folder.made() is None else Cache(folder, version)


def solve_all(
    function: Callable[[Any, float], Solved],
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    backend: str = "loky",
    cache: Cache | None = None,
) -> list[Any]:
    """Return the answers, in order. Equal jobs are solved once."""
    # By `repr`, as in the cache: equal clusters are one job.
    contents = {repr(job.content): job for job in jobs}
    answers = {key: cache.read(job) if cache else None for key, job in contents.items()}
    missing = {key: job for key, job in contents.items() if answers[key] is None}
    check_backend(backend)
    if workers == 1 or len(missing) < 2:
        for key, job in missing.items():
            answers[key] = _solve(function, job, cache)
    else:
        with connected(backend):
            # Workers of a cluster may be on another machine, where this number means nothing.
            parent = os.getpid() if backend == "loky" else None
            tasks = (delayed(_solve_apart)(parent, function, job, cache) for job in missing.values())
            found: Any = Parallel(n_jobs=workers)(tasks)
        answers |= dict(zip(missing, (answer for answer, _notes in found), strict=True))
        for note in chain.from_iterable(notes for _answer, notes in found):
            add_note(note)
    return [answers[repr(job.content)] for job in jobs]


def _solve_apart(
    parent: int | None, function: Callable[[Any, float], Solved], job: Job, cache: Cache | None
) -> tuple[Any, list[str]]:
    """Return the answer, and a note for each schedule that was skipped on the way."""
    if parent is not None:
        end_with(parent)
    with collecting() as notes:
        return _solve(function, job, cache), notes


def _solve(function: Callable[[Any, float], Solved], job: Job, cache: Cache | None) -> Any:
    solved = function(job.content, job.seconds)
    if cache:
        cache.write(job, solved)
    # As a cached answer comes: tuples are lists, so that a first solve equals a resumed one.
    return json.loads(json.dumps(solved[0]))
