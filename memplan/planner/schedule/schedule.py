"""A schedule: the steps of one training iteration, in order, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.machine import Memory

DEFAULT_MODE = 0
"""The `where` of a compute step that runs the operation as the graph gives it, in no special mode."""


class Verb(IntEnum):
    COMPUTE = 0
    DELETE = 1
    OFFLOAD = 2
    PREFETCH = 3

    @property
    def word(self) -> str:
        return self.name.lower()


# Looking one up by its number takes as long as the rest of a step.
_VERBS = tuple(Verb)


class ScheduleStep(NamedTuple):
    """One step.

    target: the operation's index for COMPUTE, else the tensor's.
    where: COMPUTE: DEFAULT_MODE (0), or k for the operation's k-th mode (from 1). DELETE: the memory.
           OFFLOAD: the memory that is copied to, from the one above it in the machine's row.
           PREFETCH: likewise, from the one below it.
    """

    verb: Verb
    target: int
    where: int


def compute(operation: int, mode: int = DEFAULT_MODE) -> ScheduleStep:
    return ScheduleStep(Verb.COMPUTE, operation, mode)


def delete(tensor: int, memory: int = Memory.DEVICE) -> ScheduleStep:
    return ScheduleStep(Verb.DELETE, tensor, memory)


def offload(tensor: int, to: int = Memory.HOST) -> ScheduleStep:
    return ScheduleStep(Verb.OFFLOAD, tensor, to)


def prefetch(tensor: int, to: int = Memory.DEVICE) -> ScheduleStep:
    return ScheduleStep(Verb.PREFETCH, tensor, to)


@dataclass(frozen=True, init=False)
class Initial:
    """The memories of persistent tensors when an iteration starts; those not named are on the device.

    groups: pairs of some memories, in the order of the row, and the tensors with a copy in each of them. By
    memories; none is empty.
    """

    groups: tuple[tuple[tuple[int, ...], frozenset[int]], ...]

    def __init__(
        self,
        host: Iterable[int] = (),
        disk: Iterable[int] = (),
        both: Iterable[int] = (),
        *,
        groups: Iterable[tuple[tuple[int, ...], Iterable[int]]] = (),
    ) -> None:
        """Set where persistent tensors start.

        host, disk, both: tensors on the host alone, on the disk alone, and on the device and the host.
        groups: the same for any memories.
        """
        tensors: dict[tuple[int, ...], list[int]] = {}
        named = (((Memory.HOST,), host), ((Memory.DISK,), disk), ((Memory.DEVICE, Memory.HOST), both))
        for memories, some in (*named, *groups):
            tensors.setdefault(tuple(map(int, memories)), []).extend(some)
        # Sorted and without empty groups, so that equal places compare equal.
        rows = ((memories, frozenset(some)) for memories, some in sorted(tensors.items()) if some)
        # Frozen, and `__init__` is written by hand.
        object.__setattr__(self, "groups", tuple(rows))

    def at(self, *memories: int) -> frozenset[int]:
        """Return the tensors that are in exactly these memories."""
        return dict(self.groups).get(memories, frozenset[int]())

    def on(self, memory: int) -> frozenset[int]:
        """Return the tensors named that have a copy in a memory."""
        return frozenset(x for where, tensors in self.groups if memory in where for x in tensors)

    def memories(self, x: int) -> tuple[int, ...]:
        """Return the memories of a persistent tensor."""
        return next((where for where, tensors in self.groups if x in tensors), (Memory.DEVICE,))

    @property
    def named(self) -> frozenset[int]:
        return frozenset(x for _where, tensors in self.groups for x in tensors)

    @property
    def host(self) -> frozenset[int]:
        """Return the tensors on the host alone."""
        return self.at(Memory.HOST)

    @property
    def disk(self) -> frozenset[int]:
        """Return the tensors on the memory below the host alone."""
        return self.at(Memory.DISK)

    @property
    def both(self) -> frozenset[int]:
        """Return the tensors on the device and on the host."""
        return self.at(Memory.DEVICE, Memory.HOST)


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The steps as three columns of equal length, and where the persistent tensors start."""

    verbs: NDArray[np.uint8]
    targets: NDArray[np.int32]
    wheres: NDArray[np.int32]
    initial: Initial = Initial()

    @staticmethod
    def of(steps: Iterable[ScheduleStep], initial: Initial | None = None) -> Schedule:
        # The shape of no steps at all is (0,) otherwise.
        table = np.array(list(steps), np.int32).reshape(-1, 3)
        return Schedule(
            table[:, 0].astype(np.uint8),
            # A column of its own: a view would keep the whole table, and be strided.
            table[:, 1].copy(),
            table[:, 2].copy(),
            initial or Initial(),
        )

    def __repr__(self) -> str:
        return f"<Schedule: {len(self)} steps>"

    def __len__(self) -> int:
        return len(self.verbs)

    @property
    def memories(self) -> int:
        """Return the number of memories of a row that the schedule needs: the deepest one's index plus
        one."""
        places = self.wheres[self.verbs != Verb.COMPUTE]
        deepest = max((where[-1] for where, _tensors in self.initial.groups), default=0)
        return 1 + max(deepest, int(places.max(initial=0)))

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield the steps as bare integers, which loops over many read fastest."""
        return zip(self.verbs.tolist(), self.targets.tolist(), self.wheres.tolist(), strict=True)

    def __iter__(self) -> Iterator[ScheduleStep]:
        return (ScheduleStep(_VERBS[verb], target, where) for verb, target, where in self.rows())
