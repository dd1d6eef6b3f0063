"""The times of steps: queues, each first in first out. Decides time, and nothing about memory.

Two queues compute, and two copy between each pair of neighbouring memories, one in each direction. One more
is the training thread, which launches the computations in list order, for the device and for the CPU:
none begins before its launch has ended. The thread runs ahead of them. The network between ranks is one queue
for both directions, and for operations that are collectives; one of those waits for its launch if it has one.

Contention: a step holds each *lane* of its queue, a resource, for a part of its seconds, and starts when all
of them are free of the steps before it in the list. Without shared resources each queue is a lane of its own,
and none slows another down.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ...graphs.machine import Hierarchy, Link
from ..schedule.schedule import Verb


class Queue(IntEnum):
    """The queues of a machine with three memories; `write_queue` and `read_queue` number those of any."""

    COMPUTE = 0
    CPU = 1
    D2H = 2
    H2D = 3
    DISK_WRITE = 4
    DISK_READ = 5
    COMM = 16
    """Between the ranks: gathers and scatters, or operations that are collectives; after the queues of the
    longest row."""


# Compiled code, which uses these functions, knows no Queue; and looking up a member of an Enum is slow.
_COMPUTE, _CPU, _D2H, _H2D = int(Queue.COMPUTE), int(Queue.CPU), int(Queue.D2H), int(Queue.H2D)
_COMM, _OFFLOAD = int(Queue.COMM), int(Verb.OFFLOAD)

DEVICE_TRANSFERS = (_D2H, _H2D, _COMM)
"""The queues of what runs alongside the compute queue with memory of the device, and so waits for the
compute steps before it."""


def write_queue(memory: int) -> int:
    """Return the queue of copies to a memory from the one above it."""
    return _D2H + 2 * (memory - 1)


def read_queue(memory: int) -> int:
    """Return the queue of copies to a memory from the one below it."""
    return _H2D + 2 * memory


def source_of(queue: int) -> int:
    """Return the memory that a transfer queue reads: the upper one of its pair on an even queue."""
    pair, upwards = divmod(queue - _D2H, 2)
    return pair + upwards


def transfer_queue(verb: int, where: int) -> int:
    """Return the queue of an offload or a prefetch to a memory."""
    return write_queue(where) if verb == _OFFLOAD else read_queue(where)


def queue_of(queue: int, spread: bool) -> int:
    """Return the queue on which a transfer of a tensor runs.

    queue: that of the direction, from `transfer_queue`. spread: the tensor's lower memory is the peers.
    """
    return _COMM if spread else queue


def lanes_of(hierarchy: Hierarchy) -> Lanes:
    """Return per queue its lanes, each with the part of a step's seconds for which the step holds it."""
    numbers, found = resources(hierarchy.names), defaultdict[int, list[tuple[int, float]]](list)
    groups = [[numbers[name] for name in group if name in numbers] for group in hierarchy.shared]
    taken, count = set[int](), int(_COMM) + 1
    for members in groups:
        # The number of a member, which needs no lane of its own: compiled code plays all up to the highest.
        lane = next((queue for queue in sorted(members) if queue not in taken), count)
        taken, count = taken | {lane}, max(count, lane + 1)
        for queue in members:
            found[queue].append((lane, 1.0))
    for joint in hierarchy.joint_rates:
        for queue in (numbers[name] for name in joint.links if name in numbers):
            if (link := _link(hierarchy, queue)) is not None:
                found[queue].append((count, joint.part(link.rate)))
        count += 1
    # Copies of one link never overlap: a queue that holds no lane throughout has one of its own.
    alone = {queue for queue in range(_COMM + 1) if all(part < 1.0 for _lane, part in found[queue])}
    return tuple((*([(queue, 1.0)] if queue in alone else []), *found[queue]) for queue in range(_COMM + 1))


def held_seconds(lanes: Lanes, seconds: Mapping[Queue, float]) -> float:
    """Return the seconds for which the busiest lane is held. seconds: by queue, of all its steps."""
    held = defaultdict[int, float](float)
    for queue, spent in seconds.items():
        for lane, part in lanes[queue]:
            held[lane] += part * spent
    return max(held.values(), default=0.0)


def _link(hierarchy: Hierarchy, queue: int) -> Link | None:
    return hierarchy.peers if queue == _COMM else link_of(hierarchy, queue)


def resources(names: Sequence[str]) -> dict[str, int]:
    """Return the queues that may share a resource, by the names of machine files. names: of the memories."""
    links = range(Queue.D2H, write_queue(len(names)))
    found = {"cpu": int(Queue.CPU), "peers": int(Queue.COMM)}
    return {**found, **{queue_name(names, queue): queue for queue in links}}


def link_of(hierarchy: Hierarchy, queue: int, *, spread: bool = False) -> Link | None:
    """Return the link of a direction, from `transfer_queue`; None if the machine has none.

    spread: the tensor's lower memory is the peers.
    """
    if spread:
        peers = hierarchy.peers
        return peers and (peers.scatters if queue == _D2H else peers)
    pair, upwards = divmod(queue - _D2H, 2)
    if not 0 <= pair < len(hierarchy) - 1:
        return None
    lower = hierarchy.tiers[pair + 1]
    return lower.read if upwards else lower.write


