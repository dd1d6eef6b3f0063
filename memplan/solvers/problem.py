"""Problems and options that a solver is given, and the answers and errors that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Literal, Self, TypeVar

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.units import duration, format_bytes
from ..planner.addresses.layout import Layout
from ..planner.bounds import least_memory, offloads
from ..planner.budget import spelled
from ..planner.card import Card, Entry, cost_entries
from ..planner.report import optimality_gap
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import Figures
from .clock import Clock
from .incumbent import Incumbent
from .techniques import Technique, technique_of

T = TypeVar("T")


class Status(StrEnum):
    """Strength of a solver's claim for its answer."""

    OPTIMAL = "optimal"
    """proven, for the solver's own formulation"""
    FEASIBLE = "feasible"
    """the best so far when a limit stopped the solver"""
    WITHIN_GAP = "within-gap"
    """proven, up to the requested gap"""
    HEURISTIC = "heuristic"
    """nothing is claimed"""


@dataclass(frozen=True, repr=False)
class Problem:
    """Find the fastest schedule of `graph` on `machine` whose device peak is at most `budget` bytes.

    allow: techniques that the schedule may use, None for all (allowed.py).
    """

    graph: Graph
    budget: int
    machine: Machine | None = None
    allow: tuple[Technique, ...] | None = None

    def allows(self, technique: Technique) -> bool:
        """Tell whether schedules may use a technique, on some tensors at least."""
        return self.allow is None or technique in map(technique_of, self.allow)

    def __repr__(self) -> str:
        return f"<Problem: {self.graph!r} within {format_bytes(self.budget)}>"


@dataclass(frozen=True)
class Options:
    """Options of one solve.

    time_limit: seconds, None for no limit.
    settings: the solver's own `Settings` dataclass.
    report: called with one line of progress at a time.
    cancelled: true once the answer is requested at once.
    race: receives schedules within the budget, and bounds, as they are found.
    start: a schedule within the budget that is known before, if there is one; solvers may improve it.
    by_default: nobody has asked for the time limit: a search that counts moves ends with them too.
    """

    time_limit: float | None = None
    settings: Any = None
    report: Callable[[str], None] = field(default=lambda _line: None)
    cancelled: Callable[[], bool] = field(default=lambda: False)
    race: Incumbent = field(default_factory=Incumbent)
    start: Schedule | None = None
    by_default: bool = False

    def clock(self) -> Clock:
        """Return a clock that begins now."""
        return Clock(self.time_limit, self.cancelled)

    def chosen(self, kind: type[T]) -> T:
        """Return the settings, by default those of this class as declared."""
        return kind() if self.settings is None else self.settings


OrderName = Literal["any", "file"]
HIGHS = "HiGHS"
"""The backend whose branch and bound is believed: its tree can't be checked."""


@dataclass(frozen=True)
class Bound:
    """A lower bound: seconds below which no schedule of the graph within the budget runs; ∞: there is none.

    name: of the method.
    order: "any": it holds in any order; "file": for schedules whose first runs keep the traced order.
    transfers: it holds for schedules with transfers too.
    backward_again: it also holds for schedules that run a backward operation more than once.
    form: what else is required of the schedules for which it holds, in words; empty: nothing.
    by: the program whose word it is, which nothing checks; empty: it rests on memplan's own arithmetic.
    """

    seconds: float
    name: str
    order: OrderName
    transfers: bool = True
    backward_again: bool = True
    form: str = ""
    by: str = ""

    @property
    def general(self) -> bool:
        """Tell whether it holds for every schedule."""
        return self.order == "any" and self.transfers and self.backward_again and not self.form

    def covers(self, other: Bound) -> bool:
        """Tell whether it holds for all schedules that the other holds for."""
        return (
            self.order in ("any", other.order)
            and self.transfers >= other.transfers
            and self.backward_again >= other.backward_again
            and self.form in ("", other.form)
        )


