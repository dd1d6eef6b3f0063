"""The variables of O-ILP for the optimizer states of a group of weights, counted as in weights.py.

The part updated on the CPU never leaves the host. Fractions lie in [0, r].
"""

from __future__ import annotations

from ...milp.linear import ZERO, Linear
from .columns import Columns
from .weights import WeightStocks, disk_part


class StateStocks:
    """Columns of a group's optimizer states. StoO_t, PrfO_t: stored, fetched. left[d]: the new version,
    copied out before step d."""

    def __init__(self, program: Columns, weights: WeightStocks) -> None:
        self.size = weights.group.state_bytes / program.byte
        self.stored: list[Linear] = []
        self.fetched: list[Linear] = []
        self.left: list[Linear] = []
        self.disk = self.disk_held = self.disk_reads = self.disk_writes = ZERO
        if not self.size:
            return
        steps, loads, on_host, share = weights.steps, program.loads, weights.on_host, program.share
        self.stored = [program.variable() for _ in range(steps)]
        self.fetched = [program.fetching(steps - d) for d in range(steps)]
        self.left = program.leaving(steps)
        copy = program.variable()
        states = {x for parcel in weights.group.parcels for x in parcel.states}
        stay = not states.isdisjoint(program.iteration.stays)
        for d in range(steps):
            stored, fetched, left, t = self.stored[d], self.fetched[d], self.left[d], weights.step(d)
            following = self.stored[(d + 1) % steps]
            program.add("4.10", following <= stored + fetched)
            if stay:
                program.add("4.10", stored + on_host >= share)
            loads.device[t].append((stored + fetched) * self.size)
            loads.h2d[t].append(fetched * self.size)
            # Step 0 is the update itself: the states of the part updated on the device are there, and no new
            # version has left.
            if d == 0:
                program.add("4.6", stored + on_host >= share)
                program.add("4.8", left <= 0.0)
            else:
                out = (left - self.left[d - 1]) * self.size
                program.add("4.8", out >= 0.0)
                # Stored on the device, copied out, or updated on the CPU: nothing is lost.
                program.add("4.8", stored + left + on_host >= share)
                loads.d2h[weights.step(d - 1)].append(out)
                if d == 1:
                    program.after_computation(weights.origin, left, self.size)
        program.add("4.18", copy >= self.left[-1] + on_host)
        self.disk = disk_part(program, copy, self.size)
        self.disk_held = self.disk_reads = self.disk_writes = self.disk * self.size
