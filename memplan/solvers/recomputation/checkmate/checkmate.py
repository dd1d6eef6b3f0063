"""Checkmate: the fastest schedule within the budget that keeps the traced order, by integer programming.

Minimises the seconds of all runs within the device's bytes. Assumes that first runs keep the traced order;
between two of them any operation may be recomputed, once and in order: no such schedule is faster. Another
order of first runs may be: the program's own bound is one for the traced order (`SolverResult.bounds`). O(n ·
edges) columns for n operations; time exponential in the worst case: with HiGHS, chains of 60 operations take
seconds, other graphs of 100 half a minute (benchmarks/checkmate_speed.py).

In the order to read:

    stages/slots.py     what may run in which stage
    model.py            the program, with the paper's symbols
    tensors.py          its columns and rows for one tensor
    checkmate.py        initial solutions, and the use of the program's answer
    rk_model.py         the program with a second limit, at the loss
    rk_checkmate.py     its solver
    part.py             a block or a cluster as a graph that such a program takes

Bytes are exact with HiGHS and Gurobi. Other backends keep constraints to about 1e-9 of the capacity, so an
answer may come out above a large budget by some bytes: the simulator detects it, and the program is solved
once more with the excess cut off.

Reference: Jain et al., Checkmate, MLSys 2020, arXiv:1910.02653.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from ....graphs.machine import Machine
from ....graphs.outward import product_below
from ....planner.bounds import minimum_memory, time_bound
from ....planner.schedule.sequence import Run, runs_of, schedule_of
from ...candidates import (
    Candidate,
    baseline_candidate,
    device_limit,
    fastest_baseline,
    own_bound,
    simulate_candidate,
)
from ...milp import solve as milp
from ...milp.result import BackendError, MilpStatus, Progress, Result, Settings
from ...problem import (
    InfeasibleError,
    NotAcceptedError,
    NotFoundError,
    Options,
    Problem,
    SearchStats,
    SolverResult,
    Status,
)
from ...skipped import skipping
from ...stages.eviction import sequences
from ..checkpointing import chen_sqrt, rotor
from .model import StagedProgram, TooLargeError, staged_program

__all__ = ["NAME", "CheckmateSearch", "NotFoundError", "Settings", "solve"]

NAME = "checkmate"

PROVEN = 1.1e-6
"""The relative gap at which an answer counts as optimal: the backend's own (`Settings.gap`), and what bounds
are lowered by for its tolerances."""

DOUBTFUL = 1e-4
"""A bound this much above the time of a schedule, relatively, is wrong."""

EVICTION_SECONDS = 10.0
"""The most that is spent on greedy eviction."""

ROUNDS = 5
"""Most times that an answer above the budget leads to a smaller capacity."""

MOST_ENTRIES = 30_000_000
"""Nonzeros of the largest program that is tried: some 500 operations, for which HiGHS needs long to begin."""


@dataclass(frozen=True)
class _Result:
    """The result of one program.

    bound: seconds; no schedule of this form within the limit is faster.
    nodes: of the trees searched, None if the backend does not report them.
    """

    candidate: Candidate | None
    bound: float
    nodes: int | None = None


def solve(problem: Problem, options: Options) -> SolverResult:
    """Solve the problem. Ctrl-C during the search ends it: the answer is the best so far."""
    return CheckmateSearch(NAME, problem, options).answer()


class CheckmateSearch:
    """The search: initial solutions, the program from the fastest of them, and lower limits for the next.

    An answer's excess is cut off the program's limits. rk-checkmate's programs have one limit more
    (rk_checkmate.py).

    limit: device bytes.
    capacity: of these, what is free for all that is not resident from the start.
    baseline: of the graph.
    form: as in Bound.
    """

    def __init__(self, name: str, problem: Problem, options: Options) -> None:
        self.name, self.problem, self.graph, self.options = name, problem, problem.graph, options
        self.settings = options.chosen(Settings)
        self.clock = options.clock()
        self.limit = device_limit(problem)
        self.always = self.graph.resident_bytes
        self.capacity = self.limit - self.always
        self.min_memory = minimum_memory(self.graph, problem.machine)
        self.baseline = baseline_candidate(self.graph)
        self.form = ""

    def program(self, capacity: int, *, least: bool = False) -> StagedProgram:
        return staged_program(self.graph, capacity, least=least, most_entries=MOST_ENTRIES)

    def fits(self, candidate: Candidate) -> bool:
        return candidate.peak <= self.limit

    def cut(self, candidate: Candidate, attempt: int) -> None:
        """Lower the limits by what the candidate is above them; more with each attempt."""
        # Twice as much each time, or tolerances could keep the same answer for ever.
        self.capacity -= max(0, candidate.peak - self.limit) << attempt

    def answer(self) -> SolverResult:
        graph = self.graph
        # `fits` first: Rk-Checkmate's has a limit at the loss too.
        if self.fits(self.baseline) and (fastest := fastest_baseline(self.problem, self.baseline)):
            return fastest
        if self.limit < max(minimum_memory(graph, Machine()), graph.resident_bytes):  # it offloads nothing
            raise self.infeasible()
        start = self._start()
        try:
            found = start if self.clock.interrupted else self._by_program(start.candidate)
        except TooLargeError:
            if start.candidate is None:
                raise NotAcceptedError(
                    f"{self.name}'s program for the {len(graph.operations):,} operations of {graph.name} "
                    f"has more than {MOST_ENTRIES:,} entries: too large to solve"
                ) from None
            found = start
        best = _fastest([candidate for candidate in (found.candidate, start.candidate) if candidate])
        if best is None:
            self.clock.raise_if_interrupted()
            if found.bound == inf:
                raise self.infeasible()
            raise NotFoundError(self.name, self.limit, self.min_memory)
        self.options.report(
            f"{best.time:.6g} s; no schedule in traced order is faster than {found.bound:.6g} s"
        )
        proven = best.time <= found.bound + PROVEN * best.time
        return SolverResult(
            best.schedule,
            Status.OPTIMAL if proven else Status.FEASIBLE,
            time_bound(graph),
            self.clock.interrupted,
            own_bound(self.name, self.problem, found.bound, "file", self.form),
            # Without a program there is no search to state.
            effort=SearchStats.of(found.nodes, best.time, found.bound) if found is not start else None,
        )

    def infeasible(self) -> InfeasibleError:
        """Return the error, with the least peak of any schedule of this form if that is proven in time."""
        self.options.report("no schedule within the budget; looking for the smallest that is enough")
        least = None
        with suppress(TooLargeError):
            # The baseline is a schedule of this form: its peak is enough.
            staged = self.program(self.baseline.peak - self.always, least=True)
            result = milp.solve(
                staged.program,
                # The budget that the error names is to be the smallest.
                replace(self.settings, gap=0.0),
                time_limit=self.clock.limit,
                start=staged.runs.values(runs_of(self.baseline.schedule)),
            )
            if result.status == MilpStatus.INFEASIBLE:
                self._doubt(inf, self.baseline)
            if result.status == MilpStatus.OPTIMAL and result.x is not None:
                found = self._candidate(staged.runs.sequence(result.x))
                least = found and found.peak
        return InfeasibleError(self.name, self.limit, least, self.min_memory)

    def _start(self) -> _Result:
        """Return the fastest of the starts that fits."""
        fitting: list[Candidate] = []
        with self.clock.until_interrupted():
            for candidate in self._starts():
                fitting += [candidate] if self.fits(candidate) else []
        # Seconds of 0 prove nothing, as a bound.
        return _Result(_fastest(fitting), 0.0)

    def _starts(self) -> Iterator[Candidate]:
        """Yield the baseline, for a chain what chain solvers find, and what greedy eviction finds."""
        yield self.baseline
        for solver in (chen_sqrt.solve, rotor.solve):
            with suppress(NotAcceptedError, InfeasibleError):
                answer = solver(self.problem, Options(self.clock.limit))
                if (candidate := self._candidate(runs_of(answer.schedule))) is not None:
                    yield candidate
                if answer.interrupted:
                    raise KeyboardInterrupt
        part = self.clock.part(1 / 10, EVICTION_SECONDS)
        for runs in sequences(self.graph, self.limit, lambda: not part.over):
            if (candidate := self._candidate(runs)) is not None:
                yield candidate

    def _by_program(self, start: Candidate | None) -> _Result:
        bound, nodes = None, None
        for attempt in range(ROUNDS):
            staged = self.program(self.capacity)
            result = self._search(staged, start)
            self.clock.interrupted |= result.interrupted
            nodes = result.nodes if result.nodes is None else result.nodes + (nodes or 0)
            # Only the first program has the whole budget: later ones are cut, and their bounds are no bounds.
            if bound is None:
                bound = product_below(result.bound, staged.seconds)
                self._doubt(bound, start)
            if result.x is None:
                return _Result(None, bound, nodes)
            found = self._candidate(staged.runs.sequence(result.x))
            if found is None:
                return _Result(None, bound, nodes)
            if self.fits(found):
                return _Result(found, bound, nodes)
            self.cut(found, attempt)
        return _Result(None, bound or 0.0, nodes)

    def _candidate(self, runs: Sequence[Run]) -> Candidate | None:
        """Return the schedule of these runs; None if it breaks a rule."""
        with skipping(self.name):
            return simulate_candidate(self.graph, schedule_of(self.graph, runs))
        return None

    def _search(self, staged: StagedProgram, start: Candidate | None) -> Result:
        def tell(progress: Progress) -> None:
            self.options.report(progress.line(staged.seconds))

        return milp.solve(
            staged.program,
            self.settings,
            time_limit=self.clock.limit,
            start=staged.runs.values(runs_of(start.schedule)) if start else None,
            progress=tell,
        )

    def _doubt(self, bound: float, start: Candidate | None) -> None:
        """Raise BackendError if the start is faster than the backend says that any schedule is."""
        if start is None or bound <= start.time * (1 + DOUBTFUL):
            return
        first_runs = list(dict.fromkeys(operation for operation, _mode in runs_of(start.schedule)))
        # The bound is for the traced order: a start in another order may beat it.
        if first_runs == sorted(first_runs):
            claim = "there is no schedule" if bound == inf else f"no schedule is faster than {bound:.6g} s"
            raise BackendError(
                f"{self.settings.backend} is wrong: it says that {claim}, and one takes {start.time:.6g} s"
            )


def _fastest(candidates: list[Candidate]) -> Candidate | None:
    return min(candidates, key=lambda candidate: candidate.time, default=None)
