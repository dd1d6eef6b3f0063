"""One iteration of a small training graph, as the exhaustive search over offloading schedules sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from memplan.graphs.graph import Graph, Phase
from memplan.graphs.machine import Machine

Run = tuple[int, int]


def sequences(graph: Graph, recompute: bool) -> Iterator[list[Run]]:
    """Every choice of modes, of what runs once more, and before which backward operation."""
    count = len(graph.operations)
    variants = [range(1 + len(graph.operation(o).modes)) for o in range(count)]
    backward = [o for o in range(count) if graph.operation(o).phase == Phase.BACKWARD]
    recomputed = [o for o in range(count) if recompute and graph.operation(o).phase == Phase.FORWARD]
    recomputed = [o for o in recomputed if graph.operation(o).recompute and not graph.operation(o).mutates]
    for modes in product(*variants):
        if not _alike(graph, modes):
            continue
        for before in product(*((None, *(b for b in backward if b <= _ended(graph, o))) for o in recomputed)):
            order: list[int] = []
            for operation in range(count):
                order += [o for o, place in zip(recomputed, before, strict=True) if place == operation]
                order.append(operation)
            yield [(o, modes[o]) for o in order]


def _alike(graph: Graph, modes: Sequence[int]) -> bool:
    """All that make a tensor make it in the same memory."""
    below = [graph.operation(o).modes[mode - 1].writes_host if mode else () for o, mode in enumerate(modes)]
    return all(len({x in below[o] for o in row}) <= 1 for x, row in enumerate(graph.producers.lists()))


def _ended(graph: Graph, operation: int) -> int:
    """The first operation that changes what it touches, after which it can't run again."""
    touched = {*graph.operation(operation).reads, *graph.operation(operation).writes}
    changes = (o for x in touched for o in graph.mutators[x].tolist() if o > operation)
    return min(changes, default=len(graph.operations))


def on_host(graph: Graph, run: Run) -> bool:
    operation, mode = run
    return bool(mode) and graph.operation(operation).modes[mode - 1].on_host


def seconds_of(graph: Graph, run: Run) -> float:
    operation, mode = run
    return graph.operation(operation).modes[mode - 1].time if mode else graph.operation(operation).time


def least(graph: Graph, runs: Sequence[Run]) -> float:
    """Seconds of the computations on the slower side."""
    cpu = sum(seconds_of(graph, run) for run in runs if on_host(graph, run))
    return max(sum(seconds_of(graph, run) for run in runs) - cpu, cpu)


@dataclass
class Life:
    """A tensor from its making to its last use before it is made anew; a persistent one for ever.

    first: the device run that begins it, born: that completes it; −1 of a persistent one. uses: device runs
    that need it on the device. host_uses: likewise in host memory. changed, host_changed: a run on that side
    changes it. direct: the device makes it in host memory.
    """

    tensor: int
    size: int
    first: int
    born: int
    uses: list[int]
    host_uses: list[int]
    changed: int | None = None
    host_changed: bool = False
    stays: bool = False
    direct: bool = False

    @property
    def persistent(self) -> bool:
        return self.first < 0


@dataclass(frozen=True)
class Turn:
    """One iteration as what may move sees it. Lives without bytes, and inputs, are left out."""

    graph: Graph
    machine: Machine
    budget: int
    all_runs: tuple[Run, ...]
    weights_only: bool = False

    @cached_property
    def runs(self) -> list[Run]:
        """Those on the device."""
        return [run for run in self.all_runs if not on_host(self.graph, run)]

    @cached_property
    def host_runs(self) -> list[Run]:
        return [run for run in self.all_runs if on_host(self.graph, run)]

    @cached_property
    def lives(self) -> list[Life]:
        graph, sizes = self.graph, self.graph.tensors.bytes.tolist()
        open_lives: dict[int, Life] = {
            x: Life(x, sizes[x], -1, -1, [], [])
            for x in range(len(sizes))
            if graph.persistent[x] and sizes[x]
        }
        found = list(open_lives.values())
        for position, (o, mode) in enumerate(self.runs):
            operation = graph.operation(o)
            variant = operation.modes[mode - 1] if mode else None
            for x in {*operation.reads, *operation.mutates}:
                if x in open_lives:
                    at_host = variant is not None and x in variant.reads_host
                    (open_lives[x].host_uses if at_host else open_lives[x].uses).append(position)
            for x in operation.mutates:
                if x in open_lives:
                    open_lives[x].changed = position
            for x in variant.writes if variant else operation.writes:
                if not sizes[x]:
                    continue
                if x not in open_lives or any(other == o for other, _mode in self.runs[:position]):
                    direct = variant is not None and x in variant.writes_host
                    open_lives[x] = Life(x, sizes[x], position, position, [], [], direct=direct)
                    found.append(open_lives[x])
                open_lives[x].born = position
        for o, _mode in self.host_runs:
            for x in {*graph.operation(o).reads, *graph.operation(o).mutates}:
                if x in open_lives:
                    open_lives[x].host_uses.append(len(self.runs))
                    open_lives[x].host_changed |= x in graph.operation(o).mutates
        for x in graph.results:
            if x in open_lives:
                open_lives[x].stays = True
        return found

    @cached_property
    def host_inputs(self) -> list[int]:
        """Per host run the lives that it needs, as bits."""
        return [
            self._bits((*self.graph.read_lists[o], *self.graph.mutate_lists[o])) for o, _ in self.host_runs
        ]

    @cached_property
    def host_changes(self) -> list[int]:
        return [self._bits(self.graph.mutate_lists[o]) for o, _mode in self.host_runs]

    def _bits(self, tensors: Collection[int]) -> int:
        return sum(1 << k for k, life in enumerate(self.lives) if life.tensor in tensors)

    @cached_property
    def always(self) -> int:
        moving = {life.tensor for life in self.lives}
        sizes = self.graph.tensors.bytes
        return sum(int(sizes[x]) for x in range(len(sizes)) if self.graph.resident[x] and x not in moving)

    @cached_property
    def workspace(self) -> list[int]:
        return [
            self.graph.operation(o).modes[mode - 1].workspace if mode else self.graph.operation(o).workspace
            for o, mode in self.runs
        ]

    @cached_property
    def seconds(self) -> list[float]:
        return [seconds_of(self.graph, run) for run in self.runs]

    @cached_property
    def rest(self) -> list[float]:
        """Seconds of the runs from each on."""
        return [sum(self.seconds[position:]) for position in range(len(self.runs) + 1)]

    @cached_property
    def needs(self) -> list[int]:
        """Per run, the lives it needs on the device or makes there, as bits."""
        rows = [0] * len(self.runs)
        for k, life in enumerate(self.lives):
            producers = () if life.persistent or life.direct else range(life.first, life.born + 1)
            for position in (*life.uses, *producers):
                rows[position] |= 1 << k
        return rows

    def bytes_of(self, lives: int) -> int:
        return sum(life.size for k, life in enumerate(self.lives) if lives >> k & 1)

    def next_use(self, k: int, position: int) -> int | None:
        """The first use on the device from `position` on; of a persistent life, maybe in the next turn."""
        uses = self.lives[k].uses
        later = [use for use in uses if use >= position]
        if later:
            return later[0]
        if self.lives[k].persistent:
            return uses[0] + len(self.runs) if uses else None
        return len(self.runs) if self.lives[k].stays else None
