"""Pieces of a graph: contributions from outside, and the bytes within which a piece runs."""

from __future__ import annotations

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Phase
from memplan.solvers.recomputation.h_ilp import level
from memplan.solvers.recomputation.hierarchy.grid import Budgets
from memplan.solvers.recomputation.hierarchy.passes import pass_of
from memplan.solvers.recomputation.hierarchy.piece import part, whole
from memplan.solvers.recomputation.hiremate import rk_checkmate
from memplan.solvers.recomputation.hiremate.solve_levels import child


def sum_of(contributions: int) -> Graph:
    draft = Draft("sum")
    total, output, gradient = (draft.tensor(name, 1) for name in ("sum", "output", "gradient"))
    for k in range(contributions):
        draft.operation(f"add{k}", time=1.0, writes=[total])
    draft.operation("read", time=1.0, reads=[total], writes=[output])
    draft.operation("loss", time=1.0, reads=[output], writes=[gradient], phase=Phase.LOSS)
    return draft.graph([gradient])


@pytest.mark.parametrize("own", [1, 62, 63, 64, 100])
def test_a_sum_is_not_whole_without_its_contribution_from_outside(own: int) -> None:
    """One operation outside the piece adds to the sum; the piece's own adds can't stand in for it."""
    everything = whole(sum_of(own + 1), range(own + 2), [own + 2])
    inner = part(everything.piece, range(1, own + 2), [])
    local = {x: index for index, x in enumerate(inner.tensors)}
    runs = [(operation, 0) for operation in range(own + 1)]
    found = pass_of(inner.piece, runs, {local[everything.tensors.index(1)]})
    assert found.reads == {local[everything.tensors.index(0)]}


def block(workspace: int) -> Graph:
    """Three forward and three backward operations; the middle ones have a large workspace."""
    draft = Draft("block")
    made = [draft.tensor(f"a{k}", 4) for k in range(3)]
    gradients = [draft.tensor(f"g{k}", 4) for k in range(4)]
    for k, x in enumerate(made):
        reads = made[k - 1 : k] if k else []
        draft.operation(f"f{k}", time=1.0, reads=reads, writes=[x], workspace=workspace if k == 1 else 0)
    draft.operation("loss", time=1.0, reads=[made[2]], writes=[gradients[3]], phase=Phase.LOSS)
    for k in (2, 1, 0):
        draft.operation(
            f"b{k}",
            time=1.0,
            reads=[gradients[k + 1], *made[max(0, k - 1) : k + 1]],
            writes=[gradients[k]],
            phase=Phase.BACKWARD,
            workspace=workspace if k == 1 else 0,
        )
    return draft.graph([gradients[0]])


@pytest.mark.parametrize("solver", ["h-ilp", "rk-checkmate"])
def test_the_least_peak_is_found_with_workspaces_larger_than_all_tensors(solver: str) -> None:
    """With a workspace larger than all tensors, as with none, an option keeps less than the baseline."""
    for workspace in (0, 80):
        piece = part(whole(block(workspace), [0, 1, 2], [3, 4, 5, 6]).piece, [0, 1, 2], [4, 5, 6]).piece
        # No grid: what is found besides the baseline is the answer for the least peak.
        budgets = Budgets(peaks=1, saves=1)
        singles = [child(part(piece, [k], [5 - k]), []) for k in range(3)]
        options, complete = (
            level.options_of(piece, singles, budgets, 20.0)
            if solver == "h-ilp"
            else rk_checkmate.options_of(piece, [], budgets, 20.0)
        )
        assert complete
        assert len(options) > 1
