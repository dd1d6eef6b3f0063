"""Options for every cluster of a hierarchy, from the bottom up (thesis, 3.2.2, steps 3 to 5 of figure 3.1).

All clusters of one height are independent of each other. The seconds are shared among all that differ: one
half evenly, the other by the square of their nodes.

A level solver gives a cluster's options for a grid of budgets, as good as its seconds allow, and whether more
seconds would change nothing. Children with options are to be combined, the others taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....graphs.errors import InputError
from ....planner.schedule.sequence import Run
from ..h_ilp import level as h_ilp_level
from ..h_ilp.graph import Child
from ..hierarchy.grid import Budgets
from ..hierarchy.option import Option, advance_of, option_of, plain_option
from ..hierarchy.piece import Part, Piece, part
from ..hierarchy.tree import Hierarchy, Spec
from . import rk_checkmate as hiremate_rk_checkmate
from .subproblems import Job, Solved

Sequences = tuple[tuple[Run, ...], tuple[Run, ...]]
"""A forward and a backward sequence: an option as it is stored."""

SolveAll = Callable[[Callable[[Any, float], Solved], Sequence[Job]], list[Any]]

LevelSolver = Callable[[Piece, Sequence[Child], Budgets, float], tuple[list[Option], bool]]


@dataclass(frozen=True)
class Subproblem:
    """A cluster whose children's options are known. solver: by name. children: part and options of each."""

    spec: Spec
    solver: str
    options: tuple[tuple[Sequences, ...], ...]
    budgets: Budgets


def solve_cluster(problem: Subproblem, seconds: float) -> Solved:
    piece = problem.spec.piece
    children = [
        child(inner, [option_of(inner.piece, *sequences) for sequences in options])
        for (inner, _spec), options in zip(problem.spec.children, problem.options, strict=True)
    ] or [child(part(piece, range(piece.forward), range(piece.forward, piece.operations)), [])]
    options, complete = level_solver(problem.solver)(piece, children, problem.budgets, seconds)
    return [[(option.first.runs, option.backward.runs) for option in options], complete], complete


def child(inner: Part, options: Sequence[Option]) -> Child:
    return Child(inner, tuple(options), advance_of(inner.piece) if options else None)


def options_of_all(
    hierarchy: Hierarchy, leaf: str, level: str, budgets: Budgets, seconds: float, solve_all: SolveAll
) -> tuple[list[list[Option]], bool]:
    """Per spec, its options; whether no search was cut short.

    leaf, level: the solvers of clusters without and with children.
    """
    squares = [spec.nodes**2 for spec in hierarchy.specs]
    shares = [0.5 / len(squares) + 0.5 * square / sum(squares) for square in squares]
    stored: dict[int, list[Sequences]] = {}
    all_complete = True
    for height, specs in enumerate(hierarchy.levels):
        jobs = [
            Job(
                Subproblem(
                    spec := hierarchy.specs[index], level if height else leaf, _below(spec, stored), budgets
                ),
                seconds * shares[index],
            )
            for index in specs
        ]
        for index, (answer, complete) in zip(specs, solve_all(solve_cluster, jobs), strict=True):
            stored[index] = [(_sequence(forward), _sequence(backward)) for forward, backward in answer]
            all_complete = all_complete and complete
    options = [
        [option_of(spec.piece, *sequences) for sequences in stored[index]]
        for index, spec in enumerate(hierarchy.specs)
    ]
    return options, all_complete


def _below(spec: Spec, stored: dict[int, list[Sequences]]) -> tuple[tuple[Sequences, ...], ...]:
    return tuple(() if number is None else tuple(stored[number]) for _part, number in spec.children)


def _sequence(runs: Sequence[Sequence[int]]) -> tuple[Run, ...]:
    return tuple((operation, mode) for operation, mode in runs)


def level_solver(name: str) -> LevelSolver:
    if name not in LEVEL_SOLVERS:
        raise InputError(f"unknown level solver {name!r}: {', '.join(LEVEL_SOLVERS)}")
    return LEVEL_SOLVERS[name]


def _plain(
    piece: Piece, _children: Sequence[Child], _budgets: Budgets, _seconds: float
) -> tuple[list[Option], bool]:
    return [plain_option(piece)], True


LEVEL_SOLVERS: dict[str, LevelSolver] = {
    "h-ilp": h_ilp_level.options_of,
    "rk-checkmate": hiremate_rk_checkmate.options_of,
    "plain": _plain,
}
