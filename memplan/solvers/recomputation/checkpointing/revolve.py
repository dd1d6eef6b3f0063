"""Revolve: binomial checkpointing, the least forward executions on a chain of equal blocks.

Minimises how often blocks run forward, with as many checkpoints as the budget allows. Assumes blocks of equal
time and bytes. One block at a time is run forward with saving, right before its backward; up to s checkpoints
(the chain's input is the first) hold block inputs. With β(s, r) = C(s + r, s), the longest chain that s
checkpoints reverse with each block advanced at most r times, l blocks take

    t(l, s) = r l - β(s + 1, r - 1)     extra forward executions, r = min{r : β(s, r) >= l}

and a first checkpoint after k blocks is optimal when both parts need no more than their share:
β(s, r - 2) <= k <= β(s, r - 1) and β(s - 1, r - 1) <= l - k <= β(s - 1, r).

| paper   | here                               |
|---------|------------------------------------|
| l       | blocks                             |
| s       | checkpoints                        |
| r       | _repetitions                       |
| k       | _first_checkpoint                  |
| β(s, r) | comb(checkpoints + r, checkpoints) |

The number of checkpoints is the largest that fits the budget by the simulator, found by bisection: about
log2 l schedules of t(l, s) + 2 l moves. The loss counts to the last block, if it would be a short block by
itself. The closed form knows neither sizes nor times: on blocks that differ it is a heuristic. It never
saves two blocks at once, so with much memory it still advances every block but the last once.

Reference: Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26, 2000, doi:10.1145/347837.347846.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb, fsum

import numpy as np

from ....planner.bounds import time_bound
from ...candidates import Candidate, baseline_candidate, fitting_baseline, infeasible
from ...chains.costs import ChainCosts, chain_costs
from ...chains.problem import ChainProblem, chain_problem
from ...chains.runs import Move, Pass
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ...skipped import skipping

NAME = "revolve"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of revolve."""

    checkpoints: int = setting(0, "how many, the input included; 0: as many as fit", least=0)
    blocks: int = setting(200, "a chain with more blocks is cut less finely", least=2)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    chained = _with_loss_in_last_block(chain_problem(NAME, problem, settings.blocks))
    best = _most_checkpoints(chained, settings.checkpoints)
    baseline = baseline_candidate(problem.graph)
    if best is None and baseline.peak <= chained.limit:  # its blocks are coarser than the graph's operations
        return fitting_baseline(problem)
    if best is None:
        fewest = chained.candidate(moves(chained.blocks, settings.checkpoints or 1))
        raise infeasible(NAME, problem, min(fewest.peak, baseline.peak))
    uniform = is_uniform(chain_costs(chained.graph, chained.chain, chained.runs))
    return SolverResult(
        best.schedule, Status.OPTIMAL if uniform else Status.HEURISTIC, time_bound(problem.graph)
    )


def _with_loss_in_last_block(chained: ChainProblem) -> ChainProblem:
    """Join the last block to the one before, if it is no longer than the others on average."""
    times = chained.graph.operations.time
    *others, last = (float(times[list(block.forward)].sum()) for block in chained.chain.blocks)
    return chained.joined(range(len(others))) if last * len(others) <= fsum(others) else chained


def _most_checkpoints(chained: ChainProblem, fixed: int) -> Candidate | None:
    """Return the schedule with the most checkpoints that fits, by bisection, as more take more memory."""
    low, high = (fixed, fixed) if fixed else (1, chained.blocks)
    best: Candidate | None = None
    while low <= high:
        checkpoints = (low + high + 1) // 2
        candidate = None
        with skipping(NAME):
            candidate = chained.candidate(moves(chained.blocks, checkpoints))
        if candidate is not None and candidate.peak <= chained.limit:
            best, low = candidate, checkpoints + 1
        else:
            high = checkpoints - 1
    return best


def moves(blocks: int, checkpoints: int) -> Iterator[Move]:
    pending: list[Move | tuple[int, int, int]] = [(0, blocks, checkpoints)]
    while pending:
        task = pending.pop()
        if len(task) == 2:
            yield task
            continue
        first, end, free = task
        if end - first == 1:
            yield Pass.SAVE, first
            yield Pass.BACKWARD, first
            continue
        middle = first + _first_checkpoint(end - first, free)
        yield from ((Pass.ADVANCE, b) for b in range(first, middle))
        pending.append((first, middle, free))
        pending.append((middle, end, max(1, free - 1)))


def _first_checkpoint(blocks: int, checkpoints: int) -> int:
    """Return k of the rule above; with the input as the only checkpoint, the last block."""
    if checkpoints == 1:
        return blocks - 1
    r = _repetitions(blocks, checkpoints)
    return min(comb(checkpoints + r - 1, checkpoints), blocks - comb(checkpoints + r - 2, checkpoints - 1))


def _repetitions(blocks: int, checkpoints: int) -> int:
    r = 0
    while comb(checkpoints + r, checkpoints) < blocks:
        r += 1
    return r


def is_uniform(costs: ChainCosts) -> bool:
    """Tell whether all blocks but the last take the same time and memory.

    The last is run once and holds the loss.
    """
    columns = (
        costs.advance_seconds[:-1],
        costs.input_bytes[1:],
        costs.saved_bytes[:-1],
        costs.advance_peak[:-1],
        costs.save_peak[:-1],
    )
    return all(np.ptp(column) == 0 for column in columns if len(column))
