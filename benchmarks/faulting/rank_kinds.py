"""The kinds of faults on two ranks: what is not as planned on one, from when on, and what must happen.

goes on   on both ranks, to the end, with eager PyTorch's bits within each rank's budget
replans   a line says so, of each rank that plans anew; the plan is as fast as a fresh one for what is there
ends      here by the fault's own error, on the other by one line that names this rank; neither waits, and
          weights are those of an iteration's end, or refused until others are loaded
refuses   both by one line, and go on
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from enum import Flag, auto
from threading import Timer
from time import sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch
from failing_operations import FailingAt
from memplan.devices.sharded.communicator import Communicator
from memplan.devices.storage import disk, host_buffers
from memplan.model.processes import Processes
from memplan.training.ranks import together

from .kinds import disk_error, late, link, no_memory, no_thread, nothing, one_way, slower

if TYPE_CHECKING:
    from .on_ranks import RankTrial

RankFault = Callable[[Any], AbstractContextManager[Any]]
"""Makes, of a rank's trial, a context in which the machine is not as planned."""

PLANNED = "planned for those"
"""Part of the line about a plan for less host memory."""

NO_PLAN = "no plan for so little was found"
"""Part of the line about a memory for which no plan is small enough."""

REPEATED = "is repeated by"
"""Part of the line about an iteration that has failed before others took part in it."""

STOPPED = 2
"""Seconds for which a rank is stopped."""


class May(Flag):
    """Outcomes that a fault may have."""

    GO_ON = auto()
    REPLAN = auto()
    END = auto()
    REFUSE = auto()


class RankKind(NamedTuple):
    """A kind of fault on one of two ranks.

    ddp, fsdp: what may become of DistributedDataParallel, whose ranks have plans of their own, and of FSDP2,
    whose ranks run one. at: the rank. before: planning finds it, it does not come later.
    says: a part of the line about it. refusal: of that of a refusal. named: of that of the rank that it ends.
    counted: times are counted (counted_ranks.py). compares: a fresh plan is asked for, and every rank's line.
    disk: plans have one, and half of the host memory that they would take. lasts: iterations, 0 for good.
    """

    name: str
    ddp: May
    fsdp: May
    fault: RankFault
    at: int = 1
    before: bool = False
    says: str = ""
    refusal: str = ""
    named: str = "rank {at} of 2 has failed"
    counted: bool = False
    compares: bool = False
    disk: bool = False
    lasts: int = 0


def little_host(share: float) -> RankFault:
    """The ranks' node has a share of what their plans take there, as this rank sees it."""

    def fault(trial: RankTrial) -> AbstractContextManager[Any]:
        trial.host_bytes = int(share * trial.needed)
        there = trial.host_bytes * trial.on_node
        return _all(patch.object(module, "available_bytes", lambda: there) for module in _LOOKING)

    return fault


_LOOKING = (host_buffers, together)


@contextmanager
def _all(contexts: Any) -> Generator[None]:
    entered = list(contexts)
    for each in entered:
        each.__enter__()
    try:
        yield
    finally:
        for each in reversed(entered):
            each.__exit__(None, None, None)


def smaller_budget(trial: RankTrial) -> AbstractContextManager[Any]:
    return patch.object(trial, "budget", "85%")


