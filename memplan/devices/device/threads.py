"""Number of processors for updates on the host: all but two of those that PyTorch may use, at least one.

Two are left to the thread that gives operations to the device and to those that copy. The number holds for a
thread: OpenMP has one for each, but PyTorch gives new threads the one that was set last, so it is set back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch

from ...graphs.undisturbed import start_thread

_LEFT = 2

Result = TypeVar("Result")


def update_threads() -> int:
    """Return the number of threads for updates on the host, at least 1.

    It is at most what OMP_NUM_THREADS or `torch.set_num_threads` allows the caller, and two less than the
    processors that this process may run on.
    """
    return max(1, min(torch.get_num_threads(), processors() - _LEFT))


def processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_threads(number: int) -> None:
    """Set the number of threads of PyTorch's operations in the calling thread.

    Other threads, new ones too, keep their number.
    """
    others = torch.get_num_threads()
    if number != others:
        torch.set_num_threads(number)
        _in_thread(lambda: torch.set_num_threads(others))


def as_updates_run(work: Callable[[], Result]) -> Result:
    """Run the work in a thread with as many processors as updates on the host have."""
    number, made = update_threads(), list[Result]()

    def limited() -> None:
        use_threads(number)
        made.append(work())

    _in_thread(limited)
    return made[0]


def _in_thread(work: Callable[[], object]) -> None:
    """Run the work in a thread and wait until it has ended. Raises what it raises."""
    raised = list[BaseException]()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = start_thread(run, name="memplan processors", daemon=False)
    thread.join()
    if raised:
        raise raised[0]
