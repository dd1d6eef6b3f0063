"""Moves that change what is made again: a run takes place that was absent, or is absent that took place.

A run that takes place has its tensors gone before it, from their last use on. What it reads is there as long
as somebody else needs it; else it is made again too, if it can be, or stays until then. A run that is absent
takes with it those that ran for it alone; what it made stays from its last use on, or is away.
"""

from __future__ import annotations

from random import Random

from ....planner.schedule.schedule import PLAIN
from .lineup import ABSENT
from .parts import Absence
from .slots import optional
from .state import State

_ALONG = 0.8
"""How likely what a run needs and nobody else is made again, too, where it can be."""

_AWAY = 0.5
"""How likely what is no longer made again is away instead of staying."""

_MOST = 64
"""Runs that one move changes."""


class Again:
    """optional: positions of runs that may take place or not."""

    def __init__(self, state: State, random: Random) -> None:
        self.state, self.random = state, random
        self.optional = optional(state.graph, state.runs)
        self._chosen, self._results = frozenset(self.optional), frozenset(state.graph.results)
        self._slots: dict[int, list[int]] = {}
        for position in self.optional:
            self._slots.setdefault(state.runs[position][0], []).append(position)
        writes, producers = state.graph.operations.writes, state.graph.producers
        self._written = {operation: writes[operation].tolist() for operation in self._slots}
        self._makers = {x: producers[x].tolist() for made in self._written.values() for x in made}

    def change(self, instead: Absence | None = None) -> set[int]:
        """The tensors that are gone, or stay, otherwise than before; none: nothing was changed. instead: what
        is to be made again at the end of this absence, if it can be."""
        slots = self._within(instead) if instead else ()
        position = self.random.choice(slots or self.optional)
        if self.state.runs[position][1] == ABSENT:
            return self._run_again(position)
        return self._run_no_more(position)

    def _within(self, absence: Absence) -> list[int]:
        """Where its tensor could be made again before it is over."""
        makers = self._makers.get(absence.tensor, ())
        slots = [slot for maker in makers for slot in self._slots[maker]]
        return [slot for slot in slots if absence.after < slot < absence.before]

    def _run_again(self, position: int) -> set[int]:
        changed, rest, count = set[int](), [position], 0
        while rest and count < _MOST:
            position, count = rest.pop(), count + 1
            operation = self.state.runs[position][0]
            self.state.switch({position: PLAIN})
            changed.update(self._written[operation])
            for x in self.state.graph.read_lists[operation]:
                slot = self._slot(x, position)
                if slot is not None and self.random.random() < _ALONG:
                    rest.append(slot)
        return changed

    def _slot(self, x: int, position: int) -> int | None:
        """Where x could be made again for the run at a position, if that alone keeps it."""
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
            for maker in self._makers.get(x, ())
            for slot in self._slots.get(maker, ())
            if before < slot < position and self.state.runs[slot][1] == ABSENT
        ]
        return max(slots, default=None)

    def _run_no_more(self, position: int) -> set[int]:
        state, changed, rest = self.state, set[int](), [position]
        while rest:
            last = rest.pop()
            if last != position and self._needed(last):
                continue
            operation = state.runs[last][0]
            state.switch({last: ABSENT})
            changed.update(self._written[operation])
            for x in state.graph.read_lists[operation]:
                makers = [other for other, touch in state.present(x) if other < last and touch.bits]
                if makers and makers[-1] in self._chosen:
                    rest.append(makers[-1])
        if self.random.random() < _AWAY:
            around = [each for x in changed for each in state.absences_of(x)]
            state.send([each.place for each in around if each.after < position < each.before])
        return changed

    def _needed(self, position: int) -> bool:
        """Somebody reads what the run makes, before it is made anew."""
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
