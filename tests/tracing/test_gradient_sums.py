"""Sums of a weight's gradients are made in place: eager's bits, in less memory, as planned."""

import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from iterations import seeded
from memplan.devices.measuring.live_bytes import live_peak
from memplan.graphs.files.validate import validate
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline, baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.program.graph import graph_of
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from program_replay import ProgramReplay
from recomputing import recomputing
from torch import nn

SIZE = 32


class Uses(nn.Module):
    """Weights that forward uses as often as a list says, each in one of several ways.

    uses: per use the weight's number and the way.
    """

    def __init__(self, uses):
        super().__init__()
        self.uses = uses
        self.weights = nn.ParameterList(
            torch.randn(SIZE, SIZE) / 4 for _ in range(1 + max(weight for weight, _way in uses))
        )

    def forward(self, x):
        for number, way in self.uses:
            weight = self.weights[number]
            if way == "linear":
                x = x + nn.functional.linear(x, weight).tanh()
            elif way == "matmul":
                x = (x @ weight).tanh()
            elif way == "embedding":
                x = x + nn.functional.embedding(torch.arange(len(x)) % SIZE, weight)
            elif way == "elementwise":
                x = x * weight[: len(x)].sigmoid()
            elif way == "transposed":
                x = x + weight.t()[: len(x)]
            elif way == "viewed":  # the weight's gradient is a view of the sum of both
                view = weight.t()
                x = ((x @ view).tanh() @ view).tanh()
            else:  # its gradient is the same tensor as that of the other summand
                x = x + weight
        return x.square().mean()


WAYS = ("linear", "matmul", "embedding", "elementwise", "transposed", "viewed", "sum")


def measured(program, iteration):
    graph = graph_of(program, ProgramReplay(program, iteration).run().costs())
    validate(graph)
    return graph


@pytest.mark.scripts
@settings(max_examples=25, deadline=None)
@given(
    some.lists(some.tuples(some.integers(0, 2), some.sampled_from(WAYS)), min_size=1, max_size=7),
    some.randoms(use_true_random=False),
)
def test_a_weight_used_several_times_has_eagers_gradient_within_the_planned_memory(uses, rng):
    torch.manual_seed(0)
    iteration = Iteration(Uses(uses), (torch.randn(SIZE, SIZE),))
    program = trace(iteration)
    graph = measured(program, iteration)
    resident = int(graph.tensors.bytes[graph.resident].sum())
    for schedule in (baseline_schedule(graph), recomputing(graph, rng, share=0.2)):
        step = PlannedStep(iteration, program, schedule)
        planned = simulate(graph, schedule).figures.peak - resident
        assert live_peak(partial(step.run, iteration.inputs)).peak_bytes == planned
        comparison = compare(iteration, step)
        assert comparison.equal, comparison


def test_the_sum_is_made_in_the_memory_of_the_first_gradient():
    """Two matrices are live at the end instead of three: the weight's own gradient and what is added."""
    torch.manual_seed(0)
    uses = [(0, "matmul"), (0, "matmul"), (0, "matmul")]
    iteration = Iteration(Uses(uses), (torch.randn(2, SIZE),))
    program = trace(iteration)
    assert [program.storages[x].name for one in program.operations for x in one.mutates] == [
        "weights.0.grad",
        "weights.0.grad",
    ]
    matrix = SIZE * SIZE * 4
    graph = measured(program, iteration)
    assert 3 * matrix < baseline(graph).peak < 4 * matrix  # the weight is one of the three


def test_a_gradient_that_is_used_elsewhere_is_not_changed():
    """`x + weight` gives the weight and x one gradient, which x's other readers still need."""
    torch.manual_seed(0)
    iteration = Iteration(Uses([(0, "linear"), (0, "sum"), (1, "sum")]), (torch.randn(SIZE, SIZE),))
    program = trace(iteration)
    assert not any(one.mutates for one in program.operations)
    assert compare(
        iteration, PlannedStep(iteration, program, baseline_schedule(measured(program, iteration)))
    ).equal


def test_a_sum_of_gradients_is_nothing_to_undo():
    """It is gone with its iteration: the journal keeps no copy, and does not take it for lost."""
    iteration = seeded("tied")
    program = trace(iteration)
    graph = measured(program, iteration)
    step = PlannedStep(iteration, program, recomputing(graph, random.Random(0)), undo=True)
    step.run(iteration.inputs)
    assert not step.journal.kept
    assert not step.journal.overwritten