def queue_name(names: Sequence[str], queue: int) -> str:
    """Return the word for a transfer queue in machine files and messages: d2h, h2d, disk_write, … names: of
    the memories."""
    if queue == _COMM:
        return "peers"
    pair, upwards = divmod(queue - _D2H, 2)
    if pair == 0:
        return "h2d" if upwards else "d2h"
    lower = names[pair + 1] if pair + 1 < len(names) else f"memory {pair + 1}"
    return f"{lower}_{'read' if upwards else 'write'}"


Lanes = Sequence[Sequence[tuple[int, float]]]
"""Per queue its lanes, and the parts of a step's seconds for which it holds them."""

_THREAD = -1
"""Index of the training thread among the queues' times: the last."""

Waits = dict[int, tuple[int, ...]]
"""Step -> the steps whose end it waits for besides its queue; below 0: of iterations before."""

_ITERATIONS = 240
_TOLERANCE = 1e-9


class Played(NamedTuple):
    """Times of the iterations simulated last, in seconds.

    period: of one iteration in the steady state. ends: per step, of the iteration played last and, before it,
    of those that its steps wait for. free: when each lane and, last, the thread were free before the last
    iteration.
    """

    period: float
    ends: Sequence[Sequence[float]]
    free: Sequence[float]


def play(
    queues: Sequence[int],
    seconds: Sequence[float],
    launches: Sequence[float],
    waits: Waits,
    lanes: Lanes,
) -> Played:
    """Simulate one iteration of the cycle after the other, until they repeat.

    queues: per step its queue, -1 for a step that takes no queue (a delete). seconds: per step. launches:
    per step what the thread takes to launch it, 0 for what is not an operation. lanes: from `lanes_of`.

    Iterations follow each other without a barrier, but none starts, on any queue, before the transfers of
    the one before the last have ended: what they hold cannot grow for ever. They are played until every wait
    reaches back to one that was, and every lane's free time grows by the same amount twice; the slowest
    lane's growth is the period. If the growth alternates for ever (a periodic regime longer than one
    iteration), it is the mean growth of the second half.
    """
    free = [0.0] * (2 + max(lane for taken in lanes for lane, _part in taken))
    furthest = _furthest_back(len(queues), waits)
    ends: deque[list[float]] = deque(maxlen=furthest + 1)
    history = [list(free)]
    growth: list[float] = []
    landed = [0.0, 0.0]  # the last end of a transfer, before each iteration
    for _ in range(_ITERATIONS):
        fence = landed[-2]
        ends.append(
            _one_iteration(
                queues,
                seconds,
                launches=launches,
                waits=waits,
                lanes=lanes,
                free=free,
                before=ends,
                fence=fence,
            )
        )
        last, growth = growth, [now - then for now, then in zip(free, history[-1], strict=True)]
        history.append(list(free))
        transfers = (end for end, queue in zip(ends[-1], queues, strict=True) if queue >= _D2H)
        landed.append(max(transfers, default=landed[-1]))
        # Two equal growths, and all that is waited for was played: later iterations repeat them.
        if last and len(ends) >= furthest and _same(last, growth):
            return Played(max(growth), ends, history[-2])
    # The growth alternates, so one iteration's is no period; the first half may still be warming up.
    half = len(history) // 2
    gained = (now - then for now, then in zip(history[-1], history[half], strict=True))
    return Played(max(gained) / (len(history) - 1 - half), ends, history[-2])


def _furthest_back(steps: int, waits: Waits) -> int:
    """Return the most iterations back that a step waits."""
    return -min((other // steps for others in waits.values() for other in others if other < 0), default=0)


def _one_iteration(
    queues: Sequence[int],
    seconds: Sequence[float],
    launches: Sequence[float],
    waits: Waits,
    lanes: Lanes,
    free: list[float],
    before: Sequence[Sequence[float]],
    fence: float,
) -> list[float]:
    """Return the ends of an iteration's steps, and advance `free`. before: the ends in the iterations before.

    fence: no step starts earlier.
    """
    steps = len(queues)
    ends = [0.0] * steps
    for step, queue in enumerate(queues):
        if queue < 0:
            continue
        start = fence
        for lane, _part in lanes[queue]:
            start = max(start, free[lane])
        if launches[step]:
            # The thread does not wait for the device: it only adds up launches, and runs ahead.
            free[_THREAD] = max(free[_THREAD], fence) + launches[step]
        if (queue <= _CPU or launches[step]) and free[_THREAD] > start:
            start = free[_THREAD]
        # In list order the computations before it have made or freed what it touches on the device.
        if queue in DEVICE_TRANSFERS and free[_COMPUTE] > start:
            start = free[_COMPUTE]
        for other in waits.get(step, ()):
            # Below 0: `divmod` gives how many iterations ago, and the step there.
            ago, of = divmod(other, steps)
            # A wait that reaches back before the first iteration is for nothing.
            if -ago <= len(before):
                start = max(start, before[ago][of] if ago else ends[of])
        ends[step] = start + seconds[step]
        for lane, part in lanes[queue]:
            free[lane] = start + part * seconds[step]
    return ends


def _same(last: list[float], growth: list[float]) -> bool:
    scale = max(growth) * _TOLERANCE
    return all(abs(a - b) <= scale for a, b in zip(last, growth, strict=True))
