"""Search of `plan size`: which batches fit a GPU, which one to train with, and the memory of the first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.machines.presets import Preset
from ..graphs.units import duration, format_bytes
from ..planner.baseline import baseline, baseline_schedule
from ..planner.bounds import time_bound
from ..planner.schedule.schedule import Schedule
from ..solvers.auto.members import described
from ..solvers.problem import InfeasibleError, NotFoundError, Problem
from ..solvers.registry import run as registry
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .accumulation import without_updates
from .alternatives import CHECKPOINTS, NextSteps, next_steps
from .breakdown import Breakdown, breakdown
from .estimate_range import Span
from .loops import Loops, planned_span
from .price import samples_per_price
from .trial import (
    TOLERANCE,
    BatchTrial,
    Known,
    Solve,
    Unanswered,
    UnansweredError,
    given_batches,
    largest_batch,
    smallest_budget,
    tightened,
    trial,
    unsolved,
)

NEARLY = 0.95
"""Share of the most samples per second that is nearly as fast."""

_STARTS = (1, 2, 4, 8)
"""Batches at which the search for the largest may start: batch normalisation, say, takes no single sample."""

QUICK, QUICK_OF_SEVERAL, QUICK_OF_RANKS = 0.15, 0.22, 0.2
"""Shares of --time-limit for a question that only asks whether there is a schedule. The second is for several
GPUs: the later ones have the schedules that were found for the first. The third is for ranks, whose curve
has such answers.
"""
_ANY = "99%"
"""A gap that every schedule is within: the first one ends the search."""
_NEAREST = "joint"
_REACH = (1.0, 0.85, 0.6)
"""Shares of the largest batch whose minimum memory fits, which are tried first."""
_SLOW = 0.85
"""Share of the best rate below which larger batches are not worth the solver's whole time."""
NEAR = 0.05
"""Share by which a batch must promise more than the best, or than the quick answer, for a long search: times
are not known better.
"""


@dataclass(frozen=True)
class Room:
    """Bytes of a GPU.

    limit: bytes to use.
    constant: of these, what cuBLAS keeps.
    reserve: left free in addition.
    """

    limit: int
    constant: int
    reserve: int

    @property
    def planned(self) -> int:
        return max(1, self.limit - self.constant)


@dataclass(frozen=True)
class Question:
    """A run of the solver. Called with a graph and a budget, it returns a schedule, or None if it finds none.

    time_limit: seconds, None: by the graph's size.
    share: share of these seconds to use. quick_share: of these, for `quick`.
    start: a schedule within the budget to begin with; the answer is never slower.
    """

    solver: str
    time_limit: float | None
    settings: dict[str, str]
    machine: Machine
    report: Callable[[str], None]
    share: float = 1.0
    quick_share: float = QUICK
    start: Schedule | None = None

    @cached_property
    def any_size(self) -> Machine:
        """The machine with a device as large as the budget says."""
        return replace(self.machine, device_capacity=None)

    @cached_property
    def quick(self) -> Question:
        """The question whether there is a schedule at all, fast or not.

        If tensors can be transferred, it runs only that solver of the default portfolio that comes nearest to
        the minimum memory: the others take seconds to start.
        """
        links = self.machine.links
        transfers = links.h2d is not None or links.peers is not None
        if self.solver == DEFAULT_SOLVER and not self.settings and transfers:
            return replace(self, share=self.quick_share, solver=_NEAREST)
        has_gap = "gap" in registry.settings_of(self.solver)
        settings = {"gap": _ANY, **self.settings} if has_gap else self.settings
        return replace(self, share=self.quick_share, settings=settings)

    def __call__(self, graph: Graph, budget: int) -> Schedule | None:
        problem = Problem(graph, budget, self.any_size)
        self.report(f"{self.solver}: {graph.name} within {format_bytes(budget)}")
        seconds = self.share * (self.time_limit or _seconds(graph))
        try:
            found = registry.solve(
                self.solver, problem, seconds, self.settings, self.report, 0.0, start=self.start
            )
        except NotFoundError:
            line = f"{self.solver} had no answer in {duration(seconds)}"
            raise UnansweredError(line, fault=False) from None
        except InfeasibleError:
            return None
        except MemplanError:
            raise
        except Exception as error:
            raise UnansweredError(described(self.solver, error), fault=True) from error
        if found.interrupted:
            raise KeyboardInterrupt
        return found.schedule


def _seconds(graph: Graph) -> float:
    """Return the solver's time limit, if the user gives none."""
    return min(20.0, max(6.0, len(graph.operations) / 200))


