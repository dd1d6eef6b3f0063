"""Buffers written piece by piece: eager's bits, in the memory of the buffer and a piece, as planned."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.files.validate import validate
from memplan.graphs.graph import Graph, Phase
from memplan.graphs.structure.chain import chain_of
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.program.graph import graph_of
from memplan.program.program import Program
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from program_replay import ProgramReplay
from recomputing import recomputing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROWS, COLUMNS, WIDTH = 24, 32, 16


def measured(program: Program, iteration: Iteration) -> Graph:
    graph = graph_of(program, ProgramReplay(program, iteration).run().costs())
    validate(graph)
    return graph


def assert_as_eager(module: nn.Module, *inputs: Tensor, seed: int = 0) -> tuple[Program, Graph]:
    """Compare the baseline and a schedule that recomputes with eager PyTorch, and peaks with the plan."""
    iteration = Iteration(module, inputs)
    program = trace(iteration)
    graph = measured(program, iteration)
    resident = int(graph.tensors.bytes[graph.resident].sum())
    for schedule in (baseline_schedule(graph), recomputing(graph, random.Random(seed), share=0.3)):
        step = PlannedStep(iteration, program, schedule)
        planned = simulate(graph, schedule).figures.peak - resident
        assert live_peak(partial(step.run, iteration.inputs)).peak_bytes == planned
        comparison = compare(iteration, step)
        assert comparison.equal, comparison
    return program, graph


def targets(program: Program) -> list[str]:
    return [getattr(one.call.target, "__name__", "") for one in program.operations]


class InTiles(torch.autograd.Function):
    """The log of the sum of exponentials of `hidden @ weight.T`, in tiles of one buffer."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, rows: int, chunk: int) -> Tensor:
        top, total = torch.full((len(hidden),), -torch.inf), torch.zeros(len(hidden))
        buffer = torch.empty(rows, chunk)
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            for start in range(0, len(weight), chunk):
                piece = weight[start : start + chunk]
                tile = buffer[: len(hidden[part]), : len(piece)]
                torch.mm(hidden[part], piece.t(), out=tile)
                scores = tile * 1.0
                new = torch.maximum(top[part], scores.amax(-1))
                total[part] *= torch.exp(top[part] - new)
                total[part] += torch.exp(scores - new[:, None]).sum(-1)
                top[part] = new
        found = top + total.log()
        ctx.save_for_backward(hidden, weight, found)
        ctx.sizes = rows, chunk
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        hidden, weight, found = ctx.saved_tensors
        rows, chunk = ctx.sizes
        of_hidden, of_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        buffer = torch.empty(rows, chunk)
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            for start in range(0, len(weight), chunk):
                piece = weight[start : start + chunk]
                tile = buffer[: len(hidden[part]), : len(piece)]
                torch.mm(hidden[part], piece.t(), out=tile)
                tile.copy_(torch.exp(tile * 1.0 - found[part, None]) * gradients[0][part, None])
                of_hidden[part].addmm_(tile, piece)
                of_weight[start : start + chunk].addmm_(tile.t(), hidden[part])
        return of_hidden, of_weight, None, None


class Tiled(nn.Module):
    """The loss of a head in tiles, after a layer, which is checkpointed with it if `again`."""

    def __init__(self, rows: int, chunk: int, *, again: bool = False) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, COLUMNS, bias=False)
        self.sizes, self.again = (rows, chunk), again

    def found(self, x: Tensor) -> Tensor:
        return InTiles.apply(self.layer(x).tanh(), self.head.weight, *self.sizes)  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        found = checkpoint(self.found, x, use_reentrant=False) if self.again else self.found(x)
        assert isinstance(found, Tensor)
        return found.square().mean()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("rows", "chunk"), [(ROWS, COLUMNS), (8, 8), (10, 12), (ROWS, 4096)])
def test_a_loss_in_tiles_takes_the_memory_of_a_tile(rows: int, chunk: int, *, again: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH)
    program, graph = assert_as_eager(Tiled(rows, chunk, again=again), x)
    assert "slice_scatter" not in [
        name
        for name, one in zip(targets(program), program.operations, strict=True)
        if one.phase == Phase.BACKWARD
    ]
    weights = (WIDTH * WIDTH + WIDTH + COLUMNS * WIDTH) * 4
    tile = min(rows, ROWS) * min(chunk, COLUMNS) * 4
    # Weights with gradients, the input, what is saved of a layer or its gradient: as wide as the input.
    assert baseline(graph).peak <= 2 * weights + 5 * ROWS * WIDTH * 4 + 5 * tile + 16 * ROWS * 4


