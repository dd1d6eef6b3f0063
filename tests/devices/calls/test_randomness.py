"""Operators that draw random numbers without PyTorch's tag for it: recomputed, they draw the same numbers."""

from dataclasses import replace

import pytest
import torch
from memplan.model.iteration import Iteration
from memplan.planner.schedule.sequence import in_default_mode, schedule_of
from memplan.program.graph import Cost, graph_of
from memplan.runtime.run.cycle import Terms
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import trace_real_layouts
from memplan.tracing.trace import trace
from torch import nn


@torch.library.custom_op("memplan_tests::untagged_dropout", mutates_args=())
def untagged_dropout(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.rand_like(x) > 0.5).to(x.dtype)
    return x * mask, mask


@untagged_dropout.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


untagged_dropout.register_autograd(
    lambda ctx, gradient, _mask: gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.last(untagged_dropout(self.first(x))[0]).square().mean()


@pytest.fixture
def iteration():
    torch.manual_seed(0)
    return Iteration(Model(), (torch.randn(32, 64),))


def test_a_recomputed_draw_is_the_same(iteration):
    program = trace_real_layouts(iteration)
    (dropout,) = [i for i, each in enumerate(program.operations) if each.random]
    graph = graph_of(program, [Cost(1e-6)] * len(program.operations))
    loss = next(i for i, each in enumerate(program.operations) if each.phase.name == "LOSS")
    order = [*range(loss + 1), dropout, *range(loss + 1, len(program.operations))]
    step = PlannedStep(iteration, program, schedule_of(graph, in_default_mode(order)), Terms(graph))
    torch.manual_seed(1)
    iteration.module(*iteration.inputs).backward()
    expected = [parameter.grad for parameter in iteration.module.parameters()]
    iteration.module.zero_grad()
    torch.manual_seed(1)
    step(*iteration.inputs)
    for parameter, gradient in zip(iteration.module.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
    after = torch.rand(1)
    torch.manual_seed(1)
    iteration.module(*iteration.inputs)
    assert torch.equal(after, torch.rand(1))  # the next draws are eager's too


def test_an_operator_that_draws_is_known_from_then_on(iteration):
    trace_real_layouts(iteration)
    assert any(operation.random for operation in trace(iteration).operations)


def test_a_draw_on_the_cpu_in_a_program_of_another_device(iteration):
    """A diffusion loop draws its noise on the CPU and moves it: the CPU's generator has to be put back."""
    program = trace_real_layouts(iteration)
    elsewhere = replace(program, device=torch.device("cuda", 0))
    (dropout,) = [each for each in elsewhere.operations if each.random]
    assert elsewhere.source_of(dropout) == torch.device("cpu")
    assert elsewhere.random_sources == (torch.device("cuda", 0), torch.device("cpu"))
