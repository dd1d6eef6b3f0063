"""Traced models are cut where their authors would cut them, and run in any persistent order."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

import pytest
from memplan.graphs.graph import Graph
from memplan.graphs.structure.chain import Chain, chain_of
from memplan.planner.baseline import baseline
from memplan.planner.schedule.sequence import schedule_of
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.chains.runs import block_runs, save_all, sequence
from memplan.solvers.problem import Problem
from memplan.solvers.registry import run as registry
from random_chains import random_moves

pytest.importorskip("torch")
pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[3] / "examples"
LAYERS = {
    "gpt2": r"h\.\d+",
    "vit": r"(layer|layers|blocks)\.\d+",
    "bert": r"layer\.\d+",
    "t5": r"(encoder|decoder)\.block\.\d+",
    "resnet50": r"^\d+(?=\.(body|shortcut))",
}
"""Model -> what names a layer (a residual block in ResNet) in the operations' module paths."""


@cache
def graph_of(model: str) -> Graph:
    from memplan.profiling.profile.estimate import estimate

    return estimate(str(EXAMPLES / f"{model}.py"), "A100")


def layers_in(graph: Graph, model: str, operations: tuple[int, ...]) -> set[str]:
    paths = (graph.operations.layer[operation] or "" for operation in operations)
    return {match[0] for path in paths if (match := re.search(LAYERS[model], path))}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", LAYERS)
def test_no_block_reaches_over_a_layer(model: str) -> None:
    graph = graph_of(model)
    chained = chain_of(graph)
    found = [layers_in(graph, model, block.forward) for block in chained.blocks]
    layers = set[str]().union(*found)
    assert len(layers) >= 4
    assert max(map(len, found)) == 1
    in_layers = sum(map(bool, found))
    assert in_layers >= len(layers)
    if model in ("gpt2", "bert", "vit"):  # attention and MLP
        assert in_layers >= 2 * len(layers)


@pytest.mark.scripts
def test_a_unet_keeps_its_skips_and_is_cut_between_them() -> None:
    chained = chain_of(graph_of("unet"))
    assert 3 <= len(chained.shared) <= 6
    assert len(chained.blocks) > 30


def simulated_peak(graph: Graph, chained: Chain, moves: object) -> int:
    runs = sequence(chained, block_runs(graph, chained), moves)  # type: ignore[arg-type]
    return simulate(graph, schedule_of(graph, runs)).figures.peak


@pytest.mark.scripts
@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", [*LAYERS, "unet", "llama", "transformer", "mlp"])
def test_any_persistent_sequence_is_valid(model: str) -> None:
    """And saving everything, block by block, takes no more memory than the file's own order."""
    graph = graph_of(model)
    chained = chain_of(graph)
    for seed in range(3):
        simulated_peak(graph, chained, random_moves(len(chained.blocks), Random(seed)))
    assert simulated_peak(graph, chained, save_all(len(chained.blocks))) <= baseline(graph).peak


@pytest.mark.scripts
@pytest.mark.parametrize("model", ["gpt2", "vit", "unet"])
def test_rotor_pays_little_for_the_first_tenth(model: str) -> None:
    graph = graph_of(model)
    plain = baseline(graph)
    found = registry.solve("rotor", Problem(graph, plain.peak * 9 // 10), bound_seconds=0)
    assert plain.time < found.figures.time < 1.1 * plain.time
    assert found.figures.peak <= plain.peak * 9 // 10
