"""Rounds of annealing: one from a given sequence, hot enough to reorder it, then cooler ones from the best.

A round ends after its share of the moves, or of the time if that is over first; its temperature falls with
whichever is further on. Compiled code runs for a fifth of a second at a time, then this looks at the clock.

The first round may have replicas: sequences side by side, each LADDER times as hot as the one before it.
After some moves of each, neighbours with energies E and temperatures T change places with the probability

    min(1, exp((E_a − E_b) · (1/T_a − 1/T_b)))

so one that is caught in a valley gets out through the hotter ones. R. H. Swendsen, J.-S. Wang, Replica Monte
Carlo simulation of spin glasses, Physical Review Letters 57, 1986; here all temperatures fall meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf
from random import Random
from time import monotonic

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import is_compiled
from ....graphs.generators import chain
from ....graphs.graph import Graph
from ....planner.bounds import time_bound
from ....planner.report import compared
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run, schedule_of
from ...annealing import Cooling, seed
from ...problem import Options
from ...workers.precompile import COMPILING
from .anneal import Best, anneal, energy_of
from .events import Sequence
from .instance import instance_of, runs_in, variants_in
from .sequence import sequence

NAME = "search"

ROUNDS = ((0.35, 3.0), (0.35, 1.0), (0.2, 0.3), (0.1, 0.1))
"""Rounds: share of moves and time, and the temperature at the start (in mean seconds of an operation)."""

WITH_REPLICAS = ((0.5, 1.0), (0.25, 1.0), (0.15, 0.3), (0.1, 0.1))
"""Rounds if the first has replicas."""

LADDER = 1.6
EXCHANGE = 500
"""Moves of each replica between two exchanges."""

COLD = 5e-4
"""Temperature at the end of each round, in the same unit."""

_MOST_MOVES = 3_000_000
"""However large the graph is; one or two minutes."""

_GAIN = 1e-4
"""Relative gain of a round below which the cooler ones are left out, if nobody has asked for the time."""

_CHUNK_SECONDS = 0.2
_SLOTS_A_RUN = 8


def load(options: Options) -> None:
    """Load the compiled code, so that it takes no time from the search.

    Raises KeyboardInterrupt if it is not loaded yet, and the answer is requested at once.
    """
    if not anneal.signatures:  # pyright: ignore[reportFunctionMemberAccess]
        if options.cancelled():
            raise KeyboardInterrupt
        if not at_hand():
            options.report(COMPILING)
        seed(0)
        instance, nothing = instance_of(chain(2)), np.zeros(0, np.int64)
        at = sequence(instance, nothing)
        anneal(instance, at, 1, 0, 1.0, 0.5, no_best(len(at.variant)))


def at_hand() -> bool:
    """Tell whether `load` has nothing to compile."""
    return is_compiled(anneal)


def no_best(slots: int) -> Best:
    return Best(np.full(1, 2**62), np.full(1, inf), np.zeros(1, np.int64), np.zeros(slots, np.int64))


class Rounds:
    """The best sequence so far. limit: device bytes. moves: for each operation of the graph, in all.
    replicas: of the first round.

    cut_short: time ended a round before its moves did.
    """

    def __init__(
        self, graph: Graph, limit: int, moves: int, number: int, options: Options, replicas: int = 1
    ) -> None:
        self.graph, self.limit, self.options = graph, limit, options
        most = moves * len(graph.operations) if len(graph.tensors) else 0
        self.moves, self.seed = min(_MOST_MOVES, most), number
        self.instance = instance_of(graph)
        load(options)
        self.clock = options.clock()
        self.mean = max(time_bound(graph) / max(1, len(graph.operations)), 1e-300)
        self.total = time_bound(graph) or 1.0
        self.best = no_best(0)
        self.random, self.replicas = Random(number), replicas
        self.cut_short = False

    @property
    def peak(self) -> int:
        return int(self.best.peak[0])

    @property
    def seconds(self) -> float:
        return float(self.best.seconds[0])

    @property
    def variants(self) -> Ints:
        return self.best.variants[: self.best.length[0]]

    @property
    def fits(self) -> bool:
        return self.peak <= self.limit

    def runs(self) -> list[Run]:
        return runs_in(self.instance, self.variants)

    def schedule(self) -> Schedule:
        return schedule_of(self.graph, self.runs())

    def proceed(self) -> bool:
        return self.clock.goes_on()

    def rest(self) -> Options:
        """Return the options with the time that is left."""
        return replace(self.options, time_limit=self.clock.limit)

    def anneal(self, runs: list[Run]) -> None:
        """Run the rounds, the first from these runs, in the time that is left.

        The rounds are cool if the budget is met.
        """
        seed(self.seed)
        self.random = Random(self.seed)
        variants = variants_in(self.instance, runs)
        begin, span = monotonic(), self.clock.left
        done = 0.0
        with self.clock.until_interrupted():
            replicas = self.replicas
            for part, hot in WITH_REPLICAS if replicas > 1 else ROUNDS:
                # Cool rounds refine a schedule: without one that fits there is nothing to refine.
                if hot < 1.0 and not self.fits:
                    break
                done += part
                before = self.seconds if self.fits else inf
                self._round(variants, round(part * self.moves), hot, replicas, begin + span * done)
                variants, replicas = self.variants, 1
                if self.options.by_default and self.fits and self.seconds > before * (1.0 - _GAIN):
                    break

    def _round(self, variants: Ints, moves: int, hot: float, replicas: int, until: float) -> None:
        states = [self._slots(variants) for _ in range(replicas)]
        cooling = Cooling(
            moves=moves // replicas,
            hot=self.mean * hot,
            cold=self.mean * COLD,
            until=until,
            # Replicas go by moves alone: when they are exchanged doesn't depend on the machine's speed.
            chunk=100 if replicas == 1 else EXCHANGE,
            chunk_seconds=_CHUNK_SECONDS if replicas == 1 else None,
        )
        for chunk, before, after in cooling.chunks():
            # At least one chunk: otherwise there would be no best.
            if not self.proceed() and self.best.length[0]:
                break
            for k, at in enumerate(states):
                warm = LADDER**k
                anneal(self.instance, at, self.limit, chunk, before * warm, after * warm, self.best)
                # More than a third of the slots are taken: lay them out anew, with free ones between.
                if 3 * np.count_nonzero(at.variant >= 0) > len(at.variant):
                    states[k] = self._slots(at.variant[at.variant >= 0])
            self.exchange(states, after)
            self._tell()
        self.cut_short |= cooling.cut_short

    def exchange(self, states: list[Sequence], coldest: float) -> None:
        """Exchange neighbouring sequences: the faster gets the lower temperature, at times the slower."""
        for k in range(len(states) - 1):
            cold, warm = (1.0 / (coldest * LADDER**place) for place in (k, k + 1))
            gain = energy_of(states[k], self.limit) - energy_of(states[k + 1], self.limit)
            # Metropolis' rule for replica exchange: each temperature keeps its own distribution
            if gain >= 0 or self.random.random() < exp(gain * (cold - warm)):
                states[k], states[k + 1] = states[k + 1], states[k]

    def _slots(self, variants: Ints) -> Sequence:
        """Return a sequence of these runs, with slots between them; the best gets as many slots."""
        at = sequence(self.instance, variants, _SLOTS_A_RUN * (len(variants) + 2))
        # Compiled code writes the best in place, so it needs room for any sequence.
        room = max(0, len(at.variant) - len(self.best.variants))
        self.best = self.best._replace(variants=np.append(self.best.variants, np.zeros(room, np.int64)))
        return at

    def _tell(self) -> None:
        if self.fits:
            self.options.race.found(self.seconds, NAME)
            self.options.report(f"{NAME}: best {compared(self.graph, self.seconds)}")
        else:
            over = self.peak / max(1, self.limit) - 1
            self.options.report(f"{NAME}: no schedule yet, the best has a peak {over:.1%} above the budget")