class Assigned(nn.Module):
    """A tensor that is made of its rows or columns.

    way: how they are written.
    """

    def __init__(self, way: str, *, again: bool = False) -> None:
        super().__init__()
        self.layer, self.way, self.again = nn.Linear(WIDTH, WIDTH), way, again

    def made(self, x: Tensor) -> Tensor:
        h = self.layer(x).tanh()
        out = torch.zeros(ROWS, WIDTH) if "gaps" in self.way else torch.empty(ROWS, WIDTH)
        if self.way == "rows":
            for i in range(ROWS):
                out[i] = h[i] * (i + 1)
        elif self.way == "recurrence":
            out[0] = h[0]
            for i in range(1, ROWS):
                out[i] = (out[i - 1] + h[i]).tanh()
        elif self.way == "columns":
            for j in range(WIDTH):
                out[:, j] = h[:, j] * 2
        elif self.way == "gaps and overlaps":
            out[2:8, 4:] = h[2:8, 4:]
            out[5:20] = h[5:20].exp()
            out[3] = 1.0
            out[2:8, 4:] = h[:6, 4:].sin()
        elif self.way == "gaps, numbers of two kinds":
            out[:4] = h[0].double()
            out[7, 2:9] = 3
            out[9:11] += h[9:11]
        return out

    def forward(self, x: Tensor) -> Tensor:
        out = checkpoint(self.made, x, use_reentrant=False) if self.again else self.made(x)
        assert isinstance(out, Tensor)
        return self.layer(out).square().mean()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "way", ["rows", "recurrence", "columns", "gaps and overlaps", "gaps, numbers of two kinds"]
)
def test_a_tensor_made_of_pieces_is_made_once(way: str, *, again: bool) -> None:
    torch.manual_seed(0)
    program, graph = assert_as_eager(Assigned(way, again=again), torch.randn(ROWS, WIDTH))
    forward = [
        name
        for name, one in zip(targets(program), program.operations, strict=True)
        if one.phase == Phase.FORWARD
    ]
    assert forward.count("filled") == 1
    assert not {"slice_scatter", "select_scatter"}.intersection(forward)
    weights, whole = (WIDTH * WIDTH + WIDTH) * 4, ROWS * WIDTH * 4
    # The input, what is saved, and at the join the pieces beside the whole; the weights' gradients twice.
    assert baseline(graph).peak <= 3 * weights + 6 * whole + 8 * ROWS * 4


COMMANDS = some.tuples(
    some.sampled_from(("write", "columns", "row", "add", "read", "read all", "number")),
    some.integers(0, 7),
    some.integers(1, 8),
)


def changed(commands: list[tuple[str, int, int]], x: Tensor, start: Tensor) -> Tensor:
    """Return what is read of a buffer, and the buffer, while commands change it."""
    read = torch.zeros(())
    for kind, first, count in commands:
        part = slice(first, first + count)
        if kind == "write":
            start[part] = x[part].sin()
        elif kind == "columns":
            start[1:6, part] = x[1:6, part] * 3
        elif kind == "row":
            start[first] = x[count - 1]
        elif kind == "add":
            start[part].add_(x[part])
        elif kind == "read":
            read = read + start[part].clone().square().sum()
        elif kind == "read all":
            read = read + start.clone().cos().sum()
        elif kind == "number":
            start[part, first] = 0.5
    return read + start.exp().sum()


class ByCommands(torch.autograd.Function):
    """A sum whose gradient is made by commands in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, commands: list[tuple[str, int, int]]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.commands = commands
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        start = torch.zeros(8, 8)
        return gradients[0] * changed(ctx.commands, x, start) + start, None


class Random(nn.Module):
    def __init__(self, commands: list[tuple[str, int, int]], *, backward: bool) -> None:
        super().__init__()
        self.layer, self.commands, self.backward = nn.Linear(8, 8), commands, backward

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.backward:
            return ByCommands.apply(h, self.commands)  # pyright: ignore
        return changed(self.commands, h, torch.zeros(8, 8)) + h.mean()


@pytest.mark.scripts
@settings(max_examples=60, deadline=None)
@given(some.lists(COMMANDS, min_size=1, max_size=9), some.booleans(), some.integers(0, 99))
def test_any_writes_and_reads_of_pieces_are_eagers(
    commands: list[tuple[str, int, int]], backward: bool, seed: int
) -> None:
    torch.manual_seed(0)
    assert_as_eager(Random(commands, backward=backward), torch.randn(8, 8), seed=seed)


def test_a_buffer_of_backward_leaves_the_layers_apart() -> None:
    """A chain of blocks is what most solvers plan."""
    torch.manual_seed(0)
    iteration = Iteration(Deep(), (torch.randn(ROWS, WIDTH),))
    program = trace(iteration)
    assert len(chain_of(measured(program, iteration)).blocks) > 3


class Deep(Tiled):
    """A few layers before the loss in tiles."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.below = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.below(x))
