"""Collectives that are operations of the queue comm, put on the compute queue."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph


def on_one_queue(graph: Graph, share: float = 1.0) -> Graph:
    """Return the graph with its collectives on the compute queue, where they take a share of their time.

    A list of steps keeps the rules of both graphs or of neither, and needs the same budget.
    """
    operations = graph.operations
    time = operations.time.copy()
    time[list(operations.comm)] *= share
    made = replace(graph, operations=replace(operations, time=time, comm=frozenset()))
    return made.share_structure(graph)