@dataclass(frozen=True)
class SearchStats:
    """Statistics of an exact search.

    nodes: of its trees, None if its backend does not report them.
    gap: (seconds of the answer − bound) / seconds, with the bound for its own formulation.
    """

    nodes: int | None
    gap: float

    @staticmethod
    def of(nodes: int | None, time: float, bound: float) -> SearchStats | None:
        """Return the statistics; None if nothing is known."""
        if nodes is None and bound == -inf:
            return None
        # bounds are rounded down: that of a schedule of no seconds is below 0
        if time <= max(bound, 0.0):
            return SearchStats(nodes, 0.0)
        return SearchStats(nodes, 1.0 if bound == -inf else (time - bound) / time)


@dataclass(frozen=True)
class SolverResult:
    """A solver's schedule, and what the solver claims for it.

    lower_bound: seconds, for every schedule of the graph within the budget (not only for this solver's
        formulation); None if unknown.
    interrupted: the user ended the search, and this is the best so far.
    bounds: others that it has proven.
    notes: what went wrong on the way, a line each.
    effort: of an exact search, if there was one.
    policy: which of several known ones it is, of a solver that chooses among them.
    ending: why a search without a proof has ended, in words.
    """

    schedule: Schedule
    status: Status
    lower_bound: float | None = None
    interrupted: bool = False
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()
    effort: SearchStats | None = None
    policy: str = ""
    ending: str = ""

    @staticmethod
    def of_heuristic(schedule: Schedule, clock: Clock, lower_bound: float | None = None) -> SolverResult:
        """Return a heuristic's answer, the best so far if its clock ended the search."""
        status = Status.FEASIBLE if clock.expired else Status.HEURISTIC
        return SolverResult(schedule, status, lower_bound, clock.interrupted)


@dataclass(frozen=True, repr=False)
class ValidatedSolution:
    """An answer that the simulator has accepted.

    seconds: what the solver took.
    lower_bound: seconds, for every schedule within the budget.
    bounds: that one first, with its name, then larger ones that hold for fewer schedules: with transfers, or
        in another order, something may be faster.
    notes: what went wrong and cost no schedule, a line each: a subproblem of the solver, a bound.
    layout: the copies' addresses on the device, if they were requested.
    budget: of live bytes, for which the schedule was made; less than the problem's if its arena would have
        been larger than that.
    machine: for which it was made: the problem's, or that one with nothing pinned.
    effort, policy, ending: as the answer's.
    """

    solver: str
    schedule: Schedule
    figures: Figures
    lower_bound: float | None
    status: Status
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    interrupted: bool = False
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()
    layout: Layout | None = None
    budget: int | None = None
    machine: Machine | None = None
    effort: SearchStats | None = None
    policy: str = ""
    ending: str = ""

    def _card(self) -> Card:
        entries = [
            *cost_entries(self.figures, budget=self.budget),
            Entry("of the solver", duration(self.seconds)),
        ]
        if self.lower_bound:  # one of 0 s proves nothing
            gap = f"gap {optimality_gap(self.figures.time, self.lower_bound):z.1%}"
            by = f" by {self.bounds[0].by}, not checked" if self.bounds and self.bounds[0].by else ""
            entries.append(Entry(f"lower bound{by}", duration(self.lower_bound), gap))
        return Card(f"Solution by {self.solver}, {self.status}", tuple(entries))

    def __repr__(self) -> str:
        return self._card().line()

    def _repr_html_(self) -> str:
        return self._card().html()


def percent(size: int, peak: int) -> str:
    """Return a share that suffices as a budget: rounded up, exactly."""
    return f"{-(-100 * size // peak)}%"


WAY = "add --machine NAME (plan machine --list), in Python machine="
"""Advice on how to offload."""


