"""The search of sizing: which batches fit, which one to train with, and the memory of the first.

One search over batches, on one GPU or on equal ranks of sharded training. Both try batches by what is known
and by short questions, then ask the solver, with all its time, for those that may be the fastest. They differ
in what is known from the start:

    one GPU    the baseline, which needs no plan if it fits
    ranks      FSDP2's policies, none of which a plan is slower than; those that are tuned layer by layer are
               tried for the fastest batch
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.transformations.sharding import rank_bytes
from ..planner.baseline import baseline, baseline_schedule
from ..planner.bounds import time_bound
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import figures_of
from ..solvers.offloading.joint.compiling import load
from ..solvers.problem import Options
from ..solvers.registry.catalogue import DEFAULT_SOLVER
from .accumulation import without_updates
from .alternatives import FIXED, NextSteps, next_steps
from .at_once import know_checkpoints
from .breakdown import Breakdown, breakdown
from .estimate_range import Span
from .lengths import Lengths, many_lengths
from .loops import Loops, planned_span
from .policies import Policies
from .question import Question, Room
from .rank_curve import RankCurve
from .result import FASTER, SizeResult
from .trial import (
    STARTS,
    TOLERANCE,
    BatchTrial,
    Known,
    Solve,
    given_batches,
    largest_batch,
    minimum_of,
    smallest_budget,
    tightened,
    trial,
    unsolved,
)

_REACH = (1.0, 0.85, 0.6)
"""Shares of the largest batch whose minimum memory fits, which are tried first."""
_SLOW = 0.85
"""Share of the best rate below which larger batches are not worth the solver's whole time."""
_NEAR = 0.05
"""Share by which a batch must promise more, for a long search: times are not known better."""
_PROMISING, _THOROUGH = 3, 2
"""Batches of ranks at most for which the solver has a moment, and its whole time."""


