"""Rk-Checkmate on a cluster of single operations: the cluster as a training graph of its own (thesis, 2.4).

What comes from outside is there all the time; the loss reads the cluster's forward outputs. M_save counts
these outputs too (checkmate/rk_model.py). Backward operations may run again, unlike in H-ILP.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.draft import Draft
from ....graphs.graph import Graph, Kind, Mode, Phase
from ...milp import solve as milp
from ...milp.result import Settings
from ..checkmate.rk_model import rk_checkmate_program
from ..h_ilp.graph import Child
from ..hierarchy.budgets import Budgets
from ..hierarchy.grid import Budget, Found, options_on_grid
from ..hierarchy.option import Option, forward_outputs, lasting
from ..hierarchy.piece import Piece


def options_of(
    piece: Piece, _children: Sequence[Child], budgets: Budgets, seconds: float
) -> tuple[list[Option], bool]:
    """A level solver (levels.py); children are taken apart."""
    graph, loss = graph_of(piece), piece.forward

    def search(budget: Budget | None, seconds: float) -> Found:
        if budget:
            staged = rk_checkmate_program(graph, budget.peak, budget.save)
        else:
            staged = rk_checkmate_program(graph, sum(piece.sizes), least=True)
        result = milp.solve(staged.program, Settings(gap=budgets.gap, threads=1), time_limit=seconds)
        if result.x is None:
            return result.outcome, None
        runs = staged.runs.sequence(result.x)
        turn = next(place for place, (operation, _mode) in enumerate(runs) if operation == loss)
        behind = [(o - 1 if o > loss else o, mode) for o, mode in runs[turn + 1 :]]
        return result.outcome, (runs[:turn], behind)

    return options_on_grid(piece, budgets, seconds, search)


def graph_of(piece: Piece) -> Graph:
    """Forward operations, the loss, backward operations; tensors as in the piece."""
    draft = Draft("cluster")
    for x, size in enumerate(piece.sizes):
        draft.tensor(f"t{x}", size, Kind.ACTIVATION if piece.makers[x] else Kind.INPUT)
    for operation in range(piece.operations):
        if operation == piece.forward:
            _add_loss(draft, piece)
        plain, *others = piece.ways[operation]
        modes = [Mode(f"m{w.mode}", w.time, w.workspace, w.writes) for w in others]
        draft.operation(
            f"o{operation}",
            time=plain.time,
            reads=piece.reads[operation],
            writes=plain.writes,
            phase=Phase.FORWARD if operation < piece.forward else Phase.BACKWARD,
            workspace=plain.workspace,
            recompute=not piece.once[operation],
            modes=modes,
        )
    return draft.graph(sorted(lasting(piece)))


def _add_loss(draft: Draft, piece: Piece) -> None:
    draft.operation("loss", time=0.0, reads=sorted(forward_outputs(piece)), phase=Phase.LOSS, recompute=False)
