"""A part of a training graph as a training graph of its own: of a block, of a cluster, by hand."""

from __future__ import annotations

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.files.validate import validate
from memplan.graphs.generators import chain
from memplan.graphs.graph import Graph, Kind, Operation, Phase
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import in_default_mode
from memplan.solvers.chains.problem import chain_problem
from memplan.solvers.problem import Problem
from memplan.solvers.recomputation.blocks.kinds import block_graph
from memplan.solvers.recomputation.blocks.option import option_of
from memplan.solvers.recomputation.blocks.placed import placed_blocks
from memplan.solvers.recomputation.checkmate.part import Loss, PartGraph, part_graph
from memplan.solvers.recomputation.hierarchy.option import default_option
from memplan.solvers.recomputation.hierarchy.option import option_of as option_of_cluster
from memplan.solvers.recomputation.hierarchy.tree import hierarchy_of
from memplan.solvers.recomputation.hiremate.hiremate import tree_of
from memplan.solvers.recomputation.hiremate.rk_checkmate import cluster_graph
from training_graphs import training


def row(name: str, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operation:
    return Operation(name, phase, 1.0, 0, reads, writes, (), True, False, None, ())


def part(*, loss: bool) -> PartGraph:
    """Operations 3 (forward) and 7 (backward) of something larger."""
    draft = Draft("part")
    x, y, g, d = (
        draft.tensor("x", 100, Kind.INPUT),
        draft.tensor("y", 8),
        draft.tensor("g", 4, Kind.ACTIVATION if loss else Kind.INPUT),
        draft.tensor("d", 2),
    )
    forward, backward = row("f", Phase.FORWARD, (x,), (y,)), row("b", Phase.BACKWARD, (y, g), (d,))
    return part_graph(draft, [(3, forward)], Loss([y], [g]) if loss else None, [(7, backward)], [d])


def test_the_loss_stands_between_the_halves() -> None:
    own = part(loss=True)
    assert list(own.graph.operations.phase) == [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD]
    assert baseline(own.graph).peak == 100 + 8 + 4 + 2
    assert own.halves([(0, 0), (1, 0), (0, 1), (2, 0)]) == ([(3, 0)], [(3, 1), (7, 0)])
    assert own.sequence([(3, 1), (7, 0)]) == [(0, 0), (1, 0), (0, 1), (2, 0)]


def test_a_part_with_a_loss_of_its_own_gets_none() -> None:
    own = part(loss=False)
    assert own.operations == (3, 7)
    assert own.halves([(0, 0), (1, 0), (0, 0)]) == ([(3, 0)], [(7, 0), (3, 0)])
    assert own.sequence([(7, 0)]) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    "graph", [chain(5, seed=2), training(2, 5, update="early")], ids=["chain", "training"]
)
def test_the_plain_sequence_of_a_block_is_its_plain_option(graph: Graph) -> None:
    chained = chain_problem("", Problem(graph, 10**12), 100)
    for block in placed_blocks(graph, chained.chain, chained.runs):
        own = block_graph(block, block.seconds.tolist())
        validate(own.graph)
        runs = in_default_mode(range(len(own.graph.operations)))
        halves = (
            in_default_mode(range(block.forwards)),
            in_default_mode(range(block.forwards, len(block.members))),
        )
        assert option_of(block, *own.halves(runs)) == option_of(block, *halves)
        assert own.sequence(own.halves(runs)[1]) == runs
        assert (None in own.operations) != block.is_last


def test_the_plain_sequence_of_a_cluster_is_its_plain_option() -> None:
    graph = chain(6, seed=2)
    specs = hierarchy_of(graph, tree_of("sequential", graph, 3, 2)).specs
    assert specs
    for spec in specs:
        own = cluster_graph(spec.piece)
        validate(own.graph)
        runs = in_default_mode(range(len(own.graph.operations)))
        assert option_of_cluster(spec.piece, *own.halves(runs)) == default_option(spec.piece)