class Slow(FailingAt):
    """Operations of which each takes a while longer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sleep(1e-4)
        return func(*args, **(kwargs or {}))


def slow(_trial: RankTrial) -> AbstractContextManager[Any]:
    return patch.object(FailingAt, "now", Slow())


def no_room(trial: RankTrial) -> AbstractContextManager[Any]:
    """An operation finds no memory, a random one of an iteration."""
    number = trial.chance.randrange(1, trial.operations)
    return patch.object(FailingAt, "now", FailingAt(number, torch.OutOfMemoryError))


def no_room_at_first(_trial: RankTrial) -> AbstractContextManager[Any]:
    return patch.object(FailingAt, "now", FailingAt(1, torch.OutOfMemoryError))


def late_collectives(trial: RankTrial) -> AbstractContextManager[Any]:
    def later(owner: Any, name: str) -> AbstractContextManager[Any]:
        function = getattr(owner, name)

        def run(*given: Any, **named: Any) -> Any:
            if trial.chance.random() < 0.2:
                sleep(trial.chance.random() * 5e-3)
            return function(*given, **named)

        return patch.object(owner, name, run)

    names = ("gather", "scatter", "average", "add_up")
    return _all([later(Processes, "_run"), *(later(Communicator, name) for name in names)])


@contextmanager
def _soon(trial: RankTrial, number: int) -> Generator[None]:
    """Send this process a signal, at a random moment of the next iterations."""
    timer = Timer(3 * trial.chance.random() * trial.seconds, os.kill, (os.getpid(), number))
    timer.start()
    yield
    timer.cancel()


def interrupted(trial: RankTrial) -> AbstractContextManager[Any]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    return _soon(trial, signal.SIGINT)


def killed(trial: RankTrial) -> AbstractContextManager[Any]:
    return _soon(trial, signal.SIGKILL)


@contextmanager
def stopped(trial: RankTrial) -> Generator[None]:
    subprocess.Popen(["sh", "-c", f"sleep {STOPPED}; kill -CONT {os.getpid()}"])
    with _soon(trial, signal.SIGSTOP):
        yield


def damaged(trial: RankTrial) -> AbstractContextManager[Any]:
    """The data loader fails, between two iterations."""

    def batch(_turn: int) -> Any:
        raise OSError("sample 17 is damaged")

    return patch.object(trial, "batch", batch)


def other_shape(trial: RankTrial) -> AbstractContextManager[Any]:
    return patch.object(trial, "halved", trial.turn)


def slow_disk(factor: float) -> RankFault:
    return lambda trial: patch.multiple(trial.counted, disk_rate=factor * trial.counted.disk_rate)


def half_disk(trial: RankTrial) -> AbstractContextManager[Any]:
    """The disk has half of what a plan takes there, as this rank sees it."""
    assert trial.counted is not None
    trial.counted.disk_bytes = free = trial.needed_disk // 2
    return patch.object(disk, "shutil", SimpleNamespace(disk_usage=lambda _where: SimpleNamespace(free=free)))


def _slow(name: str, fault: RankFault, **more: Any) -> RankKind:
    """Return a kind of which iterations become slower: all ranks name this one, and plan anew."""
    more = {"counted": True, "compares": True, **more}
    return RankKind(name, _GO_ON | _REPLAN, _GO_ON | _REPLAN, fault, says="rank 1 of 2 is slower", **more)


def _on_disk(name: str, ddp: May, fsdp: May, fault: RankFault, **more: Any) -> RankKind:
    return RankKind(name, ddp, fsdp, fault, counted=True, disk=True, **more)


_IO, _FULL, _ALWAYS = errno.EIO, errno.ENOSPC, 10**9
_GO_ON, _REPLAN, _END, _REFUSE = May.GO_ON, May.REPLAN, May.END, May.REFUSE

RANK_KINDS = {
    each.name: each
    for each in (
        RankKind("as planned", _GO_ON, _GO_ON, nothing),
        RankKind(
            "three quarters of the host memory on a rank",
            _GO_ON | _REPLAN | _REFUSE,
            _GO_ON | _REPLAN | _REFUSE,
            little_host(0.75),
            before=True,
            says=PLANNED,
            refusal=NO_PLAN,
        ),
        RankKind(
            "half of the host memory on the first rank",
            _GO_ON | _REPLAN | _REFUSE,
            _GO_ON | _REPLAN | _REFUSE,
            little_host(0.5),
            at=0,
            before=True,
            says=PLANNED,
            refusal=NO_PLAN,
        ),
        RankKind(
            "a smaller budget on a rank", _GO_ON, _REFUSE, smaller_budget, before=True, refusal="budget="
        ),
        RankKind(
            "a block of host memory is refused on a rank",
            _GO_ON | _REPLAN | _END,
            _GO_ON | _END,  # a plan may take all of its blocks in the first iteration
            no_memory,
            says=REPEATED,
        ),
        RankKind(
            "an operation on a rank finds no memory", _GO_ON | _REPLAN | _END, _END, no_room, says=REPEATED
        ),
        RankKind(
            "the first operation on a rank finds no memory",
            _REPLAN | _END,
            _END,
            no_room_at_first,
            says=REPEATED,
        ),
        RankKind("a rank's operations are slower", _GO_ON, _GO_ON, slow),
        RankKind("a rank's collectives begin late", _GO_ON, _GO_ON, late_collectives),
        RankKind("a rank's copies and updates start late", _GO_ON, _GO_ON, late),
        RankKind("no thread can be started on a rank", _GO_ON, _GO_ON, no_thread, before=True),
        RankKind("a rank's batch has another shape", _GO_ON, _REFUSE, other_shape, refusal="different forms"),
        RankKind("a rank is stopped for two seconds", _GO_ON, _GO_ON, stopped),
        RankKind("Ctrl-C on a rank", _END, _END, interrupted),
        RankKind("a rank's data loader fails", _END, _END, damaged),
        RankKind("as planned, counted", _GO_ON, _GO_ON, nothing, counted=True, compares=True),
        _slow("a rank's operations take twice as long", slower(2.0)),
        _slow("a rank's link at half its rate", link(0.5)),
        _slow("one direction of a rank's link at a third", one_way(1 / 3)),
        _slow("a rank's link at a tenth for a while", link(0.1), lasts=60),
        _slow("a rank's disk at a tenth of its rate", slow_disk(0.1), disk=True),
        _on_disk("half of the disk on a rank", _REPLAN, _REPLAN, half_disk, before=True, says=PLANNED),
        _on_disk(
            "a write on a rank finds the disk full",
            _GO_ON | _REPLAN | _END,
            _GO_ON | _END,
            disk_error("write", _FULL, 1),
            says=REPEATED,
        ),
        _on_disk("a read of a rank's disk fails once", _GO_ON, _GO_ON, disk_error("read", _IO, 1)),
        _on_disk(
            "all reads of a rank's disk fail", _GO_ON | _END, _GO_ON | _END, disk_error("read", _IO, _ALWAYS)
        ),
        RankKind("a rank is killed", _END, _END, killed, named="rank {at} of 2 ended without an error"),
    )
}
