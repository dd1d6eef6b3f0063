"""The chain that all chain solvers start from, and how finely it is cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ...graphs.graph import Graph
from ...graphs.structure.chain import Chain, chain_of
from ..candidates import Candidate, candidate_of_runs, device_limit, require_backward
from ..problem import NotAcceptedError, Problem
from .runs import BlockRuns, Move, block_runs, sequence


@dataclass(frozen=True)
class ChainProblem:
    """A graph cut into a chain, with the runs of its blocks.

    limit: device bytes.
    """

    graph: Graph
    chain: Chain
    runs: list[BlockRuns]
    limit: int

    @property
    def blocks(self) -> int:
        return len(self.chain.blocks)

    def joined(self, firsts: Sequence[int]) -> ChainProblem:
        """Return the problem on a coarser chain.

        firsts: as in `Chain.joined`.
        """
        chain = self.chain.joined(firsts)
        return ChainProblem(self.graph, chain, block_runs(self.graph, chain), self.limit)

    def candidate(self, moves: Iterable[Move]) -> Candidate:
        return candidate_of_runs(self.graph, sequence(self.chain, self.runs, moves))


def chain_problem(solver: str, problem: Problem, blocks: int) -> ChainProblem:
    """Return the problem on the graph's chain, with neighbours joined if it has more than `blocks` blocks.

    Raises NotAcceptedError if the graph is not a chain of at least two blocks with a backward part.
    """
    graph = problem.graph
    require_backward(solver, graph)
    chain = chain_of(graph)
    if len(chain.blocks) < 2:
        raise NotAcceptedError(f"{solver} takes chains of blocks; {graph.name} is none: it has 1 block")
    chain = coarser(graph, chain, blocks)
    return ChainProblem(graph, chain, block_runs(graph, chain), device_limit(problem))


def coarser(graph: Graph, chain: Chain, blocks: int) -> Chain:
    """Join neighbours, the lightest pair first, until at most `blocks` blocks are left.

    A block's weight is its share of the forward seconds plus its share of the bytes that forward makes.
    """
    count = len(chain.blocks)
    if count <= blocks:
        return chain
    weight: list[float] = _weights(graph, chain).tolist()
    after, before = list(range(1, count + 1)), list(range(-1, count - 1))
    alive = [True] * count
    pairs = [(weight[b] + weight[b + 1], b, b + 1) for b in range(count - 1)]
    heapify(pairs)
    left = count
    while left > blocks:
        joint, first, second = heappop(pairs)
        # A stale entry: a neighbour was joined since. Equal weights are equal floats: the same sum.
        if not (alive[first] and after[first] == second and joint == weight[first] + weight[second]):
            continue
        alive[second], weight[first], after[first] = False, joint, after[second]
        left -= 1
        if after[first] < count:
            before[after[first]] = first
            heappush(pairs, (joint + weight[after[first]], first, after[first]))
        if before[first] >= 0:
            heappush(pairs, (weight[before[first]] + joint, before[first], first))
    return chain.joined([b for b in range(count) if alive[b]])


def _weights(graph: Graph, chain: Chain) -> NDArray[np.float64]:
    writes = graph.operations.writes
    made = np.bincount(writes.rows(), graph.tensors.bytes[writes.columns], minlength=len(writes))
    seconds = np.array([graph.operations.time[list(block.forward)].sum() for block in chain.blocks])
    sizes = np.array([made[list(block.forward)].sum() for block in chain.blocks])
    # Shares have no unit, so they add; the maxima avoid 0 / 0.
    return seconds / max(seconds.sum(), 1e-300) + sizes / max(sizes.sum(), 1.0)
