"""The variables of O-ILP for the optimizer states of a group of weights, counted as in weights.py.

The part updated on the CPU never leaves the host. Fractions lie in [0, r].
"""

from __future__ import annotations

from .columns import Columns, Terms
from .weights import WeightStocks, disk_part


class StateStocks:
    """Columns of a group's optimizer states. StoO_t, PrfO_t: stored, fetched. left[d]: the new version,
    copied out before step d."""

    def __init__(self, program: Columns, weights: WeightStocks) -> None:
        self.size = weights.group.state_bytes / program.byte
        self.stored: list[int] = []
        self.fetched: list[int] = []
        self.left: list[int] = []
        self.disk: int | None = None
        self.disk_held: Terms = []
        self.disk_reads: Terms = []
        self.disk_writes: Terms = []
        if not self.size:
            return
        steps, loads = weights.steps, program.loads
        on_host: Terms = [] if weights.on_host is None else [(weights.on_host, 1.0)]
        share = (program.share, -1.0)
        self.stored = [program.column() for _ in range(steps)]
        self.fetched = [program.fetching(steps - d) for d in range(steps)]
        self.left = program.leaving(steps)
        copy = program.column()
        for d in range(steps):
            stored, fetched, left, t = self.stored[d], self.fetched[d], self.left[d], weights.step(d)
            following = self.stored[(d + 1) % steps]
            program.row("4.10", [(following, 1.0), (stored, -1.0), (fetched, -1.0)], upper=0.0)
            loads.device[t] += [(stored, self.size), (fetched, self.size)]
            loads.h2d[t].append((fetched, self.size))
            if d == 0:
                program.row("4.6", [(stored, 1.0), *on_host, share], lower=0.0)
                program.row("4.8", [(left, 1.0)], upper=0.0)
            else:
                out: Terms = [(left, self.size), (self.left[d - 1], -self.size)]
                program.row("4.8", out, lower=0.0)
                program.row("4.8", [(stored, 1.0), (left, 1.0), *on_host, share], lower=0.0)
                loads.d2h[weights.step(d - 1)] += out
                if d == 1:
                    program.after_computation(weights.origin, left, self.size)
        gone: Terms = [(c, -v) for c, v in on_host]
        program.row("4.18", [(copy, 1.0), (self.left[-1], -1.0), *gone], lower=0.0)
        self.disk = disk_part(program, copy, self.size)
        if self.disk is not None:
            self.disk_held = self.disk_reads = self.disk_writes = [(self.disk, self.size)]
