"""FSDP2 as patient people tune it: another policy for the first layers than for the rest.

    checkpoints        full on the first k layers, selective on the next s, none on the others
    weights            regathered for backward in the first j layers, kept in the others
                       (`reshard_after_forward`)

For each j as little is recomputed as fits: along the row of levels none, selective on 1 … n layers, full on
1 … n. First for j = n, 0 and three between, then around the best with half the step, down to 1. A level is
guessed from the memory that is known at the ends of the row, then corrected until it is the first that fits.
So some 30 policies are built of thousands. Assumed: a higher level takes no more memory.

The answer is never slower than that of `fsdp`, whose policies are the corners. As there, a time limit does
not end it: 4,000 operations take half a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ....graphs.graph import Graph
from ....planner.schedule.schedule import Schedule
from ...candidates import device_limit
from ...clock import Clock
from ...problem import Options, Problem, SolverResult
from .fsdp import PolicyTimer, TimedPolicy, built_policy, fastest_that_holds, timed_policies
from .policies import LayeredPolicy, Policy, accepted, layers_of

NAME = "fsdp-tuned"


@dataclass(frozen=True)
class Settings:
    """Settings of fsdp-tuned: none."""


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    clock, timed = Clock(None, options.cancelled), list[TimedPolicy]()
    with clock.until_interrupted():
        timed += timed_policies(problem)
        Tuning(problem, timed, clock).run()
    return fastest_that_holds(NAME, problem, options, timed, clock)


Built = dict[LayeredPolicy, Schedule | None]
"""Schedules by policy, None for one that the graph can't have."""

Measure = Callable[[Policy | LayeredPolicy, Schedule], TimedPolicy | None]


class Tuning:
    """Tries layered policies.

    timed: the 2 × 3 policies that the graph has; it receives each that is tried.
    built: schedules that were made before, for another budget; it receives those that are made.
    measure: returns a schedule's figures, None if it breaks a rule. By default they are those of a plan.
    """

    def __init__(
        self,
        problem: Problem,
        timed: list[TimedPolicy],
        clock: Clock,
        built: Built | None = None,
        measure: Measure | None = None,
    ) -> None:
        self._graph: Graph = problem.graph
        self._built = {} if built is None else built
        self._measure, self._limit = measure or PolicyTimer(problem).timed, device_limit(problem)
        self._timed, self._clock = timed, clock
        self._layers = len(layers_of(problem.graph))
        self._seconds: dict[int, float] = {}
        corners = {"all": 0, "selective": self._layers, "full": 2 * self._layers}
        self._known: dict[tuple[int, int], TimedPolicy | None] = {
            (corners[one.policy.activations], self._layers * one.policy.reshard): one
            for one in timed
            if isinstance(one.policy, Policy)
        }

    def run(self) -> None:
        """Try numbers of regathered layers, in ever smaller steps around the best."""
        count = self._layers
        if count < 2:
            return
        step = max(1, count // 4)
        for resharded in dict.fromkeys((count, 0, *range(step, count, step))):
            self._try(resharded)
        while step > 1 and self._seconds and not self._clock.expired:
            step = (step + 1) // 2
            best = min(self._seconds, key=lambda number: (self._seconds[number], number))
            for resharded in (best - step, best + step):
                if 0 <= resharded <= count:
                    self._try(resharded)

    def _try(self, resharded: int) -> None:
        """Find the lowest level that fits with so many regathered layers."""
        if resharded in self._seconds or self._clock.expired:
            return
        # At `low` it takes too much memory, at `high` it fits; the ends are no levels.
        low, high, level, tries = -1, 2 * self._layers + 1, self._guess(resharded), 0
        while high - low > 1 and not self._clock.expired:
            fits, tries = self._memory(level, resharded) <= self._limit, tries + 1
            low, high = (low, level) if fits else (level, high)
            # Next to the guess first, as that is mostly right; then by halves.
            near = high - 1 if fits else low + 1
            level = near if tries < _NEAR else (low + high) // 2
        one = self._at(high, resharded) if high <= 2 * self._layers else None
        self._seconds[resharded] = inf if one is None or one.seconds is None else one.seconds

    def _guess(self, resharded: int) -> int:
        """Return the level that fits by the memory at the ends of the row, which is taken to be linear."""
        count = self._layers
        for level in range(2 * count + 1):
            if self._expected(level, resharded) <= self._limit:
                return level
        return 2 * count

    def _expected(self, level: int, resharded: int) -> float:
        count, corners = self._layers, (0, self._layers, 2 * self._layers)
        share = resharded / count
        first = min(level // count, 1)
        part = (level - first * count) / count
        ends = [
            share * self._memory(corners[end], count) + (1 - share) * self._memory(corners[end], 0)
            for end in (first, first + 1)
        ]
        return (1 - part) * ends[0] + part * ends[1]

    def _memory(self, level: int, resharded: int) -> float:
        one = self._at(level, resharded)
        return inf if one is None else float(one.least)

    def _at(self, level: int, resharded: int) -> TimedPolicy | None:
        """Return the policy at a level of recomputation, timed; None if it is not valid."""
        if (level, resharded) not in self._known:
            full = max(0, level - self._layers)
            policy = LayeredPolicy(self._layers, full, min(level, self._layers) - full, resharded)
            if policy not in self._built:
                self._built[policy] = built_policy(self._graph, policy)
            schedule = self._built[policy]
            one = None if schedule is None else self._measure(policy, schedule)
            self._known[level, resharded] = one
            self._timed += [] if one is None else [one]
        return self._known[level, resharded]


_NEAR = 3
"""Levels of a row that are tried next to the guess, before its rest is halved."""
