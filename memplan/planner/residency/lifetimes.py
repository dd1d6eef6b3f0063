"""When each tensor is needed, and in which memory, along a sequence of runs.

A lifetime goes from a tensor's first contribution to its last use before it is computed anew; that of a
persistent tensor is the whole iteration, around its end. Moments are counted so that the end of one iteration
and the start of the next differ: slot p (before run p) is 2p, run p is 2p + 1; n runs make 2n + 1 moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import DEFAULT_MODE
from ..schedule.sequence import Run


class Use(NamedTuple):
    """A run needs the tensor. changes: the run makes it complete, or mutates it: a new version begins."""

    moment: int
    memory: Memory
    changes: bool


@dataclass
class Lifetime:
    """The uses of a tensor from its first contribution on.

    uses: by moment, without those that only contribute.
    first_moment: of the first contribution.
    survives: it is there when the iteration ends, as a result or an input.
    persistent: it is a persistent tensor's: the last use is followed by the first of the next iteration.
    spread: over ranks; memory HOST is the peers then.
    """

    tensor: int
    uses: list[Use] = field(default_factory=list[Use])
    first_moment: int = 0
    survives: bool = False
    persistent: bool = False
    spread: bool = False

    @property
    def device_uses(self) -> list[Use]:
        return [use for use in self.uses if use.memory == Memory.DEVICE]


class Access(NamedTuple):
    """The accesses of a run to a tensor.

    bits: its contributions; none if it does not write it. memory: the one that it writes.
    reads: the memory that it reads; None if it does not read it. mutates: it changes it in place.
    """

    bits: tuple[int, ...]
    memory: Memory
    reads: Memory | None
    mutates: bool


def count_moments(runs: int) -> int:
    """Return the number of moments of an iteration of so many runs: one more slot than runs."""
    return 2 * runs + 1


def slot_moment(slot: int) -> int:
    return 2 * slot


def run_moment(position: int) -> int:
    return 2 * position + 1


def position_of(moment: int) -> int:
    """Return the position of the run at a moment, or of the run after a slot, within an iteration."""
    return moment // 2


def find_accesses(graph: Graph, operation: int, mode: int) -> dict[int, Access]:
    """Find the tensors that a run accesses, and how."""
    memory, from_host = _memories(graph, operation, mode)
    to_host = graph.made_on_host(operation, mode)
    bits: dict[int, list[int]] = {}
    for x, bit in graph.contributions(operation, mode):
        bits.setdefault(x, []).append(bit)
    mutated = graph.mutate_lists[operation]
    inputs = dict.fromkeys(graph.read_lists[operation] + mutated)
    return {
        x: Access(
            tuple(bits.get(x, ())),
            Memory.HOST if x in to_host else memory,
            (Memory.HOST if x in from_host else memory) if x in inputs else None,
            x in mutated,
        )
        for x in dict.fromkeys([*bits, *inputs])
    }


def find_lifetimes(graph: Graph, runs: Sequence[Run]) -> list[Lifetime]:
    """Find all lifetimes, tensor by tensor."""
    known: dict[Run, dict[int, Access]] = {}
    accesses: list[list[tuple[int, Access]]] = [[] for _ in range(len(graph.tensors))]
    for position, run in enumerate(runs):
        if run not in known:
            known[run] = find_accesses(graph, *run)
        for x, access in known[run].items():
            accesses[x].append((run_moment(position), access))
    return [lifetime for x, row in enumerate(accesses) for lifetime in tensor_lifetimes(graph, x, row)]


def tensor_lifetimes(graph: Graph, x: int, accesses: Sequence[tuple[int, Access]]) -> list[Lifetime]:
    """Find the lifetimes of one tensor, the last first.

    A backward scan like that of schedule/sequence.py: a tensor is dead if no run needs it before it is
    computed anew.

    accesses: with their moments, in order.
    """
    whole, resident, is_result = graph.whole_contributions[x], graph.resident.item(x), x in graph.results
    spread = x in graph.tensors.spread
    # Contributions that later runs need, as bits.
    need, lifetime, done = (whole if is_result else 0), None, list[Lifetime]()
    if resident:
        persistent = graph.persistent.item(x)
        lifetime = Lifetime(x, persistent=persistent, survives=not persistent, spread=spread)
    elif is_result:
        lifetime = Lifetime(x, survives=True, spread=spread)
    for moment, access in reversed(accesses):
        for bit in access.bits:
            lifetime = lifetime or Lifetime(x, spread=spread)
            # Only the contribution that completes the tensor begins a version; earlier ones are no uses.
            if need == whole or not lifetime.uses:
                lifetime.uses.append(Use(moment, access.memory, True))
            lifetime.first_moment = moment
            need &= ~bit
            # All contributions found: what comes before is another lifetime.
            if not need:
                done.append(lifetime)
                lifetime = None
        if access.reads is not None:
            lifetime = lifetime or Lifetime(x, spread=spread)
            lifetime.uses.append(Use(moment, access.reads, access.mutates))
            need = whole
    if lifetime:
        done.append(lifetime)
    for each in done:
        each.uses.reverse()
    return done


def _memories(graph: Graph, operation: int, mode: int) -> tuple[Memory, tuple[int, ...]]:
    """Return the memory in which a run takes place, and the tensors that it reads in the memory below the
    device in any case."""
    shares = graph.on_peers(operation)
    if mode == DEFAULT_MODE:
        return Memory.DEVICE, shares
    found = graph.operations.modes[operation][mode - 1]
    return (Memory.HOST if found.on_host else Memory.DEVICE), (*found.reads_host, *shares)
