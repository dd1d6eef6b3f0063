"""Rows (12) to (16) of an offloading program, for graphs that do not fit into host memory."""

from __future__ import annotations

from ....planner.simulator.clock import Queue
from ...milp.linear import ONE, ZERO, Linear, Term, column_sum, total
from .columns import OffloadColumns


class HostRows:
    """Writer of rows (12) to (16), which program.py explains."""

    def __init__(self, columns: OffloadColumns) -> None:
        self.columns = columns
        self.on_cpu: dict[int, list[int]] = {}
        for operation, variants in enumerate(columns.variants):
            for x in {x for variant in variants if variant.on_host for x in variant.host}:
                self.on_cpu.setdefault(x, []).append(operation)
        mutators = columns.graph.mutators
        self.changed = {x for x, used in self.on_cpu.items() if {*used} & {*mutators[x].tolist()}}
        for s in columns.windows:
            self._room(s)
            for x in columns.on_host[s]:
                self._lies(x, s)
            for x in columns.on_disk[self._following(s)]:
                self._written(x, s)
        self._disk_links()
        for x in sorted({*self.on_cpu} & {*columns.movable}):
            self._used_on_cpu(x)

    def _following(self, s: int) -> int:
        return (s + 1) % len(self.columns.windows)

    def _room(self, s: int) -> None:
        """Write row (12), as fractions of the capacity."""
        columns, lies = self.columns, list[Term]()
        # Row (12) holds while an operation runs; at the iteration's start none does.
        if columns.iteration.at[s] < 0 or columns.host is None:
            return
        for x, column in columns.on_host[s].items():
            part = columns.sizes[x] / columns.host
            if x not in self.changed:
                lies.append((column, part))
            # What the CPU changes counts only if it never moves: else its copy down may still be on its way.
            elif columns.persistent[x]:
                stays = columns.model.column()
                arrived = column_sum(stays) + self._arrives(x)
                columns.require(arrived >= column_sum(column))
                lies.append((stays, part))
        columns.model.add(Linear(lies) <= 1.0)

    def _lies(self, x: int, s: int) -> None:
        """Write rows (13)."""
        columns, following = self.columns, self._following(s)
        here, on_disk = columns.column(columns.on_host[s], x), columns.is_on_disk(x, s)
        read, by_host = columns.column(columns.read[s], x), columns.changed_below(x, s)
        if columns.constant(x):
            columns.require(columns.is_there(x, s) + here + on_disk >= ONE)
        else:
            columns.require(here + on_disk >= columns.is_below(x, s))
        columns.require(here + read + by_host >= columns.column(columns.up[s], x))
        columns.require(on_disk >= read)
        if columns.persistent[x] or following:
            come = here + columns.column(columns.down[s], x) + read + by_host
            columns.require(come >= columns.column(columns.on_host[following], x))

    def _written(self, x: int, s: int) -> None:
        """Write rows (14)."""
        columns = self.columns
        on_disk, written = columns.is_on_disk(x, self._following(s)), columns.column(columns.written[s], x)
        on_host, down = columns.column(columns.on_host[s], x), columns.column(columns.down[s], x)
        columns.require(on_host + down + columns.changed_below(x, s) >= written)
        columns.require(columns.is_on_disk(x, s) + written >= on_disk)
        for change in columns.changes_in(x, s):
            for inside in columns.spans(change, s):
                since = total(columns.column(columns.written[k], x) for k in inside)
                columns.require(since + columns.not_first(change, inside) >= on_disk)

    def _disk_links(self) -> None:
        """Write rows (15)."""
        columns = self.columns
        whole, lanes = column_sum(*columns.seconds), dict[int, list[Linear]]()
        for link, moving in ((2, columns.written), (3, columns.read)):
            for lane, part in columns.lanes[Queue.D2H + link]:
                lanes.setdefault(lane, []).extend(part * columns.load(window, link) for window in moving)
        for lane, loads in lanes.items():
            # Disk copies share lanes with those of the device, so both fit into the iteration together.
            others = [columns.loads(s).get(lane, ZERO) for s in columns.windows]
            columns.require(whole >= total([*loads, *others]))
        for s, moving in enumerate(columns.written):
            # A write waits for what made its version on the device, not for the CPU.
            here = {x: column for x, column in moving.items() if x not in self.changed}
            columns.require(column_sum(columns.seconds[s]) >= columns.load(here, 2))

    def _arrives(self, x: int) -> Linear:
        """Return the shares of x that come to the host in an iteration, from the device or from the disk."""
        columns = self.columns
        return total(columns.column(moving, x) for moving in (*columns.down, *columns.read))

    def _used_on_cpu(self, x: int) -> None:
        """Write rows (16)."""
        columns, arrives = self.columns, self._arrives(x)
        for operation in self.on_cpu[x]:
            numbers = columns.numbers(operation, lambda variant: variant.on_host and x in variant.host)
            for s in columns.iteration.of[operation]:
                lies = columns.column(columns.on_host[s], x) + arrives
                columns.require(lies >= columns.first(operation, s, numbers))
