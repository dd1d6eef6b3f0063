"""The copies of tensors in each memory, and the steps still using them, for which others must wait.

A copy is a tensor in a memory. `have[memory][tensor]` is the set of contributions in that copy (bits,
0: no copy); it is complete when it equals `whole[tensor]`. `stale` holds the copies made before their
tensor was changed in place elsewhere.

`made[copy]` says which steps made it (one per queue, the newest), but for what the compute queue made on the
device: a reader waits for them. `flights[copy]` says which transfers read or make it and have not been waited
for: a delete waits for them. Both hold step numbers of this iteration, below 0 for the one before.

A collective that is an operation is in flight for all that it reads and makes, on the queue COMM, until the
compute queue has waited for it or for a later one: the memory is on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from ...graphs.machine import Memory
from .clock import Queue, source_of

_DEVICE, _COMPUTE, _D2H = int(Memory.DEVICE), int(Queue.COMPUTE), int(Queue.D2H)
_COMM = int(Queue.COMM)

Copy = tuple[int, int]
"""A memory, and a tensor in it."""
Users = dict[Copy, dict[int, int]]
"""Per copy: the newest step of each queue that uses it."""


class Copies:
    """The copies of all tensors, and the transfers in flight.

    whole: per tensor, the set of all its contributions. memories: the number that the machine has.
    landed: the last operation on the queue COMM that the compute queue has waited for.
    """

    def __init__(self, whole: Sequence[int], memories: int) -> None:
        self.whole = whole
        self.have = [[0] * len(whole) for _ in range(memories)]
        self.stale: set[Copy] = set()
        self.made: Users = {}
        self.flights: Users = {}
        self.landed = -inf

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
            if producer == _COMM:
                self._land_collectives(step, queue)
            elif producer >= _D2H:
                for side in (copy, (source_of(producer), x)):
                    # Allocations there follow the compute queue alone: another queue's wait frees nothing.
                    if side[0] != _DEVICE or queue == _COMPUTE:
                        self._land(side, producer, step)

    def await_users(self, copy: Copy, queue: int, waits: list[int]) -> None:
        """Let a step on `queue` that writes over `copy` wait for the transfers that still read or make it.

        These transfers are over then.
        """
        # A list, as `land` deletes from what this goes over.
        for of, step in list(self._in_flight(copy)):
            waits.append(step)
            self.land(copy[1], of, step, queue)

    def land(self, x: int, of: int, step: int, queue: int) -> None:
        """End the transfer `step` of tensor x, on the queue `of`, for all its copies: a step on `queue` has
        waited for it."""
        if of == _COMM:
            self._land_collectives(step, queue)
            return
        for memory in range(len(self.have)):
            self._land((memory, x), of, step)

    def _land_collectives(self, last: int, queue: int) -> None:
        if queue == _COMPUTE:
            self.landed = max(self.landed, last)

    def _in_flight(self, copy: Copy) -> Iterator[tuple[int, int]]:
        """Yield the transfers and collectives that use a copy, with their queues."""
        for queue, step in self.flights.get(copy, {}).items():
            # Collectives end in order, so one number says which have.
            if queue != _COMM or step > self.landed:
                yield queue, step

    def begin_collective(self, operands: tuple[int, ...], step: int) -> None:
        """Begin a collective that is an operation, with what it reads and makes."""
        for x in operands:
            self.flights.setdefault((_DEVICE, x), {})[_COMM] = step

    def _land(self, copy: Copy, queue: int, step: int) -> None:
        flights = self.flights.get(copy)
        # A newer transfer on the same queue may have taken its entry.
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
        # A sum: it adds to what is there, which must have arrived.
        if self.have[memory][x]:
            waits.extend(self.made.get(copy, {}).values())
        # What the compute queue made on the device its later steps find by their order.
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
        # Without transfers, the usual case, a delete is this alone.
        if not (self.made or self.flights or self.stale):
            return ()
        self.stale.discard(copy)
        self.made.pop(copy, None)
        left = tuple(step for _queue, step in self._in_flight(copy))
        self.flights.pop(copy, None)
        return left

    def next_iteration(self, steps: int) -> tuple[Users, Users]:
        """Count the steps still waited for from the next iteration's start; a snapshot of them."""
        self.flights = {copy: dict(self._in_flight(copy)) for copy in self.flights}
        # Step numbers below 0 are the iteration before.
        self.landed -= steps
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
