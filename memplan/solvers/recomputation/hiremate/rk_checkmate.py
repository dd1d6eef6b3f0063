"""Rk-Checkmate on a cluster of single operations: the cluster as a separate training graph (thesis, 2.4).

What comes from outside is resident all the time; the loss reads the cluster's forward outputs. M_save counts
these outputs too (checkmate/rk_model.py). Backward operations may be recomputed, unlike in H-ILP.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.draft import Draft
from ....graphs.graph import Kind, Mode, Operation, Phase
from ....planner.schedule.sequence import Run
from ...milp import solve as milp
from ...milp.result import Settings
from ..checkmate.part import Loss, PartGraph, part_graph
from ..checkmate.rk_model import rk_checkmate_program
from ..h_ilp.graph import Child
from ..hierarchy.grid import Budget, Budgets, Found, options_on_grid
from ..hierarchy.option import Option, forward_outputs, lasting
from ..hierarchy.piece import Piece


def options_of(
    piece: Piece, _children: Sequence[Child], budgets: Budgets, seconds: float
) -> tuple[list[Option], bool]:
    """Find a cluster's options, as a level solver (solve_levels.py); children are taken apart."""
    cluster = cluster_graph(piece)

    def search(budget: Budget | None, seconds: float) -> Found:
        if budget:
            staged = rk_checkmate_program(cluster.graph, budget.peak, budget.save)
        else:
            staged = rk_checkmate_program(cluster.graph, piece.enough_bytes, least=True)
        result = milp.solve(staged.program, Settings(gap=budgets.gap, threads=1), time_limit=seconds)
        if result.x is None:
            return result.status, None
        return result.status, halves(piece, cluster, staged.runs.sequence(result.x))

    return options_on_grid(piece, budgets, seconds, search)


def cluster_graph(piece: Piece) -> PartGraph:
    """Return the cluster as a training graph, with the tensors of the piece."""
    draft = Draft("cluster")
    for x, size in enumerate(piece.sizes):
        # What nothing in the piece makes is an input: resident, and counted by the level above.
        draft.tensor(f"t{x}", size, Kind.ACTIVATION if piece.producers[x] else Kind.INPUT)
    rows = [(o, _row(piece, o)) for o in range(piece.operations)]
    loss = Loss(sorted(forward_outputs(piece)))
    return part_graph(draft, rows[: piece.forward], loss, rows[piece.forward :], sorted(lasting(piece)))


def halves(piece: Piece, cluster: PartGraph, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Split a sequence of the cluster's graph into the runs up to the loss and those after it.

    Operations and execution variants are numbered as in the piece.
    """
    # The part's k-th mode is the piece's k-th variant, whose number in the graph may be another.
    forward, backward = (
        [(o, piece.variants[o][mode].mode) for o, mode in half] for half in cluster.halves(runs)
    )
    return forward, backward


def _row(piece: Piece, operation: int) -> Operation:
    default, *others = piece.variants[operation]
    return Operation(
        name=f"o{operation}",
        phase=Phase.FORWARD if operation < piece.forward else Phase.BACKWARD,
        time=default.time,
        workspace=default.workspace,
        reads=piece.reads[operation],
        writes=default.writes,
        mutates=(),
        # A part graph can't say "until": what may be recomputed for a while may not at all.
        recompute=not piece.once[operation] and piece.until[operation] == piece.operations,
        random=False,
        layer=None,
        modes=tuple(
            Mode(f"m{variant.mode}", variant.time, variant.workspace, variant.writes) for variant in others
        ),
    )
