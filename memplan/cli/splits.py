"""A graph file with splits: the graph with the fastest schedule, and a lower bound of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from ..graphs.errors import InputError
from ..graphs.files.files import load_graphs
from ..graphs.graph import Graph
from ..solvers.problem import InfeasibleError
from ..solvers.splits import bound_of_all, fastest
from .find_graph import has_digest, recorded_graph
from .printing.figures import duration
from .printing.output import Output, Row
from .profiling import pieces_rows
from .replay import read_schedule_document
from .solving import Found, Search

EXACT = "exact"
"""Key in a split's `source` that is true if its pieces have the bits of the whole."""


@dataclass
class Splits:
    """The graphs of a file by their numbers: 0 is the whole one, the others have regions in pieces.

    bounds: lower bounds on the time of each that was solved.
    """

    graphs: Sequence[Graph]
    bounds: dict[int, float] = field(default_factory=dict[int, float])

    def solved(self, search: Search, solve: Callable[[Graph, Search], Found]) -> Found:
        """Return what solving makes of the graph with the fastest schedule.

        A time limit holds for all graphs together: each has half of what is left, the last all of it.
        An interrupt ends with the best so far.

        Raises InfeasibleError, that of the smallest budget.
        """
        whole, *rest = self.graphs
        if not rest:
            return solve(whole, search)
        begin = monotonic()
        interrupted: list[Found] = []

        def solved(graph: Graph, number: int | None) -> tuple[float, Found]:
            limit, number = search.time_limit, number or 0
            share = 1 if number == len(rest) else 2
            # Half a second even if time is up: a graph without any search proves and finds nothing.
            left = None if limit is None else max(0.5, (limit - (monotonic() - begin)) / share)
            try:
                found = solve(graph, replace(search, time_limit=left))
            except InfeasibleError as error:
                if error.proven_infeasible:
                    self.bounds[number] = inf
                raise
            self.bounds[number] = found.solution.lower_bound or 0.0
            interrupted.extend([found] * found.solution.interrupted)
            # The limit that was asked for is what the file records.
            return found.solution.figures.time, replace(found, search=search)

        numbered = ((graph, k) for k, graph in enumerate(rest, 1) if not interrupted)
        exact = all(graph.source.get(EXACT) is True for graph in rest)
        return fastest(whole, numbered, solved, exact=exact, measured=True)

    def rows(self, found: Found) -> list[Row]:
        """Return the rows on what runs in pieces, and on the bound of all graphs; none without splits."""
        if len(self.graphs) == 1:
            return []
        graph, seconds = found.problem.graph, found.solution.figures.time
        pieces = pieces_rows(graph.source) or [("in pieces", "nothing: the whole graph is fastest")]
        bound = self._bound(found)
        gap = f", gap {seconds / bound - 1:.1%}" if bound else ""
        tried = f"{len(self.bounds)} of {len(self.graphs)} graphs tried"
        return [*pieces, ("of all splits", f"lower bound {duration(bound)}{gap}; {tried}")]

    def document(self, found: Found) -> dict[str, Any] | None:
        """Return the rows for JSON."""
        if len(self.graphs) == 1:
            return None
        number = next(k for k, graph in enumerate(self.graphs) if graph is found.problem.graph)
        bound, of = self._bound(found), len(self.graphs) - 1
        return {"number": number, "of": of, "tried": sorted(self.bounds), "lower_bound": bound}

    def _bound(self, found: Found) -> float:
        return bound_of_all(self.graphs, found.problem.machine, self.bounds)


def splits_of(path: Path, number: int | None, start: Path | None) -> Splits:
    """Read a graph file's graphs, or that of them which is asked for.

    number: of the graph that is asked for, None for all.
    start: file of a schedule; it asks for the graph that it is of.

    Raises InputError.
    """
    graphs = load_graphs(path)
    if number is not None:
        if number >= len(graphs):
            has = f"its last split is {len(graphs) - 1}" if len(graphs) > 1 else "it has no splits"
            raise InputError(
                f"{path}: there is no split {number}: {has} (plan profile --split any makes some)"
            )
        return Splits([graphs[number]])
    made_for = None if start is None or len(graphs) == 1 else recorded_graph(read_schedule_document(start))
    same = [graph for graph in graphs if made_for and has_digest(graph, made_for[1])]
    return Splits(same[:1] or graphs)


def has_splits(path: Path) -> bool:
    """Tell whether a graph file has graphs with regions in pieces. Raises InputError."""
    return len(load_graphs(path)) > 1


def whole_graph(path: Path, output: Output) -> Graph:
    """Read a graph file for a command that takes whole graphs; a note says if it leaves splits out.

    Raises InputError.
    """
    whole, *splits = load_graphs(path)
    if splits:
        output.note(f"{path}: its {len(splits)} splits are left out; plan solve chooses among them")
    return whole
