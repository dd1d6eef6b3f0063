"""Closed forms of bytes and seconds: the simulator's, at every batch, on every GPU."""

from __future__ import annotations

import pytest
import torch
from memplan.graphs.machines.presets import find_preset
from memplan.model.file import model_file_of
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import figures_of
from memplan.sizing.accumulation import earlier_seconds
from memplan.sizing.at_once import AS_IT_IS, CHECKPOINTING, EIGHT_BIT, AtOnceSearch, checkpointed
from memplan.sizing.loops import NO_LINKS, Loops
from memplan.sizing.subject import LoopOptions, Subject, open_subject
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(64, 192)
        self.body = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1))
        self.out = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(x).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4).bfloat16()
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + attended.transpose(1, 2).flatten(2).float()
        return x + self.out(self.body(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, 64), nn.Linear(64, 500)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def build(batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Network(), (torch.zeros(batch, 24, dtype=torch.int64),)


@pytest.fixture(scope="module")
def subject() -> Subject:
    words = model_file_of(build), None, None, "adamw", "in-backward"
    return open_subject(*words, LoopOptions(), lambda _line: None)


@pytest.mark.scripts
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", [AS_IT_IS, CHECKPOINTING, EIGHT_BIT])
def test_bytes_and_seconds_are_the_simulators(subject: Subject, name: str, steps: int) -> None:
    search = AtOnceSearch("adamw")
    for gpu in ("rtx3060", "t4", "h100", "rtx4090"):
        loops = Loops(subject.estimates, find_preset(gpu), lambda _batch: steps)
        for batch in (1, 2, 4, 5, 33, 130, 1000):
            outline = search._outline(name, batch, loops)
            assert outline is not None
            graph = (loops.eight_bit if name == EIGHT_BIT else loops.ordinary)(batch).graph
            schedule = checkpointed(graph) if name == CHECKPOINTING else baseline_schedule(graph)
            assert schedule is not None
            figures = figures_of(graph, schedule, machine=NO_LINKS)
            assert outline.peak(batch) == figures.least_budget, (gpu, batch)
            seconds = figures.time + earlier_seconds(graph, schedule, None, NO_LINKS)
            assert outline.seconds(batch, loops.preset, steps) == pytest.approx(seconds, rel=1e-9)
