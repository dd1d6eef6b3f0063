"""The baseline of every report: all operations once, in traced order, each tensor deleted after its last
use."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from .schedule.schedule import Schedule
from .schedule.sequence import in_default_mode, schedule_of
from .simulator.simulate import Figures, simulate

_known: WeakKeyDictionary[Graph, Figures] = WeakKeyDictionary()


def baseline_schedule(graph: Graph) -> Schedule:
    """Return the baseline: what eager PyTorch does, if it freed every tensor after its last use."""
    return schedule_of(graph, in_default_mode(range(len(graph.operations))))


def baseline(graph: Graph) -> Figures:
    """Return time and peak of the baseline on a device of any size; simulated once per graph."""
    if graph not in _known:
        _known[graph] = simulate(graph, baseline_schedule(graph), machine=Machine()).figures
    return _known[graph]
