"""H-ILP on one cluster: a program for each pair of budgets (thesis, 3.2.2, 3.4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....planner.schedule.sequence import Run
from ...milp import solve as milp
from ...milp.result import Settings
from ..hierarchy.grid import Budget, Budgets, Found, options_on_grid
from ..hierarchy.option import Option, select
from ..hierarchy.piece import Piece
from .graph import Child, HGraph, NodeRun, h_graph
from .model import h_program
from .stages import Slot

Chosen = Mapping[Slot, NodeRun]


def options_of(
    piece: Piece, children: Sequence[Child], budgets: Budgets, seconds: float
) -> tuple[list[Option], bool]:
    """Find a cluster's options with H-ILP, as a level solver (hiremate/solve_levels.py)."""
    graph = h_graph(piece, selected(children, budgets.options))

    def search(budget: Budget | None, seconds: float) -> Found:
        if budget:
            program = h_program(graph, budget.peak, budget.save)
        else:
            program = h_program(graph, piece.enough_bytes, least=True)
        result = milp.solve(program.program, Settings(gap=budgets.gap, threads=1), time_limit=seconds)
        return result.status, None if result.x is None else runs_of(graph, program.chosen(result.x))

    return options_on_grid(piece, budgets, seconds, search)


def selected(children: Sequence[Child], most: int) -> list[Child]:
    """Select at most `most` options in all, for each child its share and at least one.

    See thesis, 3.4.5, where N_k = min is to be max.
    """
    total = sum(len(child.options) for child in children)
    return [
        replace(child, options=tuple(select(child.options, max(1, most * len(child.options) // total))))
        if child.options and total > most
        else child
        for child in children
    ]


def runs_of(graph: HGraph, chosen: Chosen) -> tuple[list[Run], list[Run]]:
    """Return the runs until the loss has run, and those after it."""
    forward: list[Run] = []
    backward: list[Run] = []
    for (stage, _k), choice in chosen.items():
        (forward if stage <= graph.loss else backward).extend(choice.run.runs)
    return forward, backward
