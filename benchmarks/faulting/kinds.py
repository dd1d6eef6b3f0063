"""The kinds of faults: what is not as planned, from when on, and what must happen.

before        planning finds the machine so
at first      it is so from the first iteration on, which planning does not see
later         it comes to be so at a random iteration, and stays
for a while   until some iterations later

goes on   the training's numbers are eager PyTorch's, and the device's memory is within the budget
replans   it also says so in one line, and is then as fast as a fresh plan for the machine as it is
ends      one line names the cause, the weights are those of an iteration's end, and it can go on
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from time import sleep
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from memplan.devices.device.device import PinError
from memplan.devices.storage import disk, host_buffers
from memplan.planner.addresses.caching_allocator import NoRoomError
from memplan.runtime.run import queues

from .trial import BUDGET, Trial

Fault = Callable[[Trial], AbstractContextManager[Any]]
"""Makes a context in which the machine is not as planned."""


class Must(Enum):
    """Outcome that a fault must have."""

    GO_ON = "goes on"
    REPLAN = "goes on, replans"
    END = "ends"


class Kind(NamedTuple):
    """A kind of fault.

    when: from when on, see above. says: a part of the line about it, empty if nobody need notice.
    disk: plans have one, and little host memory. compares: a fresh plan is asked for. before: another fault,
    from the beginning.
    """

    name: str
    must: Must
    when: str
    fault: Fault
    says: str = ""
    disk: bool = False
    compares: bool = False
    before: Fault | None = None
    budget: str = BUDGET


def link(factor: float) -> Fault:
    return lambda trial: patch.multiple(
        trial.costs, to_device=trial.costs.to_device * factor, to_host=trial.costs.to_host * factor
    )


def one_way(factor: float) -> Fault:
    return lambda trial: patch.multiple(trial.costs, to_device=trial.costs.to_device * factor)


def slower(factor: float) -> Fault:
    return lambda trial: patch.multiple(trial.costs, slower=factor)


def slow_host(factor: float) -> Fault:
    def fault(trial: Trial) -> AbstractContextManager[Any]:
        slow = {name: factor * seconds for name, seconds in trial.on_host.items()}
        return patch.multiple(trial, on_host=slow)

    return fault


def slow_disk(factor: float) -> Fault:
    return lambda trial: patch.multiple(trial, disk_rate=factor * trial.disk_rate)


def little_host(share: float) -> Fault:
    """The host has a share of what a plan takes there; found by planning once, on a machine with room."""

    def fault(trial: Trial) -> AbstractContextManager[Any]:
        trial.host_bytes = there = int(share * trial.needed[0])
        return patch.object(host_buffers, "available_bytes", lambda: there + trial.needed[2])

    return fault


def no_memory(trial: Trial) -> AbstractContextManager[Any]:
    """One of the next blocks of host memory is refused: of memory that nothing has pinned."""
    take, left = np.empty, [trial.chance.randrange(1, 5)]

    def refused(size: Any, dtype: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise MemoryError("refused, by choice")
        return take(size, dtype)

    return patch.object(host_buffers, "np", SimpleNamespace(empty=refused, uint8=np.uint8))


def no_pinning(trial: Trial) -> AbstractContextManager[Any]:
    def pin(_memory: Any) -> Any:
        trial.pageable = True
        raise PinError("refused, by choice")

    return patch.object(trial.device, "pin", pin)


def both(one: Fault, other: Fault) -> Fault:
    @contextmanager
    def fault(trial: Trial) -> Generator[None]:
        with one(trial), other(trial):
            yield

    return fault


def others_take(share: float) -> Fault:
    """Others have the rest of the budget. Bytes, since a segment has room for a small model."""

    def fault(trial: Trial) -> AbstractContextManager[Any]:
        allocator, most = trial.device.allocator, int(share * trial.limit)
        malloc = allocator.malloc

        def within(size: int, stream: int = 0) -> Any:
            if allocator.allocated + trial.device.rounded(size) > most:
                raise NoRoomError
            return malloc(size, stream)

        free = patch.object(trial.device, "free_bytes", lambda: most - trial.device.allocated_bytes())
        return both(lambda _: free, lambda _: patch.object(allocator, "malloc", within))(trial)

    return fault


def no_room(times: int) -> Fault:
    """Allocations on the device fail, the first at a random operation."""

    def fault(trial: Trial) -> AbstractContextManager[Any]:
        count, left = trial.device.faults.pass_by, [trial.chance.randrange(1, trial.allocations), times]

        def pass_by(kind: str) -> None:
            count(kind)
            left[0] -= kind == "allocation"
            if kind == "allocation" and left[0] < 0 and left[1]:
                left[1] -= 1
                raise torch.OutOfMemoryError("out of memory, by choice")

        return patch.object(trial.device.faults, "pass_by", pass_by)

    return fault


def late(trial: Trial) -> AbstractContextManager[Any]:
    """Jobs start late at random, by the clock of this machine."""
    run = queues.Job.run

    def later(job: Any) -> None:
        if trial.chance.random() < 0.2:
            sleep(trial.chance.random() * 2e-3)
        run(job)

    return patch.object(queues.Job, "run", later)


def no_thread(trial: Trial) -> AbstractContextManager[Any]:
    def refused(*_given: Any, **_named: Any) -> Any:
        raise RuntimeError("can't start new thread")

    return patch.object(queues, "start_thread", refused)


def little_disk(trial: Trial) -> AbstractContextManager[Any]:
    """The disk has half of what a plan takes there."""
    trial.disk_bytes = trial.needed[1] // 2
    usage = SimpleNamespace(free=trial.disk_bytes)
    return patch.object(disk, "shutil", SimpleNamespace(disk_usage=lambda _where: usage))


def disk_error(way: str, number: int, times: int) -> Fault:
    def fault(trial: Trial) -> AbstractContextManager[Any]:
        move, left = getattr(disk.Disk, way), [times]

        def failing(*given: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise OSError(number, errno.errorcode[number])
            return move(*given)

        return patch.object(disk.Disk, way, failing)

    return fault


def nothing(_trial: Trial) -> AbstractContextManager[Any]:
    return nullcontext()


_GO_ON, _REPLAN, _END = Must.GO_ON, Must.REPLAN, Must.END
_IO, _FULL = errno.EIO, errno.ENOSPC

KINDS = {
    each.name: each
    for each in (
        Kind("as planned", _GO_ON, "later", nothing, compares=True),
        Kind(
            "three quarters of the host memory",
            _REPLAN,
            "before",
            little_host(0.75),
            "planned for those",
            compares=True,
        ),
        Kind(
            "a block of host memory is refused",
            _REPLAN,
            "at first",
            no_memory,
            "has no memory",
            before=no_pinning,
        ),
        Kind("pinning is refused", _REPLAN, "before", no_pinning, "can't be pinned", compares=True),
        Kind(
            "pinning is refused midway, with half the link's rate",
            _REPLAN,
            "later",
            both(link(0.5), no_pinning),
            compares=True,
        ),
        Kind("the link at half its rate", _REPLAN, "later", link(0.5), "/s, not", compares=True),
        Kind("one direction at a third", _REPLAN, "later", one_way(1 / 3), "/s, not", compares=True),
        Kind("the link at a tenth for a while", _REPLAN, "for a while", link(0.1), "/s, not", compares=True),
        Kind("the device half as fast", _REPLAN, "later", slower(2.0), "against the plan", compares=True),
        Kind("the CPU a third as fast", _GO_ON, "later", slow_host(3.0), compares=True),
        Kind("others take 10 % of the budget", _REPLAN, "later", others_take(0.9), "repeated", compares=True),
        Kind(
            "others take 25 % of the budget", _REPLAN, "later", others_take(0.75), "repeated", compares=True
        ),
        Kind(
            "an allocation on the device fails once", _REPLAN, "later", no_room(1), "repeated", compares=True
        ),
        Kind("all allocations on the device fail", _END, "for a while", no_room(10**9), "out of memory"),
        Kind("copies and updates start late", _GO_ON, "later", late),
        Kind("no thread can be started", _GO_ON, "before", no_thread, "no thread of their own"),
        Kind(
            "half of the disk", _REPLAN, "before", little_disk, "planned for those", disk=True, compares=True
        ),
        Kind(
            "a write finds the disk full",
            _REPLAN,
            "later",
            disk_error("write", _FULL, 1),
            "can't write",
            disk=True,
        ),
        Kind("a read of the disk fails once", _GO_ON, "later", disk_error("read", _IO, 1), disk=True),
        Kind(
            "all reads of the disk fail",
            _END,
            "for a while",
            disk_error("read", _IO, 10**9),
            "can't read",
            disk=True,
        ),
        Kind(
            "the disk at a tenth of its rate",
            _REPLAN,
            "later",
            slow_disk(0.1),
            "/s, not",
            disk=True,
            compares=True,
        ),
    )
}
