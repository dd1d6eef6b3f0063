"""Times of the rows by the rules of planner/simulator/clock.py, and the period in the steady state,
compiled."""

from __future__ import annotations

import numpy as np

from ...graphs.compiled import inner
from ..simulator.clock import Queue
from .rows import LAUNCH, QUEUE, RUN, TURN, WAIT, IterationTables

MAX_ITERATIONS = 40
"""The most iterations that a search simulates; then the growth is the mean of the last half."""

_SAME = 1e-9
_COMPUTE, _D2H, _H2D, _COMM = int(Queue.COMPUTE), int(Queue.D2H), int(Queue.H2D), int(Queue.COMM)


@inner
def period(iteration: IterationTables, most: int) -> float:
    """Return the seconds of an iteration in the steady state, after `walk` has filled in the waits.

    most: iterations simulated at most; without a steady state by then, the mean of the second half counts.
    Writes into `seconds[:, WAIT]` how long each row waited in the last one.
    """
    rows, seconds, first, waits = iteration.rows, iteration.seconds, iteration.first, iteration.waits
    count = iteration.counts[0]
    lanes, parts = iteration.lanes, iteration.parts
    # Only lanes that rows use: those of deeper memories and of the network cost time in each iteration.
    back, queues = 0, _H2D + 1
    for row in range(count):
        for k in range(lanes.shape[1]):
            queues = max(queues, lanes[rows[row, TURN], k] + 1)
    thread = queues
    for place in range(first[count]):
        if waits[place] < 0:
            back = max(back, -(waits[place] // count))
    # A ring of the last iterations: no wait reaches further back.
    ends = np.zeros((back + 1, count))
    free, begin = np.zeros(queues + 1), np.zeros(queues + 1)
    growth, half = np.zeros(queues + 1), np.zeros(queues + 1)
    # `computed` and `launched` are the free times of the compute queue and of the training thread.
    fence = following = landed = longest = computed = launched = 0.0
    for number in range(most):
        for queue in range(queues + 1):
            begin[queue] = free[queue]
        now = ends[number % (back + 1)]
        place = 0
        for row in range(count):
            queue, turn = rows[row, QUEUE], rows[row, TURN]
            ready = computed
            if queue != _COMPUTE:
                ready = free[lanes[turn, 0]]
                for k in range(1, lanes.shape[1]):
                    if lanes[turn, k] >= 0:
                        ready = max(ready, free[lanes[turn, k]])
            start = max(ready, fence)
            if seconds[row, LAUNCH]:
                launched = max(launched, fence) + seconds[row, LAUNCH]
            if queue < _D2H or seconds[row, LAUNCH]:
                start = max(start, launched)
            if _D2H <= queue <= _H2D or queue == _COMM:
                start = max(start, computed)
            while place < first[row + 1]:
                other = waits[place]
                place += 1
                if other >= 0:
                    start = max(start, now[other])
                    continue
                ago = -(other // count)
                if ago <= number:
                    start = max(start, ends[(number - ago) % (back + 1), other + ago * count])
            seconds[row, WAIT] = start - ready
            now[row] = start + seconds[row, RUN]
            if queue == _COMPUTE:
                computed = now[row]
            else:
                for k in range(lanes.shape[1]):
                    if lanes[turn, k] >= 0:
                        free[lanes[turn, k]] = start + parts[turn, k] * seconds[row, RUN]
                if queue >= _D2H:
                    landed = max(landed, now[row])
        free[_COMPUTE], free[thread] = computed, launched
        # The next iteration waits for the transfers of the one before this.
        fence, following = following, landed
        longest, change = 0.0, 0.0
        for queue in range(queues + 1):
            gained = free[queue] - begin[queue]
            change = max(change, abs(gained - growth[queue]))
            longest = max(longest, gained)
            growth[queue] = gained
        # As in the simulator: the growth repeats, and every wait reaches an iteration that was played.
        if number > 0 and number + 1 >= back and change <= longest * _SAME:
            return longest
        if number + 1 == (most + 1) // 2:
            for queue in range(queues + 1):
                half[queue] = free[queue]
    longest = 0.0
    for queue in range(queues + 1):
        longest = max(longest, free[queue] - half[queue])
    return longest / (most - (most + 1) // 2)
