"""When each tensor is needed, and in which memory, along a sequence of runs.

A *life* of a tensor goes from its first contribution to its last use before it is made anew; that of a
persistent tensor is the whole cycle. Moments are counted so that the end of one turn and the start of the
next differ: slot p (before run p) is 2p, run p is 2p + 1, and a turn of `runs` runs takes `2 runs + 1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import PLAIN
from ..schedule.sequence import Run


class Use(NamedTuple):
    """A run needs the tensor. changes: it makes the tensor complete, or mutates it: a new version."""

    moment: int
    memory: Memory
    changes: bool


@dataclass
class Life:
    """uses: by moment, those that only contribute left out. born: of the first contribution.

    stays: it is there when the turn ends (a result). cyclic: a persistent tensor's.
    """

    tensor: int
    uses: list[Use] = field(default_factory=list[Use])
    born: int = 0
    stays: bool = False
    cyclic: bool = False


def turn_length(runs: int) -> int:
    return 2 * runs + 1


def slot_moment(slot: int) -> int:
    return 2 * slot


def run_moment(position: int) -> int:
    return 2 * position + 1


def position_of(moment: int) -> int:
    """The run at a moment within its turn."""
    return moment // 2


def lives(graph: Graph, runs: Sequence[Run]) -> list[Life]:
    """All lives, tensor by tensor is not guaranteed; in each the uses stand in order.

    A backward scan like that of schedule/sequence.py: a tensor dies where nobody needs it before it is made
    anew.
    """
    whole, persistent, resident = graph.whole_contributions, graph.persistent.tolist(), graph.resident
    need = [0] * len(whole)
    for tensor in graph.results:
        need[tensor] = whole[tensor]
    open_lives: dict[int, Life] = {x: Life(x, stays=True) for x in graph.results}
    there = resident.tolist()
    for x, is_there in enumerate(there):
        if is_there:
            open_lives[x] = Life(x, cyclic=persistent[x], stays=not persistent[x])
    done: list[Life] = []
    for position in range(len(runs) - 1, -1, -1):
        operation, mode_index = runs[position]
        moment = run_moment(position)
        memory, from_host = _memories(graph, operation, mode_index)
        for x, bit in graph.contributions(operation, mode_index):
            life = open_lives.setdefault(x, Life(x))
            if need[x] == whole[x] or not life.uses:
                life.uses.append(Use(moment, memory, True))
            life.born = moment
            need[x] &= ~bit
            if not need[x]:
                done.append(open_lives.pop(x))
        mutated = graph.mutate_lists[operation]
        for x in dict.fromkeys(graph.read_lists[operation] + mutated):
            life = open_lives.setdefault(x, Life(x))
            where = Memory.HOST if x in from_host else memory
            life.uses.append(Use(moment, where, x in mutated))
            need[x] = whole[x]
    done.extend(open_lives.values())
    for life in done:
        life.uses.reverse()
    return done


def _memories(graph: Graph, operation: int, mode_index: int) -> tuple[Memory, tuple[int, ...]]:
    """Where a run takes place, and which tensors it reads in host memory all the same."""
    if mode_index == PLAIN:
        return Memory.DEVICE, ()
    mode = graph.operations.modes[operation][mode_index - 1]
    return (Memory.HOST if mode.on_host else Memory.DEVICE), mode.reads_host
