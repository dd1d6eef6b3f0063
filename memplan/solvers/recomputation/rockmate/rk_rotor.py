"""Rk-Rotor: Rotor with several options for each block that runs once, here without integer programs.

Minimises the seconds of all runs within the device's bytes. Assumes what Rotor does: a chain, and checkpoints
that stay until their backward; if a block runs forward more than once, all runs but the last keep nothing.
Between keeping all that a block's backward reads and keeping nothing there are options that keep what is
expensive to recompute (blocks/greedy.py); the dynamic program picks one for every block, and what to
checkpoint. `rockmate` adds options from integer programs. Identical blocks share the search for options, not
the choice. O(L² M (L + B)) steps for L blocks, M slots of memory and B options that begin at a block.

| paper (thesis, 2.5)   | here                                                                       |
|-----------------------|----------------------------------------------------------------------------|
| L, M                  | blocks, slots                                                              |
| F_s^0                 | (ADVANCE, s, 0)                                                            |
| F_s^o, B_s^o, o > 0   | (SAVE, s, n), (BACKWARD, s, n): n is the row of OptionCosts                |
| r(F_s^o) + r(B_s^o)   | OptionCosts.both (chains/options.py has its other columns)                 |
| x_s                   | ChainCosts.input_bytes                                                     |
| Opt(s, t, m)          | ChainTable                                                                 |
| Algorithms 5, 6       | ChainSearch.improve, ChainTable.moves                                      |

In the order to read:

    ../blocks           options, one block at a time
    costs.py            what they cost in the chain; neighbouring blocks joined
    ../../chains        the dynamic program (table.py), the sequence of least memory (least.py)
    rk_rotor.py         which of its sequences is taken
    rockmate.py         more options, from integer programs

What differs from the paper: an option's cost is replayed on its runs; parameter gradients and shared tensors
are counted (chains/costs.py); the table goes on above the budget, and of its sequences the fastest whose
simulated peak fits is taken, as sizes are rounded up to slots (checkpointing/rotor.py says why). Rotor's own
answer is one of the candidates, so none here is slower. Nothing is claimed: the status is `heuristic`.

Reference: Zhao et al., Rockmate, ICML 2023, arXiv:2307.01236; Zhao, thesis, 2024, 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from ....planner.bounds import minimum_memory, time_bound
from ....planner.schedule.schedule import Schedule
from ...candidates import (
    Candidate,
    baseline_candidate,
    candidate_of_runs,
    fastest_baseline,
    infeasible,
    simulate_candidate,
)
from ...chains.least import LeastMemory
from ...chains.options import OptionMove
from ...chains.problem import ChainProblem, chain_problem
from ...chains.runs import block_runs
from ...chains.table import ChainTable
from ...problem import InfeasibleError, NotFoundError, Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ...skipped import skipping
from ..blocks.greedy import greedy_options
from ..blocks.option import Option
from ..blocks.placed import PlacedBlock, anonymous, groups, placed_blocks
from ..checkpointing import rotor
from .costs import BlockOptionCosts, Segment, option_costs, sequence

NAME = "rk-rotor"

WIDTHS = (1, 2, 4, 8)
"""Numbers of neighbouring blocks that are joined for an option."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of rk-rotor."""

    slots: int = setting(500, "parts into which the memory is divided", least=1)
    blocks: int = setting(120, "a chain with more blocks is cut less finely", least=2)
    tries: int = setting(300, "sets of kept tensors that are looked at per kind of block", least=1)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    search = ChainSearch(NAME, problem, options, settings.blocks)
    if (fastest := fastest_baseline(problem, baseline_candidate(problem.graph))) is not None:
        return fastest
    with search.clock.until_interrupted():
        search.start()
        if search.best is None or search.proceed():
            found = [greedy_options(kind, settings.tries, search.proceed) for kind in search.kinds()]
            search.improve(found, settings.slots)
    return search.answer()


@dataclass(frozen=True)
class ChosenOption:
    """An option that the table takes, for blocks that run forward once.

    forward, backward: bytes available to these parts, besides the `gradient_bytes` that pass by them.
    """

    segment: Segment
    option: Option
    forward: int
    backward: int


def _choices(costs: BlockOptionCosts, table: ChainTable, slots: int) -> Iterator[ChosenOption]:
    """Yield the options that the table takes, and the memory that each has."""
    passing = costs.costs.chain.gradient_bytes
    for number, last, left in table.chosen(slots):
        memory = left * table.slot_bytes + table.spare_bytes
        segment, option = costs.options[number]
        # `last`: the subproblem's last block, whose incoming gradient exists while this forward runs.
        yield ChosenOption(segment, option, memory - int(passing[last]), memory - int(passing[segment.last]))