class InfeasibleError(MemplanError):
    """No schedule is within the budget.

    least: the smallest budget (bytes) for which this solver found a schedule, None if it can't tell.
    schedule: one that holds within the smallest budget found, None if it was not kept.
    peak: bytes of the baseline, if budgets are stated as shares of it.
    min_memory: minimum memory, bytes: below it no solver has a schedule on the problem's machine.
    min_memory_once: bytes below which none is in traced order unless a backward operation runs twice.
    bounds: infinite ones, each a proof that no schedule of its kind exists.
    seconds: what the solver took.
    notes: what went wrong on the way, a line each.
    offloads: the machine has links, None if that is not known.
    min_memory_offloading: bytes of the minimum memory with offloading, if the machine has no links.
    advice: what else can be done, a clause each.
    allow: the problem's techniques, if more could have schedules; None if all were allowed.
    problem: the problem, if the caller has stated it; its budget may be less than this one.
    """

    schedule: Schedule | None = None
    peak: int | None = None
    min_memory_once: int | None = None
    bounds: tuple[Bound, ...] = ()
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    offloads: bool | None = None
    min_memory_offloading: int | None = None
    advice: tuple[str, ...] = ()
    allow: tuple[Technique, ...] | None = None
    problem: Problem | None = None

    @property
    def proven_infeasible(self) -> bool:
        """No schedule of any solver is within it, on this machine."""
        return self.budget < self.min_memory

    @property
    def smallest(self) -> int | None:
        """Return the smallest budget found, in bytes; None if there is none."""
        return self.least

    @property
    def percent(self) -> str | None:
        """Return the smallest budget found as a share of the baseline's peak, one that suffices: rounded up.

        None if budgets are not stated as shares, or none is known to suffice.
        """
        return None if self.peak is None or self.smallest is None else percent(self.smallest, self.peak)

    def __init__(self, solver: str, budget: int, least: int | None, min_memory: int) -> None:
        self.solver, self.budget, self.least, self.min_memory = solver, budget, least, min_memory
        super().__init__()
        self._say()

    def add_details(
        self, min_memory_once: int | None, bounds: Sequence[Bound], problem: Problem | None = None
    ) -> None:
        """Add what is known of the problem besides the minimum memory, as clauses of the message.

        problem: says for which schedules that minimum holds.
        """
        self.min_memory_once, self.bounds = min_memory_once, tuple(bounds)
        if problem is not None:
            machine = problem.machine or problem.graph.machine or Machine()
            self.offloads = offloads(machine)
            on_cpu = problem.graph.source.get("device") == "cpu"  # no memory is below its own
            spread = problem.graph.spread.any()  # shares are not offloaded to the host
            if not (self.offloads or on_cpu or spread):
                self.min_memory_offloading = least_memory(problem.graph)
        self._say()

    def holding(self, schedule: Schedule | None) -> Self:
        """Return this error with a schedule that holds within the smallest budget found."""
        self.schedule = schedule
        return self

    def state_shares(self, peak: int) -> None:
        """State the smallest budget as a share of the baseline's peak too, in bytes."""
        self.peak = peak
        self._say()

    def advise(self, clause: str) -> None:
        """Add a clause to the message: what else can be done."""
        self.advice = (*self.advice, clause)
        self._say()

    def restrict(self, allow: tuple[Technique, ...]) -> None:
        """State that only these techniques were allowed."""
        self.allow = allow
        if "offload" not in map(technique_of, allow):
            self.min_memory_offloading = None  # a machine with links would change nothing
        self._say()

    @property
    def _class(self) -> str:
        return "" if self.offloads is None else f" {'with' if self.offloads else 'without'} offloading"

    def _say(self) -> None:
        allowed = "" if self.allow is None else f"with {', '.join(self.allow) or 'nothing'} allowed: "
        clauses = [allowed + self._verdict(), *self._proofs(), *self._way(), *self.advice]
        self.args = ("; ".join(clauses),)

    def _verdict(self) -> str:
        minimum = (
            f"the budget is below the minimum memory of {spelled(self.min_memory)}{self._class}"
            if self.proven_infeasible
            else f"the minimum memory{self._class} is {spelled(self.min_memory)}"
        )
        return f"no schedule within {spelled(self.budget)}: {'; '.join([*self._found(), minimum])}"

    def _share(self) -> Iterator[str]:
        """Yield what suffices as a share, if budgets are stated so."""
        if self.percent is not None and self.peak is not None:
            less = ""
            if self.percent == "100%":
                proven = percent(self.min_memory, self.peak) == "100%"
                less = ": recomputation saves nothing" if proven else ": less was not found"
            yield f"{self.percent} of the baseline's peak ({spelled(self.peak)}) is needed{less}"

    def _found(self) -> Iterator[str]:
        """Yield what suffices, as a share first."""
        yield from self._share()
        if self.smallest is not None:
            yield f"the smallest budget found by {self.solver} is {spelled(self.smallest)}"

    def _proofs(self) -> Iterator[str]:
        """Yield what is proven of schedules without offloading: nothing, if the machine has links."""
        recomputed = "unless a backward operation runs twice"
        if any(bound.general for bound in self.bounds):
            yield "it is proven that there is none without offloading, in any order"
        elif any(bound.order == "any" for bound in self.bounds):
            yield f"it is proven that there is none without offloading, in any order, {recomputed}"
        elif (
            self.min_memory_once is not None
            and self.budget < self.min_memory_once
            and not self.proven_infeasible
        ):
            below = f"below {spelled(self.min_memory_once)} there is none"
            yield f"{below} without offloading, in the traced order, {recomputed}"

    def _way(self) -> Iterator[str]:
        least = self.min_memory_offloading
        if least is not None and least <= self.budget and least < self.min_memory:
            yield f"with offloading the minimum memory is {spelled(least)}: {WAY}"

    def with_extra_bytes(self, others: int) -> InfeasibleError:
        """Return the same error for budgets that also hold `others` bytes."""
        return self.for_budgets(lambda size: size + others)

    def for_budgets(self, whole: Callable[[int], int]) -> InfeasibleError:
        """Return the same error for budgets that hold more. whole: the bytes of one, of those of the plan."""
        least = None if self.least is None else whole(self.least)
        refusal = type(self)(self.solver, whole(self.budget), least, whole(self.min_memory))
        return self._known_to(refusal, whole)

    def _known_to(self, refusal: InfeasibleError, whole: Callable[[int], int]) -> InfeasibleError:
        refusal.seconds, refusal.notes, refusal.offloads = self.seconds, self.notes, self.offloads
        refusal.advice, refusal.allow = self.advice, self.allow
        refusal.schedule, refusal.peak = self.schedule, self.peak
        if self.min_memory_offloading is not None:
            refusal.min_memory_offloading = whole(self.min_memory_offloading)
        refusal.add_details(
            None if self.min_memory_once is None else whole(self.min_memory_once), self.bounds
        )
        return refusal


