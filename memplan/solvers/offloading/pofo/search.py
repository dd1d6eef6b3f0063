"""Simulation of POFO's answers for all amounts of memory: which fit, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from ....planner.bounds import time_bound
from ....planner.residency.prefetch_placement import LOOK_AHEADS, ResidencyTransfers, place_prefetches
from ....planner.residency.residency import Residency
from ....planner.schedule.schedule import Schedule
from ...candidates import simulate_candidate
from ...chains.costs import chain_costs
from ...chains.least import LeastMemory
from ...chains.options import single_options, without_options
from ...chains.problem import ChainProblem
from ...chains.runs import Pass, save_all
from ...chains.table import ChainTable
from ...clock import Clock
from ...links import LinkedMachine, worth_moving
from ...problem import InfeasibleError, Options, Problem
from ...recomputation.checkpointing import rotor
from .segments import choice_residency, decided
from .table import PofoTable

LIKELY = 1.5
"""The look-ahead with which residencies are compared."""


class PofoSearch:
    """A search over POFO's answers for all amounts of memory.

    best: the fastest schedule so far that fits, with its seconds; at first Rotor's, without offloads.
    residency: the residency from which it comes. left: residencies still to be simulated.
    """

    def __init__(
        self, problem: Problem, chained: ChainProblem, linked: LinkedMachine, tries: int, clock: Clock
    ) -> None:
        self.problem, self.chained, self.linked = problem, chained, linked
        self.left, self.clock = tries, clock
        self.costs = chain_costs(chained.graph, chained.chain, chained.runs)
        self.bound = time_bound(problem.graph)
        self.best: tuple[Schedule, float] | None = None
        self.residency: Residency | None = None

    def run(self, slots: int, options: Options) -> None:
        self._begin_with_rotor(options)
        table = self._table(slots)
        if table is None:
            return
        times = table.times()
        # Amounts of memory at which the time falls: between them the answers are the same.
        drops = np.flatnonzero(np.isfinite(times) & (times < np.append(np.inf, times[:-1]))).tolist()
        largest = self._largest_that_fits(table, drops)
        # From the largest that fits outwards: simulated, one of its neighbours may be faster.
        for number in sorted(range(len(drops)), key=lambda n: (abs(n - largest), n)):
            if self.left > 0 and self._proceed():
                self.left -= 1
                # One look-ahead each to compare them; the best alone gets all.
                self._try(self._residency(table, drops[number]), (LIKELY,))
        if self.residency is not None and self._proceed():
            self._try(self.residency)
        if self.best is not None and drops:
            estimate = times[drops[max(0, largest)]] + self.costs.fixed_seconds
            options.report(f"by its own estimate {estimate:.6g} s; simulated {self.best[1]:.6g} s")

    def _begin_with_rotor(self, options: Options) -> None:
        try:
            answer = rotor.solve(self.problem, replace(options, settings=None))
        except InfeasibleError:
            return
        self.best = answer.schedule, simulate_candidate(self.chained.graph, answer.schedule).time
        if answer.interrupted:
            raise KeyboardInterrupt

    def _table(self, slots: int) -> PofoTable | None:
        """Compute the table, with some slots beyond the budget; None if time does not suffice."""
        costs = self.costs
        free = max(0, self.chained.limit - costs.resident_bytes)
        # Slots of a common divisor round nothing. What the last block saves waits for no other block.
        divisor = gcd(*costs.input_bytes.tolist(), *costs.saved_bytes[:-1].tolist())
        slot_bytes = max(1, divisor, -(-free // slots))
        whole, spare = divmod(free, slot_bytes)
        # Rounding sizes up wastes memory: answers for more slots than there are may fit. In exact slots
        # nothing is wasted.
        above = min(slots // 4, whole) if slot_bytes != divisor else 0
        inner = ChainTable(
            single_options(costs),
            whole + above,
            slot_bytes,
            spare,
            proceed=self.clock.goes_on,
        )
        if not inner.complete:
            return None
        table = PofoTable(costs, inner, min(self.linked.rates(self.problem.graph)))
        table.fill()
        return table

    def _largest_that_fits(self, table: PofoTable, drops: Sequence[int]) -> int:
        """Find the largest amount of memory whose schedule fits, by bisection; -1 if none does.

        The memory that schedules need mostly grows with the amount that the program is given.
        """
        low, high = 0, len(drops) - 1
        while low <= high and self._proceed():
            middle = (low + high) // 2
            residency = self._residency(table, drops[middle])
            transfers = ResidencyTransfers(self.problem.graph, self.linked.machine.hierarchy, residency)
            if transfers.device_peak <= self.chained.limit:
                low = middle + 1
            else:
                high = middle - 1
        return low - 1

    def _residency(self, table: PofoTable, slots: int) -> Residency:
        moves, offloaded = decided(table.segments(slots), table.rotor, self.chained)
        sizes, smallest = self.problem.graph.tensors.bytes, worth_moving(self.linked.machine)
        # A transfer of few bytes is all latency.
        offloaded = {x for x in offloaded if sizes[x] >= smallest or not sizes[x]}
        return choice_residency(self.chained, moves, offloaded, self.linked.d2h)

    def try_memory_saving(self) -> None:
        for residency in self.memory_saving():
            self._try(residency)

    def memory_saving(self) -> list[Residency]:
        """Return three residencies that save memory.

        All saved tensors offloaded; the least that Rotor needs; every block recomputed from its offloaded
        input.
        """
        chained, blocks = self.chained, self.chained.blocks
        saved = frozenset[int]().union(*(run.saved for run in chained.runs[:-1]))
        inputs = {block.output for block in chained.chain.blocks if block.output is not None}
        least = LeastMemory(single_options(self.costs))
        each = [(Pass.ADVANCE, b) for b in range(blocks - 1)]
        each += [move for b in reversed(range(blocks)) for move in ((Pass.SAVE, b), (Pass.BACKWARD, b))]
        return [
            choice_residency(chained, save_all(blocks), saved),
            choice_residency(chained, without_options(least.moves(least.bytes)), frozenset()),
            choice_residency(chained, each, inputs),
        ]

    def _try(self, residency: Residency, look_aheads: Sequence[float] = LOOK_AHEADS) -> None:
        found = place_prefetches(
            self.problem.graph, self.linked.machine, self.chained.limit, residency, look_aheads
        )
        if found and (self.best is None or found[1].time < self.best[1]):
            self.best, self.residency = (found[0], found[1].time), residency

    def _proceed(self) -> bool:
        proven = self.best is not None and self.best[1] <= self.bound * (1 + rotor.PROVEN)
        return not proven and self.clock.goes_on()
