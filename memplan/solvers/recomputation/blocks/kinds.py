"""Options of a kind of block: greedy ones, and one from Rk-Checkmate for each requested pair of budgets.

A pair (M_peak, M_save) is solved only if its answer can be new: a bound proven with more memory than this,
met by an option known to fit this, settles it. So the same optimum is never computed twice (thesis 2.6).

The program's graph is a block as a separate training graph (checkmate/part.py). What is resident anyway and
the block's input are inputs, which count no bytes. The loss reads the output and makes the gradients from
later blocks. What must exist after the block's backward is a result. The chain's last block has the loss
itself in it. Times are given, since identical blocks are solved once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf

import numpy as np

from ....graphs.draft import Draft
from ....graphs.graph import Kind, Operation
from ....planner.baseline import baseline
from ....planner.bounds import minimum_memory
from ....planner.schedule.sequence import in_default_mode
from ...clock import Clock
from ...milp import solve as milp
from ...milp.result import Settings
from ...stages.slots import variants_of
from ..checkmate.model import StagedProgram, TooLargeError
from ..checkmate.part import Loss, PartGraph, Rows, part_graph
from ..checkmate.rk_model import rk_checkmate_program
from .greedy import greedy_options
from .option import Option, option_cost, option_of
from .placed import PlacedBlock, mean_seconds

MOST_ENTRIES = 500_000
"""Nonzeros of the largest program that is tried."""

FEWEST_OPERATIONS = 4
"""Blocks with fewer have no more options than the greedy ones."""

Budgets = tuple[int, int]
"""M_peak and M_save in bytes, without what is resident anyway and the block's input."""


@dataclass(frozen=True)
class _Known:
    """An option, and what it takes: seconds, and bytes for M_peak and M_save."""

    option: Option
    seconds: float
    peak: int
    saved: int


class BlockOptions:
    """The options of one kind of block.

    tries: sets that the greedy options look at; 0: only the one that keeps all is taken.
    asked: the budgets for which an integer program was solved.
    """

    def __init__(self, identical: Sequence[PlacedBlock], tries: int, proceed: Callable[[], bool]) -> None:
        self.block = identical[0]
        self.seconds = mean_seconds(identical)
        self.entering = sum(self.block.graph.tensors.bytes.item(x) for x in self.block.entering)
        self.known: list[_Known] = []
        self.bounds: list[tuple[int, int, float]] = []  # M_peak, M_save, seconds
        self.asked: set[Budgets] = set()
        self.too_large = tries > 0 and len(self.block.members) < FEWEST_OPERATIONS
        for option in greedy_options(identical, tries, proceed):
            self._learn(option)

    @property
    def options(self) -> list[Option]:
        return [known.option for known in self.known]

    @cached_property
    def graph(self) -> PartGraph:
        return block_graph(self.block, self.seconds)

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """Smallest and largest M_peak: the largest operation, and the baseline's peak."""
        graph = self.graph.graph
        return minimum_memory(graph) - graph.resident_bytes, baseline(graph).peak - graph.resident_bytes

    @cached_property
    def saves(self) -> tuple[int, int]:
        """Smallest and largest M_save: the output, and what the baseline keeps."""
        least = sum(self.block.graph.tensors.bytes.item(x) for x in self.block.outputs)
        return least, max([least, *(known.saved for known in self.known)])

    def clamped(self, peak: int, saved: int) -> Budgets:
        return min(peak, self.peaks[1]), min(saved, self.saves[1], peak)

    def saved_by(self, option: Option) -> int:
        """Return the option's bytes for M_save."""
        return next(known.saved for known in self.known if known.option == option)

    def is_open(self, peak: int, saved: int, gap: float) -> bool:
        """Tell whether a faster option within these budgets may still be found."""
        if self.too_large or (peak, saved) in self.asked or peak < self.peaks[0] or saved < self.saves[0]:
            return False
        # `_best` is ∞ if no option fits: such budgets are open.
        return self._best(peak, saved) > self._bound(peak, saved) * (1 + gap)

    def solve(self, peak: int, saved: int, settings: Settings, seconds: float) -> None:
        """Solve Rk-Checkmate's program for these budgets, in at most so many seconds."""
        clock = Clock(seconds)
        try:
            staged = rk_checkmate_program(
                self.graph.graph,
                peak,
                # After the last block backward follows at once: nothing waits.
                None if self.block.is_last else saved,
                most_entries=MOST_ENTRIES,
            )
        # Its size depends on the block, not on the budgets: so will be all others.
        except TooLargeError:
            self.too_large = True
            return
        self.asked.add((peak, saved))
        result = milp.solve(
            staged.program,
            settings,
            time_limit=clock.limit,
            start=self._start(staged, peak, saved),
        )
        if result.x is not None:
            self._learn(option_of(self.block, *self.graph.halves(staged.runs.sequence(result.x))))
        self.bounds.append((peak, saved, result.bound * staged.seconds))
        # After the answer so far has been stored.
        if result.interrupted:
            raise KeyboardInterrupt

    def _learn(self, option: Option) -> None:
        cost = option_cost(self.block, option)
        peak = max(cost.forward_peak, cost.backward_peak)
        seconds = float(cost.both @ np.array(self.seconds))
        if all(option != known.option for known in self.known):
            self.known.append(_Known(option, seconds, peak, cost.saved_bytes))

    def _start(self, staged: StagedProgram, peak: int, saved: int) -> dict[int, float] | None:
        fitting = [known for known in self.known if known.peak <= peak and known.saved <= saved]
        if not fitting:
            return None
        best = min(fitting, key=lambda known: known.seconds)
        return staged.runs.values(self.graph.sequence(best.option.backward))

    def _best(self, peak: int, saved: int) -> float:
        return min((k.seconds for k in self.known if k.peak <= peak and k.saved <= saved), default=inf)

    def _bound(self, peak: int, saved: int) -> float:
        """Return the seconds below which no option within these budgets runs."""
        # A bound for larger budgets holds for smaller ones.
        return max((b for p, s, b in self.bounds if p >= peak and s >= saved), default=self._least_seconds)

    @cached_property
    def _least_seconds(self) -> float:
        """Seconds of all operations once, each in its fastest variant."""
        graph = self.graph.graph
        fastest = [min(v.time for v in variants_of(graph, o)) for o in range(len(graph.operations))]
        # The first option recomputes nothing. The difference is exactly 0 where no variant is faster.
        return self.known[0].seconds - fsum(graph.operations.time - fastest)


