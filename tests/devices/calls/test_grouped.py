"""Mixtures of experts: what their products take depends on where the tokens go, and the budget is kept."""

import pytest
import torch
from memplan.model.iteration import Iteration
from memplan.planner.baseline import baseline_schedule
from memplan.planner.simulator.simulate import simulate
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.peaks import peaks
from memplan.profiling.profile.profile import graph_from, measure_program
from memplan.steps.execute import PlannedStep
from memplan.tracing.output_layouts import residents, trace_real_layouts
from torch import nn

TOKENS, WIDTH, EXPERTS = 60, 32, 4


class Experts(nn.Module):
    """Each token goes to its best expert, as in transformers. shift: of the scores, to move tokens."""

    def __init__(self, dtype):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.weight = nn.Parameter(0.1 * torch.randn(EXPERTS, WIDTH, 2 * WIDTH))
        self.back = nn.Parameter(0.1 * torch.randn(EXPERTS, 2 * WIDTH, WIDTH))
        self.to(dtype)

    def forward(self, x, shift):
        scores = self.router(x).softmax(-1) + shift
        expert, order = torch.sort(scores.argmax(-1))
        counts = torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        chosen = scores.gather(1, scores.argmax(-1, keepdim=True))[order]
        hidden = torch.nn.functional.grouped_mm(x[order] * chosen, self.weight, offs=ends).relu()
        return torch.nn.functional.grouped_mm(hidden, self.back, offs=ends).float().square().mean()


def experts(dtype):
    torch.manual_seed(0)
    x, shift = torch.randn(TOKENS, WIDTH, dtype=dtype), torch.zeros(EXPERTS, dtype=dtype)
    return Iteration(Experts(dtype), (x, shift))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_budget_holds_wherever_the_tokens_go(dtype):
    """PyTorch's fake kernel refuses float32, the real one does not."""
    iteration = experts(dtype)
    program = trace_real_layouts(iteration)
    graph = graph_from(program, measure_program(program, residents(program, iteration)))
    step = PlannedStep(iteration, program, baseline_schedule(graph))
    assert compare(iteration, step).equal
    x, shift = iteration.inputs
    taken = [peaks(step, (x, shift)).device]
    for favourite in range(EXPERTS):
        shift = torch.zeros(EXPERTS, dtype=dtype)
        shift[favourite] = 9
        taken.append(peaks(step, (x, shift)).device)
    assert max(taken) == simulate(graph, baseline_schedule(graph)).figures.peak
    if dtype == torch.float32:  # of bfloat16 it depends on the processor whether the kernel's memory varies
        assert len(set(taken)) == 1
