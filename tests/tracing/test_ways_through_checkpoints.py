"""A model's own checkpoints run without recomputing: the plan decides what is made again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memplan.model.iteration import Iteration
from memplan.planner.schedule.schedule import Schedule, compute
from memplan.profiling.compare.comparison import compare
from memplan.profiling.compare.eager import run_eager
from memplan.steps.execute import PlannedStep
from memplan.tracing.trace import trace
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def planned(iteration):
    program = trace(iteration)
    return PlannedStep(iteration, program, Schedule.of(compute(i) for i in range(len(program.operations))))


def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 4))


class Blocks(nn.Module):
    """use_reentrant None: no checkpoints at all."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList(layers() for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            if self.use_reentrant is None:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x.square().mean()


def seeded(use_reentrant):
    torch.manual_seed(0)
    return Iteration(Blocks(use_reentrant), (torch.randn(3, 4),))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_blocks_make_the_program_of_plain_ones(use_reentrant):
    iteration = seeded(use_reentrant)
    step = planned(iteration)
    assert step.program.fingerprint == trace(seeded(None)).fingerprint
    assert compare(iteration, step).equal


def test_outside_of_the_trace_they_recompute():
    iteration = seeded(True)
    trace(iteration)
    runs = []
    iteration.module.get_submodule("blocks.0").register_forward_hook(lambda *_, **_named: runs.append(1))
    run_eager(iteration)
    assert len(runs) == 2


class Sequential(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(layers() for _ in range(4)))

    def forward(self, x):
        return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False).sum()


class WithoutGradient(nn.Module):
    """No input of the reentrant checkpoint needs a gradient: plain PyTorch gives its weights none."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.outer(checkpoint(self.inner, x, use_reentrant=True)).sum()


class Selective(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = layers()

    def forward(self, x):
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        def context():
            return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

        return checkpoint(self.block, x, use_reentrant=False, context_fn=context).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [Sequential, WithoutGradient, Selective])
def test_every_kind_of_checkpoint_is_bitwise_equal(module):
    torch.manual_seed(0)
    iteration = Iteration(module(), (torch.randn(3, 4),))
    step = planned(iteration)
    assert compare(iteration, step).equal
    assert ("inner.weight" in step.program.gradients) is False


@pytest.mark.scripts
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_language_model_with_checkpoints(use_reentrant):
    from iterations import llama

    torch.manual_seed(0)
    iteration = llama()
    module: Any = iteration.module
    module.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    module.enable_input_require_grads()
    assert compare(iteration, planned(iteration)).equal
