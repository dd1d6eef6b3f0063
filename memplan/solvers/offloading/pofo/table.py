"""POFO's dynamic program: recomputation and activation offload together, on a chain of blocks.

Beaumont, Eyraud-Dubois, Shilova, "Efficient combination of rematerialization and offloading for training
DNNs" (NeurIPS 2021). Minimises the seconds of an iteration in which forward leaves a row of segments,

    (a) one block that keeps all its backward reads, x̄_i (and x_i), or
    (b) blocks i … j-1 that keep their input x_i alone, recomputed by Rotor's program when backward comes,

each kept on the device or offloaded, and ends with blocks i … L-1 that Rotor's program turns around. This is
a reading of the paper's idea on Rotor's costs (chains/costs.py), not its own recurrence.

Assumed, as there: offloads happen in forward and prefetches in backward; memory is given back and taken byte
by byte as a copy goes on. Backward is forward's mirror image: what is to be prefetched before it reaches a
boundary is no more than the backlog of offloads that forward had there, as long as each segment's backward
takes no less than its forward. So one backlog Q stands for both passes, served at the slower link for the
shorter of a block's two times; if it takes memory that is needed both passes wait, 2 / β a byte.

    V_f(i, K, Q) = least seconds of all that is left when forward reaches block i, with K bytes kept on the
                   device and a backlog of Q; f: where x_i is: counted nowhere yet, in K, or offloaded
    V_f(L…)      = none: the last segment is Rotor's, C(i, L-1, M - K - Q - x_i)
    V_f(i, K, Q) = min over waiting, (a) and (b), each kept or offloaded

M, K, Q and sizes are whole slots, sizes rounded up. O(L² M²) vectorised for L blocks and M slots, after
Rotor's O(L³ M); 24 L M² bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...chains.costs import ChainCosts
from ...chains.table import ChainTable, shifted
from .segments import Input, Segment, Transition, Values


class PofoTable:
    """V for all boundaries. slots: of memory besides what is resident. rate: bytes/s of the slower link."""

    def __init__(self, costs: ChainCosts, rotor: ChainTable, rate: float) -> None:
        self.costs, self.rotor, self.slots = costs, rotor, rotor.slots
        self.slot_seconds = rotor.slot_bytes / rate
        self.backlogs = np.arange(self.slots + 1)
        # left[K, Q]: slots that K and Q leave free.
        self.left = self.slots - np.add.outer(self.backlogs, self.backlogs)
        # The shorter of a block's two passes: the backlog must be served in both.
        shorter = np.minimum(costs.advance_seconds, costs.turn_seconds + costs.backward_seconds)
        self.served = np.floor(np.append(0.0, np.cumsum(shorter)) / self.slot_seconds)
        self.values: list[dict[Input, Values]] = [{} for _ in range(len(costs))]

    def _served(self, first: int, end: int) -> int:
        """Return the slots that the link serves during these blocks, cut off above the largest backlog."""
        return int(min(self.served[end] - self.served[first], self.slots + 1))

    def fill(self) -> None:
        """Compute V from the last block to the first; the first one's input is the batch."""
        for i in reversed(range(len(self.costs))):
            for state in Input if i else (Input.FREE,):
                best = self._final(i, state)
                for choice in self._choices(i, state):
                    np.minimum(best, self._values(choice), out=best)
                self.values[i][state] = self._with_waiting(best)

    def times(self) -> Values:
        """Return the least seconds by slots of memory: with fewer slots, the rest counts as kept from the
        start."""
        # With m of M slots: V(0, M - m, 0).
        return self.values[0][Input.FREE][::-1, 0]

    def segments(self, slots: int) -> list[Segment]:
        """Return the segments of the best answer with so many slots, if its time is finite."""
        found: list[Segment] = []
        i, state, kept, backlog = 0, Input.FREE, self.slots - slots, 0
        while True:
            final, choices = self._final(i, state), list(self._choices(i, state))
            rows = np.array([final[kept], *(self._values(choice)[kept] for choice in choices)])
            # As in `_with_waiting`: V at the backlog q' to which both passes wait, and the seconds for that,
            # but for a constant.
            waits = rows[:, : backlog + 1] - 2 * self.slot_seconds * self.backlogs[: backlog + 1]
            number, backlog = (int(n) for n in np.unravel_index(int(waits.argmin()), waits.shape))
            if number == 0:
                memory = self.slots - kept - backlog - self._extra(i, state)
                return [*found, Segment(i, len(self.costs), False, False, memory)]
            chosen = choices[number - 1]
            memory = self.slots - kept - backlog - chosen.extra
            found.append(Segment(i, chosen.end, chosen.saved, chosen.sent, memory))
            kept += chosen.kept
            backlog = int(chosen.backlog_after(self.backlogs)[backlog])
            i, state = chosen.end, chosen.after

    def _choices(self, i: int, state: Input) -> Iterator[Transition]:
        rotor, costs, blocks = self.rotor, self.costs, len(self.costs)
        extra = self._extra(i, state)
        own = rotor.input[i] if state == Input.FREE else 0
        if i < blocks - 1:
            need = extra + self._slots(max(int(costs.save_peak[i]), int(costs.backward_peak[i])))
            size = own + max(0, int(rotor.saved[i]))
            seconds = np.full(self.slots + 1, rotor.costs.both[i])
            # Saving it or its backward does not fit into fewer slots.
            seconds[:need] = np.inf
            served = self._served(i, i + 1)
            yield Transition(
                seconds=seconds,
                end=i + 1,
                saved=True,
                sent=False,
                kept=size,
                backlog=0,
                served=served,
                after=Input.KEPT,
                extra=extra,
            )
            yield Transition(
                seconds=seconds,
                end=i + 1,
                saved=True,
                sent=True,
                kept=0,
                backlog=size,
                served=served,
                after=Input.SENT,
                extra=extra,
            )
        forward = int(costs.advance_peak[i])
        for end in range(i + 1, blocks):
            if end > i + 1:
                forward = max(forward, int(costs.through_peak[end - 1]))
            repeats = rotor.seconds(i, end - 1) + (rotor.before[end] - rotor.before[i])
            # Rotor's program has what K and Q leave, less an input that is in neither.
            seconds = shifted(repeats, extra)
            seconds[: extra + self._slots(forward)] = np.inf
            served = self._served(i, end)
            yield Transition(
                seconds=seconds,
                end=end,
                saved=False,
                sent=False,
                kept=own,
                backlog=0,
                served=served,
                after=Input.FREE,
                extra=extra,
            )
            # An input in K or offloaded already costs nothing more; one without bytes need not be sent.
            if own:
                yield Transition(
                    seconds=seconds,
                    end=end,
                    saved=False,
                    sent=True,
                    kept=0,
                    backlog=own,
                    served=served,
                    after=Input.FREE,
                    extra=extra,
                )

    def _values(self, choice: Transition) -> Values:
        """Return the seconds from here on, by K and Q."""
        later = self.values[choice.end][choice.after]
        backlogs = choice.backlog_after(self.backlogs)
        fits = backlogs <= self.slots
        values = np.full_like(later, np.inf)
        # Row K takes the value at K + kept, column Q that of the backlog after the segment.
        values[: max(0, self.slots + 1 - choice.kept), fits] = later[choice.kept :, backlogs[fits]]
        return values + self._by_left(choice.seconds)

    def _by_left(self, seconds: Values) -> Values:
        return np.where(self.left >= 0, seconds[np.maximum(self.left, 0)], np.inf)

    def _final(self, i: int, state: Input) -> Values:
        return self._by_left(shifted(self.rotor.seconds(i, len(self.costs) - 1), self._extra(i, state)))

    def _extra(self, i: int, state: Input) -> int:
        """Return the slots of an input that is not in K: it is on the device while its segment runs."""
        return 0 if state == Input.KEPT else self.rotor.input[i]

    def _with_waiting(self, values: Values) -> Values:
        """Return the values with waiting: both passes may wait until a byte of backlog is gone."""
        waiting = 2.0 * self.slot_seconds * self.backlogs.astype(np.float64)
        # Waiting from backlog q down to q' costs 2 (q - q') slots of link time: this is the minimum over q'
        # <= q.
        sooner: Values = np.minimum.accumulate(values - waiting, axis=1)
        return sooner + waiting

    def _slots(self, size: int) -> int:
        """Return the least m that stands for at least so many bytes."""
        return max(0, -((self.rotor.spare_bytes - size) // self.rotor.slot_bytes))
