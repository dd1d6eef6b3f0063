"""Ownership of the tensors that are spread over ranks.

Iterations start with this rank's shares, which are the module's parameters and the optimizer's states, and
with full weights that the iteration before has gathered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from typing import NoReturn

from torch import Tensor

from ...graphs.errors import MemplanError
from ...graphs.machine import Memory
from ..codegen.copies import variable
from ..program.program import Program
from ..sharded.shards import Shards, Share, local_of
from ..torch_internals import version_of
from .cycle import Cycle
from .owners import Owner

FAILED = (
    "an iteration of sharded training has failed on this rank, and others may have gone on: start all ranks "
    "anew, from a checkpoint"
)


class SpreadOwnership:
    """Ownership of the spread tensors of a step.

    owners: per resident value that is spread, its name, and a function that returns its tensor.
    """

    def __init__(
        self, program: Program, owners: Mapping[int, tuple[str, Owner]], cycle: Cycle, shards: Shards
    ) -> None:
        self._cycle, self._shards = cycle, shards
        weights, storages = set(program.parameters.values()), program.values
        self._weights = {storages[v].storage: owner for v, owner in owners.items() if v in weights}
        self._states = {storages[v].storage: owner for v, owner in owners.items() if v not in weights}
        self._gathered = {x for memory, x in cycle.places if memory == Memory.DEVICE}
        self._versions: dict[int, tuple[int, int]] = {}
        self._failed = False

    def take(self) -> None:
        """Put all shares where iterations start with them, and gather the full weights that are missing or
        older than their shares.

        All ranks gather the same: what is loaded into weights is loaded on all. Raises MemplanError.
        """
        if self._failed:
            raise MemplanError(FAILED)
        held = self._cycle.held
        for x, (_name, owner) in self._states.items():
            state = local_of(owner())
            held[variable(Memory.PEERS, x)] = Share(state, state)
        for x, (name, owner) in sorted(self._weights.items()):
            weight = owner()
            share = self._shards.of_weight(name, weight)
            held[variable(Memory.PEERS, x)] = share
            full = variable(Memory.DEVICE, x)
            if x in self._gathered and (full not in held or self._versions.get(x) != _version(weight)):
                self._cycle.end_jobs()
                held[full] = self._cycle.device.room(int(self._cycle.graph.tensors.bytes[x]))
                self._shards.gather(share, held[full])

    def note(self) -> None:
        """Note the weights as an iteration has left them."""
        self._versions = {x: _version(owner()) for x, (_, owner) in self._weights.items()}

    def give_back(self) -> None:
        """Leave all as it is: between iterations shares are the module's."""

    def give_up(self, _storages: Container[int], _refuse: Callable[[], NoReturn]) -> None:
        """Refuse further iterations: the ranks may be apart."""
        self._failed = True
        self._shards.ranks.leave(sys.exception())


def _version(weight: Tensor) -> tuple[int, int]:
    """Return what changes with the values of a weight: updates, and whatever is loaded into it.

    PyTorch counts operations on the DTensor at the DTensor alone.
    """
    return version_of(weight), version_of(local_of(weight))
