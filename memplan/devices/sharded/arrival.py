"""The meeting of ranks before they create groups: one whose program has ended by then is named.

Signs of a rank, in the store of the groups and in the default store:

    arrived/RANK   it has come
    left/RANK      the error with which its program ended; empty if without one
    closed/RANK    its process is gone: another rank's connection to it was closed

The default group's gloo part has a connection between each two processes. Each rank receives, from the next
one, a byte that comes when that has its groups: PyTorch fails as soon as the connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import perf_counter, sleep
from typing import TypeVar

import torch
from torch import distributed as dist

from ...graphs.errors import MemplanError
from ...graphs.undisturbed import start_thread
from ...torch_support.torch_processes import connects_processes
from .meshes import default_group
from .signs import in_time, keep, line_of
from .store import SharedStore

_LONGEST_PAUSE = 0.2
"""Seconds between two looks for the others."""

_LAST_WORDS = 2.0
"""Seconds for which a program that ends waits for a store that does not answer, and for which one whose
connection was closed may have said why."""

_UNWATCHED = (
    ', or was killed, which the others know at once by init_process_group("cpu:gloo,cuda:nccl"), not by '
    "NCCL alone"
)
"""End of the line about a rank that did not come, where the default group has no connections to watch."""

_TAG = 1_835_363_696
"""Tag of the first meeting's bytes: none that a program is likely to use itself."""

Result = TypeVar("Result")


class Meeting:
    """The meeting of some ranks, from the arrival of the first until all have their groups."""

    def __init__(self, store: SharedStore, members: Sequence[int], timeout: timedelta, number: int) -> None:
        """Arrive.

        store: of the groups. members: all ranks, by their numbers in the default group. number: of the
        meeting, the same on all ranks.
        """
        self._store, self._left, self._members = store, SharedStore("memplan/left"), members
        self._seconds, self._tag = timeout.total_seconds(), _TAG + number
        self._own = dist.get_rank()
        store.set(f"arrived/{self._own}", "")
        self._watches = len(members) > 1 and connects_processes(default_group())
        if self._watches:
            place = members.index(self._own)
            self._next, self._previous = members[(place + 1) % len(members)], members[place - 1]  # a ring
            start_thread(self._watch, name="memplan arrival")

    def wait(self) -> None:
        """Wait until all ranks have come. Raises MemplanError if one has ended, or after the timeout."""
        begun, missing = perf_counter(), list(self._members)

        def all_are_here() -> bool:
            missing[:] = [rank for rank in missing if not self._store.has(f"arrived/{rank}")]
            if missing and perf_counter() - begun > self._seconds:
                raise MemplanError(
                    f"rank {missing[0]} did not come to memplan.optimize within {self._seconds:g} s: it "
                    "hangs, is still at something else, or does not call it"
                    + ("" if self._watches else _UNWATCHED)
                )
            return not missing

        self._until(all_are_here)

    def create(self, make: Callable[[], Result]) -> Result:
        """Return what `make` creates together with the other ranks. Raises MemplanError if one has ended.

        PyTorch itself would wait for its timeout.
        """
        made, failed = list[Result](), list[BaseException]()

        def create() -> None:
            try:
                made.append(make())
            except BaseException as error:
                failed.append(error)

        thread = start_thread(create, name="memplan groups")
        self._until(lambda: not thread.is_alive())
        if failed:
            raise failed[0]
        return made[0]

    def end(self) -> None:
        """Tell the rank before this one that the groups are there."""
        if self._watches:
            byte = torch.zeros(1, dtype=torch.uint8, device="cpu")
            with suppress(RuntimeError):  # it has ended meanwhile: the next collective tells
                keep(byte, dist.isend(byte, self._previous, tag=self._tag))  # it may take it much later

    def _until(self, is_done: Callable[[], bool]) -> None:
        pause = 1e-3
        while not is_done():
            for rank in self._members:
                self._check(rank)
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self, rank: int) -> None:
        """Raise MemplanError if a rank has ended."""
        if self._left.has(f"{rank}"):
            text = self._left.get(f"{rank}").decode()
            raise MemplanError(
                f"rank {rank} has ended before it came to memplan.optimize"
                + (f": {text}" if text else "; call it on all ranks at once")
            )
        if self._store.has(f"closed/{rank}"):
            raise MemplanError(
                f"rank {rank} has ended, or left the process group, before it came to memplan.optimize: "
                "killed, out of memory, or by an error that its own output shows"
            )

    def _watch(self) -> None:
        """Wait for the next rank's byte, and note if its process ends before."""
        byte = torch.zeros(1, dtype=torch.uint8, device="cpu")
        try:
            dist.recv(byte, self._next, tag=self._tag)
        except (RuntimeError, ValueError) as error:
            if "onnection" not in str(error):  # another error than of a connection says nothing about it
                return
            # A program that ends may still be saying why, which counts more.
            sleep(_LAST_WORDS / 4)
            with suppress(RuntimeError):
                self._store.set(f"closed/{self._next}", "")


def leave(error: BaseException | None) -> None:
    """Note that this rank's program ends. error: with which it does."""
    if dist.is_available() and dist.is_initialized():
        said = "" if error is None else line_of(error)
        with suppress(RuntimeError):  # the store's process may have ended, or be stopped
            in_time(partial(_note, said), _LAST_WORDS)


def _note(said: str) -> None:
    SharedStore("memplan/left").set(f"{dist.get_rank()}", said)
