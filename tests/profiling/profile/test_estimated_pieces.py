"""Estimated times and bytes of regions in pieces, against those of the whole operations."""

from __future__ import annotations

import torch
from memplan.graphs.machine import Updates
from memplan.graphs.machines.presets import find_preset
from memplan.model.iteration import Iteration
from memplan.planner.bounds import minimum_memory
from memplan.profiling.profile.estimate import costs_of, demands_of
from memplan.profiling.profile.estimated_pieces import EstimatedPieces
from memplan.program.graph import graph_of
from memplan.tracing.output_layouts import trace_real_layouts
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8000, 64), nn.Linear(64, 8000, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(torch.tanh(self.embedding(words))), words)


def test_pieces_take_less_memory_and_no_less_time() -> None:
    program = trace_real_layouts(Iteration(Model(), (torch.zeros(1024, dtype=torch.long),)))
    gpu = find_preset("rtx3090").gpu
    costs = costs_of(program, demands_of(program), gpu, Updates())
    graphs = [graph_of(program, costs)]
    for found in EstimatedPieces(program, costs, gpu).within([10_000_000, 5_000_000, 0]):
        graphs.append(graph_of(found.split.program, found.costs))
        (name,) = found.split.cuts
        place = [one.name for one in found.split.program.operations].index(name)
        region, pieces = found.split.cuts[name]
        whole = sum(costs[i].seconds for i in region.members)
        assert whole <= found.costs[place].seconds <= pieces * whole
        assert found.costs[place].launch_seconds > sum(costs[i].launch_seconds for i in region.members)
    assert len(graphs) >= 3
    needs = [minimum_memory(graph) for graph in graphs]
    assert needs == sorted(needs, reverse=True)
    assert needs[-1] < 0.3 * needs[0]
