"""Signs that ranks leave for each other in the store over which they have met: why one has failed, that it
looks for a lost one, and that it is alive.

    failed/RANK   its error; empty once it goes on
    lost          one is lost: each rank is to look for it
    here/RANK     it has lost another, and answers: `late` if a collective has timed out
    beat/RANK     a number that grows while it plans or saves, however long that takes
    silent        a rank has given no sign of life for too long
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from threading import Event, Lock
from time import perf_counter, sleep
from typing import Any, TypeVar

from torch import Tensor
from torch import distributed as dist

from ...graphs.undisturbed import start_thread
from .store import LOST, SharedStore, StoreLostError

_PATIENCE = 10.0
"""Seconds in which ranks answer once they have lost one."""

_LAST_WORDS = 3.0
"""Seconds for which rank 0 stays for others to read with what error its program ends."""

_BEAT = 2.0
"""Seconds between two signs of life."""

_LOOK = timedelta(seconds=1)
"""Between two looks of a rank that waits for a collective."""

_SILENCE = 30.0
"""Seconds without a sign of life after which a rank counts as hanging, if its group's timeout is less."""

Result = TypeVar("Result")

_NETWORK = re.compile(
    r"gloo|nccl|connect|socket|pipe|peer|timed? ?out|abort|process group|\brank \d", re.IGNORECASE
)
"""Words of gloo's errors, which have no class of their own."""

_CPP_PLACE = re.compile(r"^\[(enforce fail at )?\S+:\d+\] (err == 0\. )?")


