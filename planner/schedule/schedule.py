"""A schedule: the steps of one training iteration, in order, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.machine import Memory

PLAIN = 0
"""The `where` of a compute step that runs the operation as the graph gives it, in no special mode."""


class Verb(IntEnum):
    COMPUTE = 0
    DELETE = 1
    OFFLOAD = 2
    PREFETCH = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Step(NamedTuple):
    """One step.

    target: the operation's index for COMPUTE, else the tensor's.
    where: COMPUTE: PLAIN, or k for the operation's k-th mode (from 1). DELETE: the memory.
           OFFLOAD, PREFETCH: the memory that is copied to.
    """

    verb: Verb
    target: int
    where: int


def compute(operation: int, mode: int = PLAIN) -> Step:
    return Step(Verb.COMPUTE, operation, mode)


def delete(tensor: int, memory: Memory = Memory.DEVICE) -> Step:
    return Step(Verb.DELETE, tensor, memory)


def offload(tensor: int, to: Memory = Memory.HOST) -> Step:
    return Step(Verb.OFFLOAD, tensor, to)


def prefetch(tensor: int, to: Memory = Memory.DEVICE) -> Step:
    return Step(Verb.PREFETCH, tensor, to)


@dataclass(frozen=True)
class Initial:
    """Where persistent tensors lie when an iteration starts; those not named are on the device."""

    host: frozenset[int] = frozenset()
    disk: frozenset[int] = frozenset()
    both: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The steps as three columns of equal length, and where the persistent tensors start."""

    verbs: NDArray[np.uint8]
    targets: NDArray[np.int32]
    wheres: NDArray[np.int32]
    initial: Initial = Initial()

    @staticmethod
    def of(steps: Iterable[Step], initial: Initial | None = None) -> Schedule:
        table = np.array(list(steps), np.int32).reshape(-1, 3)
        return Schedule(
            table[:, 0].astype(np.uint8),
            table[:, 1].copy(),
            table[:, 2].copy(),
            initial or Initial(),
        )

    def __repr__(self) -> str:
        return f"<Schedule: {len(self)} steps>"

    def __len__(self) -> int:
        return len(self.verbs)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """The steps as bare integers, what a loop over many reads fastest."""
        return zip(self.verbs.tolist(), self.targets.tolist(), self.wheres.tolist(), strict=True)

    def __iter__(self) -> Iterator[Step]:
        return (Step(Verb(verb), target, where) for verb, target, where in self.rows())
