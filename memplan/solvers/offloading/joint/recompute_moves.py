"""Moves that change what is recomputed: an absent run is added, or a run is made absent.

An added run has its tensors freed before it, from their last use on. What it reads is resident as long
as another run needs it; else it is recomputed too, if it can be, or stays until then. A run made absent
takes with it those that ran for it alone; its results stay from their last use on, or are offloaded.
"""

from __future__ import annotations

from random import Random

from ....planner.schedule.schedule import DEFAULT_MODE
from .parts import OffloadInterval
from .slots import optional
from .state import State
from .timeline import ABSENT

_ALONG = 0.8
"""Probability that an input which no other run needs is recomputed too, if it can be."""

_AWAY = 0.5
"""Probability that a result which is no longer recomputed is offloaded instead of staying."""

_MOST = 64
"""Runs that one move changes."""


class RecomputeMoves:
    """Moves on the runs that recompute.

    optional: positions of the runs that may take place or be absent.
    """

    def __init__(self, state: State, random: Random) -> None:
        self.state, self.random = state, random
        self.optional = optional(state.graph, state.runs)
        self._chosen, self._results = frozenset(self.optional), frozenset(state.graph.results)
        self._slots: dict[int, list[int]] = {}
        for position in self.optional:
            self._slots.setdefault(state.runs[position][0], []).append(position)
        places = [places for group in state.groups for places in zip(*group, strict=True)]
        self._groups = {position: of for of in places for position in of}
        writes, producers = state.graph.operations.writes, state.graph.producers
        self._written = {operation: writes[operation].tolist() for operation in self._slots}
        self._producers = {x: producers[x].tolist() for made in self._written.values() for x in made}

    def change(self, instead: OffloadInterval | None = None) -> set[int]:
        """Add or remove a recomputation at random, and return the tensors whose lifetimes changed; none if
        nothing did.

        instead: an offload interval whose tensor is to be recomputed at its end, if it can be.
        """
        slots = self._within(instead) if instead else ()
        position = self.random.choice(slots or self.optional)
        taken, runs = self._taken(position), self.state.runs
        if taken is None:
            return self._run_again(position)
        if not any(run[0] == runs[taken][0] and run[1] != ABSENT for run in runs[:taken]):
            return set()  # the first run of the operation
        return self._run_no_more(taken)

    def _taken(self, position: int) -> int | None:
        """Return the position at which the run or one of its alternatives takes place, if any does."""
        group = self._groups.get(position, (position,))
        return next((each for each in group if self.state.runs[each][1] != ABSENT), None)

    def _within(self, interval: OffloadInterval) -> list[int]:
        """Return the slots in which the interval's tensor could be recomputed before its end."""
        producers = self._producers.get(interval.tensor, ())
        slots = [slot for producer in producers for slot in self._slots.get(producer, ())]
        return [slot for slot in slots if interval.after < slot < interval.before]

    def _run_again(self, position: int) -> set[int]:
        changed, rest, count = set[int](), [position], 0
        while rest and count < _MOST:
            position, count = rest.pop(), count + 1
            operation = self.state.runs[position][0]
            self.state.switch({position: DEFAULT_MODE})
            changed.update(self._written[operation])
            for x in self.state.graph.read_lists[operation]:
                slot = self._slot(x, position)
                if slot is not None and self.random.random() < _ALONG:
                    rest.append(slot)
        return changed

    def _slot(self, x: int, position: int) -> int | None:
        """Return a slot in which x could be recomputed for the run at a position, if that run alone keeps
        it."""
        before = after = None
        for other, touch in self.state.present(x):
            if other < position:
                before = other
            elif other > position:
                after = touch
                break
        if before is None or (after is not None and after.reads is not None):
            return None
        slots = [
            slot
            for producer in self._producers.get(x, ())
            for slot in self._slots.get(producer, ())
            if before < slot < position and self._taken(slot) is None
        ]
        # The latest slot: there it takes memory for the shortest time.
        return max(slots, default=None)

    def _run_no_more(self, position: int) -> set[int]:
        state, changed, rest = self.state, set[int](), [position]
        while rest:
            last = rest.pop()
            # The first goes in any case: that is the move.
            if last != position and self._needed(last):
                continue
            operation = state.runs[last][0]
            state.switch({last: ABSENT})
            changed.update(self._written[operation])
            for x in state.graph.read_lists[operation]:
                producers = [other for other, touch in state.present(x) if other < last and touch.bits]
                if producers and producers[-1] in self._chosen:
                    rest.append(producers[-1])
        if self.random.random() < _AWAY:
            around = [each for x in changed for each in state.intervals_of(x)]
            state.send([each.place for each in around if each.after < position < each.before])
        return changed

    def _needed(self, position: int) -> bool:
        """Tell whether a later run reads what the run produces, before it is produced anew."""
        for x in self._written[self.state.runs[position][0]]:
            for other, touch in self.state.present(x):
                if other > position:
                    if touch.reads is not None:
                        return True
                    break
            else:
                if x in self._results:
                    return True
        return False
