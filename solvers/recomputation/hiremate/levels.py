"""The solvers that Hiremate can use on a cluster, by name, all with one interface.

A level solver gives a cluster's options for a grid of budgets, as good as its seconds allow, and whether more
seconds would change nothing. Children with options are to be combined, the others taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....graphs.errors import InputError
from ..h_ilp import level as h_ilp_level
from ..h_ilp.graph import Child
from ..hierarchy.grid import Budgets
from ..hierarchy.option import Option, plain_option
from ..hierarchy.piece import Piece
from . import rk_checkmate as hiremate_rk_checkmate

LevelSolver = Callable[[Piece, Sequence[Child], Budgets, float], tuple[list[Option], bool]]


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
