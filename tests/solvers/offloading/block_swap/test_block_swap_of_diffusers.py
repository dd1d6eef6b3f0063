"""block-swap on the examples of diffusion transformers: their lists of blocks, the memory that it saves."""

from __future__ import annotations

from pathlib import Path

import pytest
from memplan.graphs.graph import Kind
from memplan.planner.baseline import baseline
from memplan.profiling.profile.estimate import estimate
from memplan.solvers.offloading.block_swap.swap import block_lists
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.updates.choice import OptimizerChoice

EXAMPLES = Path(__file__).parents[4] / "examples"
LISTS = {
    "flux_lora": {"transformer_blocks": 2, "single_transformer_blocks": 4},
    "wan_lora": {"blocks": 3},
}


@pytest.mark.scripts
@pytest.mark.parametrize("example", LISTS)
def test_frozen_blocks_are_swapped(example: str) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("peft")
    graph = estimate(str(EXAMPLES / f"{example}.py"), "rtx4090", optimizer=OptimizerChoice("adamw"))
    lists = block_lists("a solver", graph, "keep", 1)
    assert {stem.rpartition(".")[2]: len(rows) for stem, rows in lists.lists.items()} == LISTS[example]
    swapped = {x for rows in lists.lists.values() for row in rows for x in row}
    assert not swapped & {x for row in graph.mutate_lists for x in row}, "adapters stay"
    weights = graph.tensors.bytes[graph.tensors.kind == Kind.PARAMETER].sum()
    assert sum(graph.tensors.bytes[list(swapped)]) > weights / 2
    peak = baseline(graph).peak
    found = [
        solve("block-swap", Problem(graph, peak), None, {"blocks": str(count), "activations": "keep"})
        for count in (0, lists.most)
    ]
    assert found[0].figures.time == pytest.approx(baseline(graph).time)
    assert found[1].figures.least_budget < found[0].figures.least_budget