class Spans:
    """Device bytes that batches take: each span is computed when it is first wanted."""

    def __init__(self) -> None:
        self._later: dict[int, Callable[[], Span]] = {}
        self._known: dict[int, Span] = {}

    def add(self, batch: int, span: Callable[[], Span]) -> None:
        """Set how a batch's span is computed."""
        self._later[batch] = span
        self._known.pop(batch, None)

    def get(self, batch: int) -> Span | None:
        """Return a batch's span, None if it has none."""
        if batch not in self._known and batch in self._later:
            self._known[batch] = self._later[batch]()
        return self._known.get(batch)


@dataclass
class SizeResult:
    """Results on one GPU.

    trials: at the GPU's limit, batch by batch.
    least: the smallest budget found of the first batch.
    interrupted: whether the search was ended early.
    pinning: the smallest batch that does not fit, if it would with more pinned host memory.
    pinned: bytes that can be pinned.
    spans: bytes that each batch takes.
    hasty: batches whose schedule may be far from the fastest.
    parts: memory of the fastest batch by module.
    unplanned: the largest batch that fits without a plan.
    as_it_is: batches that fit without a plan, in the loop that people have.
    tokens: of a sample, None if the model takes none.
    price: of the GPU, per hour, None if not given.
    adapters: the layers that --lora adapts, in words, None without.
    next_steps: what else there is for one batch, None on one of several GPUs.
    """

    preset: Preset
    room: Room
    trials: list[BatchTrial] = field(default_factory=list[BatchTrial])
    least: BatchTrial | None = None
    interrupted: bool = False
    pinning: BatchTrial | None = None
    pinned: int | None = None
    spans: Spans = field(default_factory=Spans)
    hasty: set[int] = field(default_factory=set[int])
    as_it_is: set[int] = field(default_factory=set[int])
    parts: Breakdown | None = None
    tokens: int | None = None
    adapters: str | None = None
    price: float | None = None
    next_steps: NextSteps | None = None

    @property
    def largest(self) -> BatchTrial | None:
        return max(self.fitting, key=lambda one: one.batch, default=None)

    @property
    def unplanned(self) -> BatchTrial | None:
        there = (one for one in self.fitting if one.batch in self.as_it_is)
        return max(there, key=lambda one: one.batch, default=None)

    @property
    def fastest(self) -> BatchTrial | None:
        """The batch to train with: that of most samples per second, the smallest of equals."""
        rates = {one.batch: one.samples_per_second or 0.0 for one in self.trials}
        return max(self.fitting, key=lambda one: (rates[one.batch], -one.batch), default=None)

    @property
    def nearly_fastest(self) -> BatchTrial | None:
        """The smallest batch with at least NEARLY of the most samples per second; it may be the fastest."""
        most = max((one.samples_per_second or 0.0 for one in self.fitting), default=0.0)
        near = (one for one in self.fitting if (one.samples_per_second or 0.0) >= NEARLY * most)
        return min(near, key=lambda one: one.batch, default=None)

    def samples_per_price(self, one: BatchTrial) -> float | None:
        """Return the samples of a batch for one unit of the price's currency, None without a price."""
        rate = one.samples_per_second
        return None if self.price is None or rate is None else samples_per_price(rate, self.price)

    @property
    def fitting(self) -> list[BatchTrial]:
        return [one for one in self.trials if one.figures]

    @property
    def unanswered(self) -> list[Unanswered]:
        """Questions that the solver had no answer to."""
        return [one.unanswered for one in self.trials if one.unanswered is not None]

    def tight(self, batch: int) -> bool:
        """Tell whether the batch fits as expected but might not."""
        span = self.spans.get(batch)
        return span is not None and span.high > self.room.limit


class _Interruptible(Protocol):
    interrupted: bool


@contextmanager
def interruptible(found: _Interruptible) -> Generator[None]:
    """Let Ctrl-C end the block, and note it."""
    try:
        yield
    except KeyboardInterrupt:
        found.interrupted = True


def first_batch(wanted: list[int] | None, graph: Callable[[int], Graph], *, any_of: bool = False) -> int:
    """Return the smallest batch to try, which the model can have. Raises MemplanError, that of the first try.

    wanted: those that the user gives, None: search. any_of: the model need not have the smallest of them.
    """
    starts = _STARTS if wanted is None else wanted if any_of else [min(wanted)]
    refusals: list[MemplanError] = []
    for batch in starts:
        try:
            graph(batch)
        except MemplanError as error:
            refusals.append(error)
        else:
            return batch
    raise refusals[0]