class Signs:
    """The signs that this rank leaves, and those of the others. timeout: of the ranks' collectives."""

    def __init__(self, store: SharedStore, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._seconds = timeout.total_seconds()
        self._waited = f"{self._seconds:g} s"
        self._silence = max(self._seconds, _SILENCE)
        self._has_failed = False
        self._beats, self._beating, self._changing = count(), 0, Lock()
        self._ended = Event()
        self._waits, self._waits_end = list[str](), Event()
        self._is_late = False

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────

    def fail(self, error: BaseException) -> None:
        """Note why this rank may not come to the next collective."""
        self._has_failed = True
        self._set("failed", line_of(error))

    def go_on(self) -> None:
        """Take the note back: this rank has come."""
        if self._has_failed:
            self._has_failed = False
            self._set("failed", "")

    def await_readers(self) -> None:
        """Let the others read rank 0's note, before its program ends: the store may be its own."""
        if self._rank or not self._has_failed:
            return
        end, others = perf_counter() + _LAST_WORDS, range(1, self._size)
        with suppress(RuntimeError):
            while perf_counter() < end and not all(self._is_there(x) or self._error(x) for x in others):
                sleep(0.05)

    def find_lost(self, error: Exception, pause: float) -> str:
        """Return which rank has failed, by its own note, or by its silence while the others answer.

        error: of a collective. pause: seconds in which this rank came to none before.
        """
        search, self._is_late = partial(self._search, error, pause), "imed out" in str(error)
        try:
            found = in_time(search, 2 * _PATIENCE)
        except RuntimeError:
            found = self._without_store(pause)
        if isinstance(found, str):
            return found
        names = " and ".join(f"rank {rank}" for rank in found) + f" of {self._size}"
        if isinstance(error, SilentError):
            return f"{names} gave no sign of life for {self._silence:g} s: it hangs, or is stopped"
        if self._is_late:
            return f"{names} did not come to a collective within {self._waited}: it hangs, or waits"
        return (
            f"{names} ended without an error: killed, or out of memory, or its program ended before those of "
            "the others"
        )

    def _without_store(self, pause: float) -> str:
        """Return what is known if the process with the store, rank 0 or torchrun's, does not answer."""
        if pause > self._seconds:
            return f"{self._came_late(pause)}: they have ended"
        return LOST

    def _came_late(self, pause: float) -> str:
        return (
            f"this rank came to a collective {pause:.0f} s after its last one, and the others wait for "
            f"{self._waited}"
        )

    def _search(self, error: Exception, pause: float) -> str | list[int]:
        """Return which rank has failed, and how, or the silent ones."""
        others, silent = [rank for rank in range(self._size) if rank != self._rank], list[int]()
        if pause > self._seconds and any(self._answer(rank) == b"late" for rank in others):
            return f"{self._came_late(pause)}: they have given up"
        self._store.set(f"here/{self._rank}", "late" if self._is_late else "")
        end = perf_counter() + _PATIENCE
        while perf_counter() < end:
            for rank in others:
                if text := self._error(rank):
                    return f"rank {rank} of {self._size} has failed: {text}"
            silent = [rank for rank in others if not self._is_there(rank)]
            if not silent:
                break
            sleep(0.1)
        # Another rank may have waited for the lost one, and ended this one's collective.
        answers = (self._store.get(f"here/{rank}") for rank in others if rank not in silent)
        self._is_late = self._is_late or b"late" in answers
        return silent or self._all_there(error)

    def _all_there(self, error: Exception) -> str:
        if self._is_late or isinstance(error, SilentError):
            return (
                f"the {self._size} ranks did not come to one collective within {self._waited}, and none has "
                "ended: one waits in a call that the others do not make"
            )
        return f"the network between the ranks has failed: {line_of(error)}"

    def call_to_search(self) -> None:
        """Have all ranks look for the lost one."""
        with suppress(RuntimeError):
            self._store.set("lost", "")

    def wait_or_search(self, work: Any) -> None:
        """Wait for a collective. Raises RuntimeError if it fails, or if a rank is lost meanwhile."""
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises its own error
                    return
                if self._store.has("lost"):  # else only this look has timed out
                    raise RuntimeError("the process group has lost a rank") from None

    # ── signs of life ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def beating(self) -> Generator[None]:
        """Give signs of life meanwhile: other ranks wait for this one longer than for a collective."""
        with self._changing:
            self._beating += 1
            if self._beating == 1:
                self._ended = Event()  # a new one: the last thread may still have to see its own
                start_thread(self._beat, self._ended, name="memplan beat")
        try:
            yield
        finally:
            with self._changing:
                self._beating -= 1
                if not self._beating:
                    self._ended.set()

    def _beat(self, ended: Event) -> None:
        while not ended.is_set():
            self._set("beat", str(next(self._beats)))
            ended.wait(_BEAT)

    def wait(self, work: Any, *tensors: Tensor | None) -> None:
        """Wait for a collective for which a living rank may need long. Raises SilentError for a silent one.

        Each rank watches the next one alone, and tells the others.

        tensors: those that the collective reads and writes.
        """
        watched = f"beat/{(self._rank + 1) % self._size}"
        begun, looked, known, pause = perf_counter(), perf_counter(), b"", 1e-4
        self._waits.append(watched)
        try:
            while not work.is_completed():
                sleep(pause)
                pause = min(2 * pause, 0.05)
                now, lost = perf_counter(), self._waits_end.is_set()
                if now - looked < _BEAT and not lost:
                    continue
                looked, found = now, known
                try:
                    if not lost:
                        found, lost = in_time(partial(self._look, watched), self._silence)
                except RuntimeError:
                    lost = True
                if found != known:  # a number that stays is no sign of life
                    begun, known = now, found
                if lost or now - begun > self._silence:
                    keep(work, *tensors)  # a silent rank may wake up, and send
                    if not lost:
                        self._store.set("silent", "")
                    raise SilentError(watched)
        finally:
            self._waits.pop()  # whichever: their number counts
        work.wait()

    def end_waits(self) -> bool:
        """End the waits of all threads, here and on the other ranks. Returns whether there are any here:
        gloo goes on with their collectives, and their groups can't end before.
        """
        self._waits_end.set()
        if waits := bool(self._waits):
            with suppress(RuntimeError):
                in_time(partial(self._store.set, "silent", ""), _BEAT)
        return waits

    def _look(self, watched: str) -> tuple[bytes, bool]:
        """Return a rank's last sign of life, and whether some rank has found another silent."""
        beat = self._store.get(watched) if self._store.has(watched) else b""
        return beat, self._store.has("silent")

    # ── the store ───────────────────────────────────────────────────────────────────────────────────

    def _set(self, what: str, text: str) -> None:
        with suppress(RuntimeError):
            self._store.set(f"{what}/{self._rank}", text)

    def _is_there(self, rank: int) -> bool:
        return self._store.has(f"here/{rank}")

    def _answer(self, rank: int) -> bytes:
        return self._store.get(f"here/{rank}") if self._is_there(rank) else b""

    def _error(self, rank: int) -> str:
        return self._store.get(f"failed/{rank}").decode() if self._store.has(f"failed/{rank}") else ""


class SilentError(RuntimeError):
    """Error of a wait for a rank that gives no sign of life."""


def is_of_network(error: Exception) -> bool:
    """Tell whether an error of a collective is one of its group, and not of this process alone.

    Its class says so. gloo's have none of their own: of a bare RuntimeError the words say it.
    """
    if isinstance(error, SilentError | StoreLostError | dist.DistError):
        return True
    return type(error) is RuntimeError and _NETWORK.search(str(error)) is not None


def in_time(ask: Callable[[], Result], seconds: float) -> Result:
    """Return what the store answers. Raises RuntimeError if it does not: its process may be stopped."""
    found: list[Result] = []

    def answer() -> None:
        with suppress(RuntimeError):
            found.append(ask())

    thread = start_thread(answer, name="memplan answer")
    thread.join(seconds)
    if not found:
        raise RuntimeError("the store does not answer")
    return found[0]


def keep(*objects: object) -> None:
    """Keep objects until the process is gone: gloo's thread uses them, and can't be stopped."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def line_of(error: BaseException) -> str:
    """Return an error as one line, without the place in C++ that raised it."""
    return " ".join(_CPP_PLACE.sub("", str(error)).split()) or type(error).__name__
