"""Tensors that PyTorch's partitioner saves for the backward pass, for a share of the activations.

The saved tensors are a minimum cut between what exists at first and what backward needs; what lies after the
cut is recomputed. Rules exclude operations from that. A share of 1 applies all rules. Less lifts some, then
all but those for expensive and random operations, as far as necessary. At last a knapsack chooses which of
these are recomputed too, by bytes and seconds, so that the share is kept: of what the first cut saves beyond
all that exists from the start. At 0 nothing is saved. The share is not guaranteed: what the last cut saves is
not counted.

    torch/_functorch/partitioners.py     here
    choose_saved_values_set              Partitioner.saved
    solve_min_cut                        Partitioner._cut
    should_ban_recomputation, …          Partitioner._kept, _far_apart, _long_chains
    dp_knapsack                          _Knapsack
    activation_memory_budget             share
    runtime estimator "profile"          the seconds of the graph

Reference: PyTorch 2.13, `min_cut_rematerialization_partition`; H. He, Min-cut optimal(*) recomputation with
AOTAutograd, dev-discuss.pytorch.org/t/467.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from ...bounds.residency.max_flow import MOST_BITS, SINK, SOURCE, arcs_between, minimum_cut
from .joint import FAR, Joint
from .operators import CAT, CHEAP, EXPENSIVE, FREE, FUSIBLE, GETITEM, RANDOM, VIEWS

_NEARER = 1.1
"""A byte costs so much more for each step that it is farther from backward,"""
_FARTHEST = 100
"""up to so many."""
_REDUCTION = 4
"""Factor: a result that is so many times smaller than what it is made from is kept."""
_LONG_CHAIN = 100
_SCALE = 10_000
"""Steps of memory in the knapsack."""


class _Rules(NamedTuple):
    allowlist: bool = True
    materialized: bool = True
    far_apart: bool = True
    long_chains: bool = True


_ALL = _Rules()
_FEWER = _Rules(materialized=False, far_apart=False, long_chains=False)
_FEWEST = _FEWER._replace(allowlist=False)


class Partitioner:
    """The partitioner on one joint graph.

    Call `saved` for one share after the other; what they have in common is computed once.
    """

    def __init__(self, graph: Joint, seconds: list[float]) -> None:
        """Prepare the partitioner.

        seconds: of each operation.
        """
        self.graph, self.seconds = graph, seconds

    def saved(self, share: float) -> frozenset[int]:
        """Return the nodes that are saved, those that exist from the start among them.

        share: 0 to 1.
        """
        sources = frozenset(self.graph.sources)
        if share == 0:
            return sources | self._unrepeatable
        if share == 1 or self._most <= self._least:
            return self._first
        if self._share(self._second) < share:
            return self._second
        third, _kept = self._third
        if self._share(third) < share:
            return third
        if not self._choices:
            return sources | self._unrepeatable
        return self._cut(_FEWEST, frozenset(self._knapsack.left_out(share)))[0]

    @cached_property
    def _first(self) -> frozenset[int]:
        return self._cut(_ALL)[0]

    @cached_property
    def _second(self) -> frozenset[int]:
        return self._cut(_FEWER)[0]

    @cached_property
    def _third(self) -> tuple[frozenset[int], list[int]]:
        return self._cut(_FEWEST)

    @cached_property
    def _unrepeatable(self) -> frozenset[int]:
        graph = self.graph
        nodes = range(len(graph))
        return frozenset(x for x in nodes if graph.fixed[x] and graph.forward[x] and graph.tensor[x] >= 0)

    def _bytes(self, nodes: Iterable[int]) -> float:
        return sum(self.graph.size[node] for node in nodes) / 1e9

    @cached_property
    def _least(self) -> float:
        return self._bytes(self.graph.sources)

    @cached_property
    def _most(self) -> float:
        return self._bytes(self._first)

    def _share(self, nodes: Iterable[int]) -> float:
        return (self._bytes(nodes) - self._least) / (self._most - self._least)

    @cached_property
    def _choices(self) -> list[int]:
        """Nodes among which the knapsack chooses, the largest first."""
        graph = self.graph
        kept = [x for x in self._third[1] if graph.operation[x] >= 0 and not graph.fixed[x]]
        return sorted((x for x in kept if graph.distance[x] < FAR), key=lambda x: -graph.size[x])

    @cached_property
    def _knapsack(self) -> _Knapsack:
        graph, room = self.graph, self._most - self._least
        weights = [round(graph.size[x] / 1e9 / room * _SCALE) for x in self._choices]
        return _Knapsack(self._choices, weights, [self.seconds[graph.operation[x]] for x in self._choices])

    def _cut(self, rules: _Rules, lifted: frozenset[int] = frozenset()) -> tuple[frozenset[int], list[int]]:
        """Return the nodes saved, and those that are never recomputed.

        lifted: nodes that may be recomputed, whatever the rules.
        """
        graph, count = self.graph, len(self.graph)
        kept = dict.fromkeys(
            x
            for x in range(count)
            if not graph.backward[x]
            and graph.forward[x]
            and (graph.operation[x] < 0 or (x not in lifted and self._kept(x, rules)))
        )
        if rules.far_apart:
            self._far_apart(kept)
        if rules.long_chains:
            self._long_chains(kept)
        tails, heads, capacities = list[int](), list[int](), list[float]()

        def arc(tail: int, head: int, capacity: float) -> None:
            tails.append(tail)
            heads.append(head)
            capacities.append(capacity)

        for x in kept:
            # Never recomputed: if backward needs it, its own arc must be cut, that is, it is saved.
            arc(SOURCE, _in(x), inf)
        for x in range(count):
            if graph.backward[x]:
                arc(_in(x), SINK, inf)
                continue
            # Cut means saved, at its weight.
            arc(_in(x), _out(x), self._weight(x))
            for user in graph.users[x]:
                arc(_out(x), _in(user), inf)
        arcs = arcs_between(2 * count + 2, np.array(tails, np.int32), np.array(heads, np.int32))
        weights = np.array(capacities)
        endless = np.isinf(weights)
        weights[endless] = 0.0
        shrink = max(0, int(np.frexp(weights.sum())[1]) - MOST_BITS)  # flows are int64
        room = np.ldexp(weights, -shrink).astype(np.int64)
        room[endless] = 1 + room.sum()  # in odd graphs all of a path may be endless
        _flow, own = minimum_cut(arcs, room)
        cut = (x for x in range(count) if own[_in(x)] and not own[_out(x)] and not graph.backward[x])
        return frozenset(cut), list(kept)

    def _weight(self, x: int) -> float:
        graph = self.graph
        if graph.tensor[x] < 0:
            return inf
        if graph.free[x]:
            return 0.0
        # PyTorch's heuristic: of equal sizes the later one is saved, so less is recomputed.
        weight = int(graph.size[x] * _NEARER ** max(min(graph.distance[x], _FARTHEST), 1))
        fused = not graph.result[x] and all(self._fuse(x, user) for user in graph.users[x])
        materialized = graph.operation[x] < 0 or not fused
        # Saving what would otherwise stay within a fused kernel costs a write and a read more.
        return float(weight if materialized else 2 * weight)

    def _fuse(self, x: int, y: int) -> bool:
        names = self.graph.operator
        return names[y] == CAT or (names[x] in FUSIBLE and names[y] in FUSIBLE)

    def _kept(self, x: int, rules: _Rules) -> bool:
        graph, name = self.graph, self.graph.operator[x]
        if name == GETITEM:
            return False
        if graph.fixed[x]:
            return True
        if name in FREE or name in VIEWS:
            return False
        if name not in CHEAP if rules.allowlist else name in RANDOM or name in EXPENSIVE:
            return True
        if rules.materialized and self._materialized_behind(x):
            return True
        return graph.size[x] * _REDUCTION < sum(graph.size[y] for y in graph.reads[x])

    def _materialized_behind(self, x: int) -> bool:
        """Tell whether backward, which would recompute x, can't fuse it with all that reads it."""
        graph, left = self.graph, [x]
        while left:
            at = left.pop()
            if graph.result[at]:
                return True
            for user in graph.users[at]:
                if not graph.forward[user] and not self._fuse(at, user):
                    return True
                if graph.operator[user] in VIEWS:
                    left.append(user)
        return False

    def _ahead(self, x: int) -> list[int]:
        return [user for user in self.graph.users[x] if self.graph.forward[user]]

    def _far_apart(self, kept: dict[int, None]) -> None:
        """Forbid to recompute what would be fused with users on both sides of a kernel that can't be fused.

        A user of x after that kernel is kept if it could be fused with x: else x and that user would be
        recomputed together with the users before the kernel.
        """
        graph = self.graph
        for x in range(len(graph)):
            ahead = self._ahead(x) if graph.forward[x] else []
            if ahead:
                first = self._first_unfusible(ahead, max(graph.rank[user] for user in ahead))
                for user in ahead:
                    if graph.rank[user] > first and self._fuse(x, user) and graph.operator[user] not in VIEWS:
                        kept.setdefault(user)

    def _first_unfusible(self, nodes: list[int], last: int) -> int:
        """Return the rank of the first node reached from these that can't be fused with its predecessor.

        It is `last` if there is none before.
        """
        graph = self.graph
        heap = [(graph.rank[node], node, True) for node in nodes]
        heapify(heap)
        seen = set(heap)
        while heap:
            rank, node, fused = heappop(heap)
            if not fused:
                return rank
            for user in self._ahead(node):
                entry = graph.rank[user], user, self._fuse(node, user)
                if entry[0] <= last and entry not in seen:
                    seen.add(entry)
                    heappush(heap, entry)
        return last

    def _long_chains(self, kept: dict[int, None]) -> None:
        graph = self.graph
        visited = set[int]()
        for start in range(len(graph)):
            heap = [(graph.rank[start], start)] if graph.forward[start] else []
            while heap:
                rank, at = heappop(heap)
                if at in visited:
                    continue
                visited.add(at)
                # Only when nothing else is open: a cut there divides the whole chain.
                if rank > graph.rank[start] + _LONG_CHAIN and not heap:
                    if graph.operator[at] not in VIEWS:
                        kept.setdefault(at)
                    break
                for user in self._ahead(at):
                    if self._fuse(at, user) and user not in kept:
                        heappush(heap, (graph.rank[user], user))


class _Knapsack:
    """A knapsack: what to save within a share, so that recomputation takes the least time.

    Memory is in whole steps."""

    def __init__(self, nodes: list[int], weights: list[int], seconds: list[float]) -> None:
        self.nodes, self.weights = nodes, weights
        self.table = np.zeros((len(nodes) + 1, _SCALE + 1), np.float32)
        for row, (weight, value) in enumerate(zip(weights, np.array(seconds, np.float32), strict=True)):
            before, after = self.table[row], self.table[row + 1]
            after[:] = before
            if weight == 0:
                after += value
            elif weight <= _SCALE:
                np.maximum(before[weight:], before[:-weight] + value, out=after[weight:])

    def left_out(self, share: float) -> list[int]:
        """Return the nodes that are not saved."""
        room, left = round(share * _SCALE), list[int]()
        for row in reversed(range(len(self.nodes))):
            # Equal values: it was not taken.
            if self.table[row + 1, room] == self.table[row, room]:
                left.append(self.nodes[row])
            else:
                room -= self.weights[row]
        return left


def _in(node: int) -> int:
    return 2 * node + 2


def _out(node: int) -> int:
    return 2 * node + 3
