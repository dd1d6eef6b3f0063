"""Ownership of the tensors that are spread over ranks.

Iterations start with this rank's shares, which are the module's parameters, and with full weights that the
iteration before has gathered, be it another plan's. What else a schedule moves, as shares of optimizer
states, is owned as without ranks (ownership.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NoReturn

from torch import Tensor

from ...devices.sharded.local_tensors import give_up_local
from ...devices.sharded.shards import Gathered, Shards, Share, local_of, version_of_share
from ...graphs.errors import MemplanError
from ...graphs.machine import Memory
from ...program.program import Program
from ..codegen.copies import variable
from .cycle import Cycle
from .owners import Owner
from .ownership import Ownership


class SpreadOwnership:
    """Ownership of the spread tensors of a step.

    owners: per resident value that is spread, its name, and a function that returns its tensor.
    """

    def __init__(
        self, program: Program, owners: Mapping[int, tuple[str, Owner]], cycle: Cycle, shards: Shards
    ) -> None:
        self._cycle, self._shards = cycle, shards
        weights, storages = set(program.parameters.values()), program.values
        spread = cycle.graph.tensors.spread
        shares = {v: owner for v, owner in owners.items() if storages[v].storage in spread}
        self._weights = {storages[v].storage: owner for v, owner in shares.items() if v in weights}
        self._masters = {storages[v].storage: owner for v, owner in shares.items() if v not in weights}
        self._gathered = {x for memory, x in cycle.places if memory == Memory.DEVICE and x in spread}
        self._others = Ownership(program, {v: o for v, o in owners.items() if v not in shares}, cycle)
        self._versions: dict[int, tuple[int, int]] = {}

    def take(self) -> None:
        """Put all tensors where iterations start with them, and gather the full weights that are missing or
        older than their shares.

        All ranks gather the same: what is loaded into weights is loaded on all. Raises MemplanError.
        """
        if self._shards.ranks.lost:
            raise MemplanError(self._shards.ranks.lost)
        held, left = self._cycle.held, self._shards.take_over(self)
        self._others.take()  # before weights are gathered: it makes room on the device
        for x, (_name, owner) in self._masters.items():
            state = local_of(owner())
            held[variable(Memory.PEERS, x)] = Share(state, state, state.dtype)
        found: dict[int, Tensor] = {}
        for x, (name, _owner) in self._weights.items():
            if x in self._gathered and name in left:
                found[x], self._versions[x] = left[name]
        left.clear()  # before others are gathered: it may hold what this plan has no memory for
        for x, (name, owner) in sorted(self._weights.items()):
            weight = owner()
            share = self._shards.of_weight(name, weight)
            held[variable(Memory.PEERS, x)] = share
            full = variable(Memory.DEVICE, x)
            if x not in self._gathered:
                continue
            if x in found:
                held[full] = found.pop(x)
            if full not in held or self._versions.get(x) != version_of_share(weight):
                self._cycle.end_jobs()
                if full not in held:
                    held[full] = self._cycle.device.room(int(self._cycle.graph.tensors.bytes[x]))
                self._shards.gather((share, held[full]))

    def hand_over(self) -> dict[str, Gathered]:
        """End what is under way, and let go of the full weights; return them by name."""
        self._cycle.settle()
        held = self._cycle.held
        full = {x: held.pop(variable(Memory.DEVICE, x), None) for x in self._gathered}
        versions = self._versions
        return {
            self._weights[x][0]: Gathered(each, versions[x])
            for x, each in full.items()
            if each is not None and x in versions and x in self._weights
        }

    def note(self) -> None:
        """Note the weights as an iteration has left them."""
        self._versions = {x: version_of_share(owner()) for x, (_, owner) in self._weights.items()}

    def give_back(self) -> None:
        """Give back what is offloaded, on the device. Shares of weights are the module's between
        iterations.
        """
        self._others.give_back()

    def give_up(self, storages: Container[int], refuse: Callable[[], NoReturn]) -> None:
        """Refuse every use of these."""
        self._others.give_up(storages, refuse)
        for x, (_name, owner) in (*self._weights.items(), *self._masters.items()):
            if x in storages:
                give_up_local(owner(), refuse)
