"""The meeting of ranks before they create groups: one whose program has ended by then is named.

Signs of a rank, in the store of the groups and in the default store:

    arrived/RANK   it has come
    left/RANK      the error with which its program ended; empty if without one
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from time import perf_counter, sleep

from torch import distributed as dist

from ...graphs.errors import MemplanError
from ..torch_internals import default_store
from .signs import in_time, line_of

_LONGEST_PAUSE = 0.2
"""Seconds between two looks for the others."""

_LAST_WORDS = 2.0
"""Seconds for which a program that ends waits for a store that does not answer."""


def meet(store: dist.Store, own: int, members: Sequence[int], timeout: timedelta) -> None:
    """Wait until all ranks have come.

    store: of their groups. own: this rank's number in the default group; members: those of all.

    Raises MemplanError if the program of one has ended, or after the timeout.
    """
    store.set(f"arrived/{own}", "")
    left, seconds = _left(), timeout.total_seconds()
    begun, pause, missing = perf_counter(), 1e-3, list(members)
    while missing := [rank for rank in missing if not store.check([f"arrived/{rank}"])]:
        for rank in missing:
            if left.check([f"{rank}"]):
                text = left.get(f"{rank}").decode()
                raise MemplanError(
                    f"rank {rank} has ended before it came to memplan.optimize"
                    + (f": {text}" if text else "; call it on all ranks at once")
                )
        if perf_counter() - begun > seconds:
            raise MemplanError(
                f"rank {missing[0]} did not come to memplan.optimize within {seconds:g} s: call it on all "
                "ranks at once, with equal modules"
            )
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def leave(error: BaseException | None) -> None:
    """Note that this rank's program ends. error: with which it does."""
    if dist.is_available() and dist.is_initialized():
        said = "" if error is None else line_of(error)
        with suppress(RuntimeError):  # the store's process may have ended, or be stopped
            in_time(partial(_left().set, f"{dist.get_rank()}", said), _LAST_WORDS)


def _left() -> dist.Store:
    return dist.PrefixStore("memplan/left", default_store())
