"""The gain of operations in pieces: the smallest budget of a batch and the largest batch with `split=True`.

The regions are those that `memplan.optimize` would choose; times of their pieces are estimated. The smallest
budget is that of the most pieces; for the largest batch fewer are tried first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.baseline import baseline
from .loops import Loops
from .question import Question, Room
from .result import InPieces, SizeResult
from .trial import BatchTrial, Known, largest_batch, smallest_budget, trial

_SHARES = (0.5, 0.2)
"""Goals for the largest operation of a batch, as shares of what is left besides what is resident."""


def search_in_pieces(loops: Loops, ask: Question, found: SizeResult) -> InPieces:
    """Search on one GPU. found: what fits without pieces; of its first batch the smallest budget is wanted.

    An interruption ends it, with what was found so far, and is noted there.
    """
    search, made = _Search(loops, ask, found.room, found.machine), InPieces()
    try:
        made = InPieces(search.least(found.trials[0].batch))
        start = found.largest or found.trials[0]
        fitting = (one for one in largest_batch(search.attempt, start.batch) if one.fits)
        made = made._replace(largest=max(fitting, key=lambda one: one.batch, default=None))
    except KeyboardInterrupt:
        found.interrupted = True
    return made


@dataclass
class _Search:
    """Trials of graphs with regions in pieces. machine: with a device of any size."""

    loops: Loops
    ask: Question
    room: Room
    machine: Machine
    _known: Known = field(default_factory=Known)

    def least(self, batch: int) -> BatchTrial | None:
        graphs = self.loops.in_pieces(batch, [0])
        if not graphs:
            return None
        (graph,) = graphs
        start = self._trial(graph, batch, self.room.planned)
        if not start.fits:
            # A batch too large for the GPU has a smallest budget too: any schedule is a start.
            start = self._trial(graph, batch, baseline(graph).peak)
        if not start.fits:
            return None
        solve = self._known.noted(self.ask.quick)
        # Budgets fall: the last is the smallest.
        *_worse, best = smallest_budget(graph, self.machine, start, solve)
        return best

    def attempt(self, batch: int) -> BatchTrial:
        resident = self.loops.planned(batch).graph.resident_bytes
        left = max(0, self.room.planned - resident)
        graphs = self.loops.in_pieces(batch, [int(share * left) for share in _SHARES])
        # Whole first: pieces cost time, so they are for batches that do not fit otherwise.
        found = self._trial(self.loops.planned(batch).graph, batch, self.room.planned)
        for graph in graphs:
            if found.fits:
                break
            found = self._trial(graph, batch, self.room.planned)
        return found

    def _trial(self, graph: Graph, batch: int, budget: int) -> BatchTrial:
        return trial(graph, self.machine, batch, budget, self._known.before(self.machine, self.ask.quick))
