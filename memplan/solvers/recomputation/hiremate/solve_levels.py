"""Options for every cluster of a hierarchy, from the bottom up (thesis, 3.2.2, steps 3 to 5 of figure 3.1).

All clusters of one height are independent of each other. The seconds are shared among all that differ: one
half evenly, the other by the square of their nodes.

A level solver gives a cluster's options for a grid of budgets, as good as its seconds allow, and whether more
seconds would change nothing. Children with options are combined by h-ilp and taken apart by the others.
Several for a level share a cluster's seconds, and their options are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....planner.schedule.sequence import Run
from ...clock import Clock
from ..h_ilp import level as h_ilp_level
from ..h_ilp.graph import Child
from ..hierarchy.grid import Budgets
from ..hierarchy.option import Option, advance_of, default_option, option_of, undominated
from ..hierarchy.piece import Piece, Subgraph, part
from ..hierarchy.tree import Hierarchy, Spec
from . import direct
from . import rk_checkmate as hiremate_rk_checkmate
from .direct import solvers_named
from .subproblems import Job, Solved

Sequences = tuple[tuple[Run, ...], tuple[Run, ...]]
"""A forward and a backward sequence: an option as it is stored."""

SolveAll = Callable[[Callable[[Any, float], Solved], Sequence[Job]], list[Any]]

LevelSolver = Callable[[Piece, Sequence[Child], Budgets, float], tuple[list[Option], bool]]


@dataclass(frozen=True)
class Subproblem:
    """A cluster whose children's options are known. solvers: by name. options: of each child."""

    spec: Spec
    solvers: tuple[str, ...]
    options: tuple[tuple[Sequences, ...], ...]
    budgets: Budgets


def solve_cluster(problem: Subproblem, seconds: float) -> Solved:
    piece = problem.spec.piece
    children = [
        child(inner, [option_of(inner.piece, *sequences) for sequences in options])
        for (inner, _spec), options in zip(problem.spec.children, problem.options, strict=True)
        # Without children: one that has no options is taken apart into its operations.
    ] or [child(part(piece, range(piece.forward), range(piece.forward, piece.operations)), [])]
    options, complete = pooled(problem.solvers, piece, children, problem.budgets, seconds)
    return [[(option.first.runs, option.backward.runs) for option in options], complete], complete


def pooled(
    solvers: Sequence[str], piece: Piece, children: Sequence[Child], budgets: Budgets, seconds: float
) -> tuple[list[Option], bool]:
    """Collect the options of several level solvers, without those that another makes needless.

    Each solver takes an even share of the seconds that those before it have left: programs, which leave none,
    come last.
    """
    clock, options, all_complete = Clock(seconds), list[Option](), True
    # False sorts first: the catalogue's solvers, then the programs.
    in_turn = sorted(solvers, key=LEVEL_SOLVERS.__contains__)
    for left, name in zip(range(len(solvers), 0, -1), in_turn, strict=True):
        share = max(0.0, clock.left) / left
        more, complete = level_solver(name)(piece, children, budgets, share)
        options += more
        all_complete = all_complete and complete
    # One solver's options were compared already.
    return undominated(options) if len(solvers) > 1 else options, all_complete


def child(inner: Subgraph, options: Sequence[Option]) -> Child:
    return Child(inner, tuple(options), advance_of(inner.piece) if options else None)


def options_of_all(
    hierarchy: Hierarchy,
    leaf: tuple[str, ...],
    level: tuple[str, ...],
    budgets: Budgets,
    seconds: float,
    solve_all: SolveAll,
) -> tuple[list[list[Option]], bool]:
    """Return per spec its options, and whether no search was cut short.

    leaf, level: the solvers of clusters without and with children.
    """
    squares = [spec.nodes**2 for spec in hierarchy.specs]
    # Of the seconds; they sum to 1.
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
            # Runs alone are stored: as answers from workers they are lists, and costs follow from them.
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


def level_solvers(text: str) -> tuple[str, ...]:
    """Parse names with commas between them. Raises InputError if one can't solve clusters."""
    names = solvers_named(text)
    for name in names:
        if name not in LEVEL_SOLVERS:
            direct.check(name)
    return names


def level_solver(name: str) -> LevelSolver:
    """Return the level solver of this name, or the catalogue's solver as one."""
    if name in LEVEL_SOLVERS:
        return LEVEL_SOLVERS[name]
    return lambda piece, _children, budgets, seconds: direct.options_of(name, piece, budgets, seconds)


def _plain(
    piece: Piece, _children: Sequence[Child], _budgets: Budgets, _seconds: float
) -> tuple[list[Option], bool]:
    return [default_option(piece)], True


LEVEL_SOLVERS: dict[str, LevelSolver] = {
    "h-ilp": h_ilp_level.options_of,
    "rk-checkmate": hiremate_rk_checkmate.options_of,
    "plain": _plain,
}
"""Level solvers that are made for clusters."""
