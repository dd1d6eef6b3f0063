"""Rockmate: Rk-Checkmate inside each kind of block, Rk-Rotor over the sequence of blocks (Algorithm 3).

Minimises the seconds of all runs within the device's bytes, under Rk-Rotor's assumptions (rk_rotor.py: read
it first). The graph is cut into a chain of blocks (graphs/structure/chain.py); identical blocks are solved
once (blocks/placed.py), on a grid of budgets (M_peak, M_save), by checkmate/rk_model.py; the dynamic program
(chains/table.py) then picks options and checkpoints. Integer programs for each kind, not each block, at worst
exponential in its size; then Rk-Rotor's steps.

| paper (Algorithm 3)     | here                 |
|-------------------------|----------------------|
| blocks, the unique ones | ChainSearch.kinds    |
| budgets                 | peaks, saves         |
| sols[b]                 | BlockOptions.options |
| M_GPU                   | ChainProblem.limit   |

Differences from the paper, besides those that rk_rotor.py and checkmate/rk_model.py list:

- there are greedy options as well, which start the integer programs and stand in for those that are too large
  or for which there is no time; so the answer is never slower than rk-rotor's or rotor's;
- M_save ends at what the baseline keeps, and a pair whose optimum is known is not solved a second time;
- after the grid, and before it when time is limited, budgets come from the dynamic program: for every block
  that it runs once, the memory that it has there and what it keeps. Like columns in column generation, such
  options fit where they are needed; it ends when none of them is better. `options=grid` uses neither these
  nor the greedy options, and does not start from rotor's answer.

Time is shared: an integer program gets at most a part of what is left, its best answer so far is an option.

Reference: Zhao et al., Rockmate, ICML 2023, arXiv:2307.01236; Zhao, thesis, 2024, chapter 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from ...candidates import baseline_candidate, fastest_baseline
from ...milp.result import Settings as MilpSettings
from ...problem import Options, Problem, SolverResult
from ...settings import gap_setting, setting
from ..blocks.kinds import BlockOptions, Budgets
from .rk_rotor import ChainSearch, ChosenOption

NAME = "rockmate"


@dataclass(frozen=True)
class Settings(MilpSettings):
    """Settings of rockmate, after those of its MILP backend."""

    options: str = setting(
        "all",
        "which options blocks have; grid: those of the grid of budgets alone, as in the paper (thesis, "
        "figure 2.5, with peaks and saves of 10)",
        words=("all", "grid"),
    )
    gap: float = gap_setting(1e-3, "relative gap at which an integer program may stop")
    peaks: int = setting(6, "peak budgets per kind of block", least=1)
    saves: int = setting(6, "budgets per kind of block for what it saves", least=1)
    seconds: float = setting(10.0, "seconds that one integer program may take at most", above=0)
    slots: int = setting(500, "parts into which the memory is divided", least=1)
    blocks: int = setting(120, "a chain with more blocks is cut less finely", least=2)
    tries: int = setting(300, "sets of kept tensors that are looked at per kind of block", least=1)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    search = ChainSearch(NAME, problem, options, settings.blocks)
    if (fastest := fastest_baseline(problem, baseline_candidate(problem.graph))) is not None:
        return fastest
    with search.clock.until_interrupted():
        if settings.options == "all":
            search.start()
        _Rockmate(search, settings).run()
    return search.answer()


SHARE = 0.25
"""Share of the time that is left that one integer program may take."""

STEPS = (1.0, 0.85, 1.2, 0.7)
"""Factors for a block's M_save, on what it now keeps besides its output."""

Question = tuple[BlockOptions, Budgets]


class _Rockmate:
    """The rounds of integer programs and dynamic programs.

    kinds: of blocks, joined ones too.
    reserve: seconds that the dynamic program takes.
    """

    def __init__(self, search: ChainSearch, settings: Settings) -> None:
        self.search, self.settings = search, settings
        tries = 0 if settings.options == "grid" else settings.tries
        self.kinds = [BlockOptions(identical, tries, search.proceed) for identical in search.kinds()]
        pairs = zip(search.identical, self.kinds, strict=True)
        self.kind_of = {search.segments[n]: kind for numbers, kind in pairs for n in numbers}
        self.reserve = 0.0

    def run(self) -> None:
        wanted = self._improve()
        limited = self.search.clock.limit is not None
        rounds = [self._in_turn, self._grid, self._in_turn] if limited else [self._grid, self._in_turn]
        if self.settings.options == "grid":
            rounds = [self._grid]
        for each in rounds:
            while self._answer(each(wanted)):
                wanted = self._improve()

    def _improve(self) -> list[ChosenOption]:
        start = monotonic()
        wanted = self.search.improve([kind.options for kind in self.kinds], self.settings.slots)
        self.reserve = monotonic() - start
        best, solved = self.search.best, sum(len(kind.asked) for kind in self.kinds)
        if best:
            self.search.options.report(f"{best.time:.6g} s after {solved} integer programs")
        return wanted

    def _answer(self, questions: Iterable[Question]) -> bool:
        """Solve those that are open: whether any was."""
        any_solved = False
        for kind, budgets in questions:
            left = self._left()
            if left <= 0:
                break
            if kind.is_open(*budgets, self.settings.gap):
                kind.solve(*budgets, self.settings, min(self.settings.seconds, max(1.0, SHARE * left), left))
                any_solved = True
        return any_solved

    def _left(self) -> float:
        """Return the seconds before the dynamic program is to run for the last time."""
        return self.search.clock.left - 1.5 * self.reserve - 0.5

    def _in_turn(self, wanted: Iterable[ChosenOption]) -> Iterator[Question]:
        """Yield the budgets that the dynamic program leaves at each block that it runs once.

        What the block keeps there comes first, then other values of M_save. Small blocks come first: their
        programs are solved soonest.
        """
        small_first = sorted(wanted, key=lambda each: len(each.segment.block.members))
        for step in STEPS:
            for each in small_first:
                kind = self.kind_of[each.segment]
                peak = min(each.forward, each.backward + kind.entering)
                saved = kind.saved_by(each.option)
                least = kind.saves[0]
                yield kind, kind.clamped(peak, least + int((saved - least) * step))

    def _grid(self, _wanted: Iterable[ChosenOption]) -> Iterator[Question]:
        """Yield evenly spaced budgets (thesis 2.6), large ones first."""
        peaks, saves = self.settings.peaks, self.settings.saves
        for p in range(peaks):
            for s in range(saves):
                for kind in self.kinds:
                    peak = _spaced(kind.peaks, peaks, p)
                    highest = min(peak, kind.saves[1])
                    yield kind, (peak, _spaced((kind.saves[0], highest), saves, s))


def _spaced(ends: tuple[int, int], count: int, step: int) -> int:
    """Return the step-th of `count` evenly spaced values from the higher end."""
    low, high = ends
    return high - (high - low) * step // max(1, count - 1)