class NotFoundError(InfeasibleError):
    """No schedule within the budget was found in the time limit, nor a proof that there is none.

    found: bytes of the smallest budget for which there was one; with another time limit that may differ.
    """

    def __init__(self, solver: str, budget: int, min_memory: int, found: int | None = None) -> None:
        self.found = found
        super().__init__(solver, budget, None, min_memory)

    @property
    def smallest(self) -> int | None:
        return self.found

    def _verdict(self) -> str:
        clauses = [*self._found(), f"the minimum memory{self._class} is {spelled(self.min_memory)}"]
        return (
            f"{self.solver} found no schedule within {self.budget:,} B in its time, nor that there is "
            f"none: it needs more time or a larger budget; {'; '.join(clauses)}"
        )

    def _found(self) -> Iterator[str]:
        for clause in super()._found():
            yield clause.replace(f"found by {self.solver} is", "found is").replace("is needed", "is enough")

    def for_budgets(self, whole: Callable[[int], int]) -> InfeasibleError:
        found = None if self.found is None else whole(self.found)
        refusal = NotFoundError(self.solver, whole(self.budget), whole(self.min_memory), found)
        return self._known_to(refusal, whole)


class NotAcceptedError(MemplanError):
    """The graph is not of the form this solver takes (not a chain, no links, …)."""
