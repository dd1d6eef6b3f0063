"""Rotor: the fastest persistent schedule of a chain of blocks, by dynamic programming.

Minimises the seconds of all runs within the device's bytes. Assumes a chain whose blocks run backward once,
from last to first. A block's forward keeps nothing, its input, or all that its backward reads; a checkpoint
stays until that backward (persistence). O(L³ M) steps and O(L² M) bytes for L blocks and M slots of memory.

| paper               | here, numbered from 0 and with the loss in the last block                |
|---------------------|--------------------------------------------------------------------------|
| L, M                | blocks, slots                                                            |
| F_∅, F_ck, F_all, B | Pass                                                                     |
| m_∅, m_all          | chains/costs.py, with the blocks' sizes and seconds                      |
| C_BP(s, t, m)       | ChainTable.seconds(s, t)[m], with one option per block (single_options)  |
| s'                  | split                                                                    |
| OptRec(C, s, t, m)  | ChainTable.moves(m, s, t)                                                |

In the order to read:

    chains/runs.py      a block's passes, and the operations that they run
    chains/costs.py     what each takes
    chains/table.py     the dynamic program
    rotor.py            which of its sequences is taken, and what is proven
    chains/least.py     the sequence of least memory

Rounding. The memory besides what is always resident is divided into `slots`, and sizes are rounded up to
whole slots (exact if they have a common divisor that large). A sequence that keeps n tensors then uses up to
n slots more than it needs: the program's answer is at least as fast as the optimum for n slots less. Most of
this is won back: the table goes on above the budget, and of all its sequences the fastest whose *simulated*
peak fits is taken. The same search goes below the budget if a peak is above the program's figure.

Proof. A second table with sizes rounded down bounds all persistent schedules of the chain from below: an
answer no slower is `optimal` for them; others are `heuristic`, with the bound reported. If no sequence of the
tables fits, the one of least memory is tried, found exactly; its simulated peak is also the smallest budget
that this solver can reach.

Reference: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains:
how to train deep neural networks with limited memory", Inria RR-9302, 2019; thesis of Zhao (2024), 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from ....planner.bounds import time_bound
from ...candidates import Candidate, baseline_candidate, fitting_baseline, infeasible, own_bound
from ...chains.costs import chain_costs
from ...chains.least import LeastMemory
from ...chains.options import OptionMove, single_options, without_options
from ...chains.problem import ChainProblem, chain_problem
from ...chains.table import ChainTable
from ...clock import Clock
from ...problem import Options, Problem, SolverResult, Status
from ...settings import SolverSettings, setting
from ...skipped import skipping

NAME = "rotor"

PROVEN = 1e-9
"""Relative difference up to which two times are the same."""

LOWER = 1.0 - 2.0**-38
"""Factor on the table's bound: its sums of a few thousand seconds are rounded by less."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of rotor."""

    slots: int = setting(500, "parts into which the memory is divided", least=1)
    blocks: int = setting(200, "a chain with more blocks is cut less finely", least=2)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    clock = options.clock()
    chained = chain_problem(NAME, problem, settings.blocks)
    bound = time_bound(problem.graph)
    baseline = baseline_candidate(problem.graph)
    if baseline.peak <= chained.limit:
        return fitting_baseline(problem)
    search = _RotorSearch(problem, chained, baseline, settings.slots, clock)
    best = search.best()
    options.report(
        f"{chained.blocks} blocks: {best.time:.6g} s; by their costs, at least {search.bound:.6g} s"
    )
    answer = SolverResult.of_heuristic(best.schedule, clock, bound)
    status = Status.OPTIMAL if best.time <= search.bound * (1 + PROVEN) else answer.status
    form = f"persistent, of {chained.blocks} blocks in a chain"
    holds = best.time >= search.bound * (1 - PROVEN)  # what pruning takes from a pass, the costs do not know
    own = own_bound(NAME, problem, search.bound, "any", form) if holds else ()
    return replace(answer, status=status, bounds=own)


class _RotorSearch:
    """The search through the dynamic program's tables.

    bound: seconds below which no persistent schedule of the chain runs.
    found: candidates that fit.
    free: bytes besides what is always resident.
    above: slots that the table goes on beyond them.
    """

    def __init__(
        self, problem: Problem, chained: ChainProblem, baseline: Candidate, slots: int, clock: Clock
    ) -> None:
        costs = chain_costs(chained.graph, chained.chain, chained.runs)
        self.problem, self.chained, self.baseline, self.costs = problem, chained, baseline, costs
        self.options = single_options(costs)
        self.clock = clock
        self.found: list[Candidate] = []
        self.free = max(0, chained.limit - costs.resident_bytes)
        divisor = gcd(*costs.input_bytes.tolist(), *costs.saved_bytes[:-1].tolist())
        self.slot_bytes = max(1, divisor, -(-self.free // slots))
        self.exact = self.slot_bytes == divisor
        self.above = min(slots // 20, self.free // self.slot_bytes) + (0 if self.exact else len(costs) // 2)
        self.bound = costs.fixed_seconds + float((costs.turn_seconds + costs.backward_seconds).sum())

    def best(self) -> Candidate:
        """Return the fastest candidate that fits.

        Raises InfeasibleError, and KeyboardInterrupt if the user ended the search before it found anything.
        """
        with self.clock.until_interrupted():
            self._search_tables()
        return min(self.found or self._least_memory(), key=lambda candidate: candidate.time)

    def _search_tables(self) -> None:
        whole, spare = divmod(self.free, self.slot_bytes)
        up = ChainTable(self.options, whole + self.above, self.slot_bytes, spare, proceed=self.clock.goes_on)
        self._search(up)
        if self.exact:
            self._bound_by(up, whole)
            return
        down = ChainTable(
            self.options, whole, self.slot_bytes, spare, optimistic=True, proceed=self.clock.goes_on
        )
        self._bound_by(down, whole)
        self._search(down)

    def _bound_by(self, table: ChainTable, whole: int) -> None:
        if table.complete and np.isfinite(table.times()[whole]):
            self.bound = (self.costs.fixed_seconds + float(table.times()[whole])) * LOWER

    def _search(self, table: ChainTable) -> None:
        """Find the fastest that fits of the table's sequences.

        By bisection over the amounts of memory at which the time drops: simulated peaks grow with them.
        """
        times = table.times() if table.complete else np.full(1, np.inf)
        drops = np.flatnonzero(np.isfinite(times) & (times < np.append(np.inf, times[:-1]))).tolist()
        low, high = 0, len(drops) - 1
        while low <= high and self.clock.goes_on():
            middle, before = (low + high) // 2, high
            high = middle - 1
            with skipping(NAME):
                candidate = self._candidate(table.moves(drops[middle]))
                if candidate.peak <= self.chained.limit:
                    self.found.append(candidate)
                    low, high = middle + 1, before

    def _least_memory(self) -> list[Candidate]:
        """Return those of the sequences of least memory that fit. Raises InfeasibleError if there is none."""
        least = LeastMemory(self.options)
        amounts = {least.bytes, max(least.bytes, self.free)}
        found = list[Candidate]()
        for memory in amounts:
            with skipping(NAME):
                found.append(self._candidate(least.moves(memory)))
        fitting = [candidate for candidate in found if candidate.peak <= self.chained.limit]
        if not fitting:
            self.clock.raise_if_interrupted()
            leanest = min((self.baseline, *found), key=lambda candidate: candidate.peak)
            raise infeasible(NAME, self.problem, leanest.peak, leanest.schedule)
        return fitting

    def _candidate(self, moves: Iterable[OptionMove]) -> Candidate:
        return self.chained.candidate(without_options(moves))