def block_graph(block: PlacedBlock, seconds: Sequence[float]) -> PartGraph:
    """Write a block as a training graph. Operations that nothing of the block needs are left out.

    seconds: per position.
    """
    graph = block.graph
    draft = Draft(graph.name)
    number: dict[int, int] = {}

    def tensor(x: int) -> int:
        if x not in number:
            kind = Kind.INPUT if x in block.given or x in block.inputs else Kind.ACTIVATION
            number[x] = draft.tensor(graph.tensors.name[x], int(graph.tensors.bytes[x]), kind)
        return number[x]

    def every(row: Iterable[int]) -> tuple[int, ...]:
        return tuple(tensor(x) for x in row)

    def counted(row: Iterable[int]) -> tuple[int, ...]:
        return every(x for x in row if x not in block.given)

    def operation(position: int) -> Operation:
        row = graph.operation(block.members[position])
        # Variants keep their ratio to the baseline's time, as that is the mean over identical blocks.
        scale = seconds[position] / row.time if row.time else 1.0
        modes = tuple(
            replace(mode, time=mode.time * scale, writes=counted(mode.writes))
            for mode in row.modes
            if not mode.uses_host
        )
        return row._replace(
            time=seconds[position],
            reads=every(row.reads),
            writes=counted(row.writes),
            mutates=every(row.mutates),
            modes=modes,
        )

    def rows(positions: Iterable[int]) -> Rows:
        return [(position, operation(position)) for position in positions]

    whole = range(block.forwards), range(block.forwards, len(block.members))
    needed = {position for position, _mode in option_of(block, *map(in_default_mode, whole)).forward}
    forward = rows(sorted(needed))
    loss = None if block.is_last else Loss(every(sorted(block.outputs)), every(sorted(block.entering)))
    backward = rows(whole[1])
    return part_graph(draft, forward, loss, backward, counted(block.after))
