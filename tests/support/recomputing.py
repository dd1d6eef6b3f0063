"""Random sequences that run operations of a graph again, at random places."""

from __future__ import annotations

from memplan.graphs.graph import Phase
from memplan.planner.schedule.sequence import in_default_mode, schedule_of


def recomputing(graph, rng, share=0.3, window=6):
    """A valid schedule: before a share of the operations some earlier ones run again, with what they need.

    Nothing is repeated among the updates, and what reads or makes a tensor not behind its change.
    """
    operations = graph.operations
    may = operations.recompute.tolist()
    changes = graph.mutators.lists()
    touched = [
        {*reads, *writes} for reads, writes in zip(graph.read_lists, operations.writes.lists(), strict=True)
    ]
    until = [
        min((at for x in row for at in changes[x] if at > index), default=len(may))
        for index, row in enumerate(touched)
    ]
    runs = []
    for index, phase in enumerate(operations.phase.tolist()):
        if index and phase != Phase.UPDATE and rng.random() < share:
            last = rng.randrange(index)
            first = rng.randrange(last + 1) if rng.random() < 0.1 else max(0, last - window)
            runs.extend(other for other in range(first, last + 1) if may[other] and index <= until[other])
        runs.append(index)
    return schedule_of(graph, in_default_mode(runs))
