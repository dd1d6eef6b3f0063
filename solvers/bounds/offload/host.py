"""Rows (12) to (16) of an offloading program, for graphs that do not fit into host memory."""

from __future__ import annotations

from .columns import ONE, OffloadColumns, Sum, plus


class HostRows:
    """Writer of rows (12) to (16), which program.py explains."""

    def __init__(self, columns: OffloadColumns) -> None:
        self.columns = columns
        self.on_cpu: dict[int, list[int]] = {}
        for operation, ways in enumerate(columns.ways):
            for x in {x for way in ways if way.on_host for x in way.host}:
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
        columns, lies = self.columns, list[tuple[int, float]]()
        if columns.turn.at[s] < 0 or columns.host is None:
            return
        for x, column in columns.on_host[s].items():
            part = columns.sizes[x] / columns.host
            if x not in self.changed:
                lies.append((column, part))
            elif columns.persistent[x]:
                stays = columns.model.column()
                arrived = plus((0.0, [(stays, 1.0)]), self._arrives(x))
                columns.at_least(arrived, (0.0, [(column, 1.0)]))
                lies.append((stays, part))
        columns.model.row(lies, upper=1.0)

    def _lies(self, x: int, s: int) -> None:
        """Write rows (13)."""
        columns, following = self.columns, self._following(s)
        here, on_disk = columns.column(columns.on_host[s], x), columns.is_on_disk(x, s)
        read, by_host = columns.column(columns.read[s], x), columns.changed_below(x, s)
        if columns.constant(x):
            columns.at_least(plus(columns.is_there(x, s), here, on_disk), ONE)
        else:
            columns.at_least(plus(here, on_disk), columns.is_below(x, s))
        columns.at_least(plus(here, read, by_host), columns.column(columns.up[s], x))
        columns.at_least(on_disk, read)
        if columns.persistent[x] or following:
            come = plus(here, columns.column(columns.down[s], x), read, by_host)
            columns.at_least(come, columns.column(columns.on_host[following], x))

    def _written(self, x: int, s: int) -> None:
        """Write rows (14)."""
        columns = self.columns
        on_disk, written = columns.is_on_disk(x, self._following(s)), columns.column(columns.written[s], x)
        on_host, down = columns.column(columns.on_host[s], x), columns.column(columns.down[s], x)
        columns.at_least(plus(on_host, down, columns.changed_below(x, s)), written)
        columns.at_least(plus(columns.is_on_disk(x, s), written), on_disk)
        for change in columns.changes_in(x, s):
            for inside in columns.spans(change, s):
                since = plus(*(columns.column(columns.written[k], x) for k in inside))
                columns.at_least(plus(since, columns.not_first(change, inside)), on_disk)

    def _disk_links(self) -> None:
        """Write rows (15)."""
        columns = self.columns
        whole: Sum = (0.0, [(column, 1.0) for column in columns.seconds])
        for link, moving in ((2, columns.written), (3, columns.read)):
            load = [(c, columns.copy_seconds(x, link)) for window in moving for x, c in window.items()]
            columns.at_least(whole, (0.0, load))
        for s, moving in enumerate(columns.written):
            here = {x: column for x, column in moving.items() if x not in self.changed}
            load = [(column, columns.copy_seconds(x, 2)) for x, column in here.items()]
            columns.at_least((0.0, [(columns.seconds[s], 1.0)]), (0.0, load))

    def _arrives(self, x: int) -> Sum:
        """Return the shares of x that come to the host in an iteration, from the device or from the disk."""
        columns = self.columns
        return plus(*(columns.column(moving, x) for moving in (*columns.down, *columns.read)))

    def _used_on_cpu(self, x: int) -> None:
        """Write rows (16)."""
        columns, arrives = self.columns, self._arrives(x)
        for operation in self.on_cpu[x]:
            numbers = columns.numbers(operation, lambda way: way.on_host and x in way.host)
            for s in columns.turn.of[operation]:
                lies = plus(columns.column(columns.on_host[s], x), arrives)
                columns.at_least(lies, columns.first(operation, s, numbers))