class ChainSearch:
    """The search for the best of Rotor's answer and of what the dynamic program finds with the options given.

    chained: the graph's chain.
    segments: its blocks, and neighbours joined.
    identical: groups of identical segments.
    best: so far.
    least: the smallest peak seen above the budget, bytes. leanest: a function that makes its schedule.
    """

    def __init__(self, name: str, problem: Problem, options: Options, blocks: int) -> None:
        self.name, self.problem, self.options = name, problem, options
        self.clock = options.clock()
        self.chained: ChainProblem = chain_problem(name, problem, blocks)
        self.best: Candidate | None = None
        self.least = inf
        self.leanest: Callable[[], Schedule | None] = lambda: None

    def start(self) -> None:
        """Start from Rotor's answer."""
        try:
            answer = rotor.solve(self.problem, Options(self.clock.limit))
        except InfeasibleError as refusal:
            if refusal.least is not None:
                # Bound as a default: Python deletes the name `refusal` when the clause ends.
                self._saw(refusal.least, lambda schedule=refusal.schedule: schedule)
        else:
            with skipping(self.name):
                self._take(simulate_candidate(self.problem.graph, answer.schedule))
            self.clock.interrupted = answer.interrupted

    @cached_property
    def identical(self) -> list[list[int]]:
        return groups([segment.block for segment in self.segments])

    @cached_property
    def segments(self) -> list[Segment]:
        """The blocks, and neighbours joined: windows of so many blocks, at multiples of their width.

        Elsewhere only windows that are like one of these, as they cost no search for options.
        """
        whole, count = self.chained, self.chained.blocks
        found: list[Segment] = []
        known: set[Hashable] = set()
        for width in WIDTHS:
            for shift in range(width):
                # The blocks before `shift` are a shorter segment, dropped below as too narrow.
                firsts = [*([0] if shift else []), *range(shift, count, width)]
                chain = whole.chain.joined(firsts)
                blocks = placed_blocks(whole.graph, chain, block_runs(whole.graph, chain))
                ends = [*(first - 1 for first in firsts[1:]), count - 1]
                for first, last, block in zip(firsts, ends, blocks, strict=True):
                    form = anonymous(block)
                    if last - first + 1 == width and (shift == 0 or form in known):
                        known.add(form)
                        found.append(Segment(first, last, block))
        return found

    def kinds(self) -> list[list[PlacedBlock]]:
        """Return the groups of identical blocks, joined ones too."""
        return [[self.segments[number].block for number in numbers] for numbers in self.identical]

    def costs(self, options: Sequence[Iterable[Option]]) -> BlockOptionCosts:
        chained = self.chained
        identical = ([self.segments[number] for number in numbers] for numbers in self.identical)
        kinds = zip(identical, options, strict=True)
        return option_costs(chained.graph, chained.chain, chained.runs, kinds)

    def improve(self, options: Sequence[Iterable[Option]], slots: int) -> list[ChosenOption]:
        """Run Algorithm 5, and find the fastest of the table's sequences that fits; return its choices.

        options: by kind.
        """
        costs = self.costs(options)
        chained = self.chained
        free = max(0, chained.limit - costs.costs.chain.resident_bytes)
        # Rounded up, so that there are at most `slots`; what they leave of `free` is `spare`.
        slot_bytes = max(1, -(-free // slots))
        whole, spare = divmod(free, slot_bytes)
        # Each size is rounded up to slots: what the table places above the budget may fit when simulated.
        above = min(slots // 20, whole) + chained.blocks // 2
        table = ChainTable(costs.costs, whole + above, slot_bytes, spare, proceed=self.proceed)
        found = self._search(costs, table) if table.complete else None
        if self.best is None:
            # In bytes, not slots: it fits where rounding to slots leaves no sequence.
            least = LeastMemory(costs.costs)
            for memory in (least.bytes, max(least.bytes, free)):
                self._fits(costs, least.moves(memory))
        return [] if found is None else list(_choices(costs, table, found))

    def _search(self, costs: BlockOptionCosts, table: ChainTable) -> int | None:
        """Search the table; return the most slots found that fit."""
        times = table.times()
        # Between two drops of the time the table has one sequence: only these are worth a simulation.
        drops = np.flatnonzero(np.isfinite(times) & (times < np.append(np.inf, times[:-1]))).tolist()
        low, high, found = 0, len(drops) - 1, None
        while low <= high and self.proceed():
            middle = (low + high) // 2
            if self._fits(costs, table.moves(drops[middle])):
                # More memory is faster, so go on above; simulated peaks nearly grow with the slots.
                low, found = middle + 1, drops[middle]
            else:
                high = middle - 1
        return found

    def _fits(self, costs: BlockOptionCosts, moves: Iterable[OptionMove]) -> bool:
        chained = self.chained
        runs = sequence(chained.chain, chained.runs, costs, moves)
        with skipping(self.name):
            candidate = candidate_of_runs(chained.graph, runs)
            if candidate.peak <= chained.limit:
                if self.best is None or candidate.time < self.best.time:
                    self._take(candidate)
                return True
            self._saw(candidate.peak, lambda: candidate.schedule)
        return False

    def _saw(self, peak: int, schedule: Callable[[], Schedule | None]) -> None:
        if peak < self.least:
            self.least, self.leanest = peak, schedule

    def _take(self, candidate: Candidate) -> None:
        self.best = candidate
        self.options.race.found(candidate.time, self.name)

    def answer(self) -> SolverResult:
        """Return the answer. Raises InfeasibleError; NotFoundError if the time was too short to say."""
        if self.best is None:
            self.clock.raise_if_interrupted()
            least = None if self.least == inf else int(self.least)
            if least is None or not self.proceed():
                min_memory = minimum_memory(self.problem.graph, self.problem.machine)
                refusal = NotFoundError(self.name, self.chained.limit, min_memory, least)
                raise refusal.holding(self.leanest())
            raise infeasible(self.name, self.problem, least, self.leanest())
        return SolverResult.of_heuristic(self.best.schedule, self.clock, time_bound(self.problem.graph))

    def proceed(self) -> bool:
        return self.clock.goes_on()
