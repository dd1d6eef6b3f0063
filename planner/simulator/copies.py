"""The copies of tensors in each memory, and the steps still using them, for which others must wait.

A copy is a tensor in a memory. `have[memory][tensor]` is the set of contributions in that copy (bits,
0: no copy); it is complete when it equals `whole[tensor]`. `stale` holds the copies made before their
tensor was changed in place elsewhere.

`made[copy]` says which steps made it (one per queue, the newest), but for what the compute queue made on the
device: a reader waits for them. `flights[copy]` says which transfers read or make it and have not been waited
for: a delete waits for them. Both hold step numbers of this iteration, below 0 for the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.machine import Memory
from .clock import Queue, source_of

_DEVICE, _COMPUTE, _D2H = int(Memory.DEVICE), int(Queue.COMPUTE), int(Queue.D2H)

Copy = tuple[int, int]
"""A memory, and a tensor in it."""
Users = dict[Copy, dict[int, int]]
"""Per copy: the newest step of each queue that uses it."""


class Copies:
    """The copies of all tensors, and the transfers in flight.

    whole: per tensor, the set of all its contributions. memories: the number that the machine has.
    """

    def __init__(self, whole: Sequence[int], memories: int) -> None:
        self.whole = whole
        self.have = [[0] * len(whole) for _ in range(memories)]
        self.stale: set[Copy] = set()
        self.made: Users = {}
        self.flights: Users = {}

    def memories(self, x: int) -> list[int]:
        """Return the memories in which tensor x has a copy, complete or not, fresh or not."""
        return [memory for memory, have in enumerate(self.have) if have[x]]

    def readable(self, copy: Copy) -> bool:
        memory, x = copy
        return self.have[memory][x] == self.whole[x] and copy not in self.stale

    def await_producers(self, copy: Copy, queue: int, waits: list[int]) -> None:
        """Let a step on `queue` that reads `copy` wait for what produced it, which then is no longer in
        flight.

        For a copy on the device only the compute queue's waiting makes its memory safe to reuse.
        """
        _memory, x = copy
        for producer, step in self.made.get(copy, {}).items():
            waits.append(step)
            if producer >= _D2H:
                for side in (copy, (source_of(producer), x)):
                    if side[0] != _DEVICE or queue == _COMPUTE:
                        self._land(side, producer, step)

    def await_users(self, copy: Copy, waits: list[int]) -> None:
        """Let a step that writes over `copy` wait for the transfers that still read or make it.

        These transfers are over then.
        """
        for queue, step in list(self.flights.get(copy, {}).items()):
            waits.append(step)
            self.land(copy[1], queue, step)

    def land(self, x: int, queue: int, step: int) -> None:
        """End the transfer `step` of tensor x on `queue`, for all its copies."""
        for memory in range(len(self.have)):
            self._land((memory, x), queue, step)

    def _land(self, copy: Copy, queue: int, step: int) -> None:
        flights = self.flights.get(copy)
        if flights and flights.get(queue) == step:
            del flights[queue]

    def land_before(self, step: int) -> None:
        """End all transfers before `step`."""
        for copy, flights in self.flights.items():
            self.flights[copy] = {queue: transfer for queue, transfer in flights.items() if transfer >= step}

    def contribute(self, copy: Copy, bit: int, queue: int, step: int, waits: list[int]) -> None:
        """Add a contribution by step `step` on `queue`.

        Readers wait for it, unless the device produces it there.
        A contribution that is already there was recomputed and dropped: nobody waits for it.
        """
        memory, x = copy
        if self.have[memory][x] & bit:
            return
        if self.have[memory][x]:
            waits.extend(self.made.get(copy, {}).values())
        if queue != _COMPUTE or memory != _DEVICE:
            self.made.setdefault(copy, {})[queue] = step
        self.have[memory][x] |= bit

    def change_in_place(self, copy: Copy, queue: int, step: int) -> None:
        """Change `copy` in place: every other copy of the tensor is stale from now on."""
        memory, x = copy
        self.stale.update((other, x) for other in self.memories(x) if other != memory)
        self.made.pop(copy, None)
        if queue != _COMPUTE:
            self.made[copy] = {queue: step}

    def transfer(self, x: int, queue: int, target: int, step: int) -> None:
        """Make or refresh the copy in `target` from the one that `queue` reads."""
        source = source_of(queue)
        self.have[target][x] = self.have[source][x]
        self.stale.discard((target, x))
        self.made.setdefault((target, x), {})[queue] = step
        for memory in (source, target):
            self.flights.setdefault((memory, x), {})[queue] = step

    def drop(self, copy: Copy) -> tuple[int, ...]:
        """Forget a copy, and return the transfers of it that are still in flight."""
        memory, x = copy
        self.have[memory][x] = 0
        if not (self.made or self.flights or self.stale):
            return ()
        self.stale.discard(copy)
        self.made.pop(copy, None)
        return tuple(self.flights.pop(copy, {}).values())

    def next_iteration(self, steps: int) -> tuple[Users, Users]:
        """Count the steps still waited for from the next iteration's start; a snapshot of them."""
        for users in (self.made, self.flights):
            moved = {
                copy: {queue: step - steps for queue, step in by_queue.items()}
                for copy, by_queue in users.items()
                if by_queue
            }
            users.clear()
            users.update(moved)
        return (
            {copy: dict(users) for copy, users in self.made.items()},
            {copy: dict(users) for copy, users in self.flights.items()},
        )
