"""The activations that can be recomputed, and the order of all first runs.

A dropped tensor is recomputed right before the use that needs it, with what that needs and is dropped too;
from then on it stays (slots.py). So what crosses from block to block is the last to drop
(graphs/structure/chain.py): without it all blocks would be recomputed at once, and stay. Updates move after
the last run that touches what they change, unless an operation after them in traced order depends on them.
Linear in the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from ....graphs.graph import Graph, Phase
from ....graphs.machine import Peers
from ....graphs.structure.chain import chain_of
from ....planner.schedule.sequence import Run, in_default_mode


class Drops:
    """The tensors of a graph that may be dropped, and what recomputes them.

    boundary: the first operation that is not forward; without phases, the one with most bytes to keep.
    producers: per tensor that may be dropped the operation that produces it.
    movable: updates that may run as soon as what they touch is not needed any more.
    peers: the network between the ranks, on which updates of shares wait for their gradients.
    """

    def __init__(self, graph: Graph, peers: Peers | None = None) -> None:
        self.graph, self._peers = graph, peers
        later = np.flatnonzero(graph.operations.phase != Phase.FORWARD)
        self.boundary = int(later[0]) if len(later) else _fullest(graph)
        self.movable = _movable(graph)
        results, resident = set(graph.results), graph.resident
        changed = graph.mutators.counts() > 0
        self.producers: dict[int, int] = {}
        for x, producers in enumerate(graph.producers.lists()):
            # A sum would need all its contributions recomputed; a result stays; a value changed in place is
            # not what its producer makes.
            if len(producers) != 1 or x in results or resident[x] or changed[x]:
                continue
            producer = producers[0]
            if producer < self.boundary and self._recomputable(producer):
                self.producers[x] = producer

    def _recomputable(self, operation: int) -> bool:
        """Tell whether it may run a second time: nothing that it touches is changed in place by then."""
        graph = self.graph
        touched = {*graph.read_lists[operation], *graph.operations.writes[operation].tolist()}
        changes = {change for x in touched for change in graph.mutators[x].tolist() if change > operation}
        once = graph.mutate_lists[operation] or not graph.operations.recompute[operation]
        return not once and changes <= self.movable

    @cached_property
    def passing(self) -> frozenset[int]:
        """Return the tensors that may be dropped and that backward needs only to recompute others."""
        last = self._last_readers
        return frozenset(x for x in self.producers if last[x] < self.boundary and x not in self.crossing)

    @cached_property
    def saved(self) -> list[int]:
        """Return the tensors that may be dropped and that backward needs: those inside blocks first, by
        price."""
        graph, last = self.graph, self._last_readers
        across = [x for x in self.producers if last[x] >= self.boundary and graph.tensors.bytes[x] > 0]
        # Those that cross from block to block last: without them a block cannot be recomputed alone.
        return sorted(across, key=lambda x: (x in self.crossing, self.price(x), x))

    def price(self, x: int) -> float:
        """Return the seconds per byte of recomputing x from its producer's inputs."""
        return float(self.graph.repeat_seconds[self.producers[x]]) / float(self.graph.tensors.bytes[x])

    @cached_property
    def crossing(self) -> frozenset[int]:
        chain = chain_of(self.graph)
        return chain.shared | {block.output for block in chain.blocks if block.output is not None}

    @cached_property
    def _last_readers(self) -> list[int]:
        return [max(readers, default=-1) for readers in self.graph.consumers.lists()]

    @cached_property
    def runs(self) -> list[Run]:
        """Return traced order, with each movable update right after the last run that touches what it
        uses; after the run by which its gradient is scattered, if it updates shares."""
        graph = self.graph
        runs = [operation for operation in range(len(graph.operations)) if operation not in self.movable]
        last = [-1] * len(graph.tensors)
        for position, operation in enumerate(runs):
            for x in (*graph.input_lists[operation], *graph.operations.writes[operation].tolist()):
                last[x] = position
        later: dict[int, list[int]] = {}
        ready = dict[int, int]()
        for update in sorted(self.movable):
            ready[update] = max((last[x] for x in graph.input_lists[update]), default=len(runs) - 1)
            # A later update of the same tensor does not overtake it.
            for x in graph.mutate_lists[update]:
                last[x] = max(last[x], ready[update])
        for update, position in (
            _scattered(graph, self._peers, runs, ready) if self._peers else ready
        ).items():
            later.setdefault(position, []).append(update)
        order = [*later.get(-1, ())]
        for position, operation in enumerate(runs):
            order += [operation, *later.get(position, ())]
        return in_default_mode(order)

    def needed(self, operation: int, missing: set[int]) -> Iterator[int]:
        """Yield the operations to recompute before an operation, in order; their results leave `missing`."""
        stack = [(operation, iter(self.graph.read_lists[operation]))]
        while stack:
            reader, rest = stack[-1]
            x = next((x for x in rest if x in missing), None)
            if x is not None:
                # Depth first: what a run needs comes before it.
                producer = self.producers[x]
                missing.discard(x)
                stack.append((producer, iter(self.graph.read_lists[producer])))
                continue
            stack.pop()
            if stack:
                missing.difference_update(self.graph.operations.writes[reader].tolist())
                yield reader


