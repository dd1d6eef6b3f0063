"""`layer-checkpoint` beside its definition, and beside `torch.utils.checkpoint` as it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.draft import Draft
from memplan.graphs.generators import layered as layered_dag
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline
from memplan.planner.schedule.schedule import Verb
from memplan.profiling.compare.eager import run_eager
from memplan.profiling.compare.peaks import resident_bytes
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from memplan.solvers.recomputation.checkpointing.layer_checkpoint import numbered
from memplan.solvers.registry.run import solve
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("transformer.h.3.mlp.act", "transformer.h.3"),
        ("layer1.0.conv.2", "layer1.0"),
        ("7", "7"),
        ("head", ""),
        ("h3.mlp", ""),
        (None, ""),
    ],
)
def test_a_layer_is_the_outermost_module_with_a_number(path: str | None, layer: str) -> None:
    assert numbered(path) == layer


def layered(layers: int) -> Graph:
    """Each layer F, G forward and B backward, which reads what F and G make; a head without a number."""
    draft = Draft("layered")
    made = [draft.tensor("x", 1, kind=Kind.INPUT)]
    inner: list[int] = []
    for k in range(layers):
        inner.append(draft.tensor(f"f{k}", 10))
        made.append(draft.tensor(f"g{k}", 2))
        draft.operation(f"F{k}", time=3, reads=[made[k]], writes=[inner[k]], layer=f"h.{k}.f")
        draft.operation(f"G{k}", time=2, reads=[inner[k]], writes=[made[k + 1]], layer=f"h.{k}.g")
    gradient = draft.tensor("dg", 2)
    draft.operation("H", time=1, reads=[made[-1]], writes=[gradient], phase=Phase.LOSS, layer="head")
    for k in reversed(range(layers)):
        following = draft.tensor(f"d{k}", 2)
        reads = [gradient, inner[k], made[k]]
        draft.operation(
            f"B{k}", time=4, reads=reads, writes=[following], phase=Phase.BACKWARD, layer=f"h.{k}"
        )
        gradient = following
    return draft.graph(results=[gradient])


def without_layers(graph: Graph) -> Graph:
    return replace(graph, operations=replace(graph.operations, layer=(None,) * len(graph.operations)))


def test_each_layer_keeps_what_comes_in_and_runs_again() -> None:
    graph = layered(5)
    found = solve("layer-checkpoint", Problem(graph, baseline(graph).peak))
    names = [graph.operations.name[x] for verb, x, _where in found.schedule.rows() if verb == Verb.COMPUTE]
    runs = Counter(names)
    assert all(runs[f"F{k}"] == 2 and runs[f"B{k}"] == 1 for k in range(5))
    assert all(runs[f"G{k}"] == 1 for k in range(5)), "its result is not needed again"
    assert all(names.index(f"B{k}") == len(names) - 1 - names[::-1].index(f"F{k}") + 1 for k in range(5))
    assert found.figures.time == baseline(graph).time + 5 * 3
    # At the top: the input, the results of all layers but the last, of which F and B's tensors are there.
    assert found.figures.peak < baseline(graph).peak - 3 * 10


def test_what_it_does_not_take() -> None:
    tiny = without_layers(layered(3))
    with pytest.raises(NotAcceptedError, match="numbered layers"):
        solve("layer-checkpoint", Problem(tiny, baseline(tiny).peak))
    forward = layered_dag(20)
    with pytest.raises(NotAcceptedError, match="backward"):
        solve("layer-checkpoint", Problem(forward, baseline(forward).peak))
    graph = layered(3)
    least = solve("layer-checkpoint", Problem(graph, baseline(graph).peak)).figures.peak
    with pytest.raises(InfeasibleError) as refusal:
        solve("layer-checkpoint", Problem(graph, least - 1))
    assert refusal.value.least == least
    assert solve("layer-checkpoint", Problem(graph, least)).figures.peak == least


class Blocks(nn.Module):
    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh()) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x))  # pyright: ignore
        return x.square().mean()


@pytest.mark.scripts
def test_it_takes_what_pytorch_takes() -> None:
    """Peak of live storage, measured; autograd lets go of some tensors a little later than the schedule."""

    def iteration(checkpoints: bool) -> Iteration:
        torch.manual_seed(0)
        return Iteration(Blocks(checkpoints), (torch.randn(2048, 64),))

    plain: Any = iteration(False)
    program = trace_real_layouts(plain)
    graph = graph_from(program, measure_program(program, residents(program, plain)))
    found = solve("layer-checkpoint", Problem(graph, baseline(graph).peak))
    theirs = iteration(True)
    run_eager(theirs)
    measured = resident_bytes(program) + live_peak(lambda: run_eager(theirs)).peak_bytes
    assert found.figures.peak <= measured <= 1.1 * found.figures.peak
    assert measured < 0.6 * baseline(graph).peak
