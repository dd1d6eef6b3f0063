"""O-ILP's input for a chain: each operation that is no update counts in one step."""

from __future__ import annotations

import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.structure.chain import chain_of
from memplan.solvers.offloading.o_ilp.iteration import Iteration
from memplan.solvers.offloading.offmate.graph import iteration_of
from memplan.solvers.offloading.offmate.options import Asked


def watched(layers: int) -> Graph:
    """F0 …, loss, B1 … B0, updates of 32 s, and an operation of 64 s that reads all updated weights."""
    draft = Draft("watched")
    x = [draft.tensor("x", 2, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", 4, Kind.PARAMETER) for i in range(layers)]
    for i, w in enumerate(weights):
        x.append(draft.tensor(f"x{i}", 3))
        draft.operation(f"F{i}", time=1, reads=[x[-2], w], writes=[x[-1]])
    g = draft.tensor("g", 3, Kind.GRADIENT)
    draft.operation("loss", time=1, reads=[x[-1]], writes=[g], phase=Phase.LOSS)
    gradients: list[int] = []
    for i in reversed(range(layers)):
        d, below = draft.tensor(f"d{i}", 5, Kind.PARAMETER_GRADIENT), draft.tensor(f"g{i}", 3, Kind.GRADIENT)
        draft.operation(f"B{i}", time=2, reads=[g, x[i], weights[i]], writes=[below, d], phase=Phase.BACKWARD)
        g, gradients = below, [d, *gradients]
    for i, (w, d) in enumerate(zip(weights, gradients, strict=True)):
        draft.operation(f"U{i}", time=32, reads=[d], mutates=[w], phase=Phase.UPDATE)
    total = draft.tensor("total", 1)
    draft.operation("total", time=64, reads=weights, writes=[total])
    return draft.graph([total])


@pytest.fixture
def iteration() -> Iteration:
    graph = watched(3)
    return iteration_of(graph, chain_of(graph), 0.0, Asked(), lambda: True)


def test_what_runs_after_all_blocks_has_its_own_seconds(iteration: Iteration) -> None:
    assert iteration.after_seconds == (64.0,)
    blocks = sum(options[0].forward_seconds + options[0].backward_seconds for options in iteration.blocks)
    assert blocks == 3 * 1 + 1 + 3 * 2
    assert [group.device_seconds for group in iteration.groups] == [32.0] * 3


def test_a_gradient_is_there_until_its_update(iteration: Iteration) -> None:
    """The batch of 2 bytes always; the gradient of w2, of 5, from its step to that of all updates."""
    assert iteration.base_bytes == (2, 2, 2, 2, 2, 2 + 5, 2, 2, 2)