def _scattered(
    graph: Graph, peers: Peers, runs: Sequence[int], ready: Mapping[int, int]
) -> Mapping[int, int]:
    """Return per update the position of the run by which its gradients are scattered, if nothing else waits.

    The network gathers what a run reads before it, and once more between forward and backward; it is one
    queue. An update holds up the device, so it had better come late; its gradients' shares are small.

    ready: per update the position of the run after which its gradients are complete.
    """
    operations, spread = graph.operations, graph.tensors.spread
    sizes = graph.tensors.bytes.astype(np.float64)
    gathering: list[float] = peers.seconds(sizes).tolist()
    scattering: list[float] = peers.scatters.seconds(sizes).tolist()
    ends = np.cumsum(operations.time[list(runs)])
    waiting: dict[int, list[int]] = {}
    for update, position in ready.items():
        waiting.setdefault(position, []).append(update)
    network, gathered, found = 0.0, set[tuple[int, bool]](), dict[int, int]()
    for position, operation in enumerate(runs):
        backward = bool(operations.phase[operation] == Phase.BACKWARD)
        for x in {*graph.read_lists[operation]} & spread:
            if (x, backward) not in gathered:
                gathered.add((x, backward))
                # Once for forward, once for backward: weights are dropped in between.
                network += gathering[x]
        for update in waiting.get(position, ()):
            network = max(network, float(ends[position]))
            network += sum(scattering[x] for x in graph.read_lists[update] if x in spread)
            # The run during which the scatter ends.
            by = int(np.searchsorted(ends, network))
            found[update] = min(max(position, by), len(runs) - 1)
    return found


def _fullest(graph: Graph) -> int:
    """Return the operation during which the baseline keeps most bytes besides resident tensors."""
    change = np.zeros(len(graph.operations) + 1, np.int64)
    for x, producers in enumerate(graph.producers.lists()):
        if producers and not graph.resident[x]:
            change[producers[0]] += graph.tensors.bytes[x]
            change[max([*graph.consumers[x].tolist(), *producers]) + 1] -= graph.tensors.bytes[x]
    return int(np.cumsum(change).argmax())


def _movable(graph: Graph) -> frozenset[int]:
    """Return the updates that only updates of the same kind depend on, and whose inputs none changes later.

    Updates of one weight by row blocks follow each other: each changes the weight.
    """
    users, mutators, producers = graph.consumers, graph.mutators, graph.producers
    movable = set[int]()
    # The last first: of what touches an update's results later, it is known then whether it is movable.
    for update in np.flatnonzero(graph.operations.phase == Phase.UPDATE).tolist()[::-1]:
        made = [*graph.mutate_lists[update], *graph.operations.writes[update].tolist()]
        touching = {o for x in made for row in (mutators[x], users[x], producers[x]) for o in row.tolist()}
        changing = {o for x in graph.read_lists[update] for o in mutators[x].tolist()}
        alone = all(o <= update or o in movable for o in touching)
        unchanged = all(o <= update for o in changing)
        if alone and unchanged and not graph.operations.random[update]:
            movable.add(update)
    return frozenset(movable)
