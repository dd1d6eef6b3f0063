"""The variables of O-ILP for one group of weights.

Steps of a group are counted from its update, d = 0 … N-1, step g_w + d of the cycle (a frozen group: from its
first use). Fractions lie in [0, r].

| thesis                   | here            | meaning                                                     |
|--------------------------|-----------------|-------------------------------------------------------------|
| X_w                      | on_host         | the part updated on the CPU                                 |
| Sto_t, Prf_t             | stored, fetched | on the device throughout step t; copied there during it     |
| Σ Ofl up to t (GPU part) | left[d]         | the new version, copied out before step d                   |
| Σ Ofl up to t (CPU part) | sent[d]         | the gradient, copied out before step d                      |
| Σ Opt up to t            | updated[d]      | updated on the CPU before step d                            |
"""

from __future__ import annotations

from ...milp.linear import ZERO, Linear
from .columns import Columns
from .iteration import Group


class WeightStocks:
    def __init__(self, program: Columns, group: Group) -> None:
        self.program, self.group = program, group
        self.steps = program.iteration.steps
        self.trained = group.last is not None
        self.origin = group.uses[0] if group.last is None else group.last
        self.size = group.bytes / program.byte
        self.gradient = group.gradient_bytes / program.byte
        share = program.share
        hosted = self.trained and group.host_seconds is not None
        self.on_host = program.variable() if hosted else ZERO
        self.stored = [program.variable() for _ in range(self.steps)]
        used = {(t - self.origin) % self.steps for t in group.uses}
        needed = sorted({*used, self.steps})
        self.fetched = [
            program.fetching(next(use for use in needed if use > d) - d) for d in range(self.steps)
        ]
        self.copy = program.variable()
        # Steps from the update to the next use, f_w: the time that a CPU update has.
        self.window = min((d for d in used if d > 0), default=self.steps)
        self._on_device(used)
        self.left: list[Linear] = []
        self.sent: list[Linear] = []
        self.updated: list[Linear] = []
        if self.trained:
            self._leaving()
        if hosted:
            program.add("4.3", self.on_host <= share)
            self._host_update()
        self._copies()

    def step(self, d: int) -> int:
        return (self.origin + d) % self.steps

    def _on_device(self, used: set[int]) -> None:
        program, share, loads = self.program, self.program.share, self.program.loads
        weights = {x for parcel in self.group.parcels for x in parcel.weights}
        stay = not weights.isdisjoint(program.iteration.stays)
        for d in range(self.steps):
            stored, fetched, t = self.stored[d], self.fetched[d], self.step(d)
            program.add("4.3", stored <= share)
            program.add("4.3", fetched <= share)
            if d in used or stay:
                program.add("4.5", stored >= share)
            following = self.stored[(d + 1) % self.steps]
            program.add("4.9", following <= stored + fetched)
            loads.device[t].append((stored + fetched) * self.size)
            loads.h2d[t].append(fetched * self.size)

    def _leaving(self) -> None:
        """Add rows for the weights that leave the device (4.7, 4.22), and the gradients' bytes."""
        program, share, loads = self.program, self.program.share, self.program.loads
        self.left = program.leaving(self.steps)
        for d in range(1, self.steps):
            now, t = self.left[d], self.step(d - 1)
            # `left` is cumulative: what leaves in step d − 1 is a difference.
            out = (now - self.left[d - 1] if d > 1 else now) * self.size
            program.add("4.7", out >= 0.0)
            loads.d2h[t].append(out)
            if d == 1:
                program.after_computation(t, now, self.size)
            program.add("4.7", self.stored[d] + now + self.on_host >= share)
        # The gradients: in no term of the printed (4.14) to (4.17).
        loads.device[self.origin].append(share * self.gradient)
        update = self.group.device_seconds / program.second
        loads.compute[self.origin].append((share - self.on_host) * update)  # 4.20

    def _host_update(self) -> None:
        """Add rows for updates on the CPU (4.11, 4.12, 4.13, 4.23)."""
        program, share, loads, on_host = self.program, self.program.share, self.program.loads, self.on_host
        seconds = (self.group.host_seconds or 0.0) / program.second
        self.sent = [program.variable() for _ in range(self.window + 1)]
        self.updated = [program.variable() for _ in range(self.window + 1)]
        for d in range(self.window + 1):
            sent, updated, t = self.sent[d], self.updated[d], self.step(d)
            if d == 0:
                program.add("4.12", sent + updated <= 0.0)
                continue
            t_before, sent_before, updated_before = self.step(d - 1), self.sent[d - 1], self.updated[d - 1]
            out, done = sent - sent_before, updated - updated_before
            program.add("4.12", out >= 0.0)
            program.add("4.12", done >= 0.0)
            # Strictly before: the printed (4.12) lets an update run in the step that copies its gradient.
            program.add("4.12", updated <= sent_before)
            program.add("4.12", sent <= on_host)
            come = self.stored[d % self.steps] + (self.fetched[d] if d < self.steps else ZERO)
            # After g_w the old weights are stale on the device: only updated ones may be there or come.
            program.add("4.13", come + on_host <= updated + share)
            loads.d2h[t_before].append(out * self.gradient)
            if d == 1:
                program.after_computation(t_before, sent, self.gradient)
            loads.cpu[t_before].append(done * seconds)
            if d < self.window:
                loads.device[t].append((on_host - sent) * self.gradient)
            loads.host[t_before].append((sent - updated_before) * self.gradient)

    def _copies(self) -> None:
        """Add columns and rows for the share with a copy on the host (4.18), and the share of it on the
        disk."""
        program, share = self.program, self.program.share
        if self.left:
            program.add("4.18", self.copy >= self.left[-1] + self.on_host)
        else:
            for stored in self.stored:
                program.add("4.18", self.copy + stored >= share)
        self.disk = disk_part(program, self.copy, self.size)
        self.disk_held = self.disk * self.size
        # Bytes an iteration: once for each use.
        self.disk_reads = self.disk_held * float(len(self.group.uses))
        self.disk_writes = self.disk_held if self.trained else ZERO
        if program.limits.has_disk:
            program.add("disk", self.disk + self.on_host <= self.copy)


def disk_part(program: Columns, copy: Linear, size: float) -> Linear:
    """Count a copy's bytes on the host, without its share on the disk, and return that share."""
    disk = program.variable() if program.limits.has_disk else ZERO
    if program.limits.has_disk:
        program.add("disk", disk <= copy)
    for t in range(program.iteration.steps):
        program.loads.host[t].append((copy - disk) * size)
    return disk
