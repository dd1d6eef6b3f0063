"""Periodic checkpoints: the chain in segments of equal length, each recomputed from its input.

Minimises the seconds within the budget, over the number of segments alone. Assumes a chain whose blocks are
about equal in time and bytes; on others it is a heuristic, and claims no more. The forward pass
keeps the input of every segment and, in the last one, all that backward needs; each other segment runs
forward once more before its backward. With k segments of a chain of n equal blocks, memory is about k
checkpoints and n / k saved blocks, least at k = √n: hence the name. Extra time: at most one forward pass.

| paper | here     |
|-------|----------|
| n     | blocks   |
| k     | segments |

By default every number of segments is tried (all up to 32, then in steps of about 3 %), the fastest first,
and the first that fits wins; `segments` fixes the number. One segment is the baseline schedule. At most 132
schedules are simulated, each in time linear in its runs.

Reference: Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....planner.bounds import time_bound
from ...candidates import Candidate, baseline_candidate, infeasible
from ...chains.problem import ChainProblem, chain_problem
from ...chains.runs import Move, Pass
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ...skipped import skipping

NAME = "chen-sqrt"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of chen-sqrt."""

    segments: int = setting(0, "how many; 0: the fastest that fits", least=0)
    blocks: int = setting(200, "a chain with more blocks is cut less finely", least=2)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    chained = chain_problem(NAME, problem, settings.blocks)
    peaks: list[int] = []
    for segments in _by_time(chained, settings.segments):
        with skipping(NAME):
            candidate = _candidate(chained, segments)
            options.report(f"{segments} segments: {candidate.time:.6g} s, peak {candidate.peak:,} B")
            if candidate.peak <= chained.limit:
                return SolverResult(candidate.schedule, Status.HEURISTIC, time_bound(problem.graph))
            peaks.append(candidate.peak)
    raise infeasible(NAME, problem, min(peaks, default=None))


def _candidate(chained: ChainProblem, segments: int) -> Candidate:
    if segments == 1:
        return baseline_candidate(chained.graph)
    return chained.candidate(moves(chained.blocks, segments))


def moves(blocks: int, segments: int) -> Iterator[Move]:
    """Yield the moves of a chain that is cut into segments of about equal length.

    segments: at most `blocks`, else each block is one.
    """
    starts = segment_starts(blocks, segments)
    ends = [*starts[1:], blocks]
    # The last segment has its SAVE pass at once: its backward follows.
    for b in range(starts[-1]):
        yield Pass.ADVANCE, b
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        for b in range(start, end):
            yield Pass.SAVE, b
        for b in reversed(range(start, end)):
            yield Pass.BACKWARD, b


def segment_starts(blocks: int, segments: int) -> list[int]:
    """Return the first block of each segment; lengths differ by at most one."""
    segments = min(segments, blocks)
    return [number * blocks // segments for number in range(segments)]


def _by_time(chained: ChainProblem, fixed: int) -> list[int]:
    """Return the numbers of segments to try, the fastest first."""
    if fixed:
        return [fixed]
    blocks = chained.blocks
    # Above 32 in equal ratios: two neighbouring numbers hardly differ in time or memory.
    steps = np.unique(np.geomspace(min(32, blocks), blocks, 100).astype(int)).tolist()
    numbers = sorted({*range(1, min(32, blocks) + 1), *steps})
    times = chained.graph.operations.time
    # Seconds of extra forward: all blocks before the last segment run twice.
    forward = np.cumsum([float(times[list(block.forward)].sum()) for block in chained.chain.blocks])
    return sorted(numbers, key=lambda k: forward[segment_starts(blocks, k)[-1] - 1] if k > 1 else 0.0)
