"""The plain schedule, the baseline of every report: file order, each tensor deleted after its last use."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from .schedule.schedule import Schedule
from .schedule.sequence import in_plain_mode, schedule_of
from .simulator.simulate import Figures, simulate

_known: WeakKeyDictionary[Graph, Figures] = WeakKeyDictionary()


def plain_schedule(graph: Graph) -> Schedule:
    """What eager PyTorch does, were it to free every tensor after its last use."""
    return schedule_of(graph, in_plain_mode(range(len(graph.operations))))


def baseline(graph: Graph) -> Figures:
    """Time and peak of the plain schedule on a device of any size; played once for a graph."""
    if graph not in _known:
        _known[graph] = simulate(graph, plain_schedule(graph), machine=Machine()).figures
    return _known[graph]
