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


class Touch(NamedTuple):
    """What a run does to a tensor. bits: its contributions, none where it makes nothing of it. memory: where
    it writes. reads: from which memory, None where it does not. mutates: it changes it in place."""

    bits: tuple[int, ...]
    memory: Memory
    reads: Memory | None
    mutates: bool


def turn_length(runs: int) -> int:
    return 2 * runs + 1


def slot_moment(slot: int) -> int:
    return 2 * slot


def run_moment(position: int) -> int:
    return 2 * position + 1


def position_of(moment: int) -> int:
    """The run at a moment within its turn."""
    return moment // 2


def touches_of(graph: Graph, operation: int, mode: int) -> dict[int, Touch]:
    """Per tensor that a run touches."""
    memory, from_host = _memories(graph, operation, mode)
    to_host = graph.made_on_host(operation, mode)
    bits: dict[int, list[int]] = {}
    for x, bit in graph.contributions(operation, mode):
        bits.setdefault(x, []).append(bit)
    mutated = graph.mutate_lists[operation]
    inputs = dict.fromkeys(graph.read_lists[operation] + mutated)
    return {
        x: Touch(
            tuple(bits.get(x, ())),
            Memory.HOST if x in to_host else memory,
            (Memory.HOST if x in from_host else memory) if x in inputs else None,
            x in mutated,
        )
        for x in dict.fromkeys([*bits, *inputs])
    }


def lives(graph: Graph, runs: Sequence[Run]) -> list[Life]:
    """All lives, tensor by tensor; in each the uses stand in order."""
    known: dict[Run, dict[int, Touch]] = {}
    touches: list[list[tuple[int, Touch]]] = [[] for _ in range(len(graph.tensors))]
    for position, run in enumerate(runs):
        if run not in known:
            known[run] = touches_of(graph, *run)
        for x, touch in known[run].items():
            touches[x].append((run_moment(position), touch))
    return [life for x, row in enumerate(touches) for life in lives_of(graph, x, row)]


def lives_of(graph: Graph, x: int, touches: Sequence[tuple[int, Touch]]) -> list[Life]:
    """The lives of one tensor, the last first. touches: with their moments, in order.

    A backward scan like that of schedule/sequence.py: a tensor dies where nobody needs it before it is made
    anew.
    """
    whole, resident, is_result = graph.whole_contributions[x], graph.resident.item(x), x in graph.results
    need, life, done = (whole if is_result else 0), None, list[Life]()
    if resident:
        cyclic = graph.persistent.item(x)
        life = Life(x, cyclic=cyclic, stays=not cyclic)
    elif is_result:
        life = Life(x, stays=True)
    for moment, touch in reversed(touches):
        for bit in touch.bits:
            life = life or Life(x)
            if need == whole or not life.uses:
                life.uses.append(Use(moment, touch.memory, True))
            life.born = moment
            need &= ~bit
            if not need:
                done.append(life)
                life = None
        if touch.reads is not None:
            life = life or Life(x)
            life.uses.append(Use(moment, touch.reads, touch.mutates))
            need = whole
    if life:
        done.append(life)
    for each in done:
        each.uses.reverse()
    return done


def _memories(graph: Graph, operation: int, mode_index: int) -> tuple[Memory, tuple[int, ...]]:
    """Where a run takes place, and which tensors it reads in host memory all the same."""
    if mode_index == PLAIN:
        return Memory.DEVICE, ()
    mode = graph.operations.modes[operation][mode_index - 1]
    return (Memory.HOST if mode.on_host else Memory.DEVICE), mode.reads_host