@dataclass
class SizeSearch:
    """A search on one GPU, or on ranks, for which the loops are sharded.

    loops: the model's graphs.
    ask: the solver, on the machine of the GPU or of a rank.
    optimizer: its name, None without updates.
    lengths: of the samples, if they have several.
    known: schedules found for them, on other GPUs as well.
    brief: run the solver for few batches, and look for no smallest budget and no alternatives.
    one_update: the batches are micro-batches of one update, of which the fastest is wanted.
    """

    loops: Loops
    ask: Question
    room: Room
    optimizer: str | None = None
    lengths: Lengths | None = None
    known: Known = field(default_factory=Known)
    brief: bool = False
    one_update: bool = False

    def run(self, batches: list[int] | None) -> SizeResult:
        """Search and return the results. batches: those to try, None: search. Raises MemplanError."""
        found = self._once(batches)
        marked = found.advised
        if marked is None or found.interrupted:
            return found
        with _interruptible(found):
            if not self.loops.agrees(marked.batch):
                found = self._once(batches)
        return found

    def _once(self, batches: list[int] | None) -> SizeResult:
        found = SizeResult(self.loops.preset, self.room, self._machine, self.loops.peers)
        with _interruptible(found):
            self._try_batches(found, batches)
            if self._sharded:
                self._sharpen_ranks(found)
            else:
                self._sharpen(found, batches)
        if not found.interrupted:
            with _interruptible(found):
                self._explain(found)
                if self._sharded:
                    self._explain_ranks(found)
                else:
                    self._explain_alone(found)
        if found.interrupted:
            self._explain(found)
        return found

    @property
    def _sharded(self) -> bool:
        return self.loops.peers is not None

    @property
    def _machine(self) -> Machine:
        return self.ask.any_size

    @cached_property
    def _policies(self) -> Policies:
        return Policies(self.loops, self._machine)

    def _graph(self, batch: int) -> Graph:
        return self.loops.planned(batch).graph

    # ── batches ─────────────────────────────────────────────────────────────────────────────────────

    def _try_batches(self, found: SizeResult, batches: list[int] | None) -> None:
        if self._sharded:
            load(Options(report=self.ask.report))
        first = self._first_batch(batches)
        for one in self._tried(first, batches):
            found.trials.append(one)
            if self._sharded:
                found.policies[one.batch] = self._policies.figures(one.batch, self.room.unplanned)

    def _first_batch(self, wanted: list[int] | None) -> int:
        """Return the smallest batch to try, which the model can have.

        Of micro-batches of one update the model need not have the smallest. Raises MemplanError, that of the
        first try.
        """
        starts = STARTS if wanted is None else wanted if self.one_update else [min(wanted)]
        refusals: list[MemplanError] = []
        for batch in starts:
            try:
                self._graph(batch)
            except MemplanError as error:
                refusals.append(error)
            else:
                return batch
        raise refusals[0]

    def _tried(self, first: int, batches: list[int] | None) -> Iterator[BatchTrial]:
        if batches:
            quick = self.one_update or self._sharded
            one_by_one = self._attempt if quick else partial(self._solved, ask=self.ask)
            yield from given_batches(one_by_one, (batch for batch in batches if batch >= first))
            return
        if self._sharded:
            yield from largest_batch(self._attempt, first)
            return
        tried = list[BatchTrial]()
        self._reach(first)
        for one in largest_batch(self._attempt, first):
            yield one
            tried.append(one)
        as_it_is = [one.batch for one in tried if self._fits_as_it_is(one.batch)]
        planned = [one.batch for one in tried if not self._fits_as_it_is(one.batch)]
        if as_it_is and planned:  # the largest batch that needs no plan, to the same tolerance
            last, over = max(as_it_is), min(planned)
            while over - last > max(1, last // 32):
                one = self._attempt((last + over) // 2)
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
            if self._by_minimum(batch).baseline_fits or self._attempt(batch).figures:
                return

    def _by_minimum(self, batch: int) -> BatchTrial:
        """Return a trial that counts as fitting if the minimum memory does."""
        graph, budget = self._graph(batch), self.room.planned
        asked = unsolved(graph, self._machine, batch, budget)
        return asked if asked.proven_infeasible else replace(asked, schedule=baseline_schedule(graph))

    def _attempt(self, batch: int) -> BatchTrial:
        """Try a batch by what is known, or else by a short search."""
        graph = self._graph(batch)
        if self._sharded and not self._policies.known(graph):
            for _name, schedule in self._policies.of_plans(graph):
                self.known.add(graph, schedule)
        return self._trial(batch, self.known.before(self._machine, self.ask.quick))

    def _solved(self, batch: int, ask: Question, budget: int | None = None) -> BatchTrial:
        """Ask the solver for a batch, even if another batch's schedule fits, unless none can be faster than
        what is known."""
        machine, known = self._machine, self.known

        def solve(graph: Graph, budget: int) -> Schedule | None:
            if not self._sharded:
                if baseline(graph).peak <= budget:
                    return baseline_schedule(graph)
                return known.alongside(machine, ask)(graph, budget)
            start = known.best(graph, machine, budget)
            if start is not None:
                figures = figures_of(graph, start, budget=budget, machine=machine)
                if figures.time <= (1 + FASTER) * time_bound(graph):
                    return start
            return known.alongside(machine, replace(ask, start=start))(graph, budget)

        return self._trial(batch, solve, budget)

    def _trial(self, batch: int, solve: Solve, budget: int | None = None) -> BatchTrial:
        budget, graph = self.room.planned if budget is None else budget, self._graph(batch)
        if not self._sharded and self.ask.solver == DEFAULT_SOLVER:
            know_checkpoints(self.known, graph)
        return trial(graph, self._machine, batch, budget, solve)

    def _fits_as_it_is(self, batch: int) -> bool:
        """Return whether a batch fits in the loop that people have."""
        return baseline(self.loops.ordinary(batch).graph).peak <= self.room.unplanned

    # ── the fastest batch ───────────────────────────────────────────────────────────────────────────

    def _sharpen(self, found: SizeResult, batches: list[int] | None) -> None:
        """Ask the solver for the batches that may be worth its whole time, and for the smallest budget."""
        if not batches or self.one_update:
            self._ask_ascending(found)
        if not self.brief and not self.one_update:
            self._least(found)

    def _ask_ascending(self, found: SizeResult) -> None:
        """Run the solver, with all its time, for the batches that may be worth it, in ascending order.

        It ends when a batch is much slower than the best.
        """
        planned = [one for one in found.fitting if not one.baseline_fits]
        found.hasty = {one.batch for one in planned}
        for one in planned:
            best = found.fastest
            rate = 0.0 if best is None else found.rate(best)
            promised = self._promised(one)
            if promised < (1 + _NEAR) * rate:
                continue
            better = self._solved(one.batch, self.ask.quick)
            if promised >= (1 + _NEAR) * found.rate(better):
                better = self._solved(one.batch, self.ask)
            found.trials[found.trials.index(one)] = better
            found.hasty.discard(one.batch)
            if self.brief or found.rate(better) < _SLOW * rate:
                return

    def _sharpen_ranks(self, found: SizeResult) -> None:
        """Ask the solver for a moment for the batches that promise the most; then, with all its time, for the
        fastest."""
        found.hasty, asked = {one.batch for one in found.fitting}, set[int]()
        for _number in range(_PROMISING):
            left = [one for one in self._promising(found) if one.batch not in asked]
            if left:
                chosen = max(left, key=found.rate)
                asked.add(chosen.batch)
                found.trials[found.trials.index(chosen)] = self._solved(chosen.batch, self.ask.quick)
        for _number in range(_THOROUGH):
            best = found.fastest
            if best is not None and best in self._promising(found):
                better = self._solved(best.batch, self.ask)
                found.trials[found.trials.index(best)] = better
                found.spans.add(best.batch, partial(self._span, better, found))
                found.spans.get(best.batch)
                found.hasty.discard(best.batch)
        self._tune(found)

    def _tune(self, found: SizeResult) -> None:
        """Add FSDP2's policies as patient people tune them, layer by layer, at the fastest batch."""
        best = found.fastest
        if best is None:
            return
        self._policies.tune(best.batch, self.room.unplanned)
        found.policies[best.batch] = self._policies.with_tuned(best.batch, self.room.unplanned, self.known)
        within = self._trial(best.batch, lambda graph, budget: self.known.best(graph, self._machine, budget))
        if within.seconds is not None and within.seconds < (best.seconds or 0.0):
            found.trials[found.trials.index(best)] = within
            found.spans.add(best.batch, partial(self._span, within, found))

    def _promising(self, found: SizeResult) -> list[BatchTrial]:
        """Return the batches that a longer search may make faster than the fastest."""
        best = found.fastest
        rate = 0.0 if best is None else best.samples_per_second or 0.0
        hasty = [one for one in found.trials if one.batch in found.hasty]
        left = [one for one in hasty if self._promised(one) / (1 + _NEAR) > rate]
        found.hasty = {one.batch for one in left}
        return left

    def _promised(self, one: BatchTrial) -> float:
        """Return the samples per second of a GPU that no schedule exceeds."""
        graph = self._graph(one.batch)
        if one.steps > 1:  # of several micro-batches only the last has updates
            graph, _places = without_updates(graph)
        return one.batch / time_bound(graph)

    def _least(self, found: SizeResult) -> None:
        """Find the smallest budget of the first batch."""
        known = found.trials[0]
        graph, machine, ask = self._graph(known.batch), self._machine, self.ask.quick
        solve = self.known.noted(ask)
        nearly_minimum = int((1 + TOLERANCE) * known.min_memory)
        starts = (
            lambda: self._trial(known.batch, solve, nearly_minimum),
            lambda: known,
            lambda: self._trial(known.batch, self.known.before(machine, ask), known.baseline_figures.peak),
        )
        start = next((one for one in (make() for make in starts) if one.figures), None)
        if start is not None:
            for better in smallest_budget(graph, machine, start, solve):
                found.least = better

    # ── what is said of it ──────────────────────────────────────────────────────────────────────────

    def _explain(self, found: SizeResult) -> None:
        """Complete the results; if the search was interrupted, those that there are."""
        if not self._sharded:
            self._agree(found)
        if found.trials:
            batch = found.trials[0].batch
            found.tokens, found.adapters = self.loops.tokens(batch), self.loops.adapters(batch)

    def _agree(self, found: SizeResult) -> None:
        """Replace results by the best of all schedules found, whichever question each one answered.

        A solver that runs out of time may find nothing for a batch, or a budget, that another question's
        schedule fits.
        """
        machine = self._machine
        for place, one in enumerate(found.trials):
            if one.figures is None:
                better = self._trial(one.batch, lambda graph, budget: self.known.best(graph, machine, budget))
                if better.figures is not None:
                    found.trials[place] = better
                    found.hasty.add(one.batch)
        if found.least is not None:
            graph = self._graph(found.least.batch)
            schedule, figures = self.known.least(graph, machine)
            found.least = tightened(graph, machine, replace(found.least, schedule=schedule, figures=figures))
        for one in found.fitting:
            if self._fits_as_it_is(one.batch):
                found.as_it_is.add(one.batch)
            found.spans.add(one.batch, partial(self._span, one, found))
            # Of several GPUs other batches are shown on the page and in JSON alone.
            if not self.brief or one in (found.fastest, found.advised):
                found.spans.get(one.batch)
        if found.advised is not None:
            found.parts = self._parts(found.advised, found)

    def _span(self, one: BatchTrial, found: SizeResult) -> Span:
        if one.batch in found.as_it_is:
            return self.loops.unplanned_span(one.batch, self.room.constant)
        if self._sharded:
            within = tightened(self._graph(one.batch), self._machine, one)
            if (within.seconds or 0.0) <= (one.seconds or 0.0):  # it takes all that there is, and needs less
                one = within
        assert one.schedule is not None
        loop, constant = self.loops.planned(one.batch), self.room.constant
        return planned_span(
            loop, one.schedule, budget=one.budget, machine=self._machine, constant=constant, replay=one.replay
        )

    def _parts(self, one: BatchTrial, found: SizeResult) -> Breakdown:
        assert one.schedule is not None
        graph, schedule, budget = self._graph(one.batch), one.schedule, one.budget
        if one.batch in found.as_it_is:
            graph = self.loops.ordinary(one.batch).graph
            schedule, budget = baseline_schedule(graph), baseline(graph).peak
        return breakdown(graph, schedule, budget, self._machine)

    def _explain_alone(self, found: SizeResult) -> None:
        self._retry_without_pinned_limit(found)
        if not self.brief:
            found.next_steps = self._next_steps(found)
        if self.lengths is not None:
            batch = (found.advised or found.trials[0]).batch
            found.add_lengths(many_lengths(self.loops, self.lengths, batch, self.room))

    def _retry_without_pinned_limit(self, found: SizeResult) -> None:
        """Find whether the pinned limit alone refuses the smallest refused batch."""
        refused = [one.batch for one in found.trials if not (one.figures or one.proven_infeasible)]
        if refused and self.ask.machine.pinned is not None:
            ask, batch = replace(self.ask, machine=replace(self.ask.machine, pinned=None)), min(refused)
            one = trial(self._graph(batch), ask.any_size, batch, self.room.planned, ask)
            found.pinning, found.pinned = one if one.figures else None, self.ask.machine.pinned

    def _next_steps(self, found: SizeResult) -> NextSteps:
        """Find what else there is for the batch to train with; if none fits, for the first."""

        def solver(name: str, machine: Machine) -> Solve:
            own = self.ask.solver == DEFAULT_SOLVER or name in FIXED
            ask = replace(self.ask, machine=machine, share=self.ask.quick_share)
            if own:
                ask = replace(ask, solver=name, settings=dict[str, str]())
            return ask if name in FIXED else self.known.alongside(machine, ask)

        one, room = found.advised or found.trials[0], self.room
        return next_steps(
            self.loops, one.batch, optimizer=self.optimizer, solver=solver, machine=self._machine, room=room
        )

    def _explain_ranks(self, found: SizeResult) -> None:
        """Add what there is to say of the fastest batch: its policies' bytes, time against memory."""
        one = found.fastest
        if one is None:
            return
        if found.spans.get(one.batch) is None:
            found.spans.add(one.batch, partial(self._span, one, found))
            found.spans.get(one.batch)
        for policy in found.policies[one.batch]:
            span = self._policies.span(one.batch, policy, self.room.constant)
            found.policy_spans[policy.name] = span
        found.shares = rank_bytes(self._graph(one.batch))
        assert one.figures is not None
        fitting = [row.least for row in found.policies[one.batch] if row.seconds is not None]
        most = max([one.figures.peak, *fitting])
        solved = partial(self._solved, one.batch, self.ask.quick)
        curve = RankCurve(self._policies, self.known, self.room.constant, solved)
        found.curve.extend(curve.points(one.batch, most, minimum_of(self._graph(one.batch), self._machine)))


@contextmanager
def _interruptible(found: SizeResult) -> Generator[None]:
    """Let Ctrl-C end the block, and note it."""
    try:
        yield
    except KeyboardInterrupt:
        found.interrupted = True
