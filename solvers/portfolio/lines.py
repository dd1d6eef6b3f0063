"""Lines of a portfolio side by side: one that fails costs its own answer, never those of the others.

A line is a solver with its settings. Whatever it raises but a refusal is its fault, and so is a schedule that
the simulator refuses: each is told in one line, `name: class: message`, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from math import inf
from threading import Event
from time import monotonic

from ...planner.simulator.simulate import Figures, figures_of
from ..candidates import device_limit
from ..problem import Answer, InfeasibleError, NotAcceptedError, Problem
from ..race import Race

Cancelled = Callable[[], bool]

PATIENCE_SECONDS = 10.0
"""How long after Ctrl-C lines may take to give their best so far. One that is being compiled takes minutes on
a busy machine, and has nothing."""

LAST_SECONDS = 1.0
"""How long bounds may take to end once the lines have."""


@dataclass(frozen=True)
class Line:
    """solve: takes a function that is true once the answer is wanted at once."""

    name: str
    solve: Callable[[Cancelled], Answer]


@dataclass
class Outcomes:
    """answers: with the simulator's figures, in the lines' order. refusals: of the lines that found nothing.
    faults: told in a line each. interrupted: by Ctrl-C."""

    answers: list[tuple[Answer, Figures]] = field(default_factory=list[tuple[Answer, Figures]])
    refusals: list[InfeasibleError] = field(default_factory=list[InfeasibleError])
    faults: list[str] = field(default_factory=list[str])
    interrupted: bool = False

    @property
    def fastest(self) -> Answer:
        return self._fastest[0]

    @property
    def seconds(self) -> float:
        """Of the fastest."""
        return self._fastest[1].time

    @property
    def _fastest(self) -> tuple[Answer, Figures]:
        return min(self.answers, key=lambda found: found[1].time)


class PortfolioError(Exception):
    """No line has an answer or a refusal: all are at fault."""


def told(name: str, error: BaseException) -> str:
    """A fault in one line."""
    return f"{name} failed: {type(error).__name__}: {' '.join(str(error).split())}"


def run(
    problem: Problem,
    lines: Sequence[Line],
    workers: int,
    stop: Event,
    meanwhile: Callable[[], None] = lambda: None,
    race: Race | None = None,
    gap: float = 0.0,
    prove: Callable[[Cancelled], None] | None = None,
    deadline: float = inf,
) -> Outcomes:
    """All lines, so many at a time. Ctrl-C sets `stop`: each then gives its best so far, or is left behind.

    meanwhile: what they wait for, on this thread, where Ctrl-C ends it. race: is told their answers; once the
    best is proven to be within the `gap`, each line gives its best so far. prove: bounds for the race, in a
    thread beside the lines; it ends with them. deadline: a moment of the clock from which on lines give their
    best so far, or do not start, once there is any schedule.
    Raises KeyboardInterrupt where that leaves nothing, PortfolioError where all lines fail.
    """
    outcomes, race, done = Outcomes(), race or Race(), Event()

    def cancelled() -> bool:
        late = monotonic() > deadline and race.best < inf
        return late or stop.is_set() or race.within(gap)

    pool = ThreadPoolExecutor(workers + (prove is not None))
    proving = [pool.submit(prove, lambda: done.is_set() or cancelled())] if prove else []
    running = [pool.submit(_attempt, problem, line, outcomes, race, cancelled) for line in lines]
    try:
        meanwhile()
        while wait(running, timeout=0.2).not_done:
            pass  # a signal is only seen between waits
    except KeyboardInterrupt:
        stop.set()
        wait(running, timeout=PATIENCE_SECONDS)
    done.set()
    outcomes.faults += [
        told("bounds", error) for each in wait(proving, LAST_SECONDS).done if (error := each.exception())
    ]
    pool.shutdown(wait=False)
    results = [each.result() for each in running if each.done()]
    outcomes.answers += filter(None, results)  # in the lines' order: it decides between equals
    outcomes.interrupted = stop.is_set()
    if not outcomes.answers and outcomes.interrupted:
        raise KeyboardInterrupt
    if not outcomes.answers and not outcomes.refusals:
        raise PortfolioError("; ".join(outcomes.faults))
    return outcomes


def _attempt(
    problem: Problem, line: Line, outcomes: Outcomes, race: Race, cancelled: Cancelled
) -> tuple[Answer, Figures] | None:
    if cancelled():
        return None
    try:
        answer = line.solve(cancelled)
        limit, machine = device_limit(problem), problem.machine
        figures = figures_of(problem.graph, answer.schedule, budget=limit, machine=machine)
        race.found(figures.time, line.name)
        return answer, figures
    except InfeasibleError as refusal:
        outcomes.refusals.append(refusal)
    except (NotAcceptedError, KeyboardInterrupt):
        pass  # the graph is none of its; it had found nothing when it was asked to end
    except BaseException as error:  # whatever it is, the others go on
        outcomes.faults.append(told(line.name, error))
    return None