@dataclass
class BatchSearch:
    """Search on one GPU.

    loops: the model's graphs.
    optimizer: its name, None without updates.
    known: schedules found for them, on other GPUs as well.
    brief: run the solver for few batches, and look for no smallest budget.
    """

    loops: Loops
    optimizer: str | None
    ask: Question
    room: Room
    known: Known
    brief: bool = False
    _one_update: bool = False

    def run(self, batches: list[int] | None, *, one_update: bool = False) -> SizeResult:
        """Search and return the results.

        batches: those to try, None: search. one_update: they are micro-batches of one update, of which the
        fastest is wanted. Raises MemplanError, one line.
        """
        self._one_update = one_update
        found = self._once(batches)
        marked = found.fastest
        if marked is None or found.interrupted:
            return found
        with interruptible(found):
            if not self.loops.agrees(marked.batch):
                found = self._once(batches)
        return found

    def _once(self, batches: list[int] | None) -> SizeResult:
        found = SizeResult(self.loops.preset, self.room)
        with interruptible(found):
            self._asked(found, batches)
        if not found.interrupted:
            with interruptible(found):
                self._agree(found)
                self._retry_without_pinned_limit(found)
                if not self.brief:
                    self._next_steps(found)
        if found.interrupted:
            self._agree(found)
        return found

    def _asked(self, found: SizeResult, batches: list[int] | None) -> None:
        first = first_batch(batches, self._graph, any_of=self._one_update)
        for one in self._tried(batches, first):
            found.trials.append(one)
        if not batches or self._one_update:
            self._sharpen(found)
        if not self.brief and not self._one_update:
            self._least(found, first)

    def _tried(self, batches: list[int] | None, first: int) -> Iterator[BatchTrial]:
        if batches:
            one_by_one = partial(self._attempt, ask=self.ask.quick) if self._one_update else self._thorough
            yield from given_batches(one_by_one, (batch for batch in batches if batch >= first))
            return
        tried = list[BatchTrial]()
        self._reach(first)
        for one in largest_batch(lambda batch: self._attempt(batch, self.ask.quick), first):
            yield one
            tried.append(one)
        as_it_is = [one.batch for one in tried if self._fits_as_it_is(one.batch)]
        planned = [one.batch for one in tried if not self._fits_as_it_is(one.batch)]
        if as_it_is and planned:  # the largest batch that needs no plan, to the same tolerance
            last, over = max(as_it_is), min(planned)
            while over - last > max(1, last // 32):
                one = self._attempt((last + over) // 2, self.ask.quick)
                fits = self._fits_as_it_is(one.batch)
                last, over = (one.batch, over) if fits else (last, one.batch)
                if fits:
                    yield one

    def _reach(self, first: int) -> None:
        """Solve for the batch that may be the largest, that of the minimum memory, or for one near it.

        A schedule found fits all smaller batches as well, which then need no solver.
        """
        fitting = (one.batch for one in largest_batch(self._by_minimum, first) if one.schedule)
        top = max(fitting, default=0)
        for batch in sorted({int(share * top) for share in _REACH} - {*range(first + 1)}, reverse=True):
            if self._by_minimum(batch).baseline_fits or self._attempt(batch, self.ask.quick).figures:
                return

    def _by_minimum(self, batch: int) -> BatchTrial:
        """Return a trial that counts as fitting if the minimum memory does."""
        graph, budget = self._graph(batch), self.room.planned
        asked = unsolved(graph, self.ask.any_size, batch, budget)
        return asked if asked.proven_infeasible else replace(asked, schedule=baseline_schedule(graph))

    def _attempt(self, batch: int, ask: Question) -> BatchTrial:
        solve: Solve = self.known.before(ask.any_size, ask)
        return trial(self._graph(batch), ask.any_size, batch, self.room.planned, solve)

    def _thorough(self, batch: int) -> BatchTrial:
        """Try a batch with all the solver's time, unless it needs no plan."""
        return self._solved(batch, self.ask)

    def _solved(self, batch: int, ask: Question) -> BatchTrial:
        """Ask the solver for a batch, even if another batch's schedule fits, unless it needs no plan."""
        solve = self.known.alongside(self.ask.any_size, ask)
        baseline_figures = self.known.before(self.ask.any_size, solve)
        asked = self._graph(batch)
        fits = baseline(asked).peak <= self.room.planned
        return trial(asked, self.ask.any_size, batch, self.room.planned, baseline_figures if fits else solve)

    def _sharpen(self, found: SizeResult) -> None:
        """Run the solver, with all its time, for the batches that may be worth it, in ascending order.

        It ends when a batch is much slower than the best.
        """
        planned = sorted((one for one in found.fitting if not one.baseline_fits), key=lambda one: one.batch)
        found.hasty = {one.batch for one in planned}
        for one in planned:
            best = found.fastest
            rate = 0.0 if best is None else best.samples_per_second or 0.0
            graph = self._graph(one.batch)
            if one.steps > 1:  # of several micro-batches only the last has updates
                graph, _places = without_updates(graph)
            promised = one.batch / time_bound(graph)
            if promised < (1 + NEAR) * rate:
                continue
            better = self._solved(one.batch, self.ask.quick)
            if promised >= (1 + NEAR) * (better.samples_per_second or 0.0):
                better = self._thorough(one.batch)
            found.trials[found.trials.index(one)] = better
            found.hasty.discard(one.batch)
            if self.brief or (better.samples_per_second or 0.0) < _SLOW * rate:
                return

    def _fits_as_it_is(self, batch: int) -> bool:
        """Return whether a batch fits in the loop that people have: backward's thread has a workspace too."""
        return baseline(self.loops.ordinary(batch).graph).peak <= self.room.planned - self.room.constant

    def _span(self, one: BatchTrial, found: SizeResult) -> Span:
        assert one.schedule is not None
        if one.batch in found.as_it_is:
            return self.loops.unplanned_span(one.batch, self.room.constant)
        loop, machine = self.loops.planned(one.batch), self.ask.any_size
        return planned_span(loop, one.schedule, one.budget, machine, self.room.constant, one.replay)

    def _parts(self, one: BatchTrial, found: SizeResult) -> Breakdown:
        assert one.schedule is not None
        graph, schedule, budget = self._graph(one.batch), one.schedule, one.budget
        if one.batch in found.as_it_is:
            graph = self.loops.ordinary(one.batch).graph
            schedule, budget = baseline_schedule(graph), baseline(graph).peak
        return breakdown(graph, schedule, budget, self.ask.any_size)

    def _least(self, found: SizeResult, first: int) -> None:
        graph, machine, ask = self._graph(first), self.ask.any_size, self.ask.quick
        solve = self.known.noted(ask)
        known = found.trials[0]
        starts = (
            lambda: trial(graph, machine, first, int((1 + TOLERANCE) * known.min_memory), solve),
            lambda: known,
            lambda: trial(
                graph, machine, first, known.baseline_figures.peak, self.known.before(machine, ask)
            ),
        )
        start = next((one for one in (make() for make in starts) if one.figures), None)
        if start is not None:
            for better in smallest_budget(graph, machine, start, solve):
                found.least = better

    def _agree(self, found: SizeResult) -> None:
        """Replace results by the best of all schedules found, whichever question each one answered.

        A solver that runs out of time may find nothing for a batch, or a budget, that another question's
        schedule fits.
        """
        machine, known = self.ask.any_size, self.known
        for place, one in enumerate(found.trials):
            if one.figures is None:
                kept: Solve = lambda graph, budget: known.best(graph, machine, budget)  # noqa: E731
                better = trial(self._graph(one.batch), machine, one.batch, one.budget, kept)
                if better.figures is not None:
                    found.trials[place] = better
                    found.hasty.add(one.batch)
        if found.least is not None:
            graph = self._graph(found.least.batch)
            schedule, figures = known.least(graph, machine)
            found.least = tightened(graph, machine, replace(found.least, schedule=schedule, figures=figures))
        for one in found.fitting:
            if self._fits_as_it_is(one.batch):
                found.as_it_is.add(one.batch)
            found.spans.add(one.batch, partial(self._span, one, found))
            if not self.brief or one is found.fastest:
                found.spans.get(
                    one.batch
                )  # of several GPUs other batches are shown on the page and in JSON alone
        if found.fastest is not None:
            found.parts = self._parts(found.fastest, found)
        if found.trials:
            found.tokens = self.loops.tokens(found.trials[0].batch)
            found.adapters = self.loops.adapters(found.trials[0].batch)

    def _retry_without_pinned_limit(self, found: SizeResult) -> None:
        """Find whether the pinned limit alone refuses the smallest refused batch."""
        refused = [one.batch for one in found.trials if not (one.figures or one.proven_infeasible)]
        if refused and self.ask.machine.pinned is not None:
            unlimited = replace(self.ask, machine=replace(self.ask.machine, pinned=None))
            one = trial(
                self._graph(min(refused)), unlimited.any_size, min(refused), self.room.planned, unlimited
            )
            found.pinning, found.pinned = one if one.figures else None, self.ask.machine.pinned

    def _next_steps(self, found: SizeResult) -> None:
        """Find what else there is for the batch to train with; if none fits, for the first."""
        one = found.fastest or found.trials[0]

        def solver(name: str, machine: Machine) -> Solve:
            own = self.ask.solver == DEFAULT_SOLVER or name == CHECKPOINTS
            ask = replace(self.ask, machine=machine, share=self.ask.quick_share)
            if own:
                ask = replace(ask, solver=name, settings=dict[str, str]())
            return ask if name == CHECKPOINTS else self.known.alongside(machine, ask)

        found.next_steps = next_steps(
            self.loops,
            one.batch,
            self.optimizer,
            solver=solver,
            machine=self.ask.any_size,
            limit=self.room.planned,
            constant=self.room.constant,
        )

    def _graph(self, batch: int) -> Graph:
        return self.loops.planned(batch).graph
