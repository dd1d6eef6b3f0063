"""Members of a portfolio in parallel: one that fails costs its own answer, never those of the others.

A member is a solver with its settings. An error that it raises, other than that it found nothing, is its
fault, and so is a schedule that the simulator refuses. Each fault is reported in one line,
`name: class: message`, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from threading import Event

from ...graphs.units import duration
from ...planner.simulator.simulate import Figures, figures_of
from ..candidates import device_limit
from ..clock import Clock
from ..incumbent import Incumbent
from ..problem import InfeasibleError, NotAcceptedError, Problem, SolverResult
from ..workers import process

Cancelled = Callable[[], bool]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1

Found = tuple[SolverResult, Figures]
"""An answer that the simulator has accepted."""


@dataclass(frozen=True)
class Member:
    """A member of a portfolio: a solver with its settings.

    solve: takes a function that is true once the answer is requested at once.
    ended: is called with what the member found, or None.
    """

    name: str
    solve: Callable[[Cancelled], SolverResult]
    ended: Callable[[Found | None], None] = lambda _found: None


class Awaited:
    """Members whose answers another member waits for. known: an answer that is there already."""

    def __init__(self, known: Sequence[Found] = ()) -> None:
        self._ends: list[Event] = []
        self._found: list[Found] = [*known]

    def line(self, name: str, solve: Callable[[Cancelled], SolverResult]) -> Member:
        end = Event()
        self._ends.append(end)

        def ended(found: Found | None) -> None:
            if found:
                self._found.append(found)
            end.set()

        return Member(name, solve, ended)

    def all(self, cancelled: Cancelled) -> list[Found]:
        """Return what they found, the fastest first, once all have ended or the answer is requested."""
        for end in self._ends:
            while not (end.wait(_LOOK_SECONDS) or cancelled()):
                pass
        return sorted(self._found, key=lambda found: found[1].time)


@dataclass
class Outcomes:
    """Results of all members.

    answers: with the simulator's figures, in the members' order.
    refusals: errors of the members that found nothing.
    faults: one line each.
    interrupted: by Ctrl-C.
    """

    answers: list[Found] = field(default_factory=list[Found])
    refusals: list[InfeasibleError] = field(default_factory=list[InfeasibleError])
    faults: list[str] = field(default_factory=list[str])
    interrupted: bool = False

    @property
    def fastest(self) -> SolverResult:
        return self._fastest[0]

    @property
    def seconds(self) -> float:
        """Time of the fastest answer."""
        return self._fastest[1].time

    @property
    def _fastest(self) -> Found:
        return min(self.answers, key=lambda found: found[1].time)


class PortfolioError(Exception):
    """All members failed: none has an answer or a refusal."""


def described(name: str, error: BaseException) -> str:
    """Describe a fault in one line."""
    return f"{name} failed: {type(error).__name__}: {' '.join(str(error).split())}"


def run(
    problem: Problem,
    lines: Sequence[Member],
    workers: int,
    stop: Event,
    meanwhile: Callable[[], None] = lambda: None,
    race: Incumbent | None = None,
    gap: float = 0.0,
    prove: Callable[[Cancelled], None] | None = None,
    clock: Clock | None = None,
    outcomes: Outcomes | None = None,
) -> Outcomes:
    """Run all members, so many at a time, and return their results.

    Ctrl-C sets `stop`: each member then gives its best so far, or is left running after LAST_SECONDS. There
    may be neither answers nor refusals nor faults, if the time was over before.

    meanwhile: what they wait for, on this thread, where Ctrl-C ends it.
    race: receives their answers; once the best is proven to be within the `gap`, each member gives its best
        so far.
    prove: computes bounds for the race, in a thread alongside the members; it ends with them.
    clock: after its end members give their best so far, or do not start, once there is any schedule.
    outcomes: results of members that have ended before, to which these are added.

    Raises KeyboardInterrupt if that leaves nothing, PortfolioError if all members fail.
    """
    outcomes, race, done = outcomes or Outcomes(), race or Incumbent(), Event()

    def cancelled() -> bool:
        late = clock is not None and clock.over and race.best < inf
        return late or stop.is_set() or race.within(gap)

    pool, single = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)
    proving = [single.submit(prove, lambda: done.is_set() or cancelled())] if prove else []
    # each member in a copy of the context: what it skips is reported here (solvers/skipped.py)
    running = [
        pool.submit(copy_context().run, _attempt, problem, line, outcomes, race, cancelled) for line in lines
    ]
    try:
        meanwhile()
        while wait(running, timeout=0.2).not_done:
            pass  # a signal is only seen between waits
    except KeyboardInterrupt:
        stop.set()
        _wait_for_last(running, race, outcomes)
    except BaseException:
        stop.set()
        raise
    finally:
        # What is left running looks at these and ends soon; the interpreter joins its threads before it ends.
        done.set()
        pool.shutdown(wait=False)
        single.shutdown(wait=False)
    outcomes.faults += [
        described("bounds", error)
        for each in wait(proving, process.LAST_SECONDS).done
        if (error := each.exception())
    ]
    results = [each.result() for each in running if each.done()]
    outcomes.answers += filter(None, results)  # in the members' order: it decides between equals
    outcomes.interrupted = stop.is_set()
    if not outcomes.answers and outcomes.interrupted:
        raise KeyboardInterrupt
    if outcomes.faults and not outcomes.answers and not outcomes.refusals:
        raise PortfolioError("; ".join(outcomes.faults))
    return outcomes


def _wait_for_last(running: Sequence[Future[Found | None]], race: Incumbent, outcomes: Outcomes) -> None:
    """Wait until all have ended, for LAST_SECONDS; for the first answer longer, if a schedule is known."""
    last, kept = Clock(process.LAST_SECONDS), Clock(process.KEEP_SECONDS)
    while wait(running, timeout=_LOOK_SECONDS).not_done:
        ended = any(each.done() and each.result() for each in running)
        answered = race.best == inf or bool(outcomes.answers) or ended
        if (last if answered else kept).over:
            break


def _attempt(
    problem: Problem, line: Member, outcomes: Outcomes, race: Incumbent, cancelled: Cancelled
) -> Found | None:
    found = None
    try:
        if not cancelled():
            _log.debug("%s begins", line.name)
            answer = line.solve(cancelled)
            limit, machine = device_limit(problem), problem.machine
            found = answer, figures_of(problem.graph, answer.schedule, budget=limit, machine=machine)
            race.found(found[1].time, line.name)
    except InfeasibleError as refusal:
        outcomes.refusals.append(refusal)
    except (NotAcceptedError, KeyboardInterrupt):
        pass  # the member does not accept the graph, or had found nothing when it was asked to end
    except BaseException as error:  # whatever it is, the others go on
        outcomes.faults.append(described(line.name, error))
    _log.debug("%s ends with %s", line.name, "nothing" if found is None else duration(found[1].time))
    line.ended(found)
    return found
