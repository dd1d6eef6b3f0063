"""The order of updates on the CPU: by their deadlines, among those whose gradient is there.

A weight updated on the CPU is needed next by the first step that uses it in the next iteration (f_w);
blocks with a lower number have less time between their backward and their next forward (thesis, 4.6).
Earliest deadline first, without preemption, over the steps' times as the program has them; the CPU's queue
runs on into the next iteration, so the second of two iterations is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate


@dataclass(frozen=True)
class HostUpdate:
    """An update on the CPU.

    release: the step after which its gradient can be on the host. deadline: the step of the next iteration
    that needs the weight. seconds: on the CPU.
    """

    release: int
    deadline: int
    seconds: float


def start_steps(updates: Sequence[HostUpdate], times: Sequence[float]) -> list[tuple[int, int]]:
    """Return pairs (step, number of the update) in the order in which they start.

    Step `len(times)`: after all.
    """
    starts = [0.0, *accumulate(times)]
    now = 0.0
    order: list[tuple[int, int]] = []
    for _turn in range(2):
        order = []
        waiting: list[tuple[int, int]] = []
        by_release = sorted(range(len(updates)), key=lambda u: updates[u].release, reverse=True)
        while by_release or waiting:
            if not waiting:
                now = max(now, starts[updates[by_release[-1]].release + 1])
            while by_release and starts[updates[by_release[-1]].release + 1] <= now:
                number = by_release.pop()
                heappush(waiting, (updates[number].deadline, number))
            if waiting:
                _deadline, number = heappop(waiting)
                step = next((t for t in range(len(times)) if now < starts[t + 1]), len(times))
                order.append((max(step, updates[number].release + 1), number))
                now += updates[number].seconds
        now = max(0.0, now - starts[-1])
    steps = 0
    placed: list[tuple[int, int]] = []
    for step, number in order:
        steps = max(steps, step)
        placed.append((steps, number))
    return placed
