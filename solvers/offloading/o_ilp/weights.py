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

from .columns import Columns, Terms
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
        self.on_host = program.column() if hosted else None
        self.stored = [program.column() for _ in range(self.steps)]
        used = {(t - self.origin) % self.steps for t in group.uses}
        needed = sorted({*used, self.steps})
        self.fetched = [
            program.fetching(next(use for use in needed if use > d) - d) for d in range(self.steps)
        ]
        self.copy = program.column()
        self.window = min((d for d in used if d > 0), default=self.steps)
        self._on_device(used)
        self.left: list[int] = []
        self.sent: list[int] = []
        self.updated: list[int] = []
        if self.trained:
            self._leaving()
        if self.on_host is not None:
            program.row("4.3", [(self.on_host, 1.0), (share, -1.0)], upper=0.0)
            self._host_update(self.on_host)
        self._copies()

    def step(self, d: int) -> int:
        return (self.origin + d) % self.steps

    def _part(self, sign: float) -> Terms:
        """Return the terms of sign · X_w."""
        return [] if self.on_host is None else [(self.on_host, sign)]

    def _on_device(self, used: set[int]) -> None:
        program, share, loads = self.program, self.program.share, self.program.loads
        for d in range(self.steps):
            stored, fetched, t = self.stored[d], self.fetched[d], self.step(d)
            program.row("4.3", [(stored, 1.0), (share, -1.0)], upper=0.0)
            program.row("4.3", [(fetched, 1.0), (share, -1.0)], upper=0.0)
            if d in used:
                program.row("4.5", [(stored, 1.0), (share, -1.0)], lower=0.0)
            following = self.stored[(d + 1) % self.steps]
            program.row("4.9", [(following, 1.0), (stored, -1.0), (fetched, -1.0)], upper=0.0)
            loads.device[t] += [(stored, self.size), (fetched, self.size)]
            loads.h2d[t].append((fetched, self.size))

    def _leaving(self) -> None:
        """Add rows for the weights that leave the device (4.7, 4.22), and the gradients' bytes."""
        program, share, loads = self.program, self.program.share, self.program.loads
        self.left = program.leaving(self.steps)
        for d in range(1, self.steps):
            before, now, t = self.left[d - 1], self.left[d], self.step(d - 1)
            out: Terms = [(now, self.size), *([(before, -self.size)] if d > 1 else [])]
            program.row("4.7", out, lower=0.0)
            loads.d2h[t] += out
            if d == 1:
                program.after_computation(t, now, self.size)
            kept: Terms = [(self.stored[d], 1.0), (now, 1.0), *self._part(1.0), (share, -1.0)]
            program.row("4.7", kept, lower=0.0)
        loads.device[self.origin].append((share, self.gradient))
        update = self.group.device_seconds / program.second
        loads.compute[self.origin] += [(share, update), *self._part(-update)]  # 4.20

    def _host_update(self, on_host: int) -> None:
        """Add rows for updates on the CPU (4.11, 4.12, 4.13, 4.23)."""
        program, share, loads = self.program, self.program.share, self.program.loads
        seconds = (self.group.host_seconds or 0.0) / program.second
        self.sent = [program.column() for _ in range(self.window + 1)]
        self.updated = [program.column() for _ in range(self.window + 1)]
        for d in range(self.window + 1):
            sent, updated, t = self.sent[d], self.updated[d], self.step(d)
            if d == 0:
                program.row("4.12", [(sent, 1.0), (updated, 1.0)], upper=0.0)
                continue
            before, t_before = d - 1, self.step(d - 1)
            out: Terms = [(sent, 1.0), (self.sent[before], -1.0)]
            done: Terms = [(updated, 1.0), (self.updated[before], -1.0)]
            program.row("4.12", out, lower=0.0)
            program.row("4.12", done, lower=0.0)
            program.row("4.12", [(updated, 1.0), (self.sent[before], -1.0)], upper=0.0)
            program.row("4.12", [(sent, 1.0), (on_host, -1.0)], upper=0.0)
            come: Terms = [(self.stored[d % self.steps], 1.0)]
            come += [(self.fetched[d], 1.0)] if d < self.steps else []
            program.row("4.13", [*come, (on_host, 1.0), (updated, -1.0), (share, -1.0)], upper=0.0)
            loads.d2h[t_before] += [(c, v * self.gradient) for c, v in out]
            if before == 0:
                program.after_computation(t_before, sent, self.gradient)
            loads.cpu[t_before] += [(c, v * seconds) for c, v in done]
            if d < self.window:
                loads.device[t] += [(on_host, self.gradient), (sent, -self.gradient)]
            loads.host[t_before] += [(sent, self.gradient), (self.updated[before], -self.gradient)]

    def _copies(self) -> None:
        """Add columns and rows for the share with a copy on the host (4.18), and the share of it on the
        disk."""
        program, share = self.program, self.program.share
        if self.left:
            away: Terms = [(self.left[-1], -1.0), *self._part(-1.0)]
            program.row("4.18", [(self.copy, 1.0), *away], lower=0.0)
        else:
            for stored in self.stored:
                program.row("4.18", [(self.copy, 1.0), (stored, 1.0), (share, -1.0)], lower=0.0)
        self.disk = disk_part(program, self.copy, self.size)
        times = float(len(self.group.uses))
        part = [] if self.disk is None else [(self.disk, self.size)]
        self.disk_held = part
        self.disk_reads = [(c, v * times) for c, v in part]
        self.disk_writes = part if self.trained else []
        if self.disk is not None:
            program.row("disk", [(self.disk, 1.0), (self.copy, -1.0), *self._part(1.0)], upper=0.0)


def disk_part(program: Columns, copy: int, size: float) -> int | None:
    """Count a copy's bytes on the host, without its share on the disk, and return that share's column."""
    disk = program.column() if program.limits.has_disk else None
    terms: Terms = [(copy, size)]
    if disk is not None:
        terms.append((disk, -size))
        program.row("disk", [(disk, 1.0), (copy, -1.0)], upper=0.0)
    for t in range(program.iteration.steps):
        program.loads.host[t] += terms
    return disk
